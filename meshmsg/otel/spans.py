"""What the spans of both sides have in common: the tracer, names and attributes, trace contexts.

Names of attributes are those of OpenTelemetry's semantic conventions for messaging.  A span is
called by the stream's topics and not by the topic, of which there may be as many as keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from meshmsg._bridge.trace_context import trace_headers
from meshmsg._peer.peer import __version__

#: The propagator of `traceparent`, whatever else the program sends along with HTTP requests.
W3C = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """The tracer of the provider that the program has set, or sets later."""
    return trace.get_tracer("meshmsg", __version__)


def template_of(stream: str) -> str:
    """What a stream's spans are called by: its topics, or the name that it was given instead."""
    return stream.partition("/")[2]


def attributes_of(operation: str, kind: str, stream: str) -> dict[str, Any]:
    """The attributes of every span."""
    return {
        "messaging.system": "meshmsg",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.template": template_of(stream),
        "messaging.destination.partition.id": stream,
    }


def remote_context(headers: Mapping[str, Any]) -> Context | None:
    """The context that headers name, `None` if they name none."""
    carried = trace_headers(headers)
    if not carried:
        return None
    context = W3C.extract(carried, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
