"""Where a reader starts: the oldest event, the newest few, the first at a time."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg.recovery.log import seek as log_places
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.format import SegmentName
from meshmsg.recovery.log.journal import Epoch, Journal
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, frame_of


class Bench:
    """A log of several epochs whose event n was made at 10 * n."""

    def __init__(self, *counts: int, tail_bytes: int = 0, segment_bytes: int = 4096 + 400) -> None:
        self.files = FaultyFiles(Random(1))
        self.made = 0
        for at, count in enumerate(counts):
            settings = LogSettings(
                allocate_bytes=0, tail_bytes=tail_bytes, segment_bytes=segment_bytes
            )
            self.writer = LogWriter(
                DATA, STREAM, settings=settings, files=self.files, background=False, clock=lambda: 1
            )
            self.writer.open()
            epoch = self.writer.begin(7 + at)
            for seq in range(count):
                self.writer.append(frame_of(epoch, seq, [b"x" * 20], 10 * self.made), seq, seq + 1)
                self.made += 1
            if at < len(counts) - 1:
                self.writer.close()

    def view(self) -> tuple[list[SegmentName], Journal]:
        with LogReader(self.writer.folder) as reader:
            return list(reader.segments), reader.journal

    def last(self, count: int) -> tuple[int, int]:
        return log_places.last(self.writer.folder, *self.view(), count)

    def at_time(self, time_ns: int) -> tuple[int, int] | None:
        return log_places.at_time(self.writer.folder, *self.view(), time_ns)


def test_the_earliest_is_what_the_journal_still_keeps() -> None:
    journal = Journal((Epoch(3, 0, 10), Epoch(5, 0, 4)), (3, 6))
    assert log_places.earliest([], Journal()) == (0, 0)
    assert log_places.earliest([SegmentName(5, 0, 0)], journal) == (3, 6)
    assert log_places.earliest([SegmentName(2, 0, 8)], journal) == (2, 8)


@pytest.mark.parametrize("tail_bytes", [0, 4096])
@pytest.mark.parametrize(
    ("count", "place"),
    [(0, (8, 4)), (1, (8, 3)), (4, (8, 0)), (5, (7, 19)), (24, (7, 0)), (99, (7, 0))],
)
def test_the_last_events_are_counted_across_epochs(
    count: int, place: tuple[int, int], tail_bytes: int
) -> None:
    assert Bench(20, 4, tail_bytes=tail_bytes).last(count) == place


@pytest.mark.parametrize("tail_bytes", [0, 4096])
@pytest.mark.parametrize(
    ("time_ns", "place"),
    [
        (-5, (7, 0)),
        (0, (7, 0)),
        (1, (7, 1)),
        (100, (7, 10)),
        (195, (8, 0)),
        (230, (8, 3)),
        (231, (8, 4)),
    ],
)
def test_a_time_is_found_in_segments_and_in_the_tail(
    time_ns: int, place: tuple[int, int], tail_bytes: int
) -> None:
    assert Bench(20, 4, tail_bytes=tail_bytes).at_time(time_ns) == place


def test_an_empty_log_has_no_event_at_any_time() -> None:
    bench = Bench()
    folder = LogWriter(DATA, STREAM, files=bench.files).folder
    assert log_places.at_time(folder, [], Journal(), 0) is None


def test_what_is_missing_just_before_a_time_comes_first() -> None:
    bench = Bench(20)
    segments, journal = bench.view()
    assert len(segments) > 2
    missing = segments[1]
    found = log_places.at_time(
        bench.writer.folder, [segments[0], *segments[2:]], journal, 10 * segments[2].first
    )
    assert found == (7, missing.first)


def test_the_end_of_an_epoch_that_is_written_is_found_in_its_last_segment() -> None:
    bench = Bench(5, segment_bytes=1 << 20)
    segments, journal = bench.view()
    assert log_places.stop_of(bench.writer.folder, segments[-1], journal) == 5
    over = journal.with_epoch(7, 0, 3)
    assert log_places.stop_of(bench.writer.folder, segments[-1], over) == 3
    gone = SegmentName(9, 0, 77)
    assert log_places.stop_of(bench.writer.folder, gone, Journal()) == 77
