"""Traces in another process, for `RemotePeer.use`: the real SDK, whose exporter keeps all spans."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshmsg import Peer
from meshmsg.otel import each, handling
from meshmsg.webhooks import Webhooks, WebhookServer

_exporter = InMemorySpanExporter()
_reader = InMemoryMetricReader()
_open = ExitStack()


def trace_all(peer: Peer) -> None:
    """Keep what is traced and measured from here on."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([_reader]))


def spans(peer: Peer) -> list[dict[str, Any]]:
    """Those that are over."""
    return [
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": span.context.trace_id,
            "span": span.context.span_id,
            "parent": span.parent and span.parent.span_id,
            "links": [link.context.span_id for link in span.links],
            "status": span.status.status_code.name,
            "attributes": dict(span.attributes or {}),
        }
        for span in _exporter.get_finished_spans()
        if span.context is not None
    ]


def numbers(peer: Peer, name: str) -> list[list[Any]]:
    """What an instrument shows now: attributes and a number for each series."""
    data = _reader.get_metrics_data()
    assert data is not None
    return [
        [dict(point.attributes or {}), point.value]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]


def publish_within(peer: Peer, topic: str, data: Any) -> str:
    """Publish in a span of the program's own; returns the trace's number."""
    with trace.get_tracer("test").start_as_current_span("order") as span:
        peer.publish(topic, data)
        return f"{span.get_span_context().trace_id:032x}"


def handle(peer: Peer, events: Any, count: int, how: str) -> list[Any]:
    """Handle so many events: each in a block, in a loop, or as one batch."""
    if how == "batch":
        found = events.get_many(count, timeout=30)
        assert len(found) == count
        with handling(found):
            return [event.data for event in found]
    seen: list[Any] = []
    for event in each(events) if how == "loop" else events:
        if how == "loop":
            seen.append(event.data)
        else:
            with event:
                seen.append(event.data)
        if len(seen) == count:
            break
    return seen


def fail_once(peer: Peer, events: Any) -> str:
    """Fail with the first event that comes."""
    event = events.get(timeout=30)
    try:
        with event:
            raise ValueError("no such order")
    except ValueError as error:
        return str(error)


def post_to(peer: Peer, url: str, topic: str) -> str:
    """Post what comes to an address; returns the secret."""
    hooks = _open.enter_context(Webhooks(peer))
    endpoint = hooks.add(url, topic, allow="127.0.0.1")
    return endpoint.secrets[0].text


def listen(peer: Peer, topic: str) -> str:
    """Publish what is posted; returns the address."""
    server = WebhookServer(peer, "127.0.0.1:0", topic=topic, scheme="none")
    return _open.enter_context(server).url


def forward(peer: Peer, events: Any, topic: str) -> None:
    """Publish again what comes, from within its handling, on a thread."""

    def run() -> None:
        for event in each(events):
            peer.publish(topic, event.data)

    threading.Thread(target=run, daemon=True).start()


def end(peer: Peer) -> None:
    """Close what was opened."""
    _open.close()
