"""The simulated network: paths that lose, repeat, delay and reorder, for reasons of their own.

Every path draws from its own chance, and every packet on it has a number.  So one fault can be
taken back (`only` names those that happen) without moving the others: that is how a failing world
is shrunk to the faults that matter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Fault = tuple[str, int, str]

#: A burst of loss ends with this chance at each packet: three and a third packets on average.
BURST_ENDS = 0.3


@dataclass
class Faults:
    """What went wrong, and what may."""

    happened: list[Fault] = field(default_factory=list)
    only: frozenset[Fault] | None = None

    def happens(self, fault: Fault) -> bool:
        if self.only is not None and fault not in self.only:
            return False
        self.happened.append(fault)
        return True


class Path:
    """One way for packets: whether each gets through, how often, and when."""

    def __init__(
        self,
        name: str,
        seed: int,
        faults: Faults,
        *,
        loss: float = 0.0,
        bursty: bool = False,
        duplicate: float = 0.0,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
    ) -> None:
        self.name = name
        self._random = random.Random(f"{seed} {name}").random
        self._faults = faults
        self._loss, self._bursty, self._duplicate = loss, bursty, duplicate
        self._delay_s, self._jitter_s = delay_s, jitter_s
        self._bad = False
        self._count = 0
        self.lost = 0

    def _drops(self) -> bool:
        if not self._loss:
            return False
        if not self._bursty:
            return self._random() < self._loss
        if self._bad:
            self._bad = self._random() >= BURST_ENDS
        else:
            self._bad = self._random() < BURST_ENDS * self._loss / (1.0 - self._loss)
        return self._bad

    def passes(self) -> bool:
        """Whether the next packet gets through at all."""
        self._count += 1
        if self._drops() and self._faults.happens((self.name, self._count, "lost")):
            self.lost += 1
            return False
        return True

    def delays(self) -> list[float]:
        """How long the next packet takes: once for each copy that arrives."""
        if not self.passes():
            return []
        copies = [self._delay()]
        if self._duplicate and self._random() < self._duplicate:
            again = self._delay() + self._delay_s
            if self._faults.happens((self.name, self._count, "twice")):
                copies.append(again)
        return copies

    def _delay(self) -> float:
        if not self._jitter_s:
            return self._delay_s
        extra = self._random() ** 4 * self._jitter_s
        if not self._faults.happens((self.name, self._count, "late")):
            extra = 0.0
        return self._delay_s + extra
