"""Questions between peers: figures, ledger and clock, asked by either side of a connection.

Figures take a while to put together, and who asks does not pay for it.  So those who ask wait until
they are put together the next time, for all of them at once, which takes no more than a part of the
I/O thread's time (`SHARE`).  Each gets what was there when it asked, or newer.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from meshmsg import _platform
from meshmsg._links.outbound_peer import Link
from meshmsg._model.errors import ProtocolError, WaitTimeout
from meshmsg._model.event import Position
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire import control as c
from meshmsg.recovery.stream.ledger import Ledger

#: Questions that wait for figures or a ledger, of all and of one peer.
WAITING_MAX = 1000
WAITING_EACH_MAX = 64
#: Of the time of the I/O thread, to put figures together.
SHARE = 0.1
#: A ledger is asked of all subscribers first: for so long, and so often at most.
LEDGER_S = 1.0
REFRESH_S = 0.02
NEVER = float("inf")


class _Waiting(NamedTuple):
    """A question that is yet to be answered."""

    asker: Link | bytes
    number: int
    deadline: float
    event: Position | None = None


class Questions:
    """Those that others asked of a peer, and those that it asked."""

    def __init__(
        self,
        name: str,
        control: ControlSender,
        stats: Callable[[], dict[str, Any]],
        ledger: Callable[[], Ledger],
        trace: Callable[[Position], dict[str, Any]],
        start_refresh: Callable[[], int],
        is_fresh: Callable[[int], bool],
        check_running: Callable[[], None],
    ) -> None:
        self._name = name
        self._control = control
        self._stats = stats
        self._ledger = ledger
        self._trace = trace
        self._start_refresh = start_refresh  # asks our subscribers for their figures
        self._is_fresh = is_fresh  # they have answered that
        self._check_running = check_running
        self._asked: dict[int, tuple[threading.Event, list[c.Answer], Link | bytes]] = {}
        self._numbers = itertools.count(1)
        self._for_stats: list[_Waiting] = []
        self._for_ledger: list[_Waiting] = []  # until subscribers are asked the next time
        self._for_status: list[tuple[_Waiting, int]] = []  # until these have answered
        self._for_trace: deque[_Waiting] = deque()
        self._stats_due = self._ledger_due = self._refresh_due = self._trace_due = 0.0

    def on_ask(self, asker: Link | bytes, ask: c.Ask, now: float) -> None:
        """A peer asks."""
        question = _Waiting(asker, ask.number, now + LEDGER_S)
        if ask.what == "clock":
            self._control.post(asker, c.encode_answer(ask.number, {"time_ns": _platform.time_ns()}))
        elif ask.what not in ("stats", "ledger", "trace"):
            raise ProtocolError(f"asked for {ask.what!r}")
        elif (ask.what == "trace") != (ask.event is not None):
            raise ProtocolError(f"asked for {ask.what!r} of {ask.event!r}")
        elif self._is_asking_much(asker):
            self._control.counters["questions_dropped"] += 1
        elif ask.event is not None:
            at = Position(ask.event.stream, ask.event.epoch, ask.event.seq)
            self._for_trace.append(question._replace(event=at))
        else:
            (self._for_stats if ask.what == "stats" else self._for_ledger).append(question)

    def _is_asking_much(self, asker: Link | bytes) -> bool:
        waiting = [*self._for_stats, *self._for_ledger, *(one for one, _ in self._for_status)]
        waiting += self._for_trace
        mine = sum(question.asker == asker for question in waiting)
        return len(waiting) >= WAITING_MAX or mine >= WAITING_EACH_MAX

    def on_tick(self, now: float) -> float:
        """Answer those whose time has come; returns when to come again."""
        return min(self._tell_stats(now), self._tell_ledger(now), self._tell_trace(now))

    def _tell_trace(self, now: float) -> float:
        """One at a time: each looks at another event."""
        if self._for_trace and now >= self._trace_due:
            question = self._for_trace.popleft()
            assert question.event is not None
            self._answer([question], {"peer": self._name, **self._trace(question.event)})
            self._trace_due = now + (_platform.monotonic() - now) / SHARE
        return self._trace_due if self._for_trace else NEVER

    def _tell_stats(self, now: float) -> float:
        if self._for_stats and now >= self._stats_due:
            waiting, self._for_stats = self._for_stats, []
            self._answer(waiting, self._stats())
            self._stats_due = now + (_platform.monotonic() - now) / SHARE
        return self._stats_due if self._for_stats else NEVER

    def _tell_ledger(self, now: float) -> float:
        if self._for_ledger and now >= self._refresh_due:
            fresh = self._start_refresh()
            self._for_status += [(question, fresh) for question in self._for_ledger]
            self._for_ledger.clear()
            self._refresh_due = now + REFRESH_S
        if self._for_status and now >= self._ledger_due:
            is_fresh = {n: self._is_fresh(n) for n in {n for _, n in self._for_status}}
            done = [q for q, n in self._for_status if is_fresh[n] or now >= q.deadline]
            if done:
                self._for_status = [one for one in self._for_status if one[0] not in done]
                rows = [row.as_dict() for row in self._ledger().rows]
                self._answer(done, {"peer": self._name, "rows": rows})
                self._ledger_due = now + (_platform.monotonic() - now) / SHARE
        return now + REFRESH_S if self._for_status or self._for_ledger else NEVER

    def _answer(self, waiting: list[_Waiting], body: Any) -> None:
        answer = c.encode_answer(0, body)
        for question in waiting:
            self._control.post(question.asker, c.Answer(question.number, answer.body))

    def ask(self, target: Link | bytes, address: str, what: str, timeout: float) -> Any:
        """Ask another peer, from any thread but the I/O thread; raises `WaitTimeout`."""
        answer = self.ask_all({address: target}, what, timeout)[address]
        if isinstance(answer, WaitTimeout):
            raise answer
        return answer

    def ask_all(
        self,
        targets: Mapping[str, Link | bytes],
        what: str,
        timeout: float,
        about: Position | None = None,
    ) -> dict[str, Any]:
        """Ask several peers at once, from any thread but the I/O thread, for `timeout` altogether.

        For a peer that does not answer, or not so that it can be read, there is a `WaitTimeout`.
        """
        event = None if about is None else c.Place(about.stream, about.epoch, about.seq)
        what_of = f"its {what}"
        return self._gather(targets, lambda number: c.Ask(number, what, event), what_of, timeout)

    def operate(
        self, targets: Mapping[str, Link], order: c.Operate, timeout: float
    ) -> dict[str, Any]:
        """Have several peers do something, likewise."""
        text = f"{order.action!r}, which earlier releases do not know"
        return self._gather(targets, lambda number: replace(order, number=number), text, timeout)

    def _gather(
        self,
        targets: Mapping[str, Link | bytes] | Mapping[str, Link],
        make: Callable[[int], c.Message],
        what: str,
        timeout: float,
    ) -> dict[str, Any]:
        deadline = _platform.monotonic() + timeout
        asked = {address: self._start(target, make) for address, target in targets.items()}
        found = {}
        try:
            for address, number in asked.items():
                event, answer, _ = self._asked[number]
                in_time = event.wait(max(0.0, deadline - _platform.monotonic()))
                found[address] = self._read(answer) if in_time and answer else None
        finally:
            for number in asked.values():
                del self._asked[number]
        if None in found.values():
            self._check_running()
        return {
            address: WaitTimeout(f"{address}: no answer about {what} in {timeout:g} s")
            if answer is None
            else WaitTimeout(f"{address}: {what} cannot be read: {answer}")
            if isinstance(answer, ProtocolError)
            else answer
            for address, answer in found.items()
        }

    def _start(self, target: Link | bytes, make: Callable[[int], c.Message]) -> int:
        number = next(self._numbers)  # several threads ask
        self._asked[number] = (_platform.new_event(), [], target)
        self._control.post(target, make(number))
        return number

    @staticmethod
    def _read(answer: list[c.Answer]) -> Any:
        """What an answer says: here, as the I/O thread has others to serve."""
        try:
            return c.decode_answer(answer[0])
        except ProtocolError as error:
            return error

    def kinds_awaited(self, source: Link | bytes) -> tuple[str, ...]:
        """Return which kinds of large messages somebody may send: an answer, if it was asked."""
        asked = list(self._asked.values()) if self._asked else ()
        is_awaited = any(of == source and not answer for _, answer, of in asked)
        return ("answer",) if is_awaited else ()

    def on_answer(self, source: Link | bytes, message: c.Answer) -> None:
        """An answer came; it counts only if it is of whom was asked, and the first."""
        waiting = self._asked.get(message.number)
        if waiting is not None and waiting[2] == source and not waiting[1]:
            waiting[1].append(message)
            waiting[0].set()

    def close(self) -> None:
        """Nobody will answer any more."""
        for event, _, _ in list(self._asked.values()):
            event.set()
