"""The keys of a sealed stream by generation: which are in use, which are still or already good.

A packet names the lowest bits of its generation.  Peers that share a mesh key compute the key of
any generation; otherwise keys are given, each before it is used.  When a generation begins, the
one before is good for a while: its packets, and requests of receivers that know of no other, are
still under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshmsg.recovery.stream.loss_detector import NEVER

#: Bits of the generation in a packet.
GENERATION_BITS = 16
_SPAN = 1 << GENERATION_BITS
#: Keys that were given ahead of their time.
GIVEN_MAX = 8

Candidate = tuple[int, bytes]
#: The keys of a generation, the one in use first: several while the mesh key is being changed.
Derive = Callable[[int], Sequence[bytes]]


class SealKeys:
    """The keys of one stream, as one peer knows them."""

    def __init__(
        self, derive: Derive | None = None, *, overlap_s: float, follows: bool = True
    ) -> None:
        self.generation = -1  #: in use; -1: none is known yet
        self.retire_at = NEVER  #: when the one before is not good any more
        self._derive = derive
        self._overlap_s = overlap_s
        self._follows = follows  # a receiver goes where its sender goes
        self._old = -1
        self._unsure = False
        self._given: dict[int, bytes] = {}

    def expect(self, generation: int) -> None:
        """By the clock alone, it should be this one: the neighbours will do, too."""
        self.generation = generation
        self._unsure = True
        self._old = -1
        self.retire_at = NEVER

    def give(self, generation: int, key: bytes) -> None:
        """The key of a generation; a receiver begins with it when its sender does."""
        self._given[generation] = key
        while len(self._given) > GIVEN_MAX:
            del self._given[min(self._given)]

    def begin(self, generation: int, *, now: float, overlap_s: float | None = None) -> None:
        """A generation is in use from now on."""
        before, self.generation = self.generation, generation
        if before >= 0 and before != generation:
            self._old = before
            self.retire_at = now + (self._overlap_s if overlap_s is None else overlap_s)
        if self._unsure:  # it was a guess, and nothing came of it
            self._unsure = False
            self._old, self.retire_at = -1, NEVER

    def heard(self, generation: int, *, now: float) -> bool:
        """A packet of this generation proved itself; returns whether it begins by that."""
        if generation > self.generation or self._unsure:
            self.begin(generation, now=now)
            return True
        return False

    def good(self) -> tuple[int, int]:
        """The generations whose packets are good: the one in use and the one before."""
        return self.generation, self._old

    def retire(self, *, now: float) -> None:
        """Forget the generation before, if it is time."""
        if now >= self.retire_at:
            self._old, self.retire_at = -1, NEVER
            for old in [one for one in self._given if one < self.generation]:
                del self._given[old]

    def candidates(self, low: int) -> list[Candidate]:
        """The generation that has these lowest bits, with its keys; none if it is not good."""
        current = self.generation
        if current < 0:
            return []
        full = current + (low - current + _SPAN // 2) % _SPAN - _SPAN // 2
        if not (full == current or full == self._old or self._may_come(full)) or full < 0:
            return []
        key = self._given.get(full)
        if key is not None:
            return [(full, key)]
        return [] if self._derive is None else [(full, one) for one in self._derive(full)]

    def _may_come(self, generation: int) -> bool:
        if self._unsure:
            return abs(generation - self.generation) <= 1
        return self._follows and generation > self.generation
