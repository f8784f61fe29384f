"""One series in one interval: its figures, and what a bound does to them."""

from __future__ import annotations

from random import Random

import numpy
import pytest

from meshmsg.statsd.series import QUANTILES, new_series, quantile


def test_a_counter_weighs_samples_by_their_rate_and_begins_anew() -> None:
    series = new_series("counter", 10)
    series.add([1.0, 2.0], 0.5)
    series.add([4.0], 1.0)
    assert series.take(5.0) == {"count": 10.0, "per_second": 2.0, "samples": 3}
    assert series.take(5.0) == {"count": 0.0, "per_second": 0.0, "samples": 0}
    series.add([1.0], 1.0)
    assert series.take(0.0)["per_second"] == 0.0


def test_a_cumulative_counter_counts_what_it_grew_by_also_after_a_restart() -> None:
    series = new_series("cumulative", 10)
    series.add([100.0, 130.0], 1.0)
    assert series.take(1.0)["count"] == 30.0
    series.add([150.0, 7.0, 9.0], 1.0)  # the sender was started again
    assert series.take(1.0)["count"] == 20.0 + 7.0 + 2.0


def test_a_gauge_is_set_or_moved_and_outlives_its_interval() -> None:
    series = new_series("gauge", 10)
    series.add([(False, 5.0), (True, -2.0)], 1.0)
    assert series.take(1.0) == {"value": 3.0, "samples": 2}
    series.add([(True, 4.0)], 1.0)
    assert series.take(1.0) == {"value": 7.0, "samples": 1}


def test_a_timers_figures_are_those_of_its_samples() -> None:
    rng = Random(1)
    values = [rng.uniform(0, 100) for _ in range(500)]
    series = new_series("timer", 1000)
    series.add(values, 0.1)
    figures = series.take(1.0)
    assert figures["count"] == pytest.approx(5000)
    assert figures["samples"] == 500
    assert figures["sum"] == pytest.approx(sum(values))
    assert (figures["min"], figures["max"]) == (min(values), max(values))
    assert figures["mean"] == pytest.approx(sum(values) / 500)
    for name, rank in QUANTILES.items():
        assert figures[name] == float(numpy.quantile(values, rank))
    assert "approximate" not in figures


def test_a_timer_beyond_its_bound_is_approximate_and_keeps_few_samples() -> None:
    series = new_series("histogram", 100)
    for start in range(0, 10_000, 50):
        series.add([float(n) for n in range(start, start + 50)], 1.0)
    figures = series.take(1.0)
    assert figures["approximate"] is True
    assert (figures["min"], figures["max"], figures["sum"]) == (0.0, 9999.0, 49_995_000.0)
    assert figures["median"] == pytest.approx(5000, abs=100)
    series.add([1.0], 1.0)
    again = series.take(1.0)
    assert (again["sum"], again["samples"], "approximate" in again) == (1.0, 1, False)


def test_a_set_counts_different_values_and_is_approximate_beyond_its_bound() -> None:
    series = new_series("set", 3)
    series.add([b"a", b"b", b"a", b"\xff"], 1.0)
    assert series.take(1.0) == {"count": 3, "samples": 4}
    series.add([b"%d" % (n % 1000) for n in range(2000)], 1.0)
    figures = series.take(1.0)
    assert figures["approximate"] is True
    assert figures["count"] == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("kind", ["counter", "cumulative", "gauge", "timer", "set"])
def test_condensing_early_changes_no_exact_figure(kind: str) -> None:
    sample = {"gauge": [(False, 3.0)], "set": [b"3"]}.get(kind, [3.0])
    series = new_series(kind, 10)
    series.add(sample, 1.0)
    series.condense()
    series.add(sample, 1.0)
    figures = series.take(1.0)
    assert figures["samples"] == 2
    assert figures.get("max", 3.0) == 3.0
    assert figures.get("sum", 6.0) == 6.0


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("rank", [0.0, 0.25, 0.5, 0.999, 1.0])
def test_a_quantile_is_numpys(size: int, rank: float) -> None:
    ordered = numpy.sort(numpy.random.default_rng(size).normal(size=size))
    assert quantile(ordered, rank) == float(numpy.quantile(ordered, rank))
