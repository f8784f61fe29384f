"""The books of a StatsD server: figures equal numpy's, every line is accounted for."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg.statsd import aggregates as statsd_aggregates
from meshmsg.statsd.aggregates import FATES, Aggregates
from meshmsg.statsd.signed_packets import SignedPackets, sign


def books(**options: Any) -> Aggregates:
    return Aggregates(**({"series_max": 1000, "samples_max": 100_000} | options))


def figures(aggregates: Aggregates, interval_s: float = 10.0) -> dict[str, dict[str, Any]]:
    return {found.name: found.figures for found in aggregates.flush(interval_s)}


def test_figures_of_timers_equal_numpys() -> None:
    rng = random.Random(7)
    samples = {f"t{n}": [rng.lognormvariate(3, 1) for _ in range(17 * n + 1)] for n in range(40)}
    lines = [f"{name}:{v!r}|ms".encode() for name, values in samples.items() for v in values]
    rng.shuffle(lines)
    aggregates = books()
    for at in range(0, len(lines), 30):
        aggregates.add([b"\n".join(lines[at : at + 30])])
    found = figures(aggregates)
    for name, values in samples.items():
        array = numpy.array(values)
        one = found[name]
        assert one["count"] == one["samples"] == len(values)
        assert (one["min"], one["max"]) == (array.min(), array.max())
        assert one["mean"] == pytest.approx(array.mean(), rel=1e-12)
        assert one["sum"] == pytest.approx(array.sum(), rel=1e-12)
        wanted = numpy.quantile(array, [0.5, 0.75, 0.95, 0.99, 0.999])
        assert [one[q] for q in ("median", "p75", "p95", "p99", "p99.9")] == wanted.tolist()
        assert "approximate" not in one


def test_sample_rates_scale_counts_and_not_quantiles() -> None:
    aggregates = books()
    aggregates.add([b"c:2|c|@0.5\nc:1|c\nt:10|ms|@0.1\nt:20|ms"])
    found = figures(aggregates)
    assert found["c"] == {"count": 5.0, "per_second": 0.5, "samples": 2}
    assert (found["t"]["count"], found["t"]["samples"], found["t"]["median"]) == (11, 2, 15)


def test_gauges_move_by_signed_values_and_outlive_the_interval() -> None:
    aggregates = books()
    aggregates.add([b"g:10|g", b"g:+5|g\ng:-1|g"])
    assert figures(aggregates)["g"]["value"] == 14
    assert figures(aggregates) == {}
    aggregates.add([b"g:-4|g"])
    assert figures(aggregates)["g"]["value"] == 10


def test_a_gauge_is_known_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statsd_aggregates, "IDLE_INTERVALS_MAX", 3)
    aggregates = books(series_max=4)
    aggregates.add([b"g:10|g"])
    for _ in range(9):
        figures(aggregates)
    aggregates.add([b"g:+1|g"])
    assert figures(aggregates)["g"]["value"] == 11
    for _ in range(9):
        aggregates.add([b"a:1|c\nb:1|c"])
        figures(aggregates)
    assert aggregates.series == 2, "its place is wanted"


def test_lines_that_are_no_numbers_take_no_place() -> None:
    aggregates = books(series_max=2)
    aggregates.add([b"x:junk|g\ny:junk|g\nz:|s\na:1|c\nb:1|c"])
    assert set(figures(aggregates)) == {"a", "b"}
    assert aggregates.counters["malformed"] == 3


def test_sums_stay_finite() -> None:
    aggregates = books()
    aggregates.add([b"c:1e100|c|@0.000000001\n" * 1000, b"c:1e300|c", b"c:1|c|@1e-300"])
    assert math.isfinite(figures(aggregates)["c"]["count"])
    assert aggregates.counters["malformed"] == 2


def test_cumulative_counters_count_growth_through_a_restart() -> None:
    aggregates = books()
    aggregates.add([b"C:100|C\nC:130|C"])
    assert figures(aggregates)["C"]["count"] == 30
    aggregates.add([b"C:140|C\nC:5|C"])
    assert figures(aggregates)["C"]["count"] == 15


def test_sets_count_different_values() -> None:
    aggregates = books(samples_max=100)
    aggregates.add([b"u:anna|s\nu:bert|s\nu:anna|s\nu:|s"])
    assert figures(aggregates)["u"] == {"count": 2, "samples": 3}
    assert aggregates.counters["malformed"] == 1
    aggregates.add([b"\n".join(b"u:%d|s" % n for n in range(5000))])
    one = figures(aggregates)["u"]
    assert one["approximate"]
    assert one["count"] == pytest.approx(5000, rel=0.05)


def test_tags_make_series_and_their_order_does_not() -> None:
    aggregates = books()
    aggregates.add([b"c:1|c|#a:1,b:2\nc:1|c|#b:2,a:1\nc:1|c|#a:2"])
    found = [(one.tags, one.figures["count"]) for one in aggregates.flush(1)]
    assert sorted(found) == [((("a", "1"), ("b", "2")), 2), ((("a", "2"),), 1)]


def test_beyond_the_bound_a_sketch_takes_over_and_says_so() -> None:
    rng = random.Random(1)
    values = [rng.random() for _ in range(50_000)]
    aggregates = books(samples_max=1000)
    for at in range(0, len(values), 500):
        aggregates.add([b"\n".join(b"t:%r|h" % v for v in values[at : at + 500])])
    one = figures(aggregates)["t"]
    assert one["approximate"]
    assert (one["min"], one["max"]) == (min(values), max(values))
    assert one["mean"] == pytest.approx(numpy.mean(values))
    assert one["p95"] == pytest.approx(0.95, abs=0.02)


def test_samples_over_all_series_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statsd_aggregates, "SAMPLES_TOTAL_MAX", 100)
    aggregates = books()
    aggregates.add([b"\n".join(b"a:%d|ms" % n for n in range(100))])
    aggregates.settle()
    aggregates.add([b"b:1|ms\nb:3|ms"])
    found = figures(aggregates)
    assert "approximate" not in found["a"]
    assert found["b"]["approximate"]
    aggregates.add([b"b:1|ms\nb:3|ms"])
    assert "approximate" not in figures(aggregates)["b"]


def test_series_have_a_bound_and_a_counter() -> None:
    aggregates = books(series_max=2)
    aggregates.add([b"a:1|c\nb:1|c\nc:1|c\nc:1|c"])
    assert len(figures(aggregates)) == 2
    assert aggregates.counters["series_full"] == 2
    figures(aggregates)  # an interval without samples, and there is room again
    aggregates.add([b"c:1|c"])
    assert figures(aggregates)["c"]["count"] == 1


def test_foreign_lines_are_counted_apart() -> None:
    aggregates = books()
    aggregates.add([b"_e{5,4}:title|text\n_sc|Redis|2\na:1|c"])
    aggregates.settle()
    assert aggregates.counters["unsupported"] == 2
    assert aggregates.counters["malformed"] == 0


def test_raw_samples_come_as_they_were() -> None:
    aggregates = books(raw=True)
    aggregates.add([b"t:1|ms|@0.5\nt:2|ms|@0.5\ng:+1|g"])
    aggregates.settle()
    found = {one.meaning.name: one.values for one in aggregates.raw()}
    assert found == {"t": [1, 2], "g": [(True, 1)]}
    assert aggregates.raw() == []


FRAGMENTS = [b"a", b":", b"|", b"1", b"c", b"ms", b"g", b"|@0.1", b"|#t:1", b"\n", b"-", b"\xff"]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join), max_size=10))
def test_every_line_of_anything_is_accounted_for(packets: list[bytes]) -> None:
    aggregates = books(raw=True, series_max=3)
    aggregates.add(packets)
    samples = sum(one.figures["samples"] for one in aggregates.flush(1.0))
    counters = aggregates.counters
    assert counters["lines"] == sum(counters[fate] for fate in FATES)
    assert counters["samples"] == samples
    assert counters["lines"] == sum(map(bool, b"\n".join(packets).split(b"\n")))


# Brubeck's signed packets ----------------------------------------------------------------------


def test_signed_packets_are_opened_once() -> None:
    seal, counters = SignedPackets(b"secret"), Counter[str]()
    packet = sign(b"secret", b"a:1|c", now=1000.0, nonce=1)
    other = sign(b"secret", b"a:1|c", now=1000.0, nonce=2)
    assert seal.open([packet, other], counters, now=1001.0) == [b"a:1|c", b"a:1|c"]
    assert seal.open([packet], counters, now=1001.0) == []
    assert counters == {"replayed_packets": 1}


def test_packets_with_a_wrong_signature_or_time_are_counted() -> None:
    seal, counters = SignedPackets(b"secret"), Counter[str]()
    good = sign(b"secret", b"a:1|c", now=1000.0, nonce=1)
    wrong = [b"", b"short", good[:44], good[:-1] + b"x", sign(b"other", b"a:1|c", now=1e3, nonce=1)]
    assert seal.open(wrong, counters, now=1000.0) == []
    assert seal.open([good], counters, now=1004.0) == []
    assert seal.open([good], counters, now=996.0) == []
    assert counters == {"bad_signatures": len(wrong), "stale_packets": 2}


def test_memory_of_seen_packets_ends_when_they_are_stale() -> None:
    seal, counters = SignedPackets(b"s"), Counter[str]()
    for second in range(100):
        packet = sign(b"s", b"a:1|c", now=second, nonce=second)
        assert seal.open([packet], counters, now=second)
    assert len(seal._seen) < 12
