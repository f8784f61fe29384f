"""Streams that were forgotten keep their place, within a bound."""

from __future__ import annotations

from collections import Counter

import pytest

from meshmsg.recovery.stream import places as _places
from meshmsg.recovery.stream.places import Places


def test_a_stream_that_is_back_goes_on_where_it_was_once() -> None:
    counters: Counter[str] = Counter()
    places: Places[int] = Places(counters)
    places.keep("a/x", 7)
    assert "a/x" in places
    assert places.get("a/x") == 7
    assert places.take("a/x") == 7
    assert places.take("a/x") is None
    assert (len(places), places.get("a/x")) == (0, None)
    assert counters == {"streams_forgotten": 1, "streams_back": 1}


def test_a_stream_that_was_never_entered_has_no_place() -> None:
    counters: Counter[str] = Counter()
    places: Places[int] = Places(counters)
    places.keep("a/x", None)
    assert list(places) == []
    assert counters["streams_forgotten"] == 1


def test_beyond_the_bound_the_one_forgotten_first_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_places, "PLACES_MAX", 2)
    counters: Counter[str] = Counter()
    places: Places[int] = Places(counters)
    for n, stream in enumerate(("a", "b", "c")):
        places.keep(stream, n)
    assert list(places) == ["b", "c"]
    assert counters["places_dropped"] == 1
