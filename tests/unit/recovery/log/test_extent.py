"""How much of the disk a log takes, as its statistics say it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from meshmsg._model.log_policy import Retention
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.extent import Extent
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, frame_of

SECOND_NS = 10**9
YEAR_NS = 365 * 86_400 * SECOND_NS


class Clock:
    """A time of day that is moved by hand."""

    def __init__(self) -> None:
        self.now_ns = YEAR_NS

    def __call__(self) -> int:
        return self.now_ns


def writer_of(files: FaultyFiles, clock: Clock, **options: Any) -> LogWriter:
    settings = LogSettings(allocate_bytes=0, tail_bytes=0, segment_bytes=5200, **options)
    writer = LogWriter(DATA, STREAM, settings=settings, files=files, background=False, clock=clock)
    writer.open()
    return writer


def put(writer: LogWriter, clock: Clock, count: int) -> None:
    for _ in range(count):
        first = writer.next
        frame = frame_of(writer.epoch, first, [bytes(500)], clock.now_ns)
        writer.append(frame, first, first + 1)
        clock.now_ns += SECOND_NS


def kept(writer: LogWriter) -> tuple[int, float | None, str | None]:
    figures = writer.stats()
    return figures["disk_bytes"], figures["oldest_s"], figures["retention"]


def test_bytes_and_age_follow_what_is_written_and_what_expires() -> None:
    files, clock = FaultyFiles(Random(1)), Clock()
    writer = writer_of(files, clock, retention=Retention.parse("12KB"))
    assert kept(writer) == (0, None, "12KB")  # nobody has looked
    writer.begin(7)
    put(writer, clock, 20)
    writer.work()
    size, oldest_s, _ = kept(writer)
    assert size == sum(writer.folder.sizes().values()) <= 12_000
    assert oldest_s == 2.0, "each has a segment here, and two are left"
    clock.now_ns += 5 * SECOND_NS
    assert kept(writer)[1] == oldest_s + 5
    writer.close()
    assert writer.stats()["disk_bytes"] > 0


def test_statistics_look_at_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = FaultyFiles(Random(1)), Clock()
    writer = writer_of(files, clock)
    writer.begin(7)
    put(writer, clock, 3)
    writer.work()
    size, _, retention = kept(writer)
    put(writer, clock, 1)
    with monkeypatch.context() as patch:
        for verb in ("names", "open"):
            patch.delattr(FaultyFiles, verb)
        assert kept(writer)[0] > size, "the segment that is written is counted as it grows"
    assert retention is None
    writer.close()


def test_a_log_that_begins_with_a_loss_is_as_old_as_its_segment() -> None:
    files, clock = FaultyFiles(Random(1)), Clock()
    writer = writer_of(files, clock)
    writer.begin(7)
    writer.append_loss(0, 5, "gone")
    clock.now_ns += 9 * SECOND_NS
    writer.work()
    assert kept(writer)[1] == 9.0
    writer.close()


def test_a_folder_that_is_not_there_has_nothing() -> None:
    extent = Extent(LogFolder.of(DATA, STREAM, files=FaultyFiles(Random(1))))
    extent.look()
    assert (extent.bytes({}), extent.oldest_ns) == (0, None)
