"""What operators have a peer do: groups, cursors, members and peers put out, and a drain.

Belongs here: who may, which part does it, the answer, and the line in the audit log.  The parts
that do it are below: `_groups.group_operator`, `_groups.redrive`, `recovery.log.cursor_moves`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from meshmsg._access.access_control import Gate
from meshmsg._groups.dispatcher import GroupSide
from meshmsg._groups.group_operator import is_named
from meshmsg._links.inbound_peer import Client
from meshmsg._model.errors import LogError
from meshmsg._peer.audit import Audit
from meshmsg._publish.subscribers import Subscribers
from meshmsg._replay.log_reads import Replay
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire import control as c
from meshmsg.recovery.log.cursor_moves import CursorMoves
from meshmsg.transports.zmq.control import Request

log = logging.getLogger("meshmsg.audit")

Rows = list[dict[str, Any]]
EVICTED = "an operator has evicted it"
#: What one answer lists.
ROWS_MAX = 10_000


class Operations:
    """Serves the orders of operators; on the I/O thread."""

    def __init__(
        self,
        name: str,
        data_dir: str | None,
        control: ControlSender,
        gate: Gate,
        groups: GroupSide,
        subscribers: Subscribers,
        replay: Replay,
        audit: Audit,
        put_out_peer: Callable[[str, str, float, bool], Rows],
        drain: Callable[[float, bool], Rows],
        counters: Counter[str],
    ) -> None:
        self._name = name
        self._moves = None if data_dir is None else CursorMoves(data_dir)
        self._control = control
        self._gate = gate
        self._groups = groups
        self._subscribers = subscribers
        self._replay = replay
        self._audit = audit
        self._put_out_peer = put_out_peer
        self._drain = drain
        self._counters = counters
        self._notes = LogLimit(log, counters)  # of what was refused: anybody can ask for that

    def on_order(self, request: Request, client: Client, order: c.Operate, now: float) -> None:
        """Somebody who has said who it is gives an order."""
        answer = partial(self._answer, request.identity, client, order)
        problem = self._gate.why_not_operate(request.user, request.host)
        if problem:
            self._counters["not_permitted"] += 1
            answer([], problem)
            return
        kind, _, verb = order.action.partition(" ")
        if kind == "group":
            self._on_group(verb, order, answer, now)
        elif kind == "cursor":
            self._replay.submit(
                ("cursor", request.identity, order.number), partial(self._on_cursor, order, answer)
            )
        elif kind == "evict":
            rows = self._evict(order, now)
            answer(rows, "" if rows else f"nobody here is called {order.name!r}")
        else:
            answer(self._drain(order.within_s, order.dry_run), "")

    def _on_group(
        self, verb: str, order: c.Operate, answer: Callable[[Rows, str], None], now: float
    ) -> None:
        operator = self._groups.operator
        seats = operator.chosen(order)
        if not seats:
            answer([], operator.missing(order))
        elif verb == "reset":
            operator.reset(order, answer, now)
        elif verb == "redrive":
            self._groups.redriver.redrive(order, seats, answer)
        else:
            answer(operator.pause(order, paused=verb == "pause", now=now), "")

    def _on_cursor(self, order: c.Operate, answer: Callable[[Rows, str], None]) -> None:
        """On the replay's thread: it reads and writes files."""
        if self._moves is None:
            answer([], "it has no data_dir, where cursors are kept")
            return
        try:
            answer(*self._moves.do(order))
        except LogError as error:
            answer([], str(error))

    def _evict(self, order: c.Operate, now: float) -> Rows:
        rows = self._groups.operator.evict(order, now)
        for remote in self._subscribers.named(lambda label: is_named(order.name, label)):
            rows.append({"subscription": remote.label})
            if not order.dry_run:
                self._subscribers.put_out(remote, EVICTED, now)
        return rows + self._put_out_peer(order.name, EVICTED, now, order.dry_run)

    def _answer(
        self, link: bytes, client: Client, order: c.Operate, rows: Rows, problem: str
    ) -> None:
        """Any thread: say what was done, and write it down."""
        body = {
            "peer": self._name,
            "dry_run": order.dry_run,
            "done": rows[:ROWS_MAX],
            "problem": problem,
        }
        self._control.post(link, c.encode_answer(order.number, body))
        if order.action == "cursor ls" or (order.dry_run and not problem):
            return
        write = partial(self._notes.warning, by=client.host) if problem else log.warning
        outcome = f"refused: {problem}" if problem else f"{len(rows)} changed"
        text = "%s at %s: %s %s %s: %s"
        write(
            text, client.peer, client.host or "ipc", order.action, order.name, order.stream, outcome
        )
        note = self._audit.note if problem else self._audit.note_done
        note(
            "operated",
            peer=client.peer,
            host=client.host,
            action=order.action,
            name=order.name,
            stream=order.stream,
            changed=len(rows),
            problem=problem,
        )
