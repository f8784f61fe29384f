"""Times are counted where they belong, and nothing else is kept of them."""

from __future__ import annotations

import pytest

from meshmsg.recovery.stream.histogram import BOUNDS_EVENTS, BOUNDS_S, Histogram


def test_times_are_counted_by_size() -> None:
    times = Histogram()
    for took_s in (0.0, 0.0001, 0.00011, 0.5, 10.0, 11.0, 1e9):
        times.add(took_s)
    found = times.as_dict()
    assert found["bounds"] == BOUNDS_S
    assert found["counts"] == [2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 2]
    assert found["sum"] == pytest.approx(1e9 + 21.50021)


def test_numbers_of_events_have_bounds_of_their_own() -> None:
    sizes = Histogram(BOUNDS_EVENTS)
    for count in (1, 2, 3, 30_001):
        sizes.add(count)
    found = sizes.as_dict()
    assert found["bounds"] == BOUNDS_EVENTS
    assert found["counts"] == [1, 2, *[0] * 8, 1]
    assert found["sum"] == 30_007


def test_a_clock_that_was_set_back_costs_nothing() -> None:
    times = Histogram()
    times.add(-5.0)
    assert (times.as_dict()["counts"][0], times.as_dict()["sum"]) == (1, 0.0)
