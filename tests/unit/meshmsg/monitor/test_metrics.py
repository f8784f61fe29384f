"""Series stand once, and their number is bounded; labels can be shown."""

from __future__ import annotations

from collections import Counter

import pytest

from meshmsg.monitor.metrics import (
    LABEL_CHARACTERS_MAX,
    Collection,
    Metric,
    Sample,
    clean,
    counts,
    numbers,
    rest,
)

LAG = Metric("meshmsg_lag_events", "gauge", "Events behind", ("stream",))


def test_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    counters: Counter[str] = Counter()
    found = Collection(3, counters)
    found.add(Sample(LAG, (str(n),), 0.0) for n in range(5))
    assert sum(map(len, found.families.values())) == 3
    assert counters["series_dropped"] == 2


def test_two_names_that_look_alike_are_one_series() -> None:
    counters: Counter[str] = Counter()
    found = Collection(10, counters)
    found.add([Sample(LAG, ("a\x00",), 1.0), Sample(LAG, ("a\x01",), 2.0)])
    assert [sample.value for sample in found.families[LAG]] == [1.0]
    assert counters["series_dropped"] == 1


def test_the_rest_of_a_row_is_its_numbers() -> None:
    row = {"a": 1, "b": 2.5, "c": "text", "d": None, "e": True, "f": [1], "g": {}}
    assert rest(row, ("a",)) == {"b": 2.5}


def test_what_is_not_known_has_no_sample() -> None:
    table = {"behind": LAG, "age": LAG, "size": LAG}
    assert numbers(table, {"behind": 0, "age": None}, "a") == [Sample(LAG, ("a",), 0.0)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a b", "a b"),
        ("a\x00\n", "a��"),
        ("x" * 999, "x" * LABEL_CHARACTERS_MAX),
        (7, "7"),
    ],
)
def test_labels_can_be_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_histogram_is_shown_whole_or_not_at_all() -> None:
    metric = Metric("meshmsg_wait_seconds", "histogram", "Waits", ("stream",))
    value = {"bounds": [1.0], "counts": [3, 2], "sum": 4.5}
    counters: Counter[str] = Counter()
    found = Collection(7, counters)
    found.add([Sample(metric, ("a",), value), Sample(metric, ("b",), value)])
    assert (found.shown, counters["series_dropped"]) == (4, 4)
    found.add([Sample(LAG, ("c",), 1.0)])  # for this there is room
    assert found.shown == 5


def test_samples_are_made_of_what_a_row_has() -> None:
    other = Metric("meshmsg_other", "gauge", "Other")
    made = numbers({"lag": LAG, "other": other}, {"lag": 3, "more": 1}, "s")
    assert made == [Sample(LAG, ("s",), 3.0)]
    both = counts(LAG, {"x": 1, "y": 2}, "s")
    assert both == [Sample(LAG, ("s", "x"), 1.0), Sample(LAG, ("s", "y"), 2.0)]
