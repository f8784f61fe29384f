"""Metrics without Prometheus: what one is, samples of it, and how many there may be.

A part of a program (a peer, the sink daemon) says what it measures as samples; `Collection` makes
families of them, whose labels are fit to be shown and whose number is bounded.  Does not belong
here: what a peer measures (`peer_metrics`), the text that Prometheus reads (`exposition`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Names of others come from other machines; longer ones are cut.
LABEL_CHARACTERS_MAX = 200


class Metric(NamedTuple):
    """A family of time series; the name of a counter has no `_total` here."""

    name: str
    kind: str  #: counter, gauge, info or histogram
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that Prometheus knows."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


class Sample(NamedTuple):
    """One time series now: a number, or of a histogram the counts and the sum."""

    metric: Metric
    labels: tuple[str, ...]
    value: Any


def clean(text: object) -> str:
    """A label that no reader of text trips over.

    >>> clean("a\\x00b")
    'a�b'
    """
    name = str(text)[:LABEL_CHARACTERS_MAX]
    return name if name.isprintable() else "".join(c if c.isprintable() else "�" for c in name)


class Collection:
    """Families of the samples that were added, up to a number of series."""

    def __init__(self, series_max: int, counters: Counter[str]) -> None:
        self._left = series_max
        self.shown = 0  #: series, those of histograms included
        self._counters = counters
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self.families: dict[Metric, list[Sample]] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """Take samples; those beyond the bound, or of a series that is there, are counted."""
        for metric, labels, value in samples:
            shown = tuple(map(clean, labels))
            series = (metric.name, shown)
            size = len(value["counts"]) + 2 if metric.kind == "histogram" else 1
            if self._left < size or series in self._seen:
                self._counters["series_dropped"] += size
                continue
            self._left -= size
            self.shown += size
            self._seen.add(series)
            self.families.setdefault(metric, []).append(Sample(metric, shown, value))


def numbers(table: Mapping[str, Metric], row: Mapping[str, Any], *labels: str) -> list[Sample]:
    """A sample for each key of a table of which the row has a value."""
    return [
        Sample(metric, labels, float(row[key]))
        for key, metric in table.items()
        if row.get(key) is not None
    ]


def counts(metric: Metric, row: Mapping[str, Any], *labels: str) -> list[Sample]:
    """A sample for each of several counters, the last label of which is its name."""
    return [Sample(metric, (*labels, key), float(value)) for key, value in row.items()]


def rest(row: Mapping[str, Any], *known: Iterable[str]) -> dict[str, int | float]:
    """The numbers of a row that nothing else shows."""
    told = {key for keys in known for key in keys}
    return {
        key: value
        for key, value in row.items()
        if key not in told and isinstance(value, int | float) and not isinstance(value, bool)
    }
