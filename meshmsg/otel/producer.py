"""Producer spans: what goes round publishing, chosen once when a peer opens.

A peer without traces has none of this: its `publish` is the one that has always been there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from meshmsg._model.event import Position
from meshmsg.otel.spans import W3C, attributes_of, remote_context, template_of, tracer

log = logging.getLogger("meshmsg.peer")

Headers = Mapping[str, Any] | None


class ProducerSpans:
    """Spans round what one peer publishes."""

    def __init__(self, name: str, fit: Callable[[Mapping[str, Any]], bool]) -> None:
        """What the peer is called, and whether headers `fit` into an event."""
        self._name = name
        self._fit = fit
        self._tracer = tracer()
        self._said = False  #: that headers had no room

    def one(
        self, publish: Callable[..., Position | None], stream_of: Callable[[str], str]
    ) -> Callable[..., Position | None]:
        """`publish` with a span for each event."""

        def traced(
            topic: str,
            data: Any,
            *,
            key: str | None = None,
            headers: Headers = None,
            timeout: float | None = None,
            on_gate: Callable[[], None] | None = None,
        ) -> Position | None:
            span, carried = self._begin(topic, stream_of(topic), headers)
            with _ended(span):
                position = publish(
                    topic, data, key=key, headers=carried, timeout=timeout, on_gate=on_gate
                )
                if position is None:
                    # Blocked, in a coroutine: the event leaves by another call, in a span of its
                    # own.  One that never ends is never seen.
                    return None
                span.set_attribute("messaging.message.id", str(position))
                span.end()
                return position

        return traced

    def many(
        self, publish_all: Callable[..., Position | None], stream_of: Callable[[str], str]
    ) -> Callable[..., Position | None]:
        """`publish_all` with one span for the events of a call."""

        def traced(
            topic: str,
            items: Iterable[Any],
            keys: Sequence[str | None] | None,
            headers: Headers,
            timeout: float | None,
        ) -> Position | None:
            values = items if isinstance(items, list) else list(items)
            span, carried = self._begin(topic, stream_of(topic), headers, len(values))
            with _ended(span):
                last = publish_all(topic, values, keys, carried, timeout)
                span.end()
                return last

        return traced

    def many_async(
        self, publish_many: Callable[..., Any], stream_of: Callable[[str], str]
    ) -> Callable[..., Any]:
        """The same for coroutines."""

        async def traced(
            topic: str, items: Iterable[Any], *, headers: Headers = None, **options: Any
        ) -> Position | None:
            values = items if isinstance(items, list) else list(items)
            span, carried = self._begin(topic, stream_of(topic), headers, len(values))
            with _ended(span):
                last: Position | None = await publish_many(
                    topic, values, headers=carried, **options
                )
                span.end()
                return last

        return traced

    def _begin(
        self, topic: str, stream: str, headers: Headers, count: int | None = None
    ) -> tuple[Span, Headers]:
        """A span, and the headers that carry it.  Those given may name its parent: a webhook's."""
        attributes = attributes_of("publish", "send", stream)
        attributes |= {"messaging.destination.name": topic, "messaging.client.id": self._name}
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        is_mapping = isinstance(headers, Mapping)
        span = self._tracer.start_span(
            f"publish {template_of(stream)}",
            remote_context(headers) if is_mapping and headers else None,
            SpanKind.PRODUCER,
            attributes,
        )
        if not span.get_span_context().is_valid or not (headers is None or is_mapping):
            return span, headers  # no provider, or headers that `publish` refuses in words
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(span))
        carried = {**(headers or {}), **carrier}
        if headers and not self._fit(carried):
            if self._fit(headers):
                self._say_no_room(topic)
            return span, headers
        return span, carried

    def _say_no_room(self, topic: str) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "%s: an event of %s goes without its trace: its headers leave no room for it "
                "(said once)",
                self._name,
                topic,
            )


@contextmanager
def _ended(span: Span) -> Iterator[None]:
    """Have a span say what became of an event that was not published."""
    try:
        yield
    except BaseException as error:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.set_attribute("error.type", type(error).__qualname__)
        span.end()
        raise
