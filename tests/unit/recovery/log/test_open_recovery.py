"""What opening a log does: torn writes are cut, the tail is stored, leftovers go."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg._model.errors import LogError
from meshmsg.recovery.log.active_segment import FRESH
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import DATA_START, SegmentName
from meshmsg.recovery.log.journal import Epoch, Journal, write_journal
from meshmsg.recovery.log.open_recovery import recover
from meshmsg.recovery.log.segment import Segment
from meshmsg.recovery.log.tail import TAIL_FILE
from meshmsg.recovery.log.writer import LogWriter
from tests.unit.recovery.log.segments import DATA, EPOCH, begun, memory, put

NAME = SegmentName(EPOCH, 0, 0)
PATH = f"{DATA}/{NAME.file}"


def folder(files: FaultyFiles) -> LogFolder:
    return LogFolder(DATA, files=files)


def test_an_empty_log_is_fit_for_writing() -> None:
    found = recover(folder(memory()))
    assert (found.last_epoch, found.last, found.next, found.problems) == (0, None, 0, [])


def test_a_segment_that_was_not_ended_is_and_the_journal_knows_where() -> None:
    files = memory()
    active = begun(files, allocate_bytes=10_000)
    put(active, b"a", b"b")
    found = recover(folder(files))
    assert (found.last_epoch, found.last, found.next) == (EPOCH, NAME, 2)
    assert found.journal.epochs == (Epoch(EPOCH, 0, 2),)
    assert found.cut_bytes == 0
    ending = Segment.open(files, DATA, NAME).ending()
    assert ending is not None
    assert ending.first == 2


def test_a_torn_write_is_cut_off_and_counted() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a")
    end = active.offset
    put(active, b"b" * 100)
    files.open(PATH, write=True).truncate(end + 70)
    found = recover(folder(files))
    assert found.next == 1
    assert 0 < found.cut_bytes <= 70
    again = recover(folder(files))
    assert (again.next, again.cut_bytes) == (1, 0)


def test_damage_before_the_end_is_left_for_readers() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a")
    offset = put(active, b"b")
    put(active, b"c")
    files.flip(PATH, offset + 8)
    assert recover(folder(files)).next == 3


def test_a_segment_whose_head_was_never_written_goes_and_the_one_before_is_the_last() -> None:
    files = memory()
    put(begun(files), b"a")
    later = SegmentName(EPOCH, 0, 1)
    file = files.open(f"{DATA}/{later.file}", create=True)
    file.truncate(DATA_START)
    found = recover(folder(files))
    assert (found.last, found.next) == (NAME, 1)
    assert f"{DATA}/{later.file}" not in files.paths()


def test_a_segment_with_both_heads_damaged_stays_and_is_told() -> None:
    files = memory()
    put(begun(files), b"a")
    for at in (0, 2048):
        files.flip(PATH, at)
    found = recover(folder(files))
    assert found.last == NAME
    assert found.problems == [f"{NAME.file}: the head is damaged, both copies of it"]


def test_what_a_crash_left_behind_is_removed() -> None:
    files = memory()
    put(begun(files), b"a")
    put(begun(files, first=1), b"b")
    write_journal(files, DATA, Journal((Epoch(EPOCH, 0, None),), (EPOCH, 1)))
    stray = [f"{NAME.file}{FRESH}", SegmentName(9, 0, 0).index_file]
    for name in stray:
        files.open(f"{DATA}/{name}", create=True)
    files.open(f"{DATA}/notes.txt", create=True)
    found = recover(folder(files))
    left = {path.rpartition("/")[2] for path in files.paths()}
    assert SegmentName(EPOCH, 0, 1).file in left
    assert "notes.txt" in left
    assert not left & {NAME.file, *stray}  # the first has expired
    assert found.next == 2


def test_an_epoch_once_used_is_known_from_whatever_tells_of_it() -> None:
    files = memory()
    write_journal(files, DATA, Journal((Epoch(12, 0, 5),), (3, 0)))
    assert recover(folder(files)).last_epoch == 12
    write_journal(files, DATA, Journal((), (20, 0), 9))
    assert recover(folder(files)).last_epoch == 20
    put(begun(files), b"a")
    assert recover(folder(files)).last_epoch == 20


def test_what_cannot_be_read_now_is_not_cut_off() -> None:
    files = memory()
    put(begun(files), b"a")
    before = files.content(PATH)
    files.faults.read_error = 1.0
    with pytest.raises(LogError, match="cannot be opened"):
        recover(folder(files))
    files.faults.read_error = 0.0
    assert files.content(PATH) == before


def test_events_that_only_the_tail_has_are_stored_behind_the_others() -> None:
    files = FaultyFiles(Random(1))
    settings = LogSettings(fsync="batch", allocate_bytes=0, tail_bytes=4096)
    writer = LogWriter("/d", "a/b", settings=settings, files=files, background=False)
    writer.open()
    writer.begin(EPOCH)
    writer.add([("t", b"x", 1, False, None, None)] * 3)
    writer.flush()
    after = files.survivor()
    log = LogFolder(writer.folder.path, files=after)
    found = recover(log)
    assert (found.tail_events, found.next) == (3, 3)
    assert f"{log.path}/{TAIL_FILE}" not in after.paths()
    assert recover(log).next == 3
