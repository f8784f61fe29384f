"""`spark.readStream.format("meshmsg")`, on a real Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from meshmsg import Peer, Stream
from meshmsg._model.log_policy import Retention
from meshmsg.spark_sink.source.positions import check_offset
from tests.spark.logs import EPOCH, STREAM, E, Log, numbered, write_log
from tests.spark.queries import Query


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def stops(spark: Any) -> Iterator[None]:
    """No query outlives its test."""
    yield
    for query in spark.streams.active:
        query.stop()


def test_restart_goes_on_where_it_was_with_new_epochs_and_streams(
    spark: Any, data: Path, work: Path
) -> None:
    query = Query(spark, data, work)
    with Log(data) as log:
        first = log.begin()
        log.write(numbered(0, 1000), frame_events=100)
        assert len(query.drain()) == 1
        assert query.rows() == [(first, n) for n in range(1000)]
        assert query.drain() == []  # nothing new
        log.write(numbered(1000, 1100))
    with Log(data) as log, Log(data, "shop/quotes.**") as other:
        second = log.begin()
        log.write(numbered(0, 50))
        third = other.begin(EPOCH + 77)
        other.write([E(n, topic="quotes.A") for n in range(10)])
        query.drain()
    expected = [(STREAM, first, n) for n in range(1100)] + [(STREAM, second, n) for n in range(50)]
    expected += [("shop/quotes.**", third, n) for n in range(10)]
    assert query.rows("stream", "epoch", "seq") == expected


def test_limit_bounds_each_batch_and_every_stream_gets_on(
    spark: Any, data: Path, work: Path
) -> None:
    write_log(data, 2000)
    write_log(data, 100, stream="shop/quotes.**")
    query = Query(spark, data, work, maxEventsPerTrigger=600)
    progress = query.drain()
    assert [batch["numInputRows"] for batch in progress] == [600, 600, 600, 300]
    end = check_offset(json.loads(progress[0]["sources"][0]["endOffset"]))
    assert set(end) == {f"{STREAM}/{EPOCH}", f"shop/quotes.**/{EPOCH}"}
    assert query.rows("stream", "seq") == sorted(
        [(STREAM, n) for n in range(2000)] + [("shop/quotes.**", n) for n in range(100)]
    )


def test_a_batch_that_was_not_committed_is_run_again_with_the_same_rows(
    spark: Any, data: Path, work: Path
) -> None:
    with Log(data) as log:
        log.begin()
        log.write(numbered(0, 500), frame_events=64)
        query = Query(spark, data, work, maxEventsPerTrigger=200)
        query.drain()
        before = query.rows("epoch", "seq", "payload")
        assert [row[1] for row in before] == list(range(500))
        # Spark died before it could say that batch 1 was written; its plan for batch 2 is lost.
        for name in ("commits/1", "commits/2", "offsets/2"):
            folder, _, number = name.partition("/")
            (query.checkpoint / name).unlink()
            (query.checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)
        shutil.rmtree(query.out / "batch=1")
        shutil.rmtree(query.out / "batch=2")
        log.write(numbered(500, 600))
        query.drain(maxEventsPerTrigger=999)
    found = query.rows("epoch", "seq", "payload")
    assert found[:500] == before
    assert [row[1] for row in found] == list(range(600))
    again = pq.read_table(query.out / "batch=1", partitioning=None)["seq"].to_pylist()
    assert sorted(again) == list(range(200, 400))


def test_a_running_query_follows_a_peer(spark: Any, data: Path, work: Path, stops: None) -> None:
    with Peer("shop", streams=[Stream("orders.**", durability="log")], data_dir=str(data)) as peer:
        query = Query(spark, data, work, payload="n BIGINT")
        running = query.start()
        for turn in range(3):
            peer.publish_many("orders.eu", [{"n": turn * 100 + n} for n in range(100)])
            wanted = [(n,) for n in range(turn * 100 + 100)]
            running.wait_for(lambda wanted=wanted: query.rows("n") == wanted)  # type: ignore[misc]


def test_latest_leaves_out_what_was_and_takes_all_that_comes(
    spark: Any, data: Path, work: Path, stops: None
) -> None:
    with Log(data) as log:
        first = log.begin()
        log.write(numbered(0, 10))
        query = Query(spark, data, work, startingPosition="latest")
        query.drain()
        assert query.rows() == []
        log.write(numbered(10, 20))
    with Log(data) as log:
        second = log.begin()
        log.write(numbered(0, 5))
    query.drain()
    assert query.rows() == [(first, n) for n in range(10, 20)] + [(second, n) for n in range(5)]


def test_losses_are_a_table_of_their_own(spark: Any, data: Path, work: Path) -> None:
    with Log(data) as log:
        log.begin()
        log.write(numbered(0, 10))
        log.lose(7, "deadline")
        log.write(numbered(17, 20))
    losses = Query(spark, data, work / "losses", rows="losses")
    losses.drain()
    assert losses.rows("first", "stop", "reason") == [(10, 17, "deadline")]
    events = Query(spark, data, work / "events", failOnLoss=False)
    events.drain()
    assert [seq for _, seq in events.rows()] == [*range(10), *range(17, 20)]


def test_expired_events_follow_fail_on_loss(spark: Any, data: Path, work: Path) -> None:
    query = Query(spark, data, work, maxEventsPerTrigger=100)
    options = {"segment_bytes": 65_536, "retention": Retention(bytes_max=150_000)}
    with Log(data, **options) as log:
        log.begin()
        log.write(numbered(0, 100), frame_events=50)
        query.drain()
        log.write(numbered(100, 20_000), frame_events=50)
        log.writer.retain()
        start = log.writer.folder.segments()[0].first
        assert start > 100
        with pytest.raises(Exception, match=r"events lost in shop/orders.*expired.*failOnLoss"):
            query.drain()
        query.drain(failOnLoss=False, maxEventsPerTrigger=1_000_000)
        assert [seq for _, seq in query.rows()] == [*range(100), *range(start, 20_000)]
        losses = Query(
            spark,
            data,
            work / "losses",
            rows="losses",
            startingPosition=f'{{"{STREAM}/{EPOCH}": 0}}',
        )
        losses.drain()
        assert losses.rows("first", "stop", "reason") == [(0, start, "expired")]


def test_a_folder_that_is_away_holds_its_place_and_is_reported(
    spark: Any, data: Path, work: Path, stops: None
) -> None:
    write_log(data, 10)
    query = Query(spark, data, work)
    running = query.start()
    running.wait_for(lambda: len(query.rows()) == 10)
    away = data.with_name("away")
    data.rename(away)

    def is_reported() -> bool:
        return "!unreachable" in json.loads(running.source.get("latestOffset") or "{}")

    running.wait_for(is_reported)
    with Log(away) as log:
        log.begin()
        log.write(numbered(0, 5))
    away.rename(data)
    running.wait_for(lambda: len(query.rows()) == 15)


def test_a_checkpoint_of_another_query_says_so(spark: Any, data: Path, work: Path) -> None:
    write_log(data, 10)
    query = Query(spark, data, work)
    query.drain()
    other = data.with_name("other")
    write_log(other, 10, stream="bank/moves.**")
    query.path = other
    with pytest.raises(Exception, match="Give each query a checkpoint of its own"):
        query.drain()


def test_topics_that_are_added_to_a_checkpoint_stop_the_query(
    spark: Any, data: Path, work: Path
) -> None:
    with Log(data) as log:
        log.begin()
        log.write([*numbered(0, 10, topic="orders.eu"), *numbered(10, 17, topic="orders.us")])
    query = Query(spark, data, work, topics="orders.eu")
    query.drain()
    query.options["topics"] = "orders.eu,orders.us"
    with pytest.raises(Exception, match=r"topics orders\.eu, and orders\.us are new"):
        query.drain()
    assert len(query.rows()) == 10


def test_a_query_without_streams_waits_for_the_first(
    spark: Any, data: Path, work: Path, stops: None
) -> None:
    query = Query(spark, data, work)
    running = query.start()
    running.wait_for(lambda: bool(running.source))
    write_log(data, 10)
    running.wait_for(lambda: len(query.rows()) == 10)
