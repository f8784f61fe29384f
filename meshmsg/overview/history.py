"""Figures over time: how fast counters grow, and the last minutes of what is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

#: Points of a plot: minutes, at one look a second or two.
POINTS_MAX = 180
#: Plots of which points are kept.
SERIES_MAX = 2_000


class Rates:
    """How much a second counters grow, from one look to the next.

    A counter that begins anew, as that of a peer which was restarted, has no rate for one look.
    What nobody names any more is forgotten with `forget`.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[float, int, float]] = {}

    def rate(self, key: Hashable, value: int, *, now: float) -> float:
        """Its growth a second since the look before this one."""
        at, old, rate = self._before.get(key, (now, value, 0.0))
        if now > at:
            rate = max(0, value - old) / (now - at) if value >= old else 0.0
        self._before[key] = (now, value, rate)
        return rate

    def forget(self, *, before: float) -> None:
        """Counters that nobody has shown since then."""
        self._before = {key: one for key, one in self._before.items() if one[0] >= before}


class History:
    """The last points of many series, all at the same times; a series that comes late is shorter.

    Bounded by `POINTS_MAX` points of `SERIES_MAX` series; what has no place is counted.
    """

    def __init__(self) -> None:
        self._series: dict[Hashable, deque[float | None]] = {}
        self.left_out = 0

    def add(self, points: dict[Hashable, float]) -> None:
        """One look: a series without a point has a gap there, and goes with its last one."""
        for key, series in list(self._series.items()):
            series.append(points.get(key))
            if not any(point is not None for point in series):
                del self._series[key]
        for key, point in points.items():
            if key in self._series:
                continue
            if len(self._series) >= SERIES_MAX:
                self.left_out += 1
            else:
                self._series[key] = deque([point], POINTS_MAX)

    def points(self, key: Hashable) -> list[float | None]:
        """The points of a series, the newest last."""
        return list(self._series.get(key, ()))
