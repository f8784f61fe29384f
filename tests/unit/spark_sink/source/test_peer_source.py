"""What peers that keep logs say and give; one that is away is waited for, and left alone."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

from meshmsg import Peer, Stream
from meshmsg._model.errors import ReplayError
from meshmsg.spark_sink.source import peer_source
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.options import Options
from meshmsg.spark_sink.source.peer_source import PeerSource
from meshmsg.spark_sink.source.positions import Epoch, Range
from meshmsg.spark_sink.source.table import read_ranges
from tests.spark.logs import EPOCH, STREAM, TIME, E, Log, numbered, write_log
from tests.spark.reading import read
from tests.support.ports import free_port

ORDERS = Stream("orders.**", durability="log", fsync="never")


def test_a_peer_gives_what_its_folder_gives(tmp_path: Path) -> None:
    write_log(tmp_path, 100)
    with Peer("shop", streams=[ORDERS], data_dir=str(tmp_path)) as again:
        again.publish_many("orders.eu", list(range(500)))
        again.flush(timeout=30)
        files, peers = LogSource(str(tmp_path)), PeerSource([again.address])
        here, there = files.survey(), peers.survey()
        assert there.problems == {}
        assert there.streams[STREAM].epochs == here.streams[STREAM].epochs
        epoch = there.streams[STREAM].epochs[-1].epoch
        assert read(peers, STREAM, epoch, 3, 400) == read(files, STREAM, epoch, 3, 400)
        assert peers.codec_of(STREAM) == "msgpack"
        peers.close()


def test_a_time_is_found_at_a_peer(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        epoch = log.begin()
        log.write([E(n, time_ns=TIME + n // 2 * 10**9) for n in range(200)], frame_events=16)
    with Peer("shop", streams=[ORDERS], data_dir=str(tmp_path)) as peer:
        source = PeerSource([peer.address])
        assert source.place_at(STREAM, TIME + 50 * 10**9) == (epoch, 100)
        assert source.place_at(STREAM, TIME - 1) == (epoch, 0)
        assert source.place_at(STREAM, TIME + 500 * 10**9) is None
        source.close()


def test_a_peer_that_is_away_is_a_problem_and_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_source, "ASK_TIMEOUT_S", 0.05)
    now = [0.0]
    asked = []
    source = PeerSource(["tcp://127.0.0.1:9"], clock=lambda: now[0])
    real = peer_source._Peer.client

    def client(peer: Any, timeout_s: float) -> Any:
        asked.append(now[0])
        return real(peer, timeout_s)

    monkeypatch.setattr(peer_source._Peer, "client", client)
    for _ in range(20):
        assert list(source.survey().problems) == ["tcp://127.0.0.1:9"]
        now[0] += 0.5
    assert asked == [0.0, 1.0, 3.0, 7.0]


def test_a_task_waits_for_a_peer_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_source, "ASK_TIMEOUT_S", 0.05)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    source = PeerSource(["tcp://127.0.0.1:9"], timeout_s=5, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(ReplayError, match=r"waited for 5 s \(option peerTimeout\)"):
        read(source, STREAM, EPOCH, 0, 10)
    assert now[0] == 5


def test_payloads_of_a_peer_that_was_away_are_read_by_its_own_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that begins before the peer is there again must not take JSON for msgpack."""
    monkeypatch.setattr(peer_source, "ASK_TIMEOUT_S", 0.05)
    address = f"tcp://127.0.0.1:{free_port()}"
    orders = Stream("orders.**", durability="log", fsync="never", codec="json")
    with Peer("shop", streams=[orders], data_dir=str(tmp_path)) as peer:
        epoch = peer.publish_many("orders.eu", [{"n": n} for n in range(10)]).epoch
    options = Options(peers=(address,), payload="n BIGINT")
    schema = t.StructType().add("stream", "string").add("epoch", "long").add("seq", "long")
    schema.add("topic", "string").add("key", "string")
    schema.add("headers", t.MapType(t.StringType(), t.StringType())).add("time", "timestamp")
    schema.add("n", "long").add("_error", "string").add("_raw", "binary")
    with ExitStack() as stack:

        def come_back(seconds: float) -> None:
            monkeypatch.setattr(peer_source, "ASK_TIMEOUT_S", 30.0)
            peer = Peer("shop", streams=[orders], data_dir=str(tmp_path), bind=address)
            stack.enter_context(peer)

        now = itertools.count()
        source = PeerSource([address], timeout_s=1e6, clock=lambda: next(now), sleep=come_back)
        stack.callback(source.close)
        (batch,) = read_ranges(options, schema, source, [Range(STREAM, epoch, 0, 10)])
    assert batch["_error"].to_pylist() == [None] * 10
    assert batch["n"].to_pylist() == list(range(10))


def test_what_one_peer_lost_another_gives(tmp_path: Path) -> None:
    for name, lost in (("one", (40, 60)), ("two", (20, 50))):
        with Log(tmp_path / name) as log:
            log.begin()
            log.write(numbered(0, lost[0]), frame_events=7)
            log.lose(lost[1] - lost[0], "deadline")
            log.write(numbered(lost[1], 100 if name == "one" else 99), frame_events=7)
    with (
        Peer("shop", streams=[ORDERS], data_dir=str(tmp_path / "one")) as one,
        Peer("shop", streams=[ORDERS], data_dir=str(tmp_path / "two")) as two,
    ):
        source = PeerSource([two.address, one.address])
        assert source.survey().streams[STREAM].epochs[0] == Epoch(EPOCH, 0, 0, 100, True)
        found = read(source, STREAM, EPOCH, 0, 99)
        lost = [item for item in found if isinstance(item, tuple)]
        assert sum(stop - first for first, stop, _ in lost) == 10
        assert (min(lost)[0], max(lost)[1]) == (40, 50)
        assert [n for n in found if isinstance(n, int)] == [*range(40), *range(50, 99)]
        source.close()


def test_parts_of_an_epoch_are_read_where_they_are(tmp_path: Path) -> None:
    """And what lies between them is nowhere, which is no reason to wait."""
    for name, first, stop in (("one", 0, 30), ("two", 40, 100)):
        with Log(tmp_path / name) as log:
            log.begin(EPOCH, first)
            log.write(numbered(first, stop), frame_events=7)
    with (
        Peer("shop", streams=[ORDERS], data_dir=str(tmp_path / "one")) as one,
        Peer("shop", streams=[ORDERS], data_dir=str(tmp_path / "two")) as two,
    ):
        source = PeerSource([one.address, two.address])
        assert read(source, STREAM, EPOCH, 0, 30) == [*range(30)]
        everything = [*range(30), (30, 40, "gone"), *range(40, 100)]
        assert read(source, STREAM, EPOCH, 0, 100) == everything
        assert read(source, STREAM, EPOCH, 95, 110) == [*range(95, 100), (100, 110, "gone")]
        source.close()
