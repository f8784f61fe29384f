"""The books of a StatsD server: packets in, the figures of each interval out.

Every line of every packet is accounted for, once it is settled: `lines` is the sum of `accepted`,
`malformed`, `unsupported` (DogStatsD's events and service checks) and `series_full`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from meshmsg.statsd.lines import VALUE_BYTES_MAX, Meaning, Runs, cut, numbers, understand
from meshmsg.statsd.series import Series, new_series

#: Lines that wait to be understood; that many share the cost of looking at each run.
PENDING_LINES = 40_000
PENDING_BYTES = 4 * 1024 * 1024
#: Runs whose meaning is remembered, unless they are long; the oldest half goes when there are more.
MEANINGS_MAX = 100_000
MEANING_BYTES_MAX = 512
#: Samples kept in one interval over all series; after that each series goes on with a sketch.
SAMPLES_TOTAL_MAX = 8_000_000
#: What lines come to.
FATES = ("accepted", "malformed", "unsupported", "series_full")
#: Intervals that a series without samples is kept for (a gauge's value, a cumulative's last one),
#: and longer while there is room: a gauge that is moved after a day must not begin at 0.
IDLE_INTERVALS_MAX = 360


class Figures(NamedTuple):
    """What an interval says of one series."""

    name: str
    kind: str
    tags: tuple[tuple[str, str], ...]
    figures: dict[str, Any]


class Samples(NamedTuple):
    """Raw samples of one run, in the order in which they came."""

    meaning: Meaning
    values: list[Any]


class Aggregates:
    """Adds up what packets say until it is flushed."""

    def __init__(self, *, series_max: int, samples_max: int, raw: bool = False) -> None:
        self._series_max = series_max
        self._samples_max = samples_max
        self._series: dict[tuple[str, str, tuple[tuple[str, str], ...]], Series] = {}
        self._idle: Counter[tuple[str, str, tuple[tuple[str, str], ...]]] = Counter()
        self._meanings: dict[tuple[bytes, bytes], Meaning | None] = {}
        self._runs: Runs = {}
        self._pending = 0
        self._pending_bytes = 0
        self._kept = 0
        self._raw: list[Samples] | None = [] if raw else None
        #: Since the start: `packets`, `lines`, `samples`, and what lines came to.
        self.counters: Counter[str] = Counter()

    def add(self, packets: list[bytes]) -> None:
        """Take packets; what they say may wait for the next ones."""
        self.counters["packets"] += len(packets)
        lines = cut(packets, self._runs)
        self.counters["lines"] += lines
        self._pending += lines
        self._pending_bytes += sum(map(len, packets))
        if self._pending >= PENDING_LINES or self._pending_bytes >= PENDING_BYTES:
            self.settle()

    def settle(self) -> None:
        """Understand all that waits."""
        runs, self._runs = self._runs, {}
        self._pending = self._pending_bytes = 0
        for run, values in runs.items():
            try:
                meaning = self._meanings[run]
            except KeyError:
                meaning = self._learn(run)
            if meaning is None:
                foreign = run[0].startswith((b"_e{", b"_sc"))
                self.counters["unsupported" if foreign else "malformed"] += len(values)
            else:
                self._feed(meaning, values)

    def _learn(self, run: tuple[bytes, bytes]) -> Meaning | None:
        if len(self._meanings) >= MEANINGS_MAX:
            for old in list(self._meanings)[: MEANINGS_MAX // 2]:
                del self._meanings[old]
        meaning = understand(*run)
        if len(run[0]) + len(run[1]) <= MEANING_BYTES_MAX:
            self._meanings[run] = meaning
        return meaning

    def _feed(self, meaning: Meaning, values: list[bytes]) -> None:
        samples: list[Any]
        bad = 0
        if meaning.kind == "set":
            samples = [value for value in values if 0 < len(value) <= VALUE_BYTES_MAX]
            bad = len(values) - len(samples)
        elif meaning.kind == "gauge":
            samples, bad = _moves(values)
        else:
            samples, bad = numbers(values)
        self.counters["malformed"] += bad
        key = meaning.series
        series = self._series.get(key)
        if series is None and samples:  # what is no number must not take anybody's place
            if len(self._series) >= self._series_max:
                self.counters["series_full"] += len(values) - bad
                return
            series = self._series[key] = new_series(meaning.kind, self._samples_max)
        self.counters["accepted"] += len(values) - bad
        self.counters["samples"] += len(samples)
        if samples and series is not None:
            series.add(samples, meaning.rate)
            self._kept += len(samples)
            if self._kept > SAMPLES_TOTAL_MAX:
                series.condense()
            if self._raw is not None:
                self._raw.append(Samples(meaning, samples))

    def raw(self) -> list[Samples]:
        """The samples that were understood since the last call, run by run."""
        if self._raw is None:
            return []
        taken, self._raw = self._raw, []
        return taken

    def flush(self, interval_s: float) -> Iterator[Figures]:
        """The figures of every series that had samples; the next interval begins with each.

        Packets may be added while this runs: to the interval that ends for series still to come,
        to the next one for the others.
        """
        self.settle()
        self._kept = 0
        for key in list(self._series):
            series = self._series[key]
            if series.samples:
                self._idle.pop(key, None)
                yield Figures(*key, series.take(interval_s))
                continue
            self._idle[key] += 1
            kept = key[1] in ("gauge", "cumulative")
            crowded = len(self._series) > self._series_max // 2
            if not kept or (crowded and self._idle[key] > IDLE_INTERVALS_MAX):
                del self._series[key], self._idle[key]

    @property
    def series(self) -> int:
        """How many series are known."""
        return len(self._series)


def _moves(values: list[bytes]) -> tuple[list[tuple[bool, float]], int]:
    """Values of a gauge, each with whether it is signed, and how many were no numbers."""
    found, bad = numbers(values)
    if not bad and len(found) == len(values):
        return [
            (value[:1] in b"+-", number) for value, number in zip(values, found, strict=True)
        ], 0
    moves = []
    for value in values:
        moves += [(value[:1] in b"+-", number) for number in numbers([value])[0]]
    return moves, bad
