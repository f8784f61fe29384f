"""The Spark source over the network: from publishers and recorders, which come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshmsg import Peer, Stream
from tests.spark.logs import STREAM
from tests.spark.queries import Query
from tests.support.ports import free_port

ORDERS = Stream("orders.**", durability="log", fsync="never")


def test_reads_from_a_peer_in_parallel(spark: Any, tmp_path: Path) -> None:
    with Peer("shop", streams=[ORDERS], data_dir=str(tmp_path)) as peer:
        for first in range(0, 60_000, 10_000):
            peer.publish_many("orders.eu", [{"n": n} for n in range(first, first + 10_000)])
        table = (
            spark.read.format("meshmsg")
            .options(peers=peer.address, payload="n BIGINT", partitions=2)
            .load()
        )
        assert table.rdd.getNumPartitions() == 2
        found = table.selectExpr("count(*)", "count(distinct n)", "sum(n)", "max(_error)").first()
        assert tuple(found) == (60_000, 60_000, 60_000 * 59_999 // 2, None)


def test_a_peer_that_goes_away_holds_its_place_and_comes_back(spark: Any, tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("shop", streams=[ORDERS], data_dir=str(data), bind=address) as peer:
        peer.publish_many("orders.eu", [{"n": n} for n in range(100)])
        query = Query(spark, None, work, peers=address, payload="n BIGINT")
        running = query.start()
        try:
            running.wait_for(lambda: len(query.rows("n")) == 100)
            peer.close()

            def is_reported() -> bool:
                latest = json.loads(running.source.get("latestOffset") or "{}")
                return address in latest.get("!unreachable", {})

            running.wait_for(is_reported)
            with Peer("shop", streams=[ORDERS], data_dir=str(data), bind=address) as again:
                again.publish_many("orders.eu", [{"n": n} for n in range(100, 150)])
                running.wait_for(lambda: len(query.rows("n")) == 150)
        finally:
            running.stop()
    assert query.rows("n") == [(n,) for n in range(150)]
    assert {stream for (stream,) in query.rows("stream")} == {STREAM}


def test_a_recorder_gives_what_a_volatile_publisher_sent(spark: Any, tmp_path: Path) -> None:
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("rec", record="orders.**", data_dir=str(tmp_path), connect=shop.address) as recorder,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=30)
        shop.publish_many("orders.eu", list(range(1000)))
        query = Query(spark, None, tmp_path / "work", peers=recorder.address)
        running = query.start()
        try:
            running.wait_for(lambda: len(query.rows()) == 1000)
        finally:
            running.stop()
    assert [seq for _, seq in query.rows()] == list(range(1000))


def test_epoch_of_an_absent_recorder_comes_late_and_once(spark: Any, tmp_path: Path) -> None:
    """Two recorders share the epochs of a stream; one of them comes when the other was read."""
    places = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}

    def recorder(name: str, connect: str | None = None) -> Peer:
        return Peer(
            name,
            record="orders.**",
            data_dir=str(tmp_path / name),
            bind=places[name],
            connect=connect or (),
            discovery="none",
        )

    epochs = []
    for name in "bab":
        with (
            Peer("shop", streams=[Stream("orders.**")], discovery="none") as shop,
            recorder(name, shop.address),
        ):
            shop.wait_for_subscribers("orders.eu", timeout=30)
            epochs.append(shop.publish_many("orders.eu", list(range(100))).epoch)
            shop.flush(timeout=30)
    query = Query(spark, None, tmp_path / "work", peers=",".join(places.values()))
    with recorder("a"):
        running = query.start()
        try:
            running.wait_for(lambda: query.rows() == [(epochs[1], n) for n in range(100)])
        finally:
            running.stop()
        query.drain()  # what cannot be reached is left for another run
        with recorder("b"):
            running = query.start(maxEventsPerTrigger=30)
            try:
                running.wait_for(lambda: len(query.rows()) >= 300)
            finally:
                running.stop()
    assert query.rows() == [(epoch, n) for epoch in epochs for n in range(100)]
