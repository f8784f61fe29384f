"""Writing a log: what is safe when, what a failing disk does, what expires."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg._model.errors import (
    ClosedError,
    ConfigError,
    LogError,
    LogFull,
    LogLocked,
    WaitTimeout,
)
from meshmsg._model.event import Loss
from meshmsg._model.log_policy import FsyncWord, Retention
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.files import File, RealFile, RealFiles
from meshmsg.recovery.log.folder import escape
from meshmsg.recovery.log.format import SegmentName, in_effect, parse_name
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.retention import expired
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, frame_of, items_of
from tests.support import processes
from tests.support.waiting import wait_until

SECOND_NS = 10**9


def opened(files: Any, **options: Any) -> LogWriter:
    background = options.pop("background", False)
    clock = options.pop("clock", lambda: 1)
    settings = LogSettings(**{"allocate_bytes": 0, "tail_bytes": 0, **options})
    writer = LogWriter(
        DATA, STREAM, settings=settings, files=files, background=background, clock=clock
    )
    writer.open()
    return writer


def put(writer: LogWriter, *payloads: bytes, time_ns: int = 1) -> int:
    first = writer.next
    frame = frame_of(writer.epoch, first, list(payloads), time_ns)
    return writer.append(frame, first, first + len(payloads))


def read(files: FaultyFiles, start: tuple[int, int] | None = None) -> list[Any]:
    return [i if isinstance(i, Loss) else i[1] for i in items_of(files, start)]  # type: ignore[index]


def memory() -> FaultyFiles:
    return FaultyFiles(Random(1))


# Safe when ---------------------------------------------------------------------------------------


def test_always_is_on_the_disk_when_append_returns() -> None:
    files = memory()
    writer = opened(files, fsync="always")
    writer.begin(7)
    put(writer, b"a", b"b")
    assert writer.durable == 2
    assert read(files.survivor()) == [b"a", b"b"]


def test_batch_is_in_the_kernel_when_append_returns_and_on_the_disk_after_flush() -> None:
    files = memory()
    writer = opened(files, fsync="batch")
    writer.begin(7)
    put(writer, b"a")
    assert writer.durable == 0
    assert read(files.survivor(power=False)) == [b"a"]
    writer.flush()
    assert writer.durable == 1
    assert read(files.survivor()) == [b"a"]


def test_never_survives_a_kill_and_flush_does_not_wait_for_the_disk() -> None:
    files = memory()
    writer = opened(files, fsync="never")
    writer.begin(7)
    put(writer, b"a")
    calls = files.calls
    writer.flush()
    assert files.calls == calls
    assert read(files.survivor(power=False)) == [b"a"]


@pytest.mark.parametrize("word", ["always", "batch", "interval:1ms"])
def test_background_thread_makes_things_safe_by_itself(tmp_path: Path, word: str) -> None:
    settings = LogSettings(fsync=word)
    with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
        writer.begin(7)
        put(writer, b"a")
        wait_until(lambda: writer.durable >= 1)
        assert writer.stats()["unsynced_bytes"] == 0


class SlowFile(RealFile):
    """Its syncs wait until they are let through."""

    files: SlowFiles

    def sync(self) -> None:
        self.files.syncs += 1
        self.files.waiting.release()
        self.files.gate.wait()
        super().sync()


class SlowFiles(RealFiles):
    """Syncs wait until they are let through, and are counted."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        self.waiting = threading.Semaphore(0)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        fast = super().open(path, write=write, create=create)
        assert isinstance(fast, RealFile)
        slow = SlowFile(os.dup(fast._fd))
        slow.files = self
        fast.close()
        return slow


def test_threads_that_wait_at_the_same_time_share_one_sync(tmp_path: Path) -> None:
    files = SlowFiles()
    settings = LogSettings(fsync="always")
    with LogWriter(str(tmp_path), STREAM, settings=settings, files=files) as writer:
        writer.begin(7)
        lock = threading.Lock()
        before = files.syncs

        def publish() -> None:
            with lock:
                first = writer.next
                number = writer.write(frame_of(writer.epoch, first, [b"x"]), first, first + 1)
            writer.sync(number)

        while files.waiting.acquire(blocking=False):
            pass
        files.gate.clear()
        threads = [threading.Thread(target=publish) for _ in range(20)]
        threads[0].start()
        files.waiting.acquire()  # the first one waits for the disk
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: writer.next >= 20)
        files.gate.set()
        for thread in threads:
            thread.join()
        assert writer.durable == 20
        assert files.syncs - before <= 3, "one for the first, one or two for all others"


