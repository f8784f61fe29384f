"""The seats of work groups on streams, their ledger rows, and their figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshmsg._publish.published_stream import Outlet
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.stream.flow_control import Claim
from meshmsg.recovery.stream.ledger import LedgerRow

KEEP_S = 600.0


class Seat:
    """One group on one stream."""

    def __init__(self, outlet: Outlet, group: WorkGroup, claim: Claim, *, declared: bool) -> None:
        self.outlet = outlet
        self.group = group
        self.claim = claim
        self.declared = declared
        self.empty_since: float | None = None
        self.proven = False  #: a member has been connected
        self.kept = outlet.log is not None  #: what it has done is remembered on disk
        self.dropped = False  #: somebody has removed what is remembered of it
        self.fetching = False  #: from disk
        self.dead: Outlet | None = None  #: where what it gives up goes
        self.bury_at = 0.0  #: when to try again what could not be kept there
        self.noted_changes = 0  #: the group's `changes` when it was noted to be saved
        self.save_number = self.saved_number = 0
        #: Members that may have work, as they are to be on disk, and those that are there already.
        self.names: set[int] = set()
        self.saved_names: frozenset[int] = frozenset()
        #: Connected, and get work when they are named there: how much ahead.
        self.entering: dict[int, int] = {}
        self.awaited: set[int] = set()  #: members of an earlier start that have yet to speak
        self.awaited_until: float | None = None
        #: By member: where it is, and the last message of it that is not on disk.
        self.heard: dict[int, tuple[bytes, int]] = {}
        keep = outlet.config.group_keep
        #: How long it stays without members; `None`: for ever.
        self.keep_s = float(keep) if keep is not None else None if self.kept else KEEP_S

    @property
    def is_set_aside(self) -> bool:
        """Return True for a durable group that is paused: its work is in the log, and waits."""
        return self.kept and self.group.paused


class Seats:
    """All groups on all streams of a peer."""

    def __init__(self) -> None:
        self._by_stream: dict[str, list[Seat]] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter([seat for seats in self._by_stream.values() for seat in seats])

    def __len__(self) -> int:
        return sum(map(len, self._by_stream.values()))

    def of(self, stream: str) -> list[Seat]:
        """The groups on a stream."""
        return self._by_stream.get(stream, [])

    def find(self, stream: str, group: str) -> Seat | None:
        """The seat of a group on a stream, if it has one."""
        return next((seat for seat in self.of(stream) if seat.group.name == group), None)

    def add(self, seat: Seat) -> None:
        """A group takes events of its stream from now on."""
        self._by_stream.setdefault(seat.outlet.stream, []).append(seat)
        seat.outlet.has_groups = True

    def remove(self, seat: Seat) -> None:
        """A group was given up."""
        seats = self._by_stream[seat.outlet.stream]
        seats.remove(seat)
        seat.outlet.has_groups = bool(seats)


def row_of(seat: Seat, stop: int, state: str, *, in_flight: int) -> LedgerRow:
    """The group's row; what is in flight is counted apart from the rest, so that it is a check."""
    group = seat.group
    return LedgerRow(
        stream=seat.outlet.stream,
        epoch=seat.outlet.epoch,
        subscription=f"group {group.name}",
        published=stop - group.start,
        delivered=group.acked,
        filtered=group.filtered,
        lost=dict(group.lost),
        in_flight=in_flight,
        state=state,
        dead=group.dead,
    )


def reset_row(seat: Seat, skipped: int) -> LedgerRow:
    """The row of a group that begins anew: what it has settled, and what nobody of it will have."""
    group = seat.group
    lost = {**group.lost, **({"reset": group.lost["reset"] + skipped} if skipped else {})}
    settled = group.acked + group.filtered + group.dead + sum(lost.values())
    return LedgerRow(
        stream=seat.outlet.stream,
        epoch=seat.outlet.epoch,
        subscription=f"group {group.name}",
        published=settled,
        delivered=group.acked,
        filtered=group.filtered,
        lost=lost,
        in_flight=0,
        state="reset",
        dead=group.dead,
    )


def live_row(seat: Seat) -> LedgerRow:
    """The row of a group that is there."""
    group, next_ = seat.group, seat.outlet.sender.next
    state = "live" if group.members else "no members"
    return row_of(seat, next_, state, in_flight=group.pending(next_) + group.in_flight)


def group_stats(seat: Seat) -> dict[str, Any]:
    """Its figures, as plain data."""
    group = seat.group
    next_ = seat.outlet.sender.next
    return {
        "name": group.name,
        "order": group.policy.order,
        "max_attempts": group.policy.max_attempts,
        "paused": group.paused,
        "generation": group.generation,
        "topics": list(group.policy.patterns),
        "lag": group.pending(next_) + group.in_flight,
        "pending": group.pending(next_),
        "in_flight": group.in_flight,
        "acked": group.acked,
        "filtered": group.filtered,
        "redelivered": group.redelivered,
        "nacked": group.nacked,
        "timed_out": group.timed_out,
        "returned": group.returned_count,
        "recalled": group.recalled,
        "awaited": len(seat.awaited),
        "stale_acks": group.stale,
        "dead": group.dead,
        "lost": dict(group.lost),
        "declared": seat.declared,
        "members": [
            {
                "name": member.label,
                "prefetch": member.prefetch,
                "in_flight": member.in_flight,
                "delivered": member.delivered,
                "acked": member.acked,
            }
            for member in group.members.values()
        ],
    }
