"""What a recorder writes for what it is given, also for what should not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg import LogError, Loss
from meshmsg._replay.recorded_log import RECORDED_FILE, RecordedLog, recorded_topics
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import Entry, LogReader
from meshmsg.recovery.stream.receiver import Run

STREAM = "pub/a.**"
WIRE_ID = stream_wire_id("default", STREAM)


def run(epoch: int, first: int, stop: int, lo: int = 0) -> Run:
    payloads = [b"%d" % n for n in range(first, stop)]
    frame = Frame(encode_frame(WIRE_ID, epoch, first, "a.b", payloads, 1))
    return Run(frame, lo, stop - first)


def loss(epoch: int, first: int, stop: int, reason: str = "overflow") -> Loss:
    return Loss(STREAM, epoch, first, stop, reason)


def opened(data_dir: Path) -> RecordedLog:
    log = RecordedLog(
        str(data_dir),
        STREAM,
        topics="a.**",
        codec="msgpack",
        mesh="default",
        settings=LogSettings(fsync="never"),
    )
    log.open()
    return log


def read(data_dir: Path) -> list[object]:
    with LogReader(LogFolder.of(str(data_dir), STREAM)) as reader:
        reader.seek_earliest()
        return [
            (item.epoch, item.first, item.stop, None if isinstance(item, Entry) else item.reason)
            for item in reader.entries()
        ]


def test_runs_and_losses_are_kept_in_order(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.position is None
    assert log.put(7, 3, run(7, 3, 5))
    assert log.put(7, 3, loss(7, 5, 8))
    assert log.put(7, 3, run(7, 8, 9))
    assert log.put(9, 0, run(9, 0, 2))
    assert log.place == (9, 2)
    assert (log.events, log.frames, log.lost) == (5, 3, 3)
    log.writer.close()
    wanted = [(7, 3, 5, None), (7, 5, 8, "overflow"), (7, 8, 9, None), (9, 0, 2, None)]
    assert read(tmp_path) == wanted


def test_an_epoch_is_continued_after_a_restart(tmp_path: Path) -> None:
    for n in range(3):
        log = opened(tmp_path)
        assert log.place == ((7, n * 2) if n else (0, 0))
        assert log.put(7, n * 2, run(7, n * 2, n * 2 + 2))
        log.writer.close()
    assert read(tmp_path) == [(7, 0, 2, None), (7, 2, 4, None), (7, 4, 6, None)]


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(7, 0, run(7, 0, 4))
    log.writer.close()
    log = opened(tmp_path)
    assert log.put(7, 0, run(7, 0, 4))
    assert log.put(7, 0, run(7, 2, 6))  # cut: it overlaps
    assert log.put(7, 0, loss(7, 5, 8))
    log.writer.close()
    assert read(tmp_path) == [(7, 0, 4, None), (7, 4, 6, None), (7, 6, 8, "overflow")]


def test_a_part_of_a_frame_is_kept_as_a_frame(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(7, 2, run(7, 0, 4, lo=2))
    log.writer.close()
    assert read(tmp_path) == [(7, 2, 4, None)]


def test_a_hole_that_nobody_explains_is_noted(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(7, 0, run(7, 0, 2))
    log.put(7, 0, run(7, 5, 6))
    log.writer.close()
    assert read(tmp_path) == [(7, 0, 2, None), (7, 2, 5, "gone"), (7, 5, 6, None)]
    assert log.lost == 3


def test_an_epoch_before_the_newest_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(7, 0, run(7, 0, 2))
    assert not log.put(6, 0, run(6, 0, 2))
    log.writer.close()
    log = opened(tmp_path)
    assert not log.put(6, 0, run(6, 0, 2))
    log.writer.close()
    assert read(tmp_path) == [(7, 0, 2, None)]


def test_the_folder_tells_that_it_is_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(7, 0, run(7, 0, 2))
    log.writer.close()
    assert recorded_topics(log.folder) == "a.**"
    path = Path(log.folder.path) / RECORDED_FILE
    path.write_bytes(b"{}")
    assert recorded_topics(log.folder) == "**"  # damaged: it may carry anything
    path.unlink()
    assert recorded_topics(log.folder) is None


def test_a_folder_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogError):
        opened(tmp_path / "file")
