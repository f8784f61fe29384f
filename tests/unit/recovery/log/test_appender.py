"""Writing one epoch: segments roll, syncs are shared, and a failed one is written anew."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random
from typing import Any

import pytest

from meshmsg._model.errors import ClosedError, LogError, LogFull
from meshmsg._model.log_policy import Retention
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg.recovery.log.appender import (
    AGE_PARTS,
    Appender,
    LogSettings,
    entry_bytes,
    events_of,
    failure,
)
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import DATA_START, FRAME_RECORD
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.stream.histogram import Histogram

DATA, WIRE_ID, EPOCH = "/data/s", 5, 7


class Bench:
    """An appender on a disk that fails as it is told."""

    def __init__(self, **settings: Any) -> None:
        self.files = FaultyFiles(Random(1))
        self.counters: Counter[str] = Counter()
        self.now_ns = 0
        self.rolls = 0
        self.sync_times = Histogram()
        tracks = settings.pop("tracks", True)
        settings = {"allocate_bytes": 0, "tail_bytes": 4096, **settings}
        self.appender = Appender(
            self.files,
            DATA,
            WIRE_ID,
            LogSettings(**settings),
            self.counters,
            epoch=EPOCH,
            term=0,
            first=0,
            tracks=tracks,
            clock=lambda: self.now_ns,
            on_roll=self.rolled,
            sync_times=self.sync_times,
        )

    def rolled(self) -> None:
        self.rolls += 1

    def write(self, *payloads: bytes) -> None:
        first = self.appender.next
        stop = first + len(payloads)
        content = encode_frame(WIRE_ID, EPOCH, first, "a.b", list(payloads), 1)
        self.appender.write(FRAME_RECORD, content, first, stop, 1)

    def add(self, *payloads: bytes) -> None:
        self.appender.add([("a.b", payload, 1, False, None, None) for payload in payloads])

    def read(self, files: FaultyFiles | None = None) -> list[bytes]:
        found: list[bytes] = []
        with LogReader(LogFolder(DATA, files=files or self.files)) as reader:
            reader.seek(EPOCH, 0)
            for run in reader.runs():
                assert hasattr(run, "frame"), run
                found += run.frame.payloads.split(run.lo, run.hi)
        return found


def test_a_record_is_there_when_it_is_written_and_safe_when_it_is_synced() -> None:
    bench = Bench()
    bench.write(b"a", b"b")
    assert (bench.appender.next, bench.appender.durable) == (2, 0)
    assert bench.read() == [b"a", b"b"]
    assert bench.appender.unsynced_bytes > 0
    bench.appender.sync(2)
    assert (bench.appender.durable, bench.appender.unsynced_bytes) == (2, 0)
    assert bench.read(bench.files.survivor()) == [b"a", b"b"]


def test_small_events_gather_in_the_tail_and_are_safe_there() -> None:
    bench = Bench()
    bench.add(b"a", b"b")
    assert (bench.appender.next, bench.appender.stored) == (2, 0)
    bench.appender.sync(2)
    assert bench.read(bench.files.survivor()) == [b"a", b"b"]
    bench.write(b"c")
    assert bench.appender.stored == 3
    assert bench.read() == [b"a", b"b", b"c"]


def test_a_full_tail_is_stored_and_goes_on_in_its_other_area() -> None:
    bench = Bench(tail_bytes=1024)
    payloads = [b"%d" % n for n in range(200)]
    for payload in payloads:
        bench.add(payload)
    assert bench.appender.turns > 1
    assert bench.read() == payloads


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (5, 5), (6, 5)])
def test_what_does_not_follow_is_refused(first: int, stop: int) -> None:
    bench = Bench()
    bench.write(b"a", b"b")
    with pytest.raises(ValueError, match="does not follow 2"):
        bench.appender.write(FRAME_RECORD, b"", first, stop, 1)


def test_a_segment_that_would_get_too_large_is_ended_and_the_next_begins_there() -> None:
    bench = Bench(segment_bytes=DATA_START + 600)
    payloads = [b"x" * 200 + b"%d" % n for n in range(6)]
    for payload in payloads:
        bench.write(payload)
    assert bench.rolls == bench.counters["segments"] > 1
    assert bench.read() == payloads
    [(name, used)] = bench.appender.used().items()
    assert name.first > 0
    assert used > DATA_START


def test_an_aged_segment_is_ended_so_that_it_can_expire() -> None:
    bench = Bench(retention=Retention(age_s=8.0))
    bench.write(b"a")
    bench.now_ns = int(8e9 / AGE_PARTS)
    bench.write(b"b")
    assert bench.rolls == 0
    bench.now_ns += 1
    bench.write(b"c")
    assert bench.rolls == 1


def test_a_failed_write_is_told_and_the_next_one_goes_on_there() -> None:
    bench = Bench()
    bench.write(b"a")
    bench.files.faults.write_error = 1.0
    with pytest.raises(LogError, match="could not be written"):
        bench.write(b"b")
    assert (bench.appender.next, bench.counters["write_failures"]) == (1, 1)
    bench.files.faults.write_error = 0.0
    bench.write(b"c")
    assert bench.read() == [b"a", b"c"]


def test_after_a_failed_sync_all_that_is_not_safe_is_in_a_new_segment() -> None:
    bench = Bench()
    bench.write(b"a")
    bench.appender.sync(1)
    bench.write(b"b")
    bench.add(b"c")
    faults = bench.files.faults
    faults.sync_error = 1.0
    with pytest.raises(LogError, match="written anew"):
        bench.appender.sync(3)
    assert bench.appender.durable == 1
    with pytest.raises(LogError):
        bench.write(b"not while it fails")
    faults.sync_error = 0.0
    bench.appender.sync(3)
    assert (bench.appender.durable, bench.counters["rewrites"]) == (3, 1)
    assert bench.read(bench.files.survivor()) == [b"a", b"b", b"c"]
    [name] = bench.appender.used()
    assert (name.term > 0, name.first) == (True, 1)


def test_a_closed_one_is_safe_and_takes_nothing_more() -> None:
    bench = Bench()
    bench.write(b"a")
    bench.add(b"b")
    bench.appender.close()
    bench.appender.close()
    assert bench.read(bench.files.survivor()) == [b"a", b"b"]
    with pytest.raises(ClosedError):
        bench.write(b"c")
    with pytest.raises(ClosedError):
        bench.add(b"c")
    with pytest.raises(ClosedError):
        bench.appender.make_room(1 << 30)


def test_without_tracking_nothing_is_kept_to_be_written_anew() -> None:
    bench = Bench(tracks=False)
    bench.write(b"a" * 1000)
    assert bench.appender.unsynced_bytes == 0


def test_a_segment_that_cannot_be_begun_leaves_nothing() -> None:
    files = FaultyFiles(Random(1))
    files.faults.sync_error = 1.0
    with pytest.raises(OSError, match="Input/output"):
        Appender(
            files,
            DATA,
            WIRE_ID,
            LogSettings(allocate_bytes=0),
            Counter(),
            epoch=EPOCH,
            term=0,
            first=0,
            tracks=True,
            clock=lambda: 0,
            on_roll=lambda: None,
            sync_times=Histogram(),
        )
    assert not [path for path in files.paths() if ".seg" in path]


def test_the_tail_is_a_part_of_a_segment() -> None:
    assert LogSettings(tail_bytes=100_000, segment_bytes=40_000).area_bytes == 10_000
    assert LogSettings(tail_bytes=100_001).area_bytes == 100_000
    assert LogSettings(tail_bytes=0).area_bytes == 0


def test_the_events_of_a_frame_take_their_columns_into_the_tail() -> None:
    headers = encode_headers({"n": 1})
    frame = Frame(
        encode_frame(
            WIRE_ID,
            EPOCH,
            0,
            ["a", "ü"],
            [b"x", b""],
            [5, 6],
            raw=b"\1\0",
            keys={1: "k"},
            headers={0: headers},
        )
    )
    events = events_of(frame)
    assert events == [("a", b"x", 5, True, None, headers), ("ü", b"", 6, False, "k", None)]
    assert [entry_bytes(event) % 8 for event in events] == [0, 0]
    bench = Bench()
    bench.add(b"first")
    before = bench.appender.frame.at
    bench.appender.add(events)
    assert bench.appender.frame.at - before == sum(map(entry_bytes, events))


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, LogFull), (errno.EDQUOT, LogFull), (errno.EIO, LogError)]
)
def test_a_full_disk_is_told_apart_from_a_broken_one(number: int, kind: type) -> None:
    error = failure("/p", OSError(number, "words"), "it failed")
    assert type(error) is kind
    assert "it failed: words" in str(error)
    assert failure("/p", error, "again") is error
