"""How long things took, or how many they were, counted by size: one increment for each.

For what happens seldom (an fsync, a wait, a repair), and for samples of the rest: nothing of it
stands where each event passes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

#: From a tenth of a millisecond, a fast disk's fsync, to what users complain of.
BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: From an event by itself to the largest frames.
BOUNDS_EVENTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0)


class Histogram:
    """Counts of sizes up to each of its bounds, of larger ones, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, size: float) -> None:
        """Count one; a time below 0, which clocks that differ give, counts as 0."""
        size = max(0.0, size)
        self._counts[bisect_left(self._bounds, size)] += 1
        self._sum += size

    def as_dict(self) -> dict[str, Any]:
        """Bounds, counts and sum, as plain data."""
        return {"bounds": self._bounds, "counts": list(self._counts), "sum": self._sum}
