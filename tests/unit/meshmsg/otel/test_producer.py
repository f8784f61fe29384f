"""Spans round publishing, with a publish that is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshmsg import Position
from meshmsg._publish.event_runs import check_notes, headers_fit
from meshmsg._wire.frame import HEADERS_BYTES_MAX, encode_headers
from meshmsg.otel import producer
from meshmsg.otel.producer import ProducerSpans

AT = Position("shop/orders.**", 5, 7)
GIVEN = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(producer, "tracer", lambda: provider.get_tracer("meshmsg"))
    return kept


def stream_of(topic: str) -> str:
    return AT.stream


def test_headers_given_stay_and_name_the_parent(exporter: InMemorySpanExporter) -> None:
    seen: list[Any] = []

    def publish(topic: str, data: Any, **options: Any) -> Position:
        seen.append(options)
        return AT

    traced = ProducerSpans("shop", headers_fit).one(publish, stream_of)
    mine = {"mine": 1, "traceparent": GIVEN}
    assert traced("orders.eu", 1, key="k", headers=mine, timeout=2.0) is AT
    assert mine == {"mine": 1, "traceparent": GIVEN}
    (span,) = exporter.get_finished_spans()
    (options,) = seen
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "2" * 16
    assert f"{span.context.span_id:016x}" in options["headers"]["traceparent"]
    assert (options["headers"]["mine"], options["key"], options["timeout"]) == (1, "k", 2.0)
    assert (span.attributes or {})["messaging.message.id"] == str(AT)


def test_an_attempt_that_meets_a_blocked_stream_leaves_no_span(
    exporter: InMemorySpanExporter,
) -> None:
    traced = ProducerSpans("shop", headers_fit).one(lambda *_, **__: None, stream_of)
    assert traced("orders.eu", 1, on_gate=print) is None
    assert exporter.get_finished_spans() == ()


def test_many_have_one_span(exporter: InMemorySpanExporter) -> None:
    seen: list[Any] = []

    def publish_all(*given: Any) -> Position:
        seen.append(given)
        return AT

    async def publish_many(*given: Any, **options: Any) -> Position:
        seen.append((given, options))
        return AT

    spans = ProducerSpans("shop", headers_fit)
    assert spans.many(publish_all, stream_of)("orders.eu", iter("abc"), None, None, None) is AT
    traced = spans.many_async(publish_many, stream_of)
    assert asyncio.run(traced("orders.eu", [1, 2], keys=None)) is AT
    counts = [
        (span.attributes or {})["messaging.batch.message_count"]
        for span in exporter.get_finished_spans()
    ]
    assert counts == [3, 2]
    assert seen[0][1] == ["a", "b", "c"]
    assert "traceparent" in seen[0][3]
    assert "traceparent" in seen[1][1]["headers"]


@pytest.mark.parametrize(("bytes_left", "carried"), [(100, True), (40, False)])
def test_headers_without_room_for_a_trace_go_as_they_were_given(
    exporter: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    bytes_left: int,
    carried: bool,
) -> None:
    seen: list[Any] = []

    def publish(topic: str, data: Any, **options: Any) -> Position:
        seen.append(check_notes(None, options["headers"]))
        return AT

    traced = ProducerSpans("shop", headers_fit).one(publish, stream_of)
    mine = {"mine": b"x" * (HEADERS_BYTES_MAX - len(encode_headers({"mine": b""})) - bytes_left)}
    for _ in range(2):
        assert traced("orders.eu", 1, headers=mine) is AT
    assert [b"traceparent" in packed for packed in seen] == [carried] * 2
    assert len(exporter.get_finished_spans()) == 2
    assert len(caplog.records) == (0 if carried else 1)


def test_without_a_provider_headers_are_left_as_they_are() -> None:
    seen: list[Any] = []
    traced = ProducerSpans("shop", headers_fit).one(
        lambda *_, **options: seen.append(options), stream_of
    )
    traced("orders.eu", 1)
    assert seen[0]["headers"] is None
