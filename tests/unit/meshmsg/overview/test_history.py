"""Rates of counters, and the last points of plots."""

from __future__ import annotations

import pytest

from meshmsg.overview import history
from meshmsg.overview.history import POINTS_MAX, History, Rates


def test_a_rate_is_growth_over_time() -> None:
    rates = Rates()
    assert rates.rate("a", 100, now=10.0) == 0.0
    assert rates.rate("a", 300, now=12.0) == 100.0
    assert rates.rate("a", 300, now=12.0) == 100.0  # asked again in the same look
    assert rates.rate("a", 300, now=13.0) == 0.0


def test_a_counter_that_begins_anew_has_no_rate_once() -> None:
    rates = Rates()
    rates.rate("a", 100, now=0.0)
    assert rates.rate("a", 10, now=1.0) == 0.0
    assert rates.rate("a", 30, now=2.0) == 20.0


def test_counters_are_forgotten() -> None:
    rates = Rates()
    rates.rate("a", 1, now=0.0)
    rates.rate("b", 1, now=5.0)
    rates.forget(before=3.0)
    assert rates.rate("a", 9, now=6.0) == 0.0
    assert rates.rate("b", 9, now=6.0) == 8.0


def test_plots_have_gaps_and_an_end() -> None:
    plots = History()
    plots.add({"a": 1.0, "b": 5.0})
    plots.add({"a": 2.0})
    assert plots.points("a") == [1.0, 2.0]
    assert plots.points("b") == [5.0, None]
    assert plots.points("c") == []
    for n in range(POINTS_MAX):
        plots.add({"a": float(n)})
    assert len(plots.points("a")) == POINTS_MAX
    assert plots.points("b") == []


def test_plots_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SERIES_MAX", 2)
    plots = History()
    plots.add({"a": 1.0, "b": 2.0, "c": 3.0})
    assert (plots.points("c"), plots.left_out) == ([], 1)
