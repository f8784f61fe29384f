"""Whom to ask for what is missing: the rungs of the repair ladder, for one epoch of one stream.

The publisher's retransmit buffer, then its log: these two answer as one.  Then each peer that has
recorded the stream.  What all of them refuse is lost.  A rung is skipped for as long as it cannot
be reached, and asked for nothing that it has refused.

A recorder says how far it has a stream: its claim.  Numbers that nobody else has proved are asked
of those who claim them, and of nobody else.  A recorder that serves nothing must not keep others
from being asked, nor a gap open for ever: after `SLOW_S` without an answer the others are asked
first, and after `MUTE_S` it is passed over for a while.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
NOTHING = RangeSet()
#: A recorder that serves nothing for this long is asked after the others, until it serves.
SLOW_S = 0.5
#: One that serves nothing for this long is passed over, for as long again.
MUTE_S = 5.0
#: Time between two requests counts up to this: whoever asks may have slept itself.
WAIT_MAX_S = 2.5
#: Epochs of which claims are kept: as many as a log has.
CLAIMED_EPOCHS_MAX = 10_001


class Ladder:
    """Which source has refused what, and which claims what."""

    __slots__ = ("_asked", "_claims", "_epoch", "_reasons", "_refused", "_vain")

    def __init__(self) -> None:
        self._epoch = 0
        self._refused: dict[Hashable, RangeSet] = {}
        self._reasons: dict[str, RangeSet] = {}
        self._claims: dict[int, dict[Hashable, int]] = {}
        self._vain: dict[Hashable, float] = {}  # when a claim came to nothing
        # For which event first, when last, and how long it has been waited for.
        self._asked: dict[Hashable, tuple[int, float, float]] = {}

    def enter(self, epoch: int) -> None:
        """Another epoch begins."""
        self._epoch = epoch
        self._refused.clear()
        self._reasons.clear()
        self._asked.clear()
        for known in [known for known in self._claims if known < epoch]:
            del self._claims[known]

    def forget(self, source: Hashable) -> None:
        """A source may have more than it had.  That it served nothing is not forgotten by that."""
        self._refused.pop(source, None)

    # --- claims ---

    def claim(self, source: Hashable, epoch: int, next_: int, *, now: float) -> None:
        """A source says that it has an epoch up to here."""
        known = epoch in self._claims or len(self._claims) < CLAIMED_EPOCHS_MAX
        in_vain = now - self._vain.get(source, -MUTE_S) < MUTE_S
        if epoch >= self._epoch and known and not in_vain:
            self._claims.setdefault(epoch, {})[source] = next_

    def withdraw(self, proved: int, *, now: float) -> None:
        """Nothing came of claims beyond what is proved: who made them is not heard for a while."""
        for source, next_ in self._claims.pop(self._epoch, {}).items():
            if next_ > proved:
                self._vain[source] = now

    def claimed(self, sources: Iterable[Hashable]) -> int:
        """How far the current epoch is, by what these sources say."""
        claims = self._claims.get(self._epoch, {})
        return max((claims.get(source, 0) for source in sources), default=0)

    # --- refusals ---

    def refuse(self, source: Hashable, ranges: Iterable[Range], reason: str) -> None:
        """A source does not have these, and says why."""
        refused = self._refused.setdefault(source, RangeSet())
        ranges = [(first, stop) for first, stop in ranges if first < stop]
        for first, stop in ranges:
            refused.add(first, stop)
        self._name(ranges, reason)

    def noted(self, ranges: Iterable[Range]) -> int:
        """Return one past the last of these of which a source has said that it is gone, or 0."""
        refused = self._refused.values()
        parts = (r.overlap(first, stop) for first, stop in ranges for r in refused)
        return max((stop for some in parts for _, stop in some), default=0)

    def _name(self, ranges: Iterable[Range], reason: str) -> None:
        """Keep why these would be lost: as the first to refuse them says, mostly the publisher."""
        rest = list(ranges)
        for known in self._reasons.values():
            rest = [part for low, high in rest for part in known.missing(low, high)]
        named = self._reasons.setdefault(reason, RangeSet())
        for first, stop in rest:
            named.add(first, stop)

    # --- whom to ask ---

    def route(
        self,
        ranges: Iterable[Range],
        publisher: Sequence[Hashable],
        recorders: Sequence[Hashable],
        *,
        proved: int,
        now: float,
    ) -> tuple[dict[Hashable, list[Range]], list[Range]]:
        """What to ask of each source, in order of preference; and what all of them refused."""
        left = list(RangeSet(ranges))
        claims = self._claims.get(self._epoch, {})
        asks: dict[Hashable, list[Range]] = {}
        for source in (*publisher, *sorted(recorders, key=self._is_slow)):
            refused = self._refused.get(source, NOTHING)
            limit = max(proved, claims.get(source, 0) if source in recorders else 0)
            able = [(first, min(stop, limit)) for first, stop in left if first < limit]
            wanted = [part for first, stop in able for part in refused.missing(first, stop)]
            if not wanted:
                continue
            if source in recorders and self._is_mute(source, wanted[0][0], now):
                self._name(wanted, "deadline")
                continue
            asks[source] = wanted
            taken = RangeSet(wanted)
            left = [part for first, stop in left for part in taken.missing(first, stop)]
        return asks, left

    def _is_slow(self, source: Hashable) -> bool:
        return source in self._asked and self._asked[source][2] >= SLOW_S

    def _is_mute(self, source: Hashable, first: int, now: float) -> bool:
        """Note what a source is asked for first; return True when that was in vain for long."""
        asked, last, waited_s = self._asked.get(source, (first, now, 0.0))
        waited_s += min(now - last, WAIT_MAX_S)
        if asked != first or waited_s >= 2 * MUTE_S:
            waited_s = min(waited_s, SLOW_S) if self._is_slow(source) else 0.0
        self._asked[source] = (first, now, waited_s)
        return waited_s >= MUTE_S

    def served(self, source: Hashable) -> None:
        """A source sent what was missing."""
        self._asked.pop(source, None)

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