def test_sync_gives_up_when_the_time_is_over(tmp_path: Path) -> None:
    files = SlowFiles()
    with LogWriter(str(tmp_path), STREAM, files=files, background=False) as writer:
        writer.begin(7)
        put(writer, b"a")
        files.gate.clear()
        leader = threading.Thread(target=writer.flush)
        leader.start()
        wait_until(lambda: writer._open()._syncing)
        with pytest.raises(WaitTimeout):
            writer.flush(timeout=0.01)
        files.gate.set()
        leader.join()


def test_appending_waits_for_the_disk_when_too_much_is_not_safe() -> None:
    writer = opened(memory(), unsynced_bytes_max=1000)
    writer.begin(7)
    for _ in range(10):
        put(writer, b"x" * 300)
        assert writer.stats()["unsynced_bytes"] <= 1000
    assert writer.counters["sync_waits"] == 3


@pytest.mark.parametrize(
    ("text", "word"),
    [("always", FsyncWord("always")), ("interval:50ms", FsyncWord("interval", 0.05))],
)
def test_fsync_words_are_read(text: str, word: FsyncWord) -> None:
    assert FsyncWord.parse(text) == word


@pytest.mark.parametrize(
    "text", ["", "sometimes", "interval", "interval:", "interval:0s", "batch:1"]
)
def test_other_fsync_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="always, batch, interval:50ms, never"):
        FsyncWord.parse(text)


# Epochs and the lock ------------------------------------------------------------------------------


def test_epochs_only_grow_though_the_clock_goes_back() -> None:
    files = memory()
    used = []
    for clock in (1000, 10, 1, 5000):
        writer = opened(files)
        used.append(writer.begin(clock))
        writer.close()
    assert used == [1000, 1001, 1002, 5000]


def test_epoch_is_on_the_disk_before_its_first_event() -> None:
    files = memory()
    writer = opened(files, fsync="never")
    writer.begin(1000)
    after = opened(files.survivor())
    assert after.begin(1) == 1001


def test_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), STREAM) as writer:
        command = processes.program("second_writer", tmp_path, STREAM)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{os.getpid()} {writer.folder.path}: process {os.getpid()} ")
        with pytest.raises(LogLocked):
            LogWriter(str(tmp_path), STREAM).open()
    with LogWriter(str(tmp_path), STREAM):
        pass


def test_folder_of_another_mesh_is_refused() -> None:
    files = memory()
    opened(files).close()
    other = LogWriter(DATA, STREAM, mesh="other", files=files, background=False)
    with pytest.raises(LogError, match="of mesh 'default', not"):
        other.open()
    opened(files).close()


def test_closed_log_takes_nothing() -> None:
    writer = opened(memory())
    with pytest.raises(ClosedError):
        writer.write(frame_of(1, 0, [b"a"]), 0, 1)
    writer.begin(1)
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.flush()


def test_numbers_that_do_not_follow_are_refused() -> None:
    writer = opened(memory())
    writer.begin(7)
    put(writer, b"a")
    for first, stop in ((0, 1), (1, 1), (2, 1)):
        with pytest.raises(ValueError, match="does not follow"):
            writer.write(b"", first, stop, 0)


# A failing disk -----------------------------------------------------------------------------------


def test_full_disk_raises_loses_nothing_and_goes_on_when_there_is_space() -> None:
    files = memory()
    writer = opened(files, fsync="always")
    writer.begin(7)
    put(writer, b"a")
    files.faults.capacity_bytes = files.used_bytes() + 100
    for _ in range(3):
        with pytest.raises(LogFull, match="goes on when there is space"):
            put(writer, b"x" * 500)
    assert writer.next == 1
    assert read(files) == [b"a"]
    files.faults.capacity_bytes = None
    put(writer, b"b")
    assert read(files.survivor()) == [b"a", b"b"]


def test_full_disk_when_a_segment_is_begun_leaves_no_trace() -> None:
    files = memory()
    writer = opened(files, segment_bytes=5000)
    writer.begin(7)
    put(writer, b"x" * 800)
    files.faults.capacity_bytes = files.used_bytes() + 2000
    with pytest.raises(LogFull):
        put(writer, b"y" * 800)
    assert len([p for p in files.paths() if ".seg" in p]) == 1
    files.faults.capacity_bytes = None
    put(writer, b"z")
    writer.close()
    assert read(files) == [b"x" * 800, b"z"]


