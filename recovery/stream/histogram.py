"""How long things took, counted by size: one increment each, whatever their number.

For what happens seldom (an fsync, a wait, a repair): nothing of it stands where each event passes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

#: From a tenth of a millisecond, a fast disk's fsync, to what users complain of.
BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Histogram:
    """Counts of times up to each of `BOUNDS_S`, of longer ones, and their sum."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Count a time; one below 0, which a clock that was set back gives, counts as 0."""
        took_s = max(0.0, took_s)
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._sum_s += took_s

    def as_dict(self) -> dict[str, Any]:
        """Bounds, counts and sum, as plain data."""
        return {"bounds": BOUNDS_S, "counts": list(self._counts), "sum": self._sum_s}
