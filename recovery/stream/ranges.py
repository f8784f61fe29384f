"""A sorted set of half-open integer ranges, [first, stop).

Belongs here: the arithmetic of "which sequence numbers": received, missing, kept, acknowledged.
Does not belong here: what a number means, when to ask for it again, or how many ranges are too
many. A peer that sends every second number makes one range a number, so whoever feeds a set from
the network bounds it by `len()`.

The set is two parallel sorted lists, the firsts and the stops. Ranges never overlap and never
touch, so both lists are strictly increasing, and a bisection of one of them finds any number in
logarithmic time. A range put in the middle or taken from the front moves the rest of both lists in
memory; at the sizes a receiver allows, that is cheaper than any tree written in Python.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """A set of integers, kept as sorted ranges that neither overlap nor touch.

    Raises ValueError for a range whose first lies after its stop; an empty range changes nothing.

    >>> seen = RangeSet([(0, 4), (6, 9)])
    >>> seen.missing(0, 12)
    [(4, 6), (9, 12)]
    >>> seen.add(4, 6)
    >>> seen
    RangeSet([(0, 9)])
    """

    __slots__ = ("_count", "_firsts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        self._count = 0
        for first, stop in ranges:
            self.add(first, stop)

    def add(self, first: int, stop: int) -> None:
        """Put in every number of [first, stop); ranges that then touch become one."""
        if first >= stop:
            _refuse_backward(first, stop)
            return
        firsts, stops = self._firsts, self._stops
        # Numbers mostly arrive in order, so the end is tried before any search.
        if not stops or first > stops[-1]:
            firsts.append(first)
            stops.append(stop)
            self._count += stop - first
        elif first >= firsts[-1]:
            if stop > stops[-1]:
                self._count += stop - stops[-1]
                stops[-1] = stop
        else:
            self._merge(first, stop)

    def remove(self, first: int, stop: int) -> None:
        """Take out every number of [first, stop); a range cut in the middle becomes two."""
        if first >= stop:
            _refuse_backward(first, stop)
            return
        firsts = self._firsts
        # Repairs and acknowledgements mostly eat from the front.
        if firsts and first <= firsts[0]:
            self.discard_before(stop)
        else:
            self._cut(first, stop)

    def discard_before(self, n: int) -> None:
        """Take out every number below n."""
        firsts, stops = self._firsts, self._stops
        if not firsts or n <= firsts[0]:
            return
        if n >= stops[0]:
            gone = bisect_right(stops, n)
            self._count -= sum(stops[:gone]) - sum(firsts[:gone])
            del firsts[:gone]
            del stops[:gone]
            if not firsts or n <= firsts[0]:
                return
        self._count -= n - firsts[0]
        firsts[0] = n

    def pop_first(self) -> tuple[int, int]:
        """Take out and return the lowest range; raises IndexError when there is none."""
        if not self._firsts:
            raise IndexError("pop_first from an empty RangeSet")
        first, stop = self._firsts.pop(0), self._stops.pop(0)
        self._count -= stop - first
        return first, stop

    def first_from(self, n: int) -> tuple[int, int]:
        """The lowest range, or part of one, from `n` on; raises IndexError when there is none."""
        at = bisect_right(self._stops, n)
        return max(n, self._firsts[at]), self._stops[at]

    def clear(self) -> None:
        """Take out everything."""
        self._firsts.clear()
        self._stops.clear()
        self._count = 0

    def copy(self) -> RangeSet:
        """Return a set of the same ranges that changes independently."""
        twin = RangeSet()
        twin._firsts = self._firsts.copy()
        twin._stops = self._stops.copy()
        twin._count = self._count
        return twin

    def covers(self, first: int, stop: int) -> bool:
        """Tell whether all of [first, stop) is in the set; an empty range always is."""
        if first >= stop:
            _refuse_backward(first, stop)
            return True
        # Ranges never touch, so a window that is wholly inside is inside a single one.
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and stop <= self._stops[at]

    def touches(self, first: int, stop: int) -> bool:
        """Tell whether any of [first, stop) is in the set."""
        at = bisect_right(self._stops, first)
        return first < stop and at < len(self._firsts) and self._firsts[at] < stop

    def overlap(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of [first, stop) that are in the set, in order."""
        low, high = self._span(first, stop)
        if low == high:
            return []
        inside = list(zip(self._firsts[low:high], self._stops[low:high], strict=True))
        inside[0] = (max(first, inside[0][0]), inside[0][1])
        inside[-1] = (inside[-1][0], min(stop, inside[-1][1]))
        return inside

    def missing(self, first: int, stop: int, most: int | None = None) -> list[tuple[int, int]]:
        """Return the parts of [first, stop) that are not in the set, in order; the first `most`."""
        low, high = self._span(first, stop)
        gaps: list[tuple[int, int]] = []
        at = first
        for index in range(low, high):
            if at < self._firsts[index]:
                gaps.append((at, self._firsts[index]))
                if len(gaps) == most:
                    return gaps
            at = self._stops[index]
        if at < stop:
            gaps.append((at, stop))
        return gaps

    def begun_before(self, n: int) -> int:
        """How many ranges begin below n."""
        return bisect_left(self._firsts, n)

    @property
    def count(self) -> int:
        """How many integers are in the set, all ranges together."""
        return self._count

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest first and the highest stop; raises IndexError when the set is empty."""
        if not self._firsts:
            raise IndexError("an empty RangeSet has no bounds")
        return self._firsts[0], self._stops[-1]

    def __contains__(self, n: int) -> bool:
        at = bisect_right(self._firsts, n) - 1
        return at >= 0 and n < self._stops[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Walk the ranges in order, without a copy: the set must not change meanwhile."""
        return zip(self._firsts, self._stops, strict=True)

    def __len__(self) -> int:
        """How many ranges there are, which is what the set costs in memory; see `count`."""
        return len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"RangeSet({list(self)!r})"

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the slice of ranges that share a number with [first, stop)."""
        if first >= stop:
            _refuse_backward(first, stop)
            return 0, 0
        return bisect_right(self._stops, first), bisect_left(self._firsts, stop)

    def _merge(self, first: int, stop: int) -> None:
        firsts, stops = self._firsts, self._stops
        # The bisections lean outward: a range that only touches is merged too.
        low, high = bisect_left(stops, first), bisect_right(firsts, stop)
        if low == high:
            firsts.insert(low, first)
            stops.insert(low, stop)
            self._count += stop - first
            return
        first, stop = min(first, firsts[low]), max(stop, stops[high - 1])
        self._count += (stop - first) - (sum(stops[low:high]) - sum(firsts[low:high]))
        firsts[low:high] = [first]
        stops[low:high] = [stop]

    def _cut(self, first: int, stop: int) -> None:
        firsts, stops = self._firsts, self._stops
        low, high = self._span(first, stop)
        if low == high:
            return
        kept_firsts: list[int] = []
        kept_stops: list[int] = []
        if firsts[low] < first:
            kept_firsts.append(firsts[low])
            kept_stops.append(first)
        if stop < stops[high - 1]:
            kept_firsts.append(stop)
            kept_stops.append(stops[high - 1])
        before = sum(stops[low:high]) - sum(firsts[low:high])
        self._count += sum(kept_stops) - sum(kept_firsts) - before
        firsts[low:high] = kept_firsts
        stops[low:high] = kept_stops


def _refuse_backward(first: int, stop: int) -> None:
    if first > stop:
        raise ValueError(f"range [{first}, {stop}) runs backward: first must not be after stop")
