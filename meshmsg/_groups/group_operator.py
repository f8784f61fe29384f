"""What operators do to work groups: pause, let go on, reset, evict a member.

Belongs here: which groups an order is about, what would happen, and the answer.  Does not belong
here: who may give orders (`_peer.operations`), and dead letters (`redrive`).

A reset is a new generation of the group.  Its members are put out and come back by themselves; they
hear the generation when they are taken again, and forget what they had of another one.  So neither
an acknowledgement that was on its way nor one of an event that is still in hand counts for an event
that is dealt out after the reset (`Joined.generations`, `Claimed.generation`).

Everything is called on the I/O thread, also to go on with what was looked up on disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from meshmsg._groups.backlog_reader import GroupDisk
from meshmsg._groups.progress_store import GroupKeeper
from meshmsg._groups.roster import RemoteMember
from meshmsg._groups.seat import Seat, Seats
from meshmsg._wire.control import Operate, Start
from meshmsg.recovery.groups.numbering import Line

log = logging.getLogger("meshmsg.peer")

#: Answers an order: what was done to each group, or why nothing was.
Answer = Callable[[list[dict[str, Any]], str], None]
#: Orders that wait until a log was read.
WAITING_MAX = 64


class GroupOperator:
    """Does what operators ask of a peer's groups."""

    def __init__(
        self,
        changed: threading.Condition,
        seats: Seats,
        members: Mapping[int, RemoteMember],
        keeper: GroupKeeper,
        disk: GroupDisk,
        dispatch: Callable[[Seat, float], None],
        restart: Callable[[Seat, int, Line | None, float], Seat],
        put_out: Callable[[RemoteMember, str, float], None],
        wake: Callable[[], None],
    ) -> None:
        self._changed = changed  # of the publishing side, with its lock
        self._seats = seats
        self._members = members
        self._keeper = keeper
        self._disk = disk
        self._dispatch = dispatch
        self._restart = restart  # a group begins anew at a place
        self._put_out = put_out  # a member, for good
        self._wake = wake
        self._found: list[Callable[[float], None]] = []  # of what was looked up in a log

    def chosen(self, order: Operate) -> list[Seat]:
        """The groups that an order is about: of that name, on all streams or on one."""
        return [
            seat
            for seat in self._seats
            if seat.group.name == order.name and order.stream in ("", seat.outlet.stream)
        ]

    def missing(self, order: Operate) -> str:
        """Say that there is no such group, and which there are."""
        known = sorted({seat.group.name for seat in self._seats}) or ["none"]
        where = f" on {order.stream!r}" if order.stream else ""
        return f"there is no group {order.name!r}{where}: known are {', '.join(known[:10])}"

    # --- pause and resume ---

    def pause(self, order: Operate, *, paused: bool, now: float) -> list[dict[str, Any]]:
        """Deal out nothing more, or go on.  What members have in hand they finish."""
        with self._changed:
            done = []
            for seat in self.chosen(order):
                changes = seat.group.paused != paused
                if changes and not order.dry_run:
                    self._set_paused(seat, paused, now)
                done.append({**_row(seat), "paused": paused, "changes": changes})
            return done

    def _set_paused(self, seat: Seat, paused: bool, now: float) -> None:
        flow = seat.outlet.sender.flow
        seat.group.paused = paused
        seat.group.changes += 1
        if seat.is_set_aside:
            flow.let_go(seat.claim, now=now)  # what comes meanwhile waits in the log
        elif seat.kept and seat.group.members:
            flow.take_back(seat.claim, now=now)
        self._keeper.save_now(seat)
        log.warning("group %s of %s %s", *_name(seat), "is paused" if paused else "goes on")
        self._dispatch(seat, now)
        self._changed.notify_all()

    # --- reset ---

    def reset(self, order: Operate, answer: Answer, now: float) -> None:
        """Have groups begin anew where the order says; answered when all of them have."""
        seats = self.chosen(order)
        starts = {seat.outlet.stream: _start_in(order.start, seat.outlet.stream) for seat in seats}
        far = [s for seat in seats if seat.outlet.reaches_back(s := starts[seat.outlet.stream])]
        if not far:
            answer(self._reset_all(order, starts, {}, now), "")
            return
        if len(self._found) >= WAITING_MAX:
            answer([], "others wait for the disk already: ask again later")
            return
        with self._changed:
            self._disk.find_places(
                -1 - order.number,
                order.name,
                far,
                partial(self._on_places, order, starts, answer),
                partial(self._on_problem, answer),
            )

    def _on_places(
        self, order: Operate, starts: dict[str, Start], answer: Answer, lines: dict[str, Line]
    ) -> None:
        def go_on(now: float) -> None:
            answer(self._reset_all(order, starts, lines, now), "")

        self._found.append(go_on)  # members come and go on the I/O thread only

    def _on_problem(self, answer: Answer, problem: str) -> bool:
        self._found.append(lambda now: answer([], f"the log cannot be read: {problem}"))
        self._wake()
        return False

    def on_tick(self, now: float) -> None:
        """Go on with what was looked up."""
        found, self._found = self._found, []
        for go_on in found:
            go_on(now)

    def _reset_all(
        self, order: Operate, starts: dict[str, Start], lines: dict[str, Line], now: float
    ) -> list[dict[str, Any]]:
        with self._changed:
            chosen = [seat for seat in self.chosen(order) if seat.outlet.stream in starts]
            return [
                self._reset(seat, starts[seat.outlet.stream], lines, order.dry_run, now)
                for seat in chosen
            ]

    def _reset(
        self, seat: Seat, start: Start, lines: dict[str, Line], dry_run: bool, now: float
    ) -> dict[str, Any]:
        sender, group = seat.outlet.sender, seat.group
        line = lines.get(seat.outlet.stream)
        if line is not None:
            begin = line.start
        else:
            begin = sender.start_of(start.kind, start.value, start.epoch)
            if not seat.kept:
                begin = max(begin, sender.first_available)
        place = (line or Line(seat.outlet.epoch)).place(begin)
        row = {
            **_row(seat),
            "from": _place(group.shelf.line.place(group.floor)),
            "to": _place(place),
            "lag_after": sender.next - begin,
            "skipped": group.unsettled_before(group.shelf.line.locate(*place)),
        }
        if not dry_run:
            self._restart(seat, begin, line, now)
            text = "group %s of %s begins anew at %s"
            log.warning(text, *_name(seat), row["to"])
        return {**row, "generation": group.generation + 1}

    # --- members ---

    def evict(self, order: Operate, now: float) -> list[dict[str, Any]]:
        """Put members out by their name, or all of a peer: their work goes to others."""
        with self._changed:
            found = [m for m in self._members.values() if is_named(order.name, m.label)]
            rows = [
                {
                    "member": member.label,
                    "group": member.group,
                    "in_flight": sum(
                        seat.group.members[member.sub].in_flight
                        for seat in member.seats.values()
                        if member.sub in seat.group.members
                    ),
                }
                for member in found
            ]
            for member in [] if order.dry_run else found:
                self._put_out(member, "an operator has evicted it", now)
            return rows


def is_named(name: str, label: str) -> bool:
    """Return True when a name stands for `peer/name#number`: all of it, or a beginning part.

    >>> is_named("anna", "anna/one#0a0b0c"), is_named("anna/one", "anna/one#0a0b0c")
    (True, True)
    """
    return name in (label, label.partition("#")[0], label.partition("/")[0])


def _start_in(start: Start | None, stream: str) -> Start:
    if start is None:
        return Start(stream, "live")
    return Start(stream, start.kind, start.value, start.epoch)


def _row(seat: Seat) -> dict[str, Any]:
    group, next_ = seat.group, seat.outlet.sender.next
    return {
        "group": group.name,
        "stream": seat.outlet.stream,
        "members": len(group.members),
        "in_flight": group.in_flight,
        "lag": group.pending(next_) + group.in_flight,
    }


def _name(seat: Seat) -> tuple[str, str]:
    return seat.group.name, seat.outlet.stream


def _place(place: tuple[int, int]) -> str:
    return f"{place[0]}:{place[1]}"
