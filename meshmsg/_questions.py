"""Questions between peers: figures, ledger and clock, asked by either side of a connection."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from meshmsg import _control as c
from meshmsg._errors import ProtocolError, WaitTimeout

if TYPE_CHECKING:
    from meshmsg._link import Link
    from meshmsg._node import Node

#: Peers that wait for a ledger, which is asked of all subscribers first.
WAITING_MAX = 1000
LEDGER_S = 1.0
#: How often to see whether it is fresh.
LOOK_S = 0.02
NEVER = float("inf")


class Questions:
    """Those that others asked of a node, and those that it asked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked: dict[int, tuple[threading.Event, list[c.Answer], Link | bytes]] = {}
        self._numbers = 0
        #: Who, the question's number, what the ledger has to be as fresh as, until when.
        self.waiting: list[tuple[Link | bytes, int, int, float]] = []

    def on_ask(self, asker: Link | bytes, ask: c.Ask, now: float) -> None:
        """A peer asks."""
        node = self._node
        if ask.what == "stats":
            node.post(asker, c.encode_answer(ask.number, node.stats()))
        elif ask.what == "clock":
            node.post(asker, c.encode_answer(ask.number, {"time_ns": time.time_ns()}))
        elif ask.what == "ledger" and len(self.waiting) < WAITING_MAX:
            fresh = node.publisher.subscribers.start_refresh()
            self.waiting.append((asker, ask.number, fresh, now + LEDGER_S))
        else:
            raise ProtocolError(f"asked for {ask.what!r}")

    def on_tick(self, now: float) -> float:
        """Answer those whose ledger is fresh, or who have waited long enough; returns when next."""
        node = self._node
        waiting = []
        rows: list[dict[str, Any]] | None = None
        for question in self.waiting:
            asker, number, fresh, deadline = question
            if now < deadline and not node.publisher.subscribers.is_fresh(fresh):
                waiting.append(question)
                continue
            if rows is None:  # once for all who wait, however many they are
                rows = [row.as_dict() for row in node.ledger().rows]
            node.post(asker, c.encode_answer(number, {"peer": node.config.name, "rows": rows}))
        self.waiting = waiting
        return now + LOOK_S if waiting else NEVER

    def ask(self, target: Link | bytes, address: str, what: str, timeout: float) -> Any:
        """Ask another peer, from any thread but the I/O thread; raises `WaitTimeout`."""
        event = threading.Event()
        answer: list[c.Answer] = []
        self._numbers += 1
        number = self._numbers
        self._asked[number] = (event, answer, target)
        try:
            self._node.post(target, c.Ask(number, what))
            if not event.wait(timeout) or not answer:
                self._node.check_running()
                raise WaitTimeout(f"{address}: no answer about its {what} in {timeout:g} s")
        finally:
            del self._asked[number]
        try:
            return c.decode_answer(answer[0])  # here: the I/O thread has others to serve
        except ProtocolError as error:
            raise WaitTimeout(f"{address}: its {what} cannot be read: {error}") from None

    @property
    def is_asking(self) -> bool:
        """Whether an answer is waited for."""
        return bool(self._asked)

    def on_answer(self, source: Link | bytes, message: c.Answer) -> None:
        """An answer came; it counts only if it is of whom was asked."""
        waiting = self._asked.get(message.number)
        if waiting is not None and waiting[2] == source:
            waiting[1].append(message)
            waiting[0].set()

    def close(self) -> None:
        """Nobody will answer any more."""
        for event, _, _ in list(self._asked.values()):
            event.set()
