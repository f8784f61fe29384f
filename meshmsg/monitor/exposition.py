"""Families of samples as the text that Prometheus reads; `prometheus-client` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from meshmsg.monitor.metrics import Metric, Sample

OPENMETRICS = "application/openmetrics-text"
_KINDS: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _Registry:
    """What prometheus-client takes for a registry."""

    def __init__(self, families: Mapping[Metric, list[Sample]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        for metric, samples in self._families.items():
            yield _family(metric, samples)


def _family(metric: Metric, samples: list[Sample]) -> Any:
    family: Any
    if metric.kind == "info":
        family = InfoMetricFamily(metric.name, metric.help)
        for sample in samples:
            family.add_metric([], dict(zip(metric.labels, sample.labels, strict=True)))
        return family
    if metric.kind == "histogram":
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            family.add_metric(sample.labels, *_buckets(sample.value))
        return family
    family = _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        family.add_metric(sample.labels, sample.value)
    return family


def _buckets(histogram: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """Counts up to each bound, and the sum; the last count is of what is beyond all bounds."""
    total, buckets = 0, []
    bounds = [repr(float(bound)) for bound in histogram["bounds"]] + ["+Inf"]
    for bound, count in zip(bounds, histogram["counts"], strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets, float(histogram["sum"])


def render(families: Mapping[Metric, list[Sample]], *, openmetrics: bool) -> tuple[bytes, str]:
    """The text, and its content type."""
    # Not what a caller accepts word for word: that is parsed there, and can make it raise.
    accept = f"{OPENMETRICS}; version=1.0.0" if openmetrics else ""
    write, content_type = exposition.choose_encoder(accept)
    return write(_Registry(families)), content_type
