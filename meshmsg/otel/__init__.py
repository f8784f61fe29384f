"""Traces and metrics through OpenTelemetry, of peers that were opened with `otel=True`.

`publish` makes a producer span and puts its `traceparent` into the event's headers; `with event:`,
`handling` and `each` make consumer spans of the same trace.  Figures go through OpenTelemetry's
meter.  Where they end up is for the program to say, as ever: with a tracer provider, a meter
provider, or `opentelemetry-instrument`.  Needs `pip install 'meshmsg[otel]'`.

>>> with peer.subscribe("orders.**") as events:                               # doctest: +SKIP
...     for event in each(events):
...         handle(event.data)                # in a span: child of the one that published it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshmsg._model import batch
from meshmsg._peer.peer import PeerBase
from meshmsg.otel import meter
from meshmsg.otel.consumer import WithEvent, each, handling
from meshmsg.otel.producer import ProducerSpans

__all__ = ["each", "handling"]


def open_spans(name: str, fit: Callable[[Mapping[str, Any]], bool]) -> ProducerSpans:
    """Spans round what a peer publishes; from now on `with event:` has one, too."""
    batch.go_round(WithEvent())
    return ProducerSpans(name, fit)


def open_meter(peer: PeerBase) -> None:
    """Show an open peer's figures to the meter provider, as long as it is there."""
    meter.add(peer)
