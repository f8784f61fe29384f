"""Consumer spans of events that nobody sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshmsg import Event
from meshmsg._model.batch import Batch
from meshmsg._model.codecs import MsgpackCodec
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg.otel import consumer
from meshmsg.otel.consumer import LINKS_MAX, WithEvent, each, handling


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(consumer, "tracer", lambda: provider.get_tracer("meshmsg"))
    return kept


def events(count: int) -> list[Event]:
    """Events of as many traces."""
    headers = {
        n: encode_headers({"traceparent": f"00-{n + 1:032x}-{n + 1:016x}-01"}) for n in range(count)
    }
    data = encode_frame(1, 5, 0, ["a"] * count, [b"\x01"] * count, [7] * count, headers=headers)
    return list(Batch(Frame(data), "shop/a", MsgpackCodec()))


def test_a_loop_has_a_span_a_turn_which_ends_with_it(exporter: InMemorySpanExporter) -> None:
    before = trace.get_current_span()
    for event in each(events(3)):
        assert trace.get_current_span() is not before
        if event.seq == 1:
            break
    assert trace.get_current_span() is before
    assert [span.context.trace_id for span in exporter.get_finished_spans()] == [1, 2]


def test_links_of_a_batch_have_a_bound(exporter: InMemorySpanExporter) -> None:
    with handling(events(LINKS_MAX + 10)) as span:
        assert trace.get_current_span() is span
    (kept,) = exporter.get_finished_spans()
    assert len(kept.links) == LINKS_MAX
    assert (kept.attributes or {})["messaging.batch.message_count"] == LINKS_MAX + 10


def test_an_exception_is_recorded_and_goes_on(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(KeyError), handling(events(1)[0]):
        raise KeyError("x")
    with pytest.raises(KeyError), handling([]):
        raise KeyError("x")
    one, none = exporter.get_finished_spans()
    assert (one.attributes or {})["error.type"] == "KeyError"
    assert (none.name, len(none.events)) == ("process", 1)


def test_a_block_that_began_before_there_were_traces_ends_without_one(
    exporter: InMemorySpanExporter,
) -> None:
    WithEvent().leave(None)
    assert exporter.get_finished_spans() == ()


async def _async(found: Iterator[Event]) -> AsyncIterator[Event]:
    for event in found:
        yield event


def test_loops_of_coroutines_have_spans_too(exporter: InMemorySpanExporter) -> None:
    import asyncio

    async def run() -> list[int]:
        return [event.seq async for event in each(_async(iter(events(2))))]

    assert asyncio.run(run()) == [0, 1]
    assert len(exporter.get_finished_spans()) == 2
