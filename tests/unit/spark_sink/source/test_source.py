"""Where the Spark source reads: log folders, and peers over the network."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

from meshmsg import ConfigError, Loss, Peer, Stream
from meshmsg._model.errors import ReplayError
from meshmsg.recovery.log.files import REAL
from meshmsg.spark_sink.errors import ShortRead
from meshmsg.spark_sink.source import peer_source
from meshmsg.spark_sink.source.log_source import EventSource, LogSource
from meshmsg.spark_sink.source.options import Options
from meshmsg.spark_sink.source.peer_source import PeerSource
from meshmsg.spark_sink.source.planning import earliest
from meshmsg.spark_sink.source.positions import Epoch, Range
from meshmsg.spark_sink.source.table import read_ranges
from tests.spark.logs import EPOCH, STREAM, TIME, E, Log, numbered, write_log
from tests.support.ports import free_port

ORDERS = Stream("orders.**", durability="log", fsync="never")


def read(source: EventSource, *where: Any) -> list[int | tuple[int, int, str]]:
    """The numbers of the events, and losses."""
    found: list[int | tuple[int, int, str]] = []
    for item in source.read(Range(*where)):
        if isinstance(item, Loss):
            found.append((item.first, item.stop, item.reason))
        else:
            found += range(item.frame.first + item.lo, item.frame.first + item.hi)
    return found


def test_a_folder_says_what_it_has(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        first = log.begin()
        log.write(numbered(0, 10))
    with Log(tmp_path, codec="json") as log:
        second = log.begin()
        log.write(numbered(0, 5))
        found = LogSource(str(tmp_path)).survey()
    assert found.problems == {}
    assert found.streams[STREAM].codec == "json"
    assert found.streams[STREAM].epochs == [
        Epoch(first, 0, 0, 10, True),
        Epoch(second, 0, 0, 5, False),
    ]
    only = LogSource(str(next(tmp_path.iterdir()))).survey()  # the folder of one stream
    assert only.streams[STREAM].epochs == found.streams[STREAM].epochs


def test_what_a_log_begun_anew_lacks_is_lost_to_who_has_read_some(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin(first=41)
        log.write(numbered(41, 50))
    source = LogSource(str(tmp_path))
    assert read(source, STREAM, EPOCH, 0, 50) == [*range(41, 50)]
    assert read(source, STREAM, EPOCH, 30, 50) == [(30, 41, "gone"), *range(41, 50)]
    assert read(source, STREAM, EPOCH, 30, 35) == [(30, 35, "gone")]
    with Peer("shop", streams=[ORDERS], data_dir=str(tmp_path)) as peer:
        remote = PeerSource([peer.address])
        try:
            assert read(remote, STREAM, EPOCH, 0, 50) == [*range(41, 50)]
            assert read(remote, STREAM, EPOCH, 30, 50) == [(30, 41, "gone"), *range(41, 50)]
        finally:
            remote.close()


def test_a_folder_gives_exactly_the_range(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 100), frame_events=7)
        log.lose(10, "overflow")
        log.write(numbered(110, 120), frame_events=7)
    source = LogSource(str(tmp_path))
    everything = [*range(100), (100, 110, "overflow"), *range(110, 120)]
    assert read(source, STREAM, EPOCH, 0, 120) == everything
    assert read(source, STREAM, EPOCH, 3, 5) == [3, 4]
    assert read(source, STREAM, EPOCH, 97, 104) == [97, 98, 99, (100, 104, "overflow")]
    assert read(source, STREAM, EPOCH, 104, 112) == [(104, 110, "overflow"), 110, 111]


def test_less_than_was_planned_is_an_error_and_never_less_rows(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 10))
        source = LogSource(str(tmp_path))
        with pytest.raises(ShortRead, match=r"should have events 10 to 19"):
            read(source, STREAM, EPOCH, 5, 20)
        with pytest.raises(ShortRead):
            read(source, STREAM, EPOCH + 5, 0, 1)
    with pytest.raises(OSError, match="there is no log of stream 'no/such' in this folder"):
        read(source, "no/such", EPOCH, 0, 1)


def test_the_end_of_an_epoch_that_a_crash_took_is_a_loss(tmp_path: Path) -> None:
    write_log(tmp_path, 10)
    with Log(tmp_path) as log:
        log.begin()
        found = read(LogSource(str(tmp_path)), STREAM, EPOCH, 8, 20)
    assert found == [8, 9, (10, 20, "gone")]


def test_damage_is_a_loss_of_exactly_its_events(tmp_path: Path) -> None:
    write_log(tmp_path, 100, frame_events=10)
    (segment,) = tmp_path.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    at = bytes(data).index(b"name 42")
    data[at] ^= 1
    segment.write_bytes(data)
    found = read(LogSource(str(tmp_path)), STREAM, EPOCH, 0, 100)
    assert found == [*range(40), (40, 50, "corrupt"), *range(50, 100)]


def test_events_in_the_tail_are_there_before_and_after_they_are_stored(tmp_path: Path) -> None:
    with Log(tmp_path, tail_bytes=64 * 1024) as log:
        epoch = log.begin()
        log.write(numbered(0, 30), frame_events=1)
        source = LogSource(str(tmp_path))
        assert source.survey().streams[STREAM].epochs == [Epoch(epoch, 0, 0, 30, False)]
        assert read(source, STREAM, epoch, 5, 30) == list(range(5, 30))
        log.writer.make_room(64 * 1024)
        log.write(numbered(30, 40), frame_events=1)
        assert read(source, STREAM, epoch, 5, 40) == list(range(5, 40))
    assert read(LogSource(str(tmp_path)), STREAM, epoch, 0, 40) == list(range(40))


def test_segments_that_are_missing_at_either_end_are_lost_and_never_just_not_there(
    tmp_path: Path,
) -> None:
    epochs = []
    for _ in range(3):
        with Log(tmp_path) as log:
            epochs.append(log.begin())
            log.write(numbered(0, 10))
    for path in tmp_path.glob("*/*.seg"):
        if not path.name.startswith(f"{epochs[1]:019d}"):
            path.unlink()
    source = LogSource(str(tmp_path))
    survey = source.survey()
    assert survey.streams[STREAM].epochs == [Epoch(epoch, 0, 0, 10, True) for epoch in epochs]
    assert earliest(survey)[f"{STREAM}/{epochs[0]}"] == 0
    assert read(source, STREAM, epochs[0], 0, 10) == [(0, 10, "corrupt")]
    assert read(source, STREAM, epochs[1], 0, 10) == list(range(10))
    assert read(source, STREAM, epochs[2], 0, 10) == [(0, 10, "corrupt")]
    assert source.place_at(STREAM, 0) == (epochs[0], 0)


def test_a_recorder_that_came_late_begins_where_it_began(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin(first=41)
        log.write(numbered(41, 50))
        source = LogSource(str(tmp_path))
        assert source.survey().streams[STREAM].epochs == [Epoch(EPOCH, 41, 41, 50)]
        assert read(source, STREAM, EPOCH, 0, 50) == list(range(41, 50))


def test_a_missing_folder_is_a_problem_and_an_error_where_it_is_named(tmp_path: Path) -> None:
    source = LogSource(str(tmp_path / "nowhere"))
    assert list(source.survey().problems.values()) == ["the folder is not there"]
    with pytest.raises(ConfigError, match="there is no folder"):
        source.check()
    assert REAL.names(str(tmp_path)) == {}


def test_a_second_log_of_a_stream_is_said_and_not_mixed_in(tmp_path: Path) -> None:
    write_log(tmp_path, 10)
    write_log(tmp_path / "other", 20)
    (copied,) = (tmp_path / "other").iterdir()
    copied.rename(tmp_path / "a copy")
    (tmp_path / "other").rmdir()
    found = LogSource(str(tmp_path)).survey()
    assert found.streams[STREAM].epochs == [Epoch(EPOCH, 0, 0, 10, False)]
    assert "is not read" in found.problems[str(tmp_path / "a copy")]
    assert not found.partial


# --- peers ---------------------------------------------------------------------------------------


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
