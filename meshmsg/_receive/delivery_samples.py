"""How long events take to their consumer, and how many come at a time: of a sample of the frames.

Measuring each frame would cost it something, so the first that is handed over `EVERY_S` after the
last sample is the next one.
"""

from __future__ import annotations

from typing import Any

from meshmsg._model.batch import Batch
from meshmsg.recovery.stream.histogram import BOUNDS_EVENTS, Histogram

#: At most a hundred a second of one subscription: a ten-thousandth of a processor.
EVERY_S = 0.01


class DeliverySamples:
    """Of one stream of a subscription."""

    __slots__ = ("_batch_events", "_delay_s")

    def __init__(self) -> None:
        self._delay_s = Histogram()
        self._batch_events = Histogram(BOUNDS_EVENTS)

    def add(self, batch: Batch, *, now_ns: int) -> None:
        """A batch is handed over; its first event has waited for longest."""
        published_ns = batch.frame.time_at(batch.indices[0])
        self._delay_s.add((now_ns - published_ns) / 1e9)
        self._batch_events.add(len(batch))

    def as_dict(self) -> dict[str, Any]:
        """Both histograms, as `stats()` shows them."""
        return {"delay_s": self._delay_s.as_dict(), "batch_events": self._batch_events.as_dict()}
