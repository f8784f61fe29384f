"""Figures of peers through OpenTelemetry's meter: those that `/metrics` shows, by the same names.

A meter makes an instrument of a name once, so the instruments are the process's, and each peer is
told by the attribute `peer`.  All are read together: what one reader asks for within `AGE_S` is of
one look at each peer.  OpenTelemetry has no histogram that is read instead of written, so one of
ours is three counters, as Prometheus has it: `..._bucket` with the attribute `le`, `..._sum` and
`..._count`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakSet

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from meshmsg._model.errors import ClosedError
from meshmsg._peer.peer import PeerBase, __version__
from meshmsg.monitor import peer_metrics
from meshmsg.monitor.metrics import Collection, Metric, Sample

#: How old figures may be: the instruments are read one after the other.
AGE_S = 0.5
#: Time series of one peer.
SERIES_MAX = 10_000
#: Counts what is left out, as the counter of that name does in `/metrics`.
DROPPED = Metric("meshmsg_otel_series_dropped", "counter", "Time series that had no room")
Observations = dict[str, list[Observation]]


class PeerFigures:
    """What the instruments show: the peers that are open, looked at now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._peers: WeakSet[PeerBase] = WeakSet()
        self._clock = clock
        self._lock = threading.Lock()
        self._good_until = -1.0
        self._found: Observations = {}
        self._counters: Counter[str] = Counter()

    def add(self, peer: PeerBase) -> None:
        """Look at a peer, too, as long as it is open."""
        with self._lock:
            self._peers.add(peer)
            self._good_until = -1.0

    def of(self, name: str) -> list[Observation]:
        """What one instrument shows."""
        with self._lock:
            if self._clock() >= self._good_until:
                self._found = self._look()
                self._good_until = self._clock() + AGE_S
            return self._found.get(name, [])

    def _look(self) -> Observations:
        found: Observations = defaultdict(list)
        for peer in list(self._peers):
            try:
                stats = peer.stats()
            except ClosedError:
                continue  # it is opening or closing
            shown = Collection(SERIES_MAX, self._counters)
            shown.add(peer_metrics.samples(stats))
            for sample in chain.from_iterable(shown.families.values()):
                attributes = {"peer": peer.name}
                attributes |= dict(zip(sample.metric.labels, sample.labels, strict=True))
                for name, more, value in _numbers(sample):
                    found[name].append(Observation(value, {**attributes, **more}))
        found[DROPPED.name] = [Observation(self._counters["series_dropped"])]
        return dict(found)


def _numbers(sample: Sample) -> Iterator[tuple[str, dict[str, str], float]]:
    """What a sample is made of: an instrument's name, further attributes, a number."""
    name, value = sample.metric.name, sample.value
    if sample.metric.kind != "histogram":
        yield name, {}, value
        return
    total = 0
    bounds = [*(repr(float(bound)) for bound in value["bounds"]), "+Inf"]
    for bound, count in zip(bounds, value["counts"], strict=True):
        total += count
        yield f"{name}_bucket", {"le": bound}, float(total)
    yield f"{name}_sum", {}, float(value["sum"])
    yield f"{name}_count", {}, float(total)


def metrics_of(names: Iterable[Any]) -> Iterator[Metric]:
    """The metrics among the values of a module, those in its tables too."""
    for value in names:
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, dict):
            yield from metrics_of(value.values())
        elif isinstance(value, tuple):
            yield from metrics_of(value)


def make_instruments(meter: Meter, figures: PeerFigures) -> None:
    """One instrument for each number that peers show."""
    for metric in dict.fromkeys([*metrics_of(vars(peer_metrics).values()), DROPPED]):
        if metric.kind == "histogram":
            for end in ("bucket", "sum", "count"):
                name = f"{metric.name}_{end}"
                meter.create_observable_counter(
                    name, [_callback(figures, name)], description=metric.help
                )
        else:
            make: Callable[..., Any] = meter.create_observable_gauge
            if metric.kind == "counter":
                make = meter.create_observable_counter
            make(metric.name, [_callback(figures, metric.name)], description=metric.help)


def _callback(
    figures: PeerFigures, name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: figures.of(name)


_figures: PeerFigures | None = None


def add(peer: PeerBase) -> None:
    """Show a peer's figures to the meter provider, as long as it is open."""
    global _figures
    if _figures is None:
        _figures = PeerFigures()
        make_instruments(metrics.get_meter("meshmsg", __version__), _figures)
    _figures.add(peer)
