"""The segment that is written: records at its end, and torn writes that leave no trace."""

from __future__ import annotations

import pytest

from meshmsg.recovery.log.active_segment import FRESH, ActiveSegment
from meshmsg.recovery.log.format import DATA_START, END_RECORD
from meshmsg.recovery.log.index import EVERY_BYTES, decode_index
from meshmsg.recovery.log.segment import Segment, find_tail, read_index
from tests.unit.recovery.log.segments import DATA, begun, head, memory, put


def test_a_segment_has_no_name_before_it_is_published() -> None:
    files = memory()
    active = ActiveSegment.create(files, DATA, head(), 0)
    assert files.paths() == [f"{DATA}/{active.name.file}{FRESH}"]
    active.publish()
    assert files.paths() == [f"{DATA}/{active.name.file}"]


def test_one_that_cannot_be_begun_leaves_nothing() -> None:
    files = memory()
    files.faults.write_error = 1.0
    with pytest.raises(OSError, match="Input/output"):
        ActiveSegment.create(files, DATA, head(), 0)
    assert files.paths() == []


def test_what_an_earlier_try_left_is_replaced() -> None:
    files = memory()
    ActiveSegment.create(files, DATA, head(), 0)
    ActiveSegment.create(files, DATA, head(), 0).publish()
    assert len(files.paths()) == 1


def test_records_follow_each_other_and_come_back() -> None:
    files = memory()
    active = begun(files)
    assert active.is_empty
    offsets = [put(active, b"a", b"b", time_ns=5), put(active, b"c", time_ns=3)]
    assert (offsets[0], active.next, active.latest_ns) == (DATA_START, 3, 5)
    assert not active.is_empty
    segment = Segment.open(files, DATA, active.name)
    records = [segment.record(offset) for offset in offsets]
    assert [(r.first, r.stop, r.time_ns) for r in records if r] == [(0, 2, 5), (2, 3, 3)]


def test_a_torn_write_leaves_no_trace() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a")
    end = active.offset
    files.faults.capacity_bytes = files.used_bytes() + 20
    with pytest.raises(OSError, match="No space"):
        put(active, b"b" * 100)
    assert (active.offset, active.next) == (end, 1)
    assert len(files.content(f"{DATA}/{active.name.file}")) == end
    files.faults.capacity_bytes = None
    assert put(active, b"c") == end


def test_a_torn_write_that_cannot_be_cut_is_cut_before_the_next_record() -> None:
    files = memory()
    active = begun(files)
    end = active.offset
    files.faults.capacity_bytes = files.used_bytes() + 20
    files.faults.truncate_error = 1.0
    for _ in range(2):
        with pytest.raises(OSError, match=r"No space|Input/output"):
            put(active, b"b" * 100)
    files.faults.capacity_bytes = None
    files.faults.truncate_error = 0.0
    put(active, b"c")
    segment = Segment.open(files, DATA, active.name)
    assert find_tail(segment, []).next == 1
    assert active.offset > end


def test_room_is_reserved_in_steps() -> None:
    files = memory()
    active = begun(files, allocate_bytes=10_000)
    path = f"{DATA}/{active.name.file}"
    size = len(files.content(path))
    assert size >= DATA_START + 10_000
    put(active, b"a")
    assert len(files.content(path)) == size
    put(active, b"b" * 30_000)
    assert len(files.content(path)) >= active.offset
    active.finish(2)
    assert len(files.content(path)) == active.offset


def test_a_finished_segment_says_where_it_ends_and_when_its_latest_event_was() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a", time_ns=9)
    active.finish(1)
    active.finish(1)  # again: nothing
    ending = Segment.open(files, DATA, active.name).ending()
    assert ending is not None
    assert (ending.kind, ending.first, ending.time_ns) == (END_RECORD, 1, 9)
    assert active.offset == len(files.content(f"{DATA}/{active.name.file}"))


def test_an_end_that_does_not_fit_does_no_harm() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a")
    end = active.offset
    files.faults.capacity_bytes = files.used_bytes() + 8
    active.finish(1)
    assert active.finished
    assert len(files.content(f"{DATA}/{active.name.file}")) == end


def test_only_what_was_written_since_is_synced() -> None:
    files = memory()
    active = begun(files)
    assert not active.dirty
    calls = files.calls
    active.sync()
    assert files.calls == calls
    put(active, b"a")
    active.sync()
    assert files.calls > calls
    assert not active.dirty


def test_a_sparse_index_is_written_in_pieces_and_finds_its_records() -> None:
    files = memory()
    active = begun(files)
    for _ in range(3):
        for _ in range(4):
            put(active, b"x" * (EVERY_BYTES // 3))
        assert active.write_index(active.take_index())
    assert active.take_index() == []
    segment = Segment.open(files, DATA, active.name)
    entries = read_index(files, DATA, segment)
    assert len(entries) >= 3
    for entry in entries:
        record = segment.head_at(entry.offset)
        assert record is not None
        assert record.first == entry.first


def test_an_index_that_cannot_be_written_is_no_error() -> None:
    files = memory()
    active = begun(files)
    for _ in range(3):
        put(active, b"x" * EVERY_BYTES)
    entries = active.take_index()
    files.faults.write_error = 1.0
    assert not active.write_index(entries)
    files.faults.write_error = 0.0
    assert active.write_index(entries)
    data = files.content(f"{DATA}/{active.name.index_file}")
    assert decode_index(data, active.head.salt) == entries


def test_what_could_not_be_made_safe_is_cut_back() -> None:
    files = memory()
    active = begun(files)
    put(active, b"a")
    offset = put(active, b"b")
    active.cut_back(offset)
    segment = Segment.open(files, DATA, active.name)
    assert find_tail(segment, []).next == 1
