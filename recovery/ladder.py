"""Whom to ask for what is missing: the rungs of the repair ladder, for one epoch of one stream.

The publisher's retransmit buffer, then its log: these two answer as one.  Then each peer that has
recorded the stream.  What all of them refuse is lost.  A rung is skipped for as long as it cannot
be reached, and asked for nothing that it has refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from meshmsg.recovery.ranges import RangeSet

Range = tuple[int, int]
NOTHING = RangeSet()


class Ladder:
    """Which source has refused what."""

    __slots__ = ("_reasons", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Hashable, RangeSet] = {}
        self._reasons: dict[str, RangeSet] = {}

    def clear(self) -> None:
        """Another epoch begins."""
        self._refused.clear()
        self._reasons.clear()

    def forget(self, source: Hashable) -> None:
        """A source may have more than it had."""
        self._refused.pop(source, None)

    def refuse(self, source: Hashable, ranges: Iterable[Range], reason: str) -> None:
        """A source does not have these, and says why."""
        refused = self._refused.setdefault(source, RangeSet())
        named = self._reasons.setdefault(reason, RangeSet())
        for first, stop in ranges:
            if first < stop:
                refused.add(first, stop)
                # The first to refuse says why: the publisher, where it is asked.
                for low, high in self._unnamed(first, stop):
                    named.add(low, high)

    def _unnamed(self, first: int, stop: int) -> list[Range]:
        rest = [(first, stop)]
        for known in self._reasons.values():
            rest = [part for low, high in rest for part in known.missing(low, high)]
        return rest

    def route(
        self, ranges: Iterable[Range], sources: Sequence[Hashable]
    ) -> tuple[dict[Hashable, list[Range]], list[Range]]:
        """What to ask of each source, in order of preference; and what all of them refused."""
        left = list(RangeSet(ranges))
        asks: dict[Hashable, list[Range]] = {}
        for source in sources:
            refused = self._refused.get(source, NOTHING)
            wanted = [part for first, stop in left for part in refused.missing(first, stop)]
            left = [part for first, stop in left for part in refused.overlap(first, stop)]
            if wanted:
                asks[source] = wanted
        return asks, left

    def by_reason(self, ranges: Iterable[Range]) -> dict[str, list[Range]]:
        """Why these are lost."""
        wanted = list(ranges)
        found = {}
        for reason, known in self._reasons.items():
            parts = [part for first, stop in wanted for part in known.overlap(first, stop)]
            if parts:
                found[reason] = parts
        return found

    def discard_before(self, next_: int) -> None:
        """What lies before is settled."""
        for known in [*self._refused.values(), *self._reasons.values()]:
            known.discard_before(next_)
