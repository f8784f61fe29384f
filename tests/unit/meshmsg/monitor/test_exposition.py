"""What Prometheus reads, read again by its own parsers; hostile names cost nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from meshmsg.monitor.exposition import OPENMETRICS, render
from meshmsg.monitor.metrics import LABEL_CHARACTERS_MAX, Collection, Metric, Sample

LAG = Metric("meshmsg_lag_events", "gauge", "Events behind", ("stream",))
DONE = Metric("meshmsg_done", "counter", "Events done", ("stream",))
HOSTILE = [
    'a"} 1\nmeshmsg_fake{x="y',
    "back\\slash",
    "\x00\x1b[2J\x7f",
    "<script>alert(1)</script>",
    "‮rtl  ",
    "\ud800 alone",
    "x" * 5_000,
    "",
]


def test_hostile_names_are_labels_and_nothing_else() -> None:
    found = Collection(100, Counter())
    found.add(Sample(LAG, (name,), float(n)) for n, name in enumerate(HOSTILE))
    for openmetrics, reader in ((True, parse), (False, parse_plain)):
        text, _ = render(found.families, openmetrics=openmetrics)
        (family,) = reader(text.decode())
        assert family.name == "meshmsg_lag_events"
        assert [sample.value for sample in family.samples] == list(map(float, range(len(HOSTILE))))
        labels = [sample.labels["stream"] for sample in family.samples]
        assert labels[0] == HOSTILE[0].replace("\n", "�")
        assert labels[1] == HOSTILE[1]
        assert all(label.isprintable() for label in labels)
        assert max(map(len, labels)) == LABEL_CHARACTERS_MAX


def test_a_histogram_has_buckets_and_a_sum() -> None:
    metric = Metric("meshmsg_wait_seconds", "histogram", "Waits", ("stream",))
    found = Collection(10, Counter())
    value = {"bounds": [0.1, 1.0], "counts": [3, 2, 1], "sum": 4.5}
    found.add([Sample(metric, ("a",), value)])
    text, content_type = render(found.families, openmetrics=True)
    (family,) = parse(text.decode())
    got = {(s.name[21:], s.labels.get("le")): s.value for s in family.samples}
    assert got[("bucket", "0.1")] == 3
    assert got[("bucket", "1.0")] == 5
    assert got[("bucket", "+Inf")] == got[("count", None)] == 6
    assert got[("sum", None)] == 4.5
    assert "openmetrics" in content_type


def test_counters_end_with_total_whatever_is_read() -> None:
    found = Collection(10, Counter())
    found.add([Sample(DONE, ("a",), 1.0)])
    for openmetrics in (True, False):
        text, _ = render(found.families, openmetrics=openmetrics)
        assert b'meshmsg_done_total{stream="a"} 1.0' in text
    assert DONE.shown == "meshmsg_done_total"


def test_an_info_says_its_labels_and_no_number() -> None:
    metric = Metric("meshmsg_build", "info", "What runs", ("version", "python"))
    found = Collection(10, Counter())
    found.add([Sample(metric, ("1.0", "3.11"), 1.0)])
    text, _ = render(found.families, openmetrics=True)
    (family,) = parse(text.decode())
    (sample,) = family.samples
    assert sample.name == metric.shown == "meshmsg_build_info"
    assert sample.labels == {"version": "1.0", "python": "3.11"}


@pytest.mark.parametrize("openmetrics", [True, False])
def test_nothing_to_show_is_no_error(openmetrics: bool) -> None:
    text, content_type = render({}, openmetrics=openmetrics)
    assert text == (b"# EOF\n" if openmetrics else b"")
    assert content_type.startswith(OPENMETRICS if openmetrics else "text/plain")


def test_a_histogram_that_does_not_fit_its_bounds_is_a_defect() -> None:
    metric = Metric("meshmsg_wait_seconds", "histogram", "Waits")
    value = {"bounds": [0.1, 1.0], "counts": [3, 2], "sum": 4.5}
    with pytest.raises(ValueError, match="shorter"):
        render({metric: [Sample(metric, (), value)]}, openmetrics=True)
