"""What a folder of logs says it has, and what a range of it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg import ConfigError, Peer, Stream
from meshmsg.recovery.log.files import REAL
from meshmsg.spark_sink.errors import ShortRead
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.peer_source import PeerSource
from meshmsg.spark_sink.source.planning import earliest
from meshmsg.spark_sink.source.positions import Epoch
from tests.spark.logs import EPOCH, STREAM, Log, numbered, write_log
from tests.spark.reading import read

ORDERS = Stream("orders.**", durability="log", fsync="never")


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
