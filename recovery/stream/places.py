"""Streams that a subscription has forgotten, and where it was in each: enough to go on there.

A subscription lets go of a stream whose publisher has been gone for long, when all of it has been
handed over.  The publisher may come back all the same, from behind a broken network or with a log,
and no event must be missed or come twice then.  So the place in the stream stays, a few hundred
bytes, for the last `PLACES_MAX` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

#: Of one subscription; beyond, the one that was forgotten first is new when it comes back.
PLACES_MAX = 50_000

Place = TypeVar("Place")


class Places(Generic[Place]):
    """By stream, the one that was forgotten first comes first; whoever calls has the lock."""

    def __init__(self, counters: Counter[str]) -> None:
        self._places: dict[str, Place] = {}
        self._counters = counters

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, stream: str) -> bool:
        return stream in self._places

    def keep(self, stream: str, place: Place | None) -> None:
        """A stream is forgotten; of one that we never were in, there is no place."""
        self._counters["streams_forgotten"] += 1
        if place is not None:
            self._places[stream] = place
        if len(self._places) > PLACES_MAX:
            self._counters["places_dropped"] += 1
            del self._places[next(iter(self._places))]

    def get(self, stream: str) -> Place | None:
        """Return where we were in a stream that is forgotten."""
        return self._places.get(stream)

    def take(self, stream: str) -> Place | None:
        """Return where to go on in a stream that is back, and forget that."""
        place = self._places.pop(stream, None)
        self._counters["streams_back"] += place is not None
        return place