@pytest.mark.parametrize("fault", ["short_write", "write_error"])
def test_writes_that_fail_leave_nothing_behind(fault: str) -> None:
    files = memory()
    writer = opened(files, fsync="always")
    writer.begin(7)
    wanted = []
    setattr(files.faults, fault, 0.5)
    for n in range(50):
        payload = b"%d" % n
        try:
            put(writer, payload)
            wanted.append(payload)
        except LogError:
            assert fault == "write_error"
    assert read(files.survivor()) == wanted
    assert 0 < len(wanted) <= 50


def test_torn_write_that_cannot_be_cut_off_is_cut_off_later() -> None:
    files = memory()
    writer = opened(files, fsync="always")
    writer.begin(7)
    put(writer, b"a")
    files.faults.capacity_bytes = files.used_bytes() + 100
    files.faults.truncate_error = 1.0
    for _ in range(2):
        with pytest.raises(LogError):
            put(writer, b"x" * 500)
    files.faults.capacity_bytes = None
    with pytest.raises(LogError):
        put(writer, b"b")
    files.faults.truncate_error = 0.0
    put(writer, b"b")
    writer.close()
    assert read(files) == [b"a", b"b"]


def test_after_a_failed_sync_everything_is_written_anew_before_it_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = memory()
    writer = opened(files)
    writer.begin(7)
    put(writer, b"safe")
    writer.flush()
    put(writer, b"a")
    put(writer, b"b")
    files.faults.sync_error = 1.0
    with pytest.raises(LogError, match="could not be written anew"):
        writer.flush()
    assert writer.durable == 1
    with pytest.raises(LogError):
        put(writer, b"c")
    assert writer.next == 3
    files.faults.sync_error = 0.0
    writer.flush()
    assert writer.durable == 3
    assert writer.counters["rewrites"] == 1
    put(writer, b"c")
    writer.flush()
    assert read(files.survivor()) == [b"safe", b"a", b"b", b"c"]
    assert "a sync failed" in caplog.text


def test_failed_sync_of_several_segments_is_mended_as_a_whole() -> None:
    files = memory()
    writer = opened(files, segment_bytes=5000)
    writer.begin(7)
    payloads = [b"%d" % n * 400 for n in range(10)]
    put(writer, payloads[0])
    writer.flush()
    for payload in payloads[1:]:
        put(writer, payload)
    files.faults.sync_error = 1.0
    with pytest.raises(LogError):
        writer.flush()
    files.faults.sync_error = 0.0
    writer.flush()
    assert read(files.survivor()) == payloads
    terms = {name.term for name in writer.folder.sizes()}
    assert terms == {0, 2}


def test_replaced_segment_does_not_count_even_if_it_cannot_be_removed() -> None:
    names = [
        SegmentName(5, 0, 0),
        SegmentName(5, 0, 10),
        SegmentName(5, 0, 20),
        SegmentName(5, 1, 7),
        SegmentName(6, 0, 0),
    ]
    assert in_effect(reversed(names)) == [names[0], names[3], names[4]]


def test_committer_tries_again_until_the_disk_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="meshmsg")
    files = memory()
    writer = opened(files, background=True)
    writer.begin(7)
    files.faults.sync_error = 1.0
    put(writer, b"a")
    wait_until(lambda: writer.stats()["problem"] is not None)
    files.faults.sync_error = 0.0
    wait_until(lambda: writer.durable >= 1)
    writer.close()
    assert read(files) == [b"a"]


def test_close_tells_when_the_end_is_not_safe() -> None:
    files = memory()
    writer = opened(files)
    writer.begin(7)
    put(writer, b"a")
    files.faults.sync_error = 1.0
    with pytest.raises(LogError):
        writer.close()
    files.faults.sync_error = 0.0
    opened(files).close()  # the lock is free


