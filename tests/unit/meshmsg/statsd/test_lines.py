"""StatsD lines: what is cut, what is understood, and what is no metric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg._model.topics import check_topic
from meshmsg.statsd.lines import _NUMBER, Runs, cut, numbers, topic_of, understand
from meshmsg.statsd.report import Growth, metrics_of, word


@pytest.mark.parametrize(
    ("name", "rest", "kind", "rate", "tags"),
    [
        (b"a.b", b"c", "counter", 1.0, ()),
        (b"a.b", b"c\r", "counter", 1.0, ()),
        (b"a.b", b"ms|@0.1", "timer", 0.1, ()),
        (b"a.b", b"h|@0.5|#env:prod,fast", "histogram", 0.5, (("env", "prod"), ("fast", ""))),
        (b"a.b", b"d|#b:2,a:1|c:container|T1656581400", "histogram", 1.0, (("a", "1"), ("b", "2"))),
        (b"a.b", b"c|e:it-false,cn-x|card:low", "counter", 1.0, ()),
        (b"a.b", b"s", "set", 1.0, ()),
        (b"a.b", b"C", "cumulative", 1.0, ()),
        ("zähler".encode(), b"g", "gauge", 1.0, ()),
    ],
)
def test_understands_types_rates_and_tags(
    name: bytes, rest: bytes, kind: str, rate: float, tags: tuple[tuple[str, str], ...]
) -> None:
    meaning = understand(name, rest)
    assert meaning is not None
    assert (meaning.name, meaning.kind) == (name.decode(), kind)
    assert (meaning.rate, meaning.tags) == (rate, tags)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        (b"", b"c"),
        (b"a", b""),
        (b"a", b"x"),
        (b"a", b"c|@0"),
        (b"a", b"c|@2"),
        (b"a", b"c|@-1"),
        (b"a", b"c|@nan"),
        (b"a", b"c|@1e-300"),
        (b"a", b"c|@"),
        (b"a", b"c|?"),
        (b"\xff", b"c"),
        (b"a", b"c|#\xff"),
        (b"n" * 201, b"c"),
        (b"a", b"c|#" + b"t" * 5000),
    ],
)
def test_refuses_what_is_no_metric(name: bytes, rest: bytes) -> None:
    assert understand(name, rest) is None


def test_cuts_many_lines_of_many_packets() -> None:
    runs: Runs = {}
    assert cut([b"a:1|c\nb:2|ms\n", b"\n", b"a:3|c", b"junk"], runs) == 4
    assert runs == {(b"a", b"c"): [b"1", b"3"], (b"b", b"ms"): [b"2"], (b"junk", b""): [b""]}


def test_reads_numbers_and_counts_what_are_none() -> None:
    assert numbers([b"1", b"-2.5", b"1e3", b".5", b"3."]) == ([1, -2.5, 1000, 0.5, 3], 0)
    bad = [b"", b"nan", b"inf", b"1_0", b" 1", b"0x1", b"1e999", b"--1", b"1-2", b"\xff"]
    assert numbers([b"1", *bad, b"2"]) == ([1, 2], len(bad))
    assert numbers([b"1:2:3", b"4", b"5:x"]) == ([1, 2, 3, 4], 1)
    assert numbers([b"1e308", b"1"]) == ([1], 1)  # a few of these would add up to infinity
    assert numbers([b"-1e101", b"1e100", b"1e308:1"]) == ([1e100], 2)
    assert numbers([]) == ([], 0)


def test_numbers_have_at_most_64_bytes() -> None:
    longest = b"0." + b"1" * 62
    assert numbers([longest]) == ([float(longest)], 0)
    assert numbers([longest + b"1"]) == ([], 1)
    assert numbers([b"x", longest + b"1", b"1:" + longest + b"1", longest]) == ([float(longest)], 3)
    assert understand(b"a", b"c|@" + longest) is not None
    assert understand(b"a", b"c|@" + longest + b"1") is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tail", [b"x", b"ex", b".x", b"..", b"+"])
def test_a_datagram_full_of_digits_is_refused_at_once(tail: bytes) -> None:
    """With a match that goes back for each digit one of these takes longer than the test may."""
    digits = b"1" * 65_000
    runs: Runs = {}
    assert cut([b"a:%b%b|c" % (digits, tail)] * 20, runs) == 20
    assert numbers(runs[b"a", b"c"]) == ([], 20)
    assert all(understand(b"a", b"c|@" + digits + tail) is None for _ in range(20))
    assert _NUMBER.fullmatch(digits + tail) is None  # also without the bound on its length


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_cut_and_understood_or_not(packets: list[bytes]) -> None:
    runs: Runs = {}
    lines = cut(packets, runs)
    assert lines == sum(map(len, runs.values()))
    for (name, rest), values in runs.items():
        understand(name, rest)
        found, bad = numbers(values)
        assert len(found) >= len(values) - bad


@given(st.text(max_size=300))
def test_topic_of_any_name_is_a_topic(name: str) -> None:
    topic = topic_of("statsd.raw", name.replace("\ud800", ""))
    if topic is not None:
        check_topic(topic)


def test_growth_of_counters_begins_anew_where_they_fall() -> None:
    growth = Growth()
    assert growth.since({"a": 5, "b": 0}) == {"a": 5}
    assert growth.since({"a": 7, "b": 2}) == {"a": 2, "b": 2}
    assert growth.since({"a": 3}) == {"a": 3}


def test_statistics_become_metrics() -> None:
    assert word("**") == "all"
    stats = {
        "counters": {"nacks": 2},
        "streams": {
            "orders.**": {
                "published": 10,
                "frames": 2,
                "bytes": 99,
                "dropped": 0,
                "buffer_bytes": 7,
                "blocked": True,
                "subscribers": [{"behind": 3}, {"behind": 8}],
                "groups": [
                    {"name": "w", "lag": 4, "members": [1], "acked": 6, "dead": 0, "redelivered": 1}
                ],
            }
        },
        "subscriptions": [
            {
                "sources": [
                    {
                        "stream": "a/b",
                        "delivered": 1,
                        "filtered": 2,
                        "nacks": 0,
                        "lost": {"gone": 3},
                    }
                ]
            }
        ],
        "links": [{"state": "up"}, {"state": "dialling"}],
    }
    counters, levels = metrics_of(stats)
    assert counters["streams.orders.published"] == 10
    assert counters["sources.a_b.lost"] == 3
    assert counters["streams.orders.groups.w.acked"] == 6
    assert levels["streams.orders.behind"] == 8
    assert levels["streams.orders.blocked"] == 1
    assert levels["links.up"] == 1
