"""Reading a segment that may be damaged, cut, or still being written."""

from __future__ import annotations

import errno

import pytest

from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.files import File
from meshmsg.recovery.log.format import DATA_START, END_RECORD, HEAD_PLACES
from meshmsg.recovery.log.index import EVERY_BYTES, IndexEntry
from meshmsg.recovery.log.segment import CHUNK_MAX, CHUNK_MIN, Segment, find_tail, read_index
from tests.unit.recovery.log.segments import DATA, begun, memory, put


def filled(count: int, payload: bytes = b"x") -> tuple[FaultyFiles, Segment, list[int]]:
    files = memory()
    active = begun(files)
    offsets = [put(active, payload, time_ns=10 * n) for n in range(count)]
    active.write_index(active.take_index())
    return files, Segment.open(files, DATA, active.name), offsets


def path_of(segment: Segment) -> str:
    return f"{DATA}/{segment.name.file}"


class BadSectors:
    """A file of which some bytes cannot be read: a read ends before them, or fails at them."""

    def __init__(self, file: File, first: int, stop: int, *, whole: bool) -> None:
        self.file, self.first, self.stop, self.whole = file, first, stop, whole

    def read_at(self, size: int, offset: int) -> bytes:
        if offset < self.stop and offset + size > self.first:
            if self.whole or offset >= self.first:
                raise OSError(errno.EIO, "Input/output error")
            size = self.first - offset
        return self.file.read_at(size, offset)

    def size(self) -> int:
        return self.file.size()


def test_records_are_walked_from_the_first_to_the_end() -> None:
    _, segment, offsets = filled(5)
    at, found = DATA_START, []
    while (record := segment.record(at)) is not None:
        found.append((record.offset, record.first))
        at = record.end
    assert found == list(zip(offsets, range(5), strict=True))


def test_a_damaged_content_is_told_and_the_walk_goes_on() -> None:
    files, segment, offsets = filled(3)
    files.flip(path_of(segment), offsets[1] + 60)
    segment.refresh()
    record = segment.record(offsets[1])
    assert record is not None
    assert record.content is None
    assert record.end == offsets[2]
    unchecked = segment.record(offsets[1], check=False)
    assert unchecked is not None
    assert unchecked.content is not None


def test_behind_a_damaged_head_the_next_valid_record_is_found() -> None:
    files, segment, offsets = filled(3)
    files.flip(path_of(segment), offsets[1] + 8)
    segment.refresh()
    assert segment.record(offsets[1]) is None
    assert segment.resync(offsets[1]) == offsets[2]
    assert segment.resync(offsets[2]) is None


def test_a_record_in_a_payload_is_not_taken_for_one() -> None:
    files, segment, offsets = filled(1)
    inner = files.content(path_of(segment))[offsets[0] :]
    files = memory()
    active = begun(files)
    at = [put(active, inner + bytes(-len(inner) % 8)), put(active, b"y")]
    files.flip(f"{DATA}/{active.name.file}", at[0] + 8)
    assert Segment.open(files, DATA, active.name).resync(at[0]) == at[1]


@pytest.mark.parametrize("whole", [False, True])
def test_an_unreadable_place_costs_little_more_than_itself(whole: bool) -> None:
    files, segment, offsets = filled(100, b"x" * 30_000)
    bad = offsets[33] + 100
    file = BadSectors(files.open(path_of(segment)), bad, bad + 4096, whole=whole)
    damaged = Segment(file, segment.name)  # type: ignore[arg-type]
    assert damaged.record(offsets[0]) is not None
    found = damaged.resync(offsets[2])
    assert found == offsets[3]
    behind = damaged.resync(offsets[33])
    assert behind is not None
    assert behind - bad < 2 * CHUNK_MIN
    reached = damaged.resync(offsets[20])
    assert reached == offsets[21]


def test_strict_raises_for_what_cannot_be_read() -> None:
    files, segment, _ = filled(1)
    files.faults.read_error = 1.0
    lenient = Segment(files.open(path_of(segment)), segment.name)
    assert lenient.head is None
    assert lenient.record(DATA_START) is None
    with pytest.raises(OSError, match="Input/output"):
        Segment(files.open(path_of(segment)), segment.name, strict=True)


def test_one_damaged_head_is_counted_and_two_leave_nothing() -> None:
    files, segment, _ = filled(1)
    for damaged, at in enumerate(HEAD_PLACES, 1):
        files.flip(path_of(segment), at + 10)
        again = Segment.open(files, DATA, segment.name)
        assert again.damaged_heads == damaged
    assert again.head is None
    assert again.joined(DATA_START, 0, 100) is None
    assert again.resync(DATA_START) is None
    assert read_index(files, DATA, again) == []


def test_a_number_and_a_time_are_sought_by_the_index() -> None:
    files, segment, offsets = filled(40, b"x" * (EVERY_BYTES // 4))
    entries = read_index(files, DATA, segment)
    assert len(entries) > 3
    middle = entries[2]
    assert segment.seek(entries, middle.first) == middle.offset
    assert segment.seek(entries, middle.first - 1) == entries[1].offset
    assert segment.seek([], 30) == DATA_START
    at = segment.seek_time(entries, 300)
    record = segment.head_at(at)
    assert record is not None
    assert DATA_START < at <= offsets[30]


def test_a_wrong_index_entry_is_not_followed() -> None:
    _, segment, offsets = filled(3)
    entries = [IndexEntry(offsets[1], 1, 0), IndexEntry(offsets[2] + 8, 2, 10)]
    assert segment.seek(entries, 2) == offsets[1]
    assert segment.seek([IndexEntry(offsets[1], 7, 0)], 9) == DATA_START


def test_the_tail_is_behind_the_last_whole_record() -> None:
    files, segment, offsets = filled(3)
    tail = find_tail(segment, [])
    assert (tail.next, tail.latest_ns, tail.finished) == (3, 20, False)
    files.open(path_of(segment), write=True).truncate(tail.end - 16)
    torn = find_tail(Segment.open(files, DATA, segment.name), [])
    assert (torn.end, torn.next) == (offsets[2], 2)


def test_damage_with_a_record_behind_it_does_not_end_the_log() -> None:
    files, segment, offsets = filled(3)
    files.flip(path_of(segment), offsets[1] + 8)
    files.flip(path_of(segment), offsets[0] + 60)
    assert find_tail(Segment.open(files, DATA, segment.name), []).next == 3


def test_an_ending_counts_only_at_the_very_end() -> None:
    files = memory()
    active = begun(files)
    put(active, b"x")
    assert Segment.open(files, DATA, active.name).ending() is None
    active.finish(1)
    segment = Segment.open(files, DATA, active.name)
    found = segment.ending()
    assert found is not None
    assert found.kind == END_RECORD
    files.open(path_of(segment), write=True).truncate(segment.size() + 8)
    assert Segment.open(files, DATA, active.name).ending() is None


def test_content_is_counted_without_the_zeros_of_reserved_space() -> None:
    files, segment, _ = filled(1)
    end = segment.size()
    file = files.open(path_of(segment), write=True)
    file.truncate(end + 3 * CHUNK_MAX)
    assert segment.content_bytes(end) == 0
    file.write_at([b"x"], end + 2 * CHUNK_MAX)
    assert segment.content_bytes(end) == 2 * CHUNK_MAX + 1
