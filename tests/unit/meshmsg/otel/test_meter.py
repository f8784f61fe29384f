"""Figures of peers as OpenTelemetry reads them."""

from __future__ import annotations

import gc
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from meshmsg import Peer
from meshmsg.monitor.metrics import Metric, Sample
from meshmsg.otel import meter
from meshmsg.otel.meter import PeerFigures, make_instruments


def read(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    data = reader.get_metrics_data()
    found: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for resource in [] if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points: Any = metric.data.data_points
                found[metric.name] = [(dict(point.attributes), point.value) for point in points]
    return found


def test_each_peer_is_told_apart_and_one_that_closed_is_gone() -> None:
    reader, figures = InMemoryMetricReader(), PeerFigures()
    make_instruments(MeterProvider([reader]).get_meter("meshmsg"), figures)
    with Peer("one") as one:
        with Peer("two") as two:
            for peer in (one, two):
                peer.publish("a", 1)
                figures.add(peer)
            shown = read(reader)["meshmsg_stream_events"]
            assert sorted((at["peer"], value) for at, value in shown) == [
                ("one", 1.0),
                ("two", 1.0),
            ]
        figures.add(one)  # looked at anew
        assert [at["peer"] for at, _ in read(reader)["meshmsg_stream_events"]] == ["one"]


def test_figures_of_one_reading_are_of_one_look() -> None:
    now = [0.0]
    figures = PeerFigures(lambda: now[0])
    with Peer("one") as peer:
        figures.add(peer)
        peer.publish("a", 1)
        assert [one.value for one in figures.of("meshmsg_stream_events")] == [1.0]
        peer.publish("a", 1)
        assert [one.value for one in figures.of("meshmsg_stream_events")] == [1.0]
        now[0] += 1.0
        assert [one.value for one in figures.of("meshmsg_stream_events")] == [2.0]


def test_a_peer_may_be_collected() -> None:
    figures = PeerFigures()
    with Peer("one") as peer:
        figures.add(peer)
    del peer
    gc.collect()
    assert figures.of("meshmsg_peers") == []


def test_a_histogram_is_three_counters() -> None:
    histogram = {"bounds": (0.1, 1.0), "counts": [2, 3, 1], "sum": 4.5}
    metric = Metric("took_seconds", "histogram", "", ("stream",))
    rows = list(meter._numbers(Sample(metric, ("s",), histogram)))
    assert rows == [
        ("took_seconds_bucket", {"le": "0.1"}, 2.0),
        ("took_seconds_bucket", {"le": "1.0"}, 5.0),
        ("took_seconds_bucket", {"le": "+Inf"}, 6.0),
        ("took_seconds_sum", {}, 4.5),
        ("took_seconds_count", {}, 6.0),
    ]
