"""A query whose topics are changed: added ones are never taken for read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshmsg._model.topics import Pattern
from meshmsg.spark_sink.errors import OtherCheckpoint
from meshmsg.spark_sink.source.checkpoint_topics import check_topics, with_topics
from meshmsg.spark_sink.source.positions import check_offset, parse_positions
from tests.spark.logs import Log, numbered
from tests.spark.reading import Reading


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Log(tmp_path) as log:
        log.begin()
        log.write([*numbered(0, 50, topic="orders.eu"), *numbered(50, 57, topic="orders.us")])
    return tmp_path


def restarted(query: Reading, topics: str) -> Reading:
    query.options["topics"] = topics
    query.restart()
    return query


@pytest.mark.parametrize("topics", ["orders.eu,orders.us", "orders.*", "**", "other"])
def test_a_query_with_added_topics_stops_and_says_which(data: Path, topics: str) -> None:
    query = Reading(path=data, topics="orders.eu")
    query.drain()
    assert len(query.rows) == 50
    with pytest.raises(OtherCheckpoint, match=r"of a query for topics orders\.eu, and .* are new"):
        restarted(query, topics).trigger()
    with pytest.raises(OtherCheckpoint):  # nor is a batch run again that was planned before
        query.run(0)
    restarted(query, "orders.eu").drain()
    assert len(query.rows) == 50


def test_fewer_topics_go_on_and_cannot_be_added_again(data: Path) -> None:
    query = Reading(path=data, topics="orders.eu,orders.us")
    query.drain()
    assert len(query.rows) == 57
    with Log(data) as log:
        log.begin()
        log.write([*numbered(0, 5, topic="orders.eu"), *numbered(5, 9, topic="orders.us")])
    restarted(query, "orders.us").drain()
    assert len(query.rows) == 57 + 4
    with pytest.raises(OtherCheckpoint, match=r"orders\.eu are new"):
        restarted(query, "orders.us,orders.eu").trigger()


def test_the_same_topics_in_another_order_are_the_same(data: Path) -> None:
    query = Reading(path=data, topics="orders.eu,orders.us")
    query.drain()
    restarted(query, "orders.us, orders.eu").drain()
    assert len(query.rows) == 57
    assert len(query.offsets) == 1


def test_a_checkpoint_of_an_earlier_release_is_taken_up_and_knows_its_topics_then(
    data: Path,
) -> None:
    query = Reading(path=data, topics="orders.eu")
    query.drain()
    query.offsets = [json.dumps(check_offset(json.loads(query.offsets[0])))]
    restarted(query, "orders.eu").drain()
    assert len(query.offsets) == 1  # no batch without rows
    with Log(data) as log:
        log.begin()
        log.write(numbered(0, 5))
    query.drain()
    assert len(query.rows) == 55
    with pytest.raises(OtherCheckpoint):
        restarted(query, "**").trigger()


def test_an_offset_can_be_given_as_a_starting_position(data: Path) -> None:
    query = Reading(path=data, topics="orders.eu")
    query.drain()
    assert parse_positions(query.offsets[0], "startingPosition")
    again = Reading(path=data, topics="**", startingPosition=query.offsets[0])
    again.drain()
    assert again.rows == []


PATTERNS = [
    "a",
    "a.b",
    "a.*",
    "*",
    "*.b",
    "**",
    "a.**",
    "**.b",
    "a.**.b",
    "*.*",
    "*.**",
    "**.*",
    "a.**.**",
]
TOPICS = [
    "a",
    "b",
    "a.b",
    "b.b",
    "a.c",
    "a.c.b",
    "a.b.c",
    "c.b.a",
    "a.a.a.a",
    "a.x.y.b",
    "x.y.z.w.v",
]


@pytest.mark.parametrize("wide", PATTERNS)
@pytest.mark.parametrize("narrow", PATTERNS)
def test_a_pattern_counts_as_known_only_if_all_its_topics_were_taken(
    wide: str, narrow: str
) -> None:
    try:
        check_topics(with_topics({}, [wide]), [narrow])
    except OtherCheckpoint:
        return
    taken = [topic for topic in TOPICS if Pattern(narrow).matches(topic)]
    assert all(Pattern(wide).matches(topic) for topic in taken)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("**", "a.**.b"), ("a.**", "a.b.*"), ("a.*", "a.b"), ("**.b", "a.**.b"), ("**", "a.**.**")],
)
def test_narrower_patterns_are_known(wide: str, narrow: str) -> None:
    check_topics(with_topics({}, [wide]), [narrow])
