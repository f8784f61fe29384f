"""What a publisher believes when a member of a work group says what it had.

A member says so itself, and may say anything: so it is believed of such events only that it may
have had.  Everything here is ranges: what somebody says costs as much as the ranges that it takes
to say it, and never as much as the events that are in them.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
AckRange = tuple[int, int, int]
#: Attempts that one member can tell apart; it is not believed of others.
ATTEMPTS_MAX = 100
#: Ranges that are remembered of members that are gone; the oldest member is forgotten first.
RANGES_MAX = 100_000
NONE = RangeSet()


def by_attempt(ranges: Iterable[AckRange]) -> list[tuple[int, RangeSet]]:
    """Ranges by their attempt, the latest attempt first."""
    found: dict[int, RangeSet] = {}
    for first, stop, attempt in sorted(ranges):  # so that each goes to the end
        if first < stop and (attempt in found or len(found) < ATTEMPTS_MAX):
            found.setdefault(attempt, RangeSet()).add(first, stop)
    return sorted(found.items(), reverse=True)


def common(one: RangeSet, other: RangeSet) -> list[Range]:
    """Return what is in both, in as many steps as the shorter one has ranges."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    return [piece for a, b in few for piece in many.overlap(a, b)]


class Trust:
    """Events that a member may speak of, each of them once."""

    def __init__(self, events: Iterable[Range] = (), held: Iterable[AckRange] = ()) -> None:
        self._events = RangeSet(events)  # under whatever attempt
        self._held = dict(by_attempt(held))  # under the attempt that it had them

    def take(self, ranges: RangeSet, attempt: int) -> list[Range]:
        """Return those of some events that it may speak of, under that attempt."""
        events = self._held.get(attempt, self._events)
        pieces = common(ranges, events)
        taken = RangeSet(pieces)
        rest = RangeSet(piece for a, b in events for piece in taken.missing(a, b))
        if attempt in self._held:
            self._held[attempt] = rest
        else:
            self._events = rest
        return pieces


class Departed:
    """What members had when they were lost, until they come back."""

    def __init__(self) -> None:
        self._held: dict[int, list[AckRange]] = {}  # the oldest first
        self._events: dict[int, RangeSet] = {}
        self._ranges = 0

    def add(self, number: int, held: list[AckRange]) -> None:
        """A member is gone that had these."""
        self.take(number)
        if not held:
            return
        self._held[number] = held
        self._events[number] = RangeSet((first, stop) for first, stop, _ in sorted(held))
        self._ranges += len(held)
        while self._ranges > RANGES_MAX:
            self.take(next(iter(self._held)))

    def events(self, number: int) -> RangeSet:
        """Return the events that a member had, under whatever attempt."""
        return self._events.get(number, NONE)

    def take(self, number: int) -> Trust:
        """It is back: what it may speak of."""
        held = self._held.pop(number, [])
        self._events.pop(number, None)
        self._ranges -= len(held)
        return Trust(held=held)
