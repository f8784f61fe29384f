"""Consumer spans: the handling of an event, or of a batch.

The span of one event is a child of the one that published it, so that a trace goes on through the
mesh.  A batch may hold events of as many traces, so its span has a link to each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, overload

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from meshmsg._model.batch import Batch, Event, place_of
from meshmsg.otel.spans import attributes_of, remote_context, template_of, tracer

#: Links of the span of a batch; OpenTelemetry's own limit, unless it is told another.
LINKS_MAX = 128


class _Open(NamedTuple):
    """A span that is not over, and what its end puts back."""

    span: Span
    token: Any


_open: ContextVar[tuple[_Open, ...]] = ContextVar("meshmsg_open_spans", default=())


class WithEvent:
    """Goes round each `with event:` of this process; blocks may stand in each other."""

    def enter(self, event: Event) -> None:
        """The block begins."""
        _open.set((*_open.get(), _begin(*_of_event(event))))

    def leave(self, error: BaseException | None) -> None:
        """The innermost block ends."""
        *others, last = _open.get() or (None,)
        if last is not None:  # else it was begun before there were traces
            _open.set(tuple(one for one in others if one is not None))
            _end(last, error)


@contextmanager
def handling(what: Event | Batch | Iterable[Event]) -> Iterator[Span]:
    """A consumer span round the handling of an event, or of a batch or list of them.

    An exception is recorded, and goes on.  It acknowledges nothing: `with event:` does, in a group.

    >>> for batch in events.batches():                                        # doctest: +SKIP
    ...     with handling(batch):
    ...         store(batch.to_arrow())
    """
    opened = _begin(*(_of_event(what) if isinstance(what, Event) else _of_several(what)))
    try:
        yield opened.span
    except BaseException as error:
        _end(opened, error)
        raise
    _end(opened, None)


@overload
def each(events: Iterable[Event]) -> Iterator[Event]: ...


@overload
def each(events: AsyncIterator[Event]) -> AsyncIterator[Event]: ...


def each(events: Any) -> Any:
    """Event after event, each in a consumer span that lasts until the next one is asked for.

    >>> for event in each(events):                                            # doctest: +SKIP
    ...     handle(event.data)
    """
    return _each(events) if hasattr(events, "__iter__") else _each_async(events)


def _each(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        opened = _begin(*_of_event(event))
        try:
            yield event
        finally:
            _end(opened, None)


async def _each_async(events: Any) -> AsyncIterator[Event]:
    async for event in events:
        opened = _begin(*_of_event(event))
        try:
            yield event
        finally:
            _end(opened, None)


def _of_event(event: Event) -> tuple[str, dict[str, Any], context.Context | None, list[Link]]:
    """Name, attributes, parent and links of an event's span."""
    batch = place_of(event)[0]
    attributes = _attributes(batch)
    attributes["messaging.destination.name"] = event.topic
    attributes["messaging.message.id"] = str(event.position)
    attributes["messaging.message.body.size"] = len(event.payload)
    if batch.group is not None:
        attributes["meshmsg.attempt"] = event.attempt
    parent = remote_context(event.headers)
    return f"process {template_of(batch.stream)}", attributes, parent, _links([parent])


def _of_several(
    what: Batch | Iterable[Event],
) -> tuple[str, dict[str, Any], context.Context | None, list[Link]]:
    """The same of several, whose traces may be as many."""
    events = list(what)
    batches = {id(place_of(event)[0]): place_of(event)[0] for event in events}
    attributes: dict[str, Any] = {"messaging.system": "meshmsg"}
    name = "process"
    if len({batch.stream for batch in batches.values()}) == 1:
        batch = next(iter(batches.values()))
        attributes = _attributes(batch)
        name = f"process {template_of(batch.stream)}"
    attributes["messaging.batch.message_count"] = len(events)
    return name, attributes, None, _links(remote_context(event.headers) for event in events)


def _attributes(batch: Batch) -> dict[str, Any]:
    attributes = attributes_of("process", "process", batch.stream)
    if batch.group is not None:
        attributes["messaging.consumer.group.name"] = batch.group
    return attributes


def _links(contexts: Iterable[context.Context | None]) -> list[Link]:
    """A link to each of the spans that published them, once."""
    found: dict[int, Link] = {}
    for one in contexts:
        if one is not None:
            named = trace.get_current_span(one).get_span_context()
            found.setdefault(named.span_id, Link(named))
            if len(found) >= LINKS_MAX:
                break
    return list(found.values())


def _begin(
    name: str, attributes: dict[str, Any], parent: context.Context | None, links: list[Link]
) -> _Open:
    # The tracer that the program has set by now: it may do so after its peers have opened.
    span = tracer().start_span(name, parent, SpanKind.CONSUMER, attributes, links)
    return _Open(span, context.attach(trace.set_span_in_context(span)))


def _end(opened: _Open, error: BaseException | None) -> None:
    span, token = opened
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()
    context.detach(token)