# Opening again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [8, 20, 39, 40, 60, 100])
def test_torn_tail_is_cut_and_told(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    files = memory()
    writer = opened(files)
    writer.begin(7)
    put(writer, b"a")
    put(writer, b"b" * 100)
    (path,) = (p for p in files.paths() if p.endswith(".seg"))
    after = files.survivor(power=False)
    after.open(path, write=True).truncate(len(after.content(path)) - cut)
    assert read(after) == [b"a"], "a reader waits for the rest"
    again = opened(after)
    assert again.recovery.cut_bytes > 0
    assert again.recovery.next == 1
    assert "cut off" in caplog.text
    again.begin(8)
    put(again, b"c")
    again.close()
    assert read(after) == [b"a", b"c"]


def test_tail_that_cannot_be_read_is_not_cut_off() -> None:
    files = memory()
    writer = opened(files)
    writer.begin(7)
    wanted = [b"%d" % n * 100 for n in range(30)]
    for payload in wanted:
        put(writer, payload)
    after = files.survivor(power=False)
    after.faults.read_error = 0.5
    for _ in range(10):
        with contextlib.suppress(LogError):
            opened(after).close()
    after.faults.read_error = 0.0
    assert read(after) == wanted


def test_attempt_to_write_anew_does_not_take_the_name_of_the_last_one() -> None:
    files = memory()
    writer = opened(files)
    writer.begin(7)
    put(writer, b"a")
    files.faults.sync_error = 1.0
    for _ in range(3):
        with pytest.raises(LogError):
            writer.flush()
    files.faults.sync_error = 0.0
    writer.flush()
    assert [name.term for name in writer.folder.segments()] == [4]
    assert read(files.survivor()) == [b"a"]
    large = SegmentName(7, 12345, 0)
    assert parse_name(large.file) == large


def test_reserved_space_is_no_torn_write() -> None:
    files = memory()
    writer = opened(files, allocate_bytes=100_000)
    writer.begin(7)
    put(writer, b"a")
    again = opened(files.survivor(power=False))
    assert again.recovery.cut_bytes == 0
    assert again.recovery.next == 1


def test_damaged_journal_is_replaced_by_its_copy_and_by_the_segments() -> None:
    files = memory()
    writer = opened(files)
    writer.begin(1000)
    put(writer, b"a")
    writer.close()
    for path in [p for p in files.paths() if "epochs" in p]:
        files.flip(path, 10)
    again = opened(files)
    assert len(again.recovery.problems) == 2
    assert again.begin(1) == 1001
    again.close()
    assert read(files, (1000, 0)) == [b"a"]


def test_large_log_is_open_within_a_second(tmp_path: Path) -> None:
    """10 GB: sparse segments with a head and an end, and a last one that was not closed."""
    settings = LogSettings(segment_bytes=64 * 1024 * 1024, tail_bytes=0)
    writer = LogWriter(str(tmp_path), STREAM, settings=settings, background=False)
    writer.open()
    writer.begin(7)
    path = Path(writer.folder.path)
    for _ in range(20):
        first = writer.next
        writer.write(frame_of(7, first, [b"x" * 64] * 1000), first, first + 1000)
    writer.flush()
    (original,) = path.glob("*.seg")
    data = original.read_bytes()
    for n in range(160):
        with open(path / SegmentName(6, 0, n * 1000).file, "wb") as file:
            file.write(data[:4096])
            file.truncate(64 * 1024 * 1024)
    writer._open()._active.close()
    writer._release()
    began = time.perf_counter()
    again = LogWriter(str(tmp_path), STREAM, settings=settings, background=False)
    again.open()
    took = time.perf_counter() - began
    assert again.recovery.next == 20_000
    again.close()
    assert sum(f.stat().st_size for f in path.glob("*.seg")) > 10 * 10**9
    assert took < 10  # the benchmark says how fast; here: not in proportion to its size


# Retention ----------------------------------------------------------------------------------------


def filled(files: FaultyFiles, count: int = 20, **options: Any) -> LogWriter:
    writer = opened(files, segment_bytes=5200, **options)
    writer.begin(7)
    for n in range(count):
        put(writer, b"%02d" % n + bytes(498), time_ns=n * SECOND_NS)
    return writer


def test_oldest_segments_go_when_there_are_too_many_bytes() -> None:
    files = memory()
    writer = filled(files, retention=Retention(bytes_max=12_000))
    gone = writer.retain()
    assert gone[0].first == 0
    items = read(files, (7, 0))
    assert (items[0].first, items[0].reason) == (0, "expired")
    assert items[0].stop + len(items) - 1 == 20
    assert sum(writer.folder.sizes().values()) <= 12_000


def test_segments_go_when_their_newest_event_is_too_old() -> None:
    files = memory()
    writer = filled(files, retention=Retention(age_s=10.0), clock=lambda: 0)
    writer.retain(now_ns=25 * SECOND_NS)
    items = read(files, (7, 0))
    loss = items[0]
    assert loss.reason == "expired"
    assert loss.stop <= 15
    oldest_time = loss.stop + 1
    assert oldest_time >= 15 - 1, "a segment stays while one of its events is young enough"


def test_cursor_that_holds_is_never_overtaken() -> None:
    files = memory()
    writer = filled(files, retention=Retention(bytes_max=1))
    cursors = writer.cursors()
    cursors.set(Cursor("audit", STREAM, 7, 9, hold=True))
    cursors.set(Cursor("other", STREAM, 7, 2))
    writer.retain()
    assert read(files, (7, 9))[0][:2] == b"09"
    cursors.set(Cursor("audit", STREAM, 7, 15, hold=True))
    writer.retain()
    assert read(files, (7, 9))[0].reason == "expired"
    assert read(files, (7, 15))[0][:2] == b"15"


def test_damaged_cursor_holds_everything() -> None:
    files = memory()
    writer = filled(files, retention=Retention(bytes_max=1))
    writer.cursors().set(Cursor("audit", STREAM, 7, 9))
    (path,) = (p for p in files.paths() if p.endswith(".cursor"))
    files.flip(path, 20)
    assert writer.retain() == []


def test_last_segment_stays_and_keeps_the_name_of_the_epoch() -> None:
    files = memory()
    writer = filled(files, retention=Retention(bytes_max=1, age_s=0.0))
    writer.retain(now_ns=10**18)
    assert len(writer.folder.segments()) == 1
    assert read(files, (7, 0))[0].reason == "expired"


def test_whole_epoch_that_expired_is_reported_with_its_exact_range() -> None:
    files = memory()
    writer = filled(files)
    writer.close()
    writer = opened(files, retention=Retention(bytes_max=1))
    writer.begin(8)
    put(writer, b"new")
    writer.retain()
    assert read(files, (7, 5)) == [Loss(STREAM, 7, 5, 20, "expired"), b"new"]


def test_retention_runs_by_itself_when_segments_are_begun(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_bytes=20_000, retention=Retention(bytes_max=60_000), allocate_bytes=0
    )
    with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
        writer.begin(7)
        for _ in range(100):
            put(writer, b"x" * 4000)
        wait_until(lambda: sum(writer.folder.sizes().values()) <= 80_000)


def test_log_stays_small_though_its_thread_does_not_keep_up(tmp_path: Path) -> None:
    """A publisher in a hurry had written 28 times of what was to be kept before any of it went."""
    retention = Retention(bytes_max=2_000_000)
    settings = LogSettings(
        segment_bytes=250_000, retention=retention, allocate_bytes=0, tail_bytes=0
    )
    writer = LogWriter(str(tmp_path), STREAM, settings=settings, background=False)
    writer.open()
    writer.begin(7)
    for _ in range(200):
        put(writer, bytes(50_000))
        assert sum(writer.folder.sizes().values()) < 2 * 2_000_000 + 2 * 250_000
    assert writer.counters["retention_waits"] >= 3
    writer.close()


def test_what_cannot_be_removed_now_does_not_fail_what_is_written() -> None:
    files = memory()
    writer = opened(files, segment_bytes=250_000, retention=Retention(bytes_max=1))
    writer.begin(7)
    files.faults.sync_error = 1.0  # nothing can be made safe, so nothing may go
    count = 0
    while not writer.counters["retention_waits"]:
        put(writer, b"%02d" % count + bytes(50_000))
        count += 1
    assert writer.counters["sync_failures"] == 1
    files.faults.sync_error = 0.0
    writer.flush()
    assert [item[:2] for item in read(files, (7, 0))] == [b"%02d" % n for n in range(count)]
    assert writer.retain() == []  # all of it was written anew, into the segment that stays


def test_quiet_stream_begins_a_new_segment_so_that_the_old_can_expire() -> None:
    clock = [0]
    files = memory()
    writer = opened(files, retention=Retention(age_s=80.0), clock=lambda: clock[0])
    writer.begin(7)
    put(writer, b"old")
    clock[0] = 11 * SECOND_NS
    put(writer, b"new", time_ns=clock[0])
    assert [name.first for name in writer.folder.segments()] == [0, 1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, Retention()),
        ("7d", Retention(age_s=604800.0)),
        ("10GB", Retention(bytes_max=10**10)),
        ("7d, 10GiB", Retention(age_s=604800.0, bytes_max=10 * 1024**3)),
    ],
)
def test_retention_is_read(text: str | None, wanted: Retention) -> None:
    assert Retention.parse(text) == wanted


