"""One series of a StatsD server in one interval: what was measured, and its figures.

Samples of timers and histograms are kept as they are, up to a bound, and their figures are then
those that numpy computes from them; beyond the bound a sketch takes their place, and the figures
say that they are approximate.  Sets do the same.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import datasketches
import numpy

#: Quantiles in the events of timers and histograms.
QUANTILES = {"median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
#: Error of a rank about 0.3 %.
SKETCH_K = 800
HLL_LOG2 = 14


class Series(Protocol):
    """What is added up between two flushes."""

    samples: int

    def add(self, values: list[Any], rate: float) -> None:
        """Take samples, which were taken at this rate."""

    def condense(self) -> None:
        """Keep less of the samples, if any are kept."""

    def take(self, interval_s: float) -> dict[str, Any]:
        """The figures of the interval that ends; the next one begins."""


class Count:
    """A counter: each sample stands for as many as its rate says."""

    def __init__(self) -> None:
        self.samples = 0
        self._total = 0.0

    def add(self, values: list[float], rate: float) -> None:
        self.samples += len(values)
        self._total += sum(values) / rate

    def condense(self) -> None:
        pass

    def take(self, interval_s: float) -> dict[str, Any]:
        total, samples, self._total, self.samples = self._total, self.samples, 0.0, 0
        per_second = total / interval_s if interval_s > 0 else 0.0
        return {"count": total, "per_second": per_second, "samples": samples}


class Cumulative(Count):
    """Brubeck's `C`: a counter that the sender adds up; what it grew by counts."""

    def __init__(self) -> None:
        super().__init__()
        self._previous: float | None = None

    def add(self, values: list[float], rate: float) -> None:
        grown = []
        for value in values:
            # Smaller than before: the sender was started again, and counts from 0.
            before = self._previous
            grown.append(0.0 if before is None else value - before if value >= before else value)
            self._previous = value
        super().add(grown, rate)


class Level:
    """A gauge: the last value, moved by signed ones; it outlives the interval."""

    def __init__(self) -> None:
        self.samples = 0
        self._value = 0.0

    def add(self, values: list[tuple[bool, float]], rate: float) -> None:
        self.samples += len(values)
        for signed, value in values:
            self._value = self._value + value if signed else value

    def condense(self) -> None:
        pass

    def take(self, interval_s: float) -> dict[str, Any]:
        samples, self.samples = self.samples, 0
        return {"value": self._value, "samples": samples}


class Distribution:
    """A timer or a histogram."""

    def __init__(self, samples_max: int) -> None:
        self.samples = 0
        self._samples_max = samples_max
        self._begin()

    def _begin(self) -> None:
        self._values = array("d")
        self._sketch: Any = None
        self._sum = 0.0
        self._count = 0.0

    def add(self, values: list[float], rate: float) -> None:
        self.samples += len(values)
        self._count += len(values) / rate
        self._values.fromlist(values)
        if len(self._values) > self._samples_max:
            self.condense()

    def condense(self) -> None:
        if self._sketch is None:
            self._sketch = datasketches.kll_doubles_sketch(SKETCH_K)
        values = numpy.array(self._values)
        self._sum += float(values.sum())
        self._sketch.update(values)
        self._values = array("d")

    def take(self, interval_s: float) -> dict[str, Any]:
        samples, self.samples = self.samples, 0
        figures: dict[str, Any] = {"count": self._count, "samples": samples}
        if self._sketch is None:
            values = numpy.array(self._values)
            total = float(values.sum())
            values.sort()
            least, most = float(values[0]), float(values[-1])
            found = [quantile(values, rank) for rank in QUANTILES.values()]
        else:
            if self._values:
                self.condense()
            total = self._sum
            least, most = self._sketch.get_min_value(), self._sketch.get_max_value()
            found = list(self._sketch.get_quantiles(list(QUANTILES.values())))
            figures["approximate"] = True
        figures |= {"sum": total, "min": least, "max": most, "mean": total / samples}
        figures |= dict(zip(QUANTILES, found, strict=True))
        self._begin()
        return figures


class Unique:
    """A set: how many different values."""

    def __init__(self, samples_max: int) -> None:
        self.samples = 0
        self._samples_max = samples_max
        self._values: set[bytes] = set()
        self._sketch: Any = None

    def add(self, values: list[bytes], rate: float) -> None:
        self.samples += len(values)
        self._values.update(values)
        if len(self._values) > self._samples_max:
            self.condense()

    def condense(self) -> None:
        if self._sketch is None:
            self._sketch = datasketches.hll_sketch(HLL_LOG2)
        for value in self._values:
            self._sketch.update(value.decode(errors="surrogateescape"))
        self._values = set()

    def take(self, interval_s: float) -> dict[str, Any]:
        samples, self.samples = self.samples, 0
        if self._sketch is None:
            figures: dict[str, Any] = {"count": len(self._values), "samples": samples}
        else:
            self.condense()
            count = round(self._sketch.get_estimate())
            figures = {"count": count, "samples": samples, "approximate": True}
        self._values, self._sketch = set(), None
        return figures


def quantile(ordered: Any, rank: float) -> float:
    """`numpy.quantile` of what is sorted already: the same arithmetic, a twentieth of the time."""
    place = rank * (len(ordered) - 1)
    below = int(place)
    low = float(ordered[below])
    high = float(ordered[min(below + 1, len(ordered) - 1)])
    part = place - below
    # numpy goes from the nearer end, so that part 1 gives exactly the upper value.
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def new_series(kind: str, samples_max: int) -> Series:
    """An empty series of a kind, as `lines.KINDS` names it."""
    if kind == "counter":
        return Count()
    if kind == "cumulative":
        return Cumulative()
    if kind == "gauge":
        return Level()
    return Unique(samples_max) if kind == "set" else Distribution(samples_max)
