"""What became of single events of a work group, for whoever asks after one.

A group counts outcomes and keeps ranges of what is settled; of those, the few that were given up or
lost are remembered here, within a bound.  What was settled before that, or by an earlier start, is
known to be settled and no more.
"""

from __future__ import annotations

from typing import NamedTuple

from meshmsg.recovery.stream.ranges import RangeSet

#: Ranges that are remembered of dead letters, and of losses for each reason.
REMEMBERED_MAX = 10_000


class Fate(NamedTuple):
    """One event: `before` (the group began behind it), `waits`, `held`, `settled` (acknowledged, or
    of a topic that nobody takes), `dead`, `lost`, or `over` (settled, and not known how)."""

    state: str
    member: str = ""  #: that has it
    attempt: int = 0  #: that it is under, or waits for
    reason: str = ""  #: of its loss, or of the last failure


class Outcomes:
    """The settled events of a group that were neither acknowledged nor filtered."""

    def __init__(self) -> None:
        self.known_from = 0  #: of what is settled before, nothing is known
        self._dead = RangeSet()
        self._lost: dict[str, RangeSet] = {}

    def note_dead(self, seq: int) -> None:
        """It was given up."""
        self._add(self._dead, seq, seq + 1)

    def note_lost(self, first: int, stop: int, reason: str) -> None:
        """Nobody can have these."""
        self._add(self._lost.setdefault(reason, RangeSet()), first, stop)

    def forget_before(self, number: int) -> None:
        """Settled by an earlier start."""
        self.known_from = max(self.known_from, number)

    def of(self, seq: int) -> Fate:
        """What became of an event that is settled."""
        if seq in self._dead:
            return Fate("dead")
        for reason, ranges in self._lost.items():
            if seq in ranges:
                return Fate("lost", reason=reason)
        return Fate("settled" if seq >= self.known_from else "over")

    def _add(self, ranges: RangeSet, first: int, stop: int) -> None:
        ranges.add(first, stop)
        if len(ranges) > REMEMBERED_MAX:
            self.forget_before(ranges.pop_first()[1])