@pytest.mark.parametrize("text", ["", "7", "seven days", "7d;10GB", "GB"])
def test_other_retention_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="retention"):
        Retention.parse(text)


def test_no_segment_goes_behind_one_that_stays() -> None:
    segments = [(SegmentName(1, 0, n), 100) for n in range(5)]
    ages = {0: 0, 1: 100, 2: 0, 3: 0, 4: 0}
    retention = Retention(age_s=50e-9)
    gone = expired(segments, retention, now_ns=100, latest_ns=lambda name: ages[name.first])
    assert gone == [segments[0][0]]


# A recorder's log ---------------------------------------------------------------------------------


def test_recorder_keeps_gaps_and_their_reasons() -> None:
    files = memory()
    writer = opened(files)
    assert writer.follow(50, 5) == 5
    writer.append(frame_of(50, 5, [b"five"]), 5, 6)
    writer.append_loss(6, 9, "overflow")
    writer.append(frame_of(50, 9, [b"nine"]), 9, 10)
    writer.append(frame_of(50, 12, [b"twelve"]), 12, 13)
    writer.close()
    assert read(files, (50, 3)) == [
        Loss(STREAM, 50, 3, 5, "gone"),
        b"five",
        Loss(STREAM, 50, 6, 9, "overflow"),
        b"nine",
        Loss(STREAM, 50, 10, 12, "gone"),
        b"twelve",
    ]


def test_gap_where_a_segment_begins_is_no_damage() -> None:
    files = memory()
    writer = opened(files, segment_bytes=4700)
    writer.follow(50, 0)
    for first in (0, 10, 20, 30):
        writer.append(frame_of(50, first, [b"x" * 400]), first, first + 1)
        writer.flush()
    writer.close()
    assert len(writer.folder.segments()) > 2
    assert [i for i in read(files) if isinstance(i, Loss)] == [
        Loss(STREAM, 50, first + 1, first + 10, "gone") for first in (0, 10, 20)
    ]


def test_recorder_goes_on_in_an_epoch_after_its_own_restart() -> None:
    files = memory()
    for turn in range(3):
        writer = opened(files)
        first = writer.follow(50, 0)
        assert first == turn
        writer.append(frame_of(50, first, [b"%d" % first]), first, first + 1)
        writer.close()
    writer = opened(files)
    writer.follow(51, 0)
    with pytest.raises(LogError, match="lies before epoch"):
        writer.follow(50, 3)
    assert read(files) == [b"0", b"1", b"2"]


def test_folder_names_give_the_stream_back() -> None:
    assert escape("pricing/orders.**") == "pricing%2Forders.%2A%2A"


def test_end_of_an_epoch_is_known_though_the_next_could_not_be_begun_at_once() -> None:
    """Whoever reads takes an epoch without an end, in the middle, for empty."""
    files = memory()
    writer = opened(files)
    writer.follow(7, 0)
    put(writer, b"one", b"two")
    files.faults.write_error = 1.0
    with pytest.raises(LogError):
        writer.follow(9, 0)
    files.faults.write_error = 0.0
    writer.follow(9, 0)
    with LogReader(writer.folder) as reader:
        known = reader.journal.find(7)
        assert known is not None
        assert known.stop == 2
    writer.close()


def test_cursors_are_written_though_the_clock_was_set_back() -> None:
    files, now = memory(), [10**18]
    writer = opened(files, clock=lambda: now[0])
    writer.begin(7)
    put(writer, b"one", b"two")
    writer.hold("audit", 7, 0)
    writer.work()
    now[0] -= 3600 * SECOND_NS
    writer.move_hold("audit", 7, 1)
    writer.work()
    cursor = writer.cursors().get("audit", STREAM)
    assert cursor is not None
    assert cursor.seq == 1
    writer.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_log_is_its_owners_unless_its_folder_is_shared_with_a_group(
    tmp_path: Path, shared: bool
) -> None:
    """Whatever the umask leaves; the set-group-ID bit of the data directory says it otherwise."""
    data_dir = tmp_path / "data"
    if shared:
        data_dir.mkdir()
        data_dir.chmod(0o2750)
    umask = os.umask(0o022)
    try:
        with LogWriter(str(data_dir), STREAM) as log:
            log.begin(7)
            log.write(frame_of(7, 0, [b"1"]), 0, 1)
    finally:
        os.umask(umask)
    found = [data_dir, *data_dir.rglob("*")]
    folders = {path.stat().st_mode & 0o7777 for path in found if path.is_dir()}
    files = {path.stat().st_mode & 0o7777 for path in found if path.is_file()}
    assert (folders, files) == (({0o2750}, {0o640}) if shared else ({0o700}, {0o600}))
