"""The log's tail: everybody reads it, and what it has outlives every crash."""

from __future__ import annotations

import copy
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from meshmsg._model.errors import LogError, LogFull
from meshmsg._model.event import Loss
from meshmsg._model.log_policy import Retention
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg._wire.tail_frame import ENTRY, TailEntry, read_entry
from meshmsg.recovery.log import seek as log_places
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import Crashed, FaultyFile, FaultyFiles
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import DATA_START
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.segment import Record, Segment
from meshmsg.recovery.log.tail import (
    AREA_HEAD,
    AREAS,
    FILLS_NS,
    TAIL_FILE,
    ZEROS,
    AreaHead,
    Tail,
    TailReader,
    crc32c,
    read_area_head,
)
from meshmsg.recovery.log.verify import summarize, verify
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, WIRE_ID, frame_of
from tests.support import processes
from tests.support.waiting import wait_until
from tests.unit.meshmsg._wire.test_frame import Events, batches
from tests.unit.recovery.log.test_writer import SECOND_NS, memory, opened, put, read

AREA = 1024
PATH = LogFolder.of(DATA, STREAM).path
TAIL = f"{PATH}/{TAIL_FILE}"
LOOKS = 5
WORDS = ("always", "batch", "interval:5ms", "never")

pytestmark = pytest.mark.usefixtures("quiet_logs")


def tailed(files: FaultyFiles, epoch: int = 7, **options: Any) -> LogWriter:
    """A writer of a log with a small tail, in an epoch."""
    writer = opened(files, **{"tail_bytes": AREA, "tail_growth": 1, **options})
    writer.begin(epoch)
    return writer


def fill(writer: LogWriter, count: int, size: int = 20) -> list[bytes]:
    """Add so many events, one by one."""
    payloads = [b"%d " % (writer.next + n) * (size // 2) for n in range(count)]
    for payload in payloads:
        put(writer, payload)
    return payloads


def fill_up(writer: LogWriter, added: list[bytes]) -> None:
    """Add events until that raises; those that it took."""
    while True:
        added += fill(writer, 1)


def stored(files: FaultyFiles) -> list[Any]:
    """What a reader finds that does not know the tail."""
    after = files.survivor(power=False)
    after.remove(TAIL)
    return read(after, (7, 0))


def reopened(files: FaultyFiles) -> LogWriter:
    """What the next start makes of a log, whose writer does not know of it."""
    files.locks.clear()
    return opened(files, tail_bytes=AREA, tail_growth=1)


def areas(files: FaultyFiles) -> list[tuple[int, AreaHead]]:
    """Offsets and heads of the areas that have one."""
    data = files.content(TAIL)
    size = len(data) // AREAS
    found = [(at, read_area_head(data[at : at + size])) for at in range(0, len(data), size)]
    return [(at, head) for at, head in found if head is not None]


def entries(files: FaultyFiles, first: int = 0) -> list[tuple[int, TailEntry]]:
    """Offsets in the file and entries of the area that begins with an event."""
    ((start, head),) = [area for area in areas(files) if area[1].first == first]
    area = files.content(TAIL)[start : start + AREA]
    found, at = [], AREA_HEAD.size
    while (entry := read_entry(area, at, crc32c(head.salt))) is not None:
        found.append((start + at, entry))
        at = entry.end
    return found


def overwrite(files: FaultyFiles, offset: int, data: bytes) -> None:
    files.open(TAIL).write_at([data], offset)


# Readers -----------------------------------------------------------------------------------------


def test_added_events_are_read_before_they_are_stored() -> None:
    files = memory()
    writer = tailed(files)
    put(writer, b"a", time_ns=100)
    put(writer, b"b", b"c", time_ns=200)
    assert stored(files) == []
    folder = writer.folder
    with LogReader(folder) as reader:
        reader.seek_earliest()
        (run,) = reader.runs()
        assert isinstance(run.frame, Frame)
        assert run.frame.payloads.split(0, 3) == [b"a", b"b", b"c"]
        assert list(reader.runs()) == []
        put(writer, b"d", time_ns=300)
        (run,) = reader.runs()
        assert (run.frame.first, run.frame.count) == (3, 1)
        for count, place in ((0, 4), (1, 3), (3, 1), (9, 0)):
            reader.seek_last(count)
            assert (reader.epoch, reader.next) == (7, place)
        for time_ns, place in ((0, 0), (101, 1), (200, 1), (300, 3), (301, 4)):
            reader.seek_time(time_ns)
            assert (reader.epoch, reader.next) == (7, place)
        reader.seek_latest()
        assert reader.next == 4
        assert log_places.stop_of(folder, reader.segments[-1], reader.journal) == 4
    assert summarize(folder).events == 4
    report = verify(folder)
    assert report.is_good
    assert (report.events, report.losses) == (4, [])


def test_reader_goes_on_from_the_tail_to_the_segment_and_back() -> None:
    files = memory()
    writer = tailed(files)
    with LogReader(writer.folder) as reader:
        reader.seek_earliest()
        seen: list[bytes] = []
        wanted: list[bytes] = []
        rng = Random(3)
        for _ in range(200):
            wanted += fill(writer, rng.randrange(3), rng.choice([4, 100, 200]))
            if rng.random() < 0.2:
                large = bytes(AREA)
                put(writer, large)
                wanted.append(large)
            for item in reader.runs() if rng.random() < 0.4 else ():
                assert not isinstance(item, Loss), item
                seen += item.frame.payloads.split(item.lo, item.hi)
        for item in reader.runs():
            seen += item.frame.payloads.split(item.lo, item.hi)
    assert seen == wanted == read(files)


class Meddled(FaultyFiles):
    """Somebody goes on writing just before a reader opens its next file but `after`."""

    meddle: Any = None
    after = 0

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
        if self.meddle is not None:
            if self.after == 0:
                meddle, self.meddle = self.meddle, None
                meddle()
            self.after -= 1
        return super().open(path, write=write, create=create)


@pytest.mark.parametrize("segment_bytes", [64 << 20, 4096 + 1200])
@pytest.mark.parametrize("more", [1, 20, 60, 200])
@pytest.mark.parametrize("after", range(5))
def test_what_is_stored_while_a_reader_looks_is_not_missed(
    after: int, more: int, segment_bytes: int
) -> None:
    """It looked at the segment, and then the tail was further on."""
    files = Meddled(Random(1))
    writer = tailed(files, segment_bytes=segment_bytes)
    wanted = fill(writer, 5)
    seen: list[bytes] = []
    with LogReader(writer.folder) as reader:
        reader.seek_earliest()
        files.meddle, files.after = lambda: wanted.extend(fill(writer, more)), after
        for _ in range(2):
            for item in reader.runs():
                assert not isinstance(item, Loss), item
                seen += item.frame.payloads.split(item.lo, item.hi)
            assert len(seen) >= 5  # what was there when it began
    assert seen == wanted


@pytest.mark.parametrize("segment_bytes", [64 << 20, 4096 + 1200])
@pytest.mark.parametrize("more", [1, 20, 60, 200])
@pytest.mark.parametrize("after", range(8))
def test_start_at_a_time_misses_nothing_that_is_stored_meanwhile(
    after: int, more: int, segment_bytes: int
) -> None:
    files = Meddled(Random(1))
    writer = tailed(files, segment_bytes=segment_bytes)
    for n in range(5):
        put(writer, b"early %d" % n, time_ns=10)
    put(writer, b"late", time_ns=20)

    def go_on() -> None:
        for n in range(more):
            put(writer, b"later %d" % n * 5, time_ns=30)

    with LogReader(writer.folder) as reader:
        files.meddle, files.after = go_on, after
        reader.seek_time(20)
        files.meddle = None
        assert (reader.epoch, reader.next) == (7, 5)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_small_frame_is_the_same_events_when_it_comes_from_the_tail(events: Events) -> None:
    files = memory()
    writer = tailed(files, tail_bytes=256 * 1024)
    packed = {n: encode_headers(value) for n, value in events.headers.items()}
    columns = (events.topics, events.payloads, events.times)
    notes: dict[str, Any] = {"raw": events.raw, "keys": events.keys, "headers": packed}
    data = encode_frame(WIRE_ID, 7, 0, *columns, **notes)
    count = len(events.payloads)
    writer.write(data, 0, count)
    for after in (files, reopened(files.survivor(power=False)).folder.files):
        with LogReader(LogFolder(PATH, files=after)) as reader:
            reader.seek_earliest()
            (run,) = reader.runs()
        assert described(run.frame) == described(Frame(data))


def described(frame: Frame) -> list[Any]:
    return [
        (
            frame.topic_at(n),
            payload,
            frame.time_at(n),
            frame.is_raw(n),
            frame.key_at(n),
            repr(frame.headers_at(n)),
        )
        for n, payload in enumerate(frame.payloads.split(0, frame.count))
    ]


def test_small_events_with_the_longest_topics_fit_the_smallest_tail() -> None:
    files = memory()
    writer = tailed(files, segment_bytes=64 * 1024, tail_bytes=128 * 1024)
    topic = "t" * 255
    frame = encode_frame(WIRE_ID, 7, 0, topic, [b"x" * 90] * 32, 1)
    for first in range(0, 320, 32):
        frame = encode_frame(WIRE_ID, 7, first, topic, [b"x" * 90] * 32, 1)
        writer.write(frame, first, first + 32)
    assert read(files) == [b"x" * 90] * 320


# What a crash leaves -----------------------------------------------------------------------------


@pytest.mark.parametrize("opened_again", [False, True])
def test_torn_last_entry_is_not_there_and_all_before_it_are(opened_again: bool) -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 4)
    offset, entry = entries(files)[-1]
    size = ENTRY.size + len("orders.eu") + len(entry.payload)
    for cut in range(size):  # a page that was written in part, by a power failure
        after = files.survivor(power=False)
        overwrite(after, offset + cut, bytes(size - cut))
        if opened_again:
            reopened(after).close()
        assert read(after) == wanted[:3], cut
        assert verify(LogFolder(PATH, files=after)).is_good


def test_half_written_length_is_none() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 4)
    offset, _ = entries(files)[-1]
    used = int.from_bytes(files.content(TAIL)[offset : offset + 4], "little")
    for word in (0, used - 1, used + 1, used + 8, used << 8, 1, ENTRY.size, AREA, 2**32 - 1):
        after = files.survivor(power=False)
        overwrite(after, offset, word.to_bytes(4, "little"))
        assert read(after) == wanted[:3]
        reopened(after).close()
        assert read(after) == wanted[:3]


def test_damaged_entry_costs_itself_alone() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 6)
    found = entries(files)
    offset, entry = found[2]
    size = ENTRY.size + len("orders.eu") + len(entry.payload)
    for at in range(size):
        after = files.survivor(power=False)
        after.flip(TAIL, offset + at, 1 << at % 8)
        assert read(after) == wanted[:2], at
        (problem,) = verify(LogFolder(PATH, files=after)).problems
        assert problem == "tail: event 2 is damaged, and 3 stands behind it until the next start"
        again = reopened(after)
        assert again.recovery.problems == ["events 2 to 2 are missing before the tail"]
        assert again.recovery.tail_events == 5
        again.close()
        lost = Loss(STREAM, 7, 2, 3, "corrupt")
        assert read(after) == [*wanted[:2], lost, *wanted[3:]], at
        assert verify(LogFolder(PATH, files=after)).losses == [lost]


def test_first_entry_and_several_that_are_damaged() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 8)
    found = entries(files)
    for n in (0, 1, 4, 6):
        files.flip(TAIL, found[n][0] + 30)
    reopened(files).close()
    assert read(files) == [
        Loss(STREAM, 7, 0, 2, "corrupt"),
        *wanted[2:4],
        Loss(STREAM, 7, 4, 5, "corrupt"),
        wanted[5],
        Loss(STREAM, 7, 6, 7, "corrupt"),
        wanted[7],
    ]


def test_payload_that_holds_a_tail_is_not_read_as_one() -> None:
    inner = memory()
    fill(tailed(inner), 6)
    (at, _), *_ = entries(inner)
    image = inner.content(TAIL)[at : at + 500]
    files = memory()
    files.rng.seed(99)
    writer = tailed(files, tail_bytes=8192)
    put(writer, b"first")
    put(writer, image)
    put(writer, b"last")
    start, _ = areas(files)[0]
    offset = files.content(TAIL).index(image, start) - len("orders.eu") - ENTRY.size
    files.flip(TAIL, offset + 5)
    reopened(files).close()
    assert read(files) == [b"first", Loss(STREAM, 7, 1, 2, "corrupt"), b"last"]


def test_area_without_a_head_has_nothing_and_the_segment_has_all_that_it_had() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 25)
    kept = stored(files)
    assert 0 < len(kept) < 25
    for at in range(AREA_HEAD.size):
        after = files.survivor(power=False)
        for start, head in areas(files):
            if head.first == len(kept):
                after.flip(TAIL, start + at)
        assert read(after) == kept == wanted[: len(kept)]
        again = reopened(after)
        again.begin(8)
        put(again, b"on")
        again.close()
        assert read(after) == [*kept, b"on"]


def test_tail_that_is_newer_than_the_segment_tells_what_is_missing_between() -> None:
    """A power failure took the record, and the page of the tail had been written by then."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 40)
    kept = len(stored(files))
    first = min(head.first for _, head in areas(files))
    assert 0 < first < kept < 40
    after = files.survivor(power=False)
    segment = next(path for path in after.paths() if path.endswith(".seg"))
    after.open(segment).truncate(4096)
    reopened(after).close()
    assert read(after) == [Loss(STREAM, 7, 0, first, "corrupt"), *wanted[first:]]


class Refusing(FaultyFile):
    """Writes, and says that it has not."""

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        super().write_at(parts, offset)
        raise OSError(5, "Input/output error")


def test_number_of_a_refused_event_is_not_given_again_before_that_is_cut_off() -> None:
    """It was whole in the segment, and after a crash it was there instead of the next one."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 3)
    writer._open().store()
    file = writer._open()._active._file
    assert isinstance(file, FaultyFile)
    file.__class__ = Refusing
    files.faults.truncate_error = 1.0
    for payload in (b"refused" * 2000, b"too"):
        with pytest.raises(LogError):
            put(writer, payload)
        file.__class__ = FaultyFile
    assert writer.next == 3
    files.faults.truncate_error = 0.0
    wanted += fill(writer, 2)
    after = files.survivor(power=False)
    for _ in range(2):
        assert read(after) == wanted
        reopened(after).close()


def records(files: FaultyFiles) -> list[Record]:
    """What stands in the last segment, whole or not."""
    name = LogFolder.of(DATA, STREAM, files=files).segments()[-1]
    segment = Segment.open(files, PATH, name)
    found, offset = [], DATA_START
    while (record := segment.record(offset)) is not None:
        found.append(record)
        offset = record.end
    return found


def torn(files: FaultyFiles, at: Record) -> FaultyFiles:
    """What a power failure leaves that takes the content of a record and spares all others."""
    after = files.survivor(power=False)
    name = LogFolder.of(DATA, STREAM, files=files).segments()[-1]
    after.flip(f"{PATH}/{name.file}", at.end - 20)
    return after


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_record_that_was_torn_before_others_is_taken_from_the_tail(lost: int) -> None:
    """Its events were called durable, when only the tail had them; what follows is in no tail."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 10)
    writer.flush()
    assert writer.durable == 10
    wanted += fill(writer, 5)
    large = b"large" * 2000
    put(writer, large)
    put(writer, large)
    wanted += [large, large]
    first, second, third, *_ = records(files)
    after = torn(files, (first, second, third)[lost])
    whole = (first, second, third)[lost].content is not None
    assert whole
    kept = [*wanted] if lost < 2 else [*wanted[:15], Loss(STREAM, 7, 15, 16, "corrupt"), large]
    for _ in range(3):  # as the crash left it, and after each start
        assert read(after, (7, 0)) == kept
        again = reopened(after)
        assert again.recovery.next == 17
        again.close()
    assert verify(LogFolder.of(DATA, STREAM, files=after)).is_good == (lost < 2)


def test_crash_at_any_step_of_writing_a_segment_anew_loses_nothing() -> None:
    files = memory()
    writer = tailed(files)
    wanted = [*fill(writer, 15), b"large" * 2000]
    put(writer, wanted[-1])
    for step in range(100):
        after = torn(files, records(files)[0])
        after.locks.clear()
        after.faults.crash_after = step
        try:
            opened(after, tail_bytes=AREA).close()
        except Crashed:
            left = after.survivor(power=False)
        else:
            break
        for _ in range(2):
            assert read(left, (7, 0)) == wanted, step
            reopened(left).close()
    assert step > 5


def by_hand(files: FaultyFiles, wire_id: int, epoch: int, first: int, *payloads: bytes) -> None:
    """A tail as another writer would have left it."""
    files.remove(TAIL)
    tail = Tail(files, PATH, wire_id, epoch, first, area_bytes=AREA, area_bytes_max=AREA)
    tail.turn(large=False)
    for n, payload in enumerate(payloads):
        assert tail.frame.add("orders.eu", payload, n, raw=True)
    tail.close()


@pytest.mark.parametrize("opened_again", [False, True])
@pytest.mark.parametrize("first", range(7))
def test_tail_that_is_older_than_the_segment_adds_only_what_is_new(
    first: int, opened_again: bool
) -> None:
    files = memory()
    writer = tailed(files, tail_bytes=0)
    put(writer, b"0", b"1", b"2")
    put(writer, b"3", b"4")
    by_hand(files, WIRE_ID, 7, first, *(b"%d" % n for n in range(first, 6)))
    if opened_again:
        reopened(files).close()
    wanted = [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert read(files) == (wanted if first < 6 else wanted[:5])


@pytest.mark.parametrize(("wire_id", "epoch"), [(WIRE_ID, 6), (WIRE_ID, 8), (WIRE_ID + 1, 7)])
def test_tail_of_another_epoch_or_stream_is_none_of_ours(wire_id: int, epoch: int) -> None:
    files = memory()
    writer = tailed(files, tail_bytes=0)
    put(writer, b"0")
    by_hand(files, wire_id, epoch, 1, b"strange")
    assert read(files) == [b"0"]
    again = reopened(files)
    assert again.recovery.tail_events == 0
    assert TAIL not in files.paths()
    again.close()
    assert read(files) == [b"0"]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("opened_again", [False, True])
def test_crash_at_any_call_of_three_turns_loses_nothing(power: bool, opened_again: bool) -> None:
    """Among them: between the record and the turn, and between the turn and the first entry."""
    at = 0
    finished = False
    while not finished:
        files = memory()
        files.faults.crash_after = at
        taken: list[bytes] = []
        safe = 0
        try:
            writer = tailed(files)
            for n in range(50):
                taken += fill(writer, 1)
                if n % 9 == 0:
                    writer.flush()
                    safe = writer.durable
            finished = True
        except Crashed:
            pass
        after = files.survivor(power=power)
        if opened_again:
            reopened(after).close()
        try:
            found = read(after, (7, 0))
        except LogError:  # it crashed before there was a log
            found = []
        whole = [item for item in found if not isinstance(item, Loss)]
        assert set(whole) <= {b"%d " % n * 10 for n in range(50)}
        must = safe if power else len(taken)
        assert found[:must] == taken[:must], at
        assert len(set(whole)) == len(whole)
        at += 1
    assert at > 20


@pytest.mark.parametrize("area", range(AREAS))
def test_crash_while_an_area_gets_its_head(area: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is zeroed by then, and the segment has it."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 12 + 12 * area)
    turns = writer._open().turns

    def crash(self: AreaHead) -> bytes:
        raise Crashed

    monkeypatch.setattr(AreaHead, "encode", crash)
    with pytest.raises(Crashed):
        fill_up(writer, wanted)
    monkeypatch.undo()
    assert writer._open().turns == turns
    assert read(files) == wanted
    reopened(files).close()
    assert read(files) == wanted


@pytest.mark.parametrize("opened_again", [False, True])
def test_record_that_a_crash_tore_while_the_log_was_closed_is_in_the_tail(
    opened_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the segment was on the disk, and the record before it was not."""

    def crash(self: Tail) -> None:
        raise Crashed

    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 6)
    monkeypatch.setattr(Tail, "drop", crash)
    with pytest.raises(Crashed):
        writer.close()
    monkeypatch.undo()
    segment = next(path for path in files.paths() if path.endswith(".seg"))
    after = files.survivor(power=False)
    after.flip(segment, 4096 + 60)
    if opened_again:
        reopened(after).close()
    assert read(after) == wanted
    damaged = files.survivor(power=False)
    damaged.flip(segment, 4096 + 60)
    damaged.flip(TAIL, entries(files)[4][0] + 30)
    if opened_again:
        reopened(damaged).close()
        wanted[4:] = [Loss(STREAM, 7, 4, 5, "corrupt"), wanted[5]]
    else:
        wanted[4:] = [Loss(STREAM, 7, 4, 6, "corrupt")]
    assert read(damaged) == wanted


def test_two_epochs() -> None:
    files = memory()
    writer = tailed(files)
    old = fill(writer, 3)
    writer.begin(8)
    assert stored(files) == old
    new = fill(writer, 4)
    after = files.survivor(power=False)
    assert read(after) == [*old, *new]
    again = reopened(after)
    assert again.recovery.tail_events == 4
    again.begin(9)
    last = fill(again, 2)
    assert read(after) == [*old, *new, *last]
    assert [e.stop for e in summarize(again.folder).epochs] == [3, 4, 2]


# A failing disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, AREA, 2 * AREA - 1])
def test_disk_that_is_full_when_the_tail_is_made(room: int) -> None:
    files = memory()
    writer = tailed(files)
    files.faults.capacity_bytes = files.used_bytes() + room
    for _ in range(3):
        with pytest.raises(LogFull):
            put(writer, b"x")
    assert writer.next == 0
    assert TAIL not in files.paths()
    files.faults.capacity_bytes = None
    put(writer, b"y")
    assert read(files) == [b"y"]


@pytest.mark.parametrize("room", [0, 1, 100, 700])
def test_disk_that_is_full_when_the_tail_is_stored(room: int) -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 2)
    files.faults.capacity_bytes = files.used_bytes() + room
    with pytest.raises(LogFull):
        fill_up(writer, wanted)
    for _ in range(3):
        with pytest.raises(LogFull):
            put(writer, b"x")
        with pytest.raises(LogFull):
            put(writer, bytes(AREA))
        assert writer.next == len(wanted)
        assert read(files) == wanted
        assert read(files.survivor(power=False)) == wanted
    with pytest.raises(LogFull):
        writer.flush()
    assert writer.durable == 0
    files.faults.capacity_bytes = None
    writer.flush()
    assert read(copy.deepcopy(files).survivor()) == wanted
    wanted += fill(writer, 30)
    assert read(files) == wanted
    writer.close()
    assert read(files) == wanted


def test_next_epoch_does_not_begin_before_the_tail_of_the_last_one_is_stored() -> None:
    """A recorder follows its publisher into a new epoch, and the disk is full."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 3)
    writer.flush()
    files.faults.capacity_bytes = files.used_bytes()
    for _ in range(2):
        with pytest.raises(LogFull):
            writer.follow(8, 0)
        assert read(files) == wanted
    files.faults.capacity_bytes = None
    writer.follow(8, 0)
    assert read(files) == wanted
    wanted += fill(writer, 3)
    assert read(files) == wanted


def test_closing_on_a_full_disk_leaves_the_tail_for_the_next_start() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 3)
    files.faults.capacity_bytes = files.used_bytes()
    with pytest.raises(LogFull):
        writer.close()
    assert read(files) == wanted
    with pytest.raises(LogError):
        opened(files, tail_bytes=AREA)
    assert read(files) == wanted
    files.faults.capacity_bytes = None
    again = opened(files, tail_bytes=AREA)
    assert again.recovery.tail_events == 3
    assert read(files) == wanted


def test_failed_sync_of_the_tail_writes_its_events_into_a_new_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 3)
    true_sync = Tail.sync
    failures = [OSError(5, "Input/output error")]

    def sync(self: Tail) -> None:
        if failures:
            raise failures.pop()
        true_sync(self)

    monkeypatch.setattr(Tail, "sync", sync)
    writer.flush()
    assert writer.durable == 3
    assert (writer.counters["sync_failures"], writer.counters["rewrites"]) == (1, 1)
    assert stored(files) == wanted
    assert read(copy.deepcopy(files).survivor()) == wanted
    wanted += fill(writer, 20)
    writer.flush()
    assert read(files.survivor()) == wanted


def test_nothing_is_called_safe_while_every_sync_fails() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 3)
    files.faults.sync_error = 1.0
    for _ in range(2):
        with pytest.raises(LogError):
            writer.flush()
        with pytest.raises(LogError):
            put(writer, b"x")
        assert writer.durable == 0
        assert writer.next == 3
        assert read(files) == wanted
    files.faults.sync_error = 0.0
    wanted += fill(writer, 1)
    writer.flush()
    assert read(files.survivor()) == wanted


class Noted(FaultyFiles):
    """Notes which file was written to and synced, in order."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.notes: list[str] = []

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
        file = super().open(path, write=write, create=create)
        name = path.rpartition("/")[2]
        what = "tail" if name == TAIL_FILE else "segment" if ".seg" in name else "other"
        true_write, true_sync = file.write_at, file.sync

        def write_at(parts: Any, offset: int) -> int:
            self.notes.append(f"write {what}")
            return true_write(parts, offset)

        def sync() -> None:
            self.notes.append(f"sync {what}")
            true_sync()

        file.write_at, file.sync = write_at, sync  # type: ignore[method-assign]
        return file


def test_area_that_was_synced_waits_for_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Noted(Random(1))
    writer = tailed(files)
    true_turn = Tail.turn

    def turn(self: Tail, *, large: bool) -> None:
        files.notes.append("turn")
        true_turn(self, large=large)

    monkeypatch.setattr(Tail, "turn", turn)
    fill(writer, 3)
    writer.flush()
    assert writer.durable == 3
    files.notes.clear()
    while files.notes.count("turn") < 4:
        fill(writer, 1)
    # Publishing goes on in the other area at once, and the events of the one that was synced go to
    # the segment.  That is synced before the area is used again; the other one was never called
    # safe, and is waited for by nobody.
    assert files.notes == [
        *("turn", "write segment"),
        *("sync segment", "turn", "write segment"),
        *("turn", "write segment"),
        *("turn", "write segment"),
    ]
    assert writer.counters["tail_waits"] == 1


@pytest.mark.parametrize("seed", range(24))
def test_what_was_called_safe_outlives_a_power_failure_at_every_turn(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = memory()
    rng = Random(seed)
    writer = tailed(files, segment_bytes=rng.choice([4096 + 700, 4096 + 3000, 1 << 20]))
    true_turn = Tail.turn

    def turn(self: Tail, *, large: bool) -> None:
        true_turn(self, large=large)
        check()

    def check() -> None:
        safe, after = writer.durable, copy.deepcopy(files)
        after.rng.seed(rng.random())
        after = after.survivor()
        assert read(after, (7, 0))[:safe] == wanted[:safe]
        reopened(after).close()
        assert read(after, (7, 0))[:safe] == wanted[:safe]

    monkeypatch.setattr(Tail, "turn", turn)
    wanted = [b"%d " % n * 10 for n in range(120)]
    for payload in wanted:
        put(writer, payload)
        if rng.random() < 0.1:
            writer.flush()
        if rng.random() < 0.05:
            writer.work()
        if rng.random() < 0.1:
            check()
    assert writer._open().turns > 4


# Threads -----------------------------------------------------------------------------------------


class SlowFile(FaultyFile):
    """Its syncs wait until they are let through."""

    syncing = threading.Event()
    go_on = threading.Event()

    def sync(self) -> None:
        self.syncing.set()
        self.go_on.wait()
        super().sync()


@pytest.mark.parametrize("full", [False, True])
def test_threads_that_make_room_at_once_leave_no_event_behind(full: bool) -> None:
    """All wait for the disk; one makes room, or finds it full; then the others go on."""
    files = memory()
    writer = tailed(files)
    wanted = fill(writer, 1)
    writer.flush()  # this area is called safe now
    writer.make_room(AREA)
    wanted += fill(writer, 1)  # in the other one
    SlowFile.syncing.clear()
    SlowFile.go_on.clear()
    writer._open()._active._file.__class__ = SlowFile
    flusher = threading.Thread(target=writer.flush)
    flusher.start()
    assert SlowFile.syncing.wait(30)
    problems: list[BaseException] = []

    def make_room() -> None:
        try:
            writer.make_room(AREA)
            writer.add([("orders.eu", b"by a thread", 1, True, None, None)])
            wanted.append(b"by a thread")
        except LogFull as error:
            problems.append(error)

    threads = [threading.Thread(target=make_room) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: writer.counters["tail_waits"] == len(threads), timeout=30)
        if full:
            files.faults.capacity_bytes = files.used_bytes()
    finally:
        SlowFile.go_on.set()
        for thread in [flusher, *threads]:
            thread.join(30)
    assert len(problems) == (len(threads) if full else 0)
    assert read(files) == wanted
    reopened(after := files.survivor(power=False)).close()
    assert read(after) == wanted


def fill_area(writer: LogWriter) -> list[bytes]:
    """Add events until the area has no room for another one."""
    wanted = []
    while not wanted or writer.frame.has_room(80):
        wanted += fill(writer, 1)
    return wanted


class SlowWrites(FaultyFile):
    """Its writes wait until they are let through."""

    writing = threading.Event()
    go_on = threading.Event()

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        self.writing.set()
        self.go_on.wait()
        return super().write_at(parts, offset)


def test_room_that_another_thread_made_is_found_while_the_segment_is_written() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill_area(writer)
    SlowWrites.writing.clear()
    SlowWrites.go_on.clear()
    writer._open()._active._file.__class__ = SlowWrites
    storing = threading.Thread(target=writer.make_room, args=(80,), daemon=True)
    storing.start()
    assert SlowWrites.writing.wait(60)
    finding = threading.Thread(target=writer.make_room, args=(80,), daemon=True)
    try:
        finding.start()
        finding.join(60)
        assert not finding.is_alive(), "it waits for who writes the segment"
        assert writer.frame.add("orders.eu", b"meanwhile", 1)
    finally:
        SlowWrites.go_on.set()
        storing.join(60)
    assert writer._open().turns == 2
    assert read(files) == [*wanted, b"meanwhile"]


def test_threads_that_waited_for_the_lock_find_room_that_was_made() -> None:
    files = memory()
    writer = tailed(files)
    wanted = fill_area(writer)
    writer.frame.shut = True  # all have to take the lock
    threads = [threading.Thread(target=writer.make_room, args=(80,)) for _ in range(4)]
    with writer._open()._lock:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(60)
    assert writer._open().turns == 2
    assert read(files) == wanted


# Growth ------------------------------------------------------------------------------------------


def test_area_that_is_used_again_has_nothing_of_before() -> None:
    area = 2 * len(ZEROS) + 4096  # wiped in pieces, and the last of them is smaller
    files = memory()
    writer = tailed(files, tail_bytes=area)
    wanted = fill(writer, 1)
    for _ in range(AREAS):
        left = writer.frame.at
        while writer.frame.at >= left:
            left = writer.frame.at
            wanted += fill(writer, 1, 1000)
    ((start, _),) = [found for found in areas(files) if found[1].first == writer.next - 1]
    again = files.content(TAIL)[start : start + area]
    assert not again[writer.frame.at :].strip(b"\0")
    assert read(files) == wanted


def growing(files: FaultyFiles, now: list[int], **options: Any) -> LogWriter:
    """A writer whose areas may become four times as large, at a time that is set by hand."""
    return tailed(files, **{"tail_growth": 4, "clock": lambda: now[0], **options})


def test_areas_grow_while_they_fill_within_20_ms_and_are_small_again_after_that() -> None:
    files = memory()
    now = [SECOND_NS]
    writer = growing(files, now)
    wanted = fill_area(writer)
    assert len(files.content(TAIL)) == AREAS * AREA
    now[0] += FILLS_NS - FILLS_NS // 10
    wanted += fill(writer, 1)  # in a large one
    assert len(files.content(TAIL)) == AREAS * 4 * AREA
    wanted += fill_area(writer)
    assert writer.frame.at > 3 * AREA
    now[0] += 3 * FILLS_NS  # four times as much in less than four times as long
    wanted += [*fill(writer, 1), *fill_area(writer)]
    assert writer.frame.at > 3 * AREA
    now[0] += 4 * FILLS_NS
    wanted += [*fill(writer, 1), *fill_area(writer)]
    assert writer.frame.at <= AREA
    assert len(files.content(TAIL)) == AREAS * 4 * AREA
    now[0] += FILLS_NS // 2
    wanted += [*fill(writer, 1), *fill_area(writer)]
    assert writer.frame.at > 3 * AREA
    assert read(files) == wanted
    assert read(files.survivor(power=False)) == wanted
    writer.close()
    assert read(files) == wanted


def test_area_that_was_left_before_it_was_full_does_not_count_as_filled() -> None:
    files = memory()
    writer = growing(files, [SECOND_NS])
    for _ in range(5):
        fill(writer, 8)
        writer._open().store()
    assert len(files.content(TAIL)) == AREAS * AREA


@pytest.mark.parametrize("power", [False, True])
def test_what_was_called_durable_outlives_a_crash_at_any_step_of_growing(power: bool) -> None:
    for step in range(100):
        files = FaultyFiles(Random(step))
        writer = growing(files, [SECOND_NS])
        wanted = fill_area(writer)
        writer.flush()
        files.faults.crash_after = step
        try:
            fill(writer, 1)
        except Crashed:
            after = files.survivor(power=power)
        else:
            break  # it takes fewer steps
        for _ in range(2):  # as the crash left it, and after the next start
            assert read(after)[: len(wanted)] == wanted, step
            reopened(after).close()
    assert step > 3
    assert len(files.content(TAIL)) == AREAS * 4 * AREA


def test_where_there_is_no_space_to_grow_areas_stay_small() -> None:
    files = memory()
    writer = growing(files, [SECOND_NS])
    wanted = fill_area(writer)
    files.faults.capacity_bytes = files.used_bytes() + 3 * AREA
    for _ in range(2):
        wanted += [*fill(writer, 1), *fill_area(writer)]
        assert writer.frame.at <= AREA
        assert len(files.content(TAIL)) == AREAS * AREA
    assert read(files.survivor(power=False)) == wanted


# Words, retention, ends --------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_words_mean_the_same_for_events_in_the_tail(word: str) -> None:
    files = memory()
    writer = tailed(files, fsync=word)
    put(writer, b"a")
    assert read(files.survivor(power=False)) == [b"a"]
    assert writer.durable == (1 if word == "always" else 0)
    if word == "always":
        assert read(copy.deepcopy(files).survivor()) == [b"a"]
    put(writer, b"b")
    calls = files.calls
    writer.flush()
    if word == "never":
        assert files.calls == calls
        assert writer.durable == 0
    else:
        assert writer.durable == 2
        assert read(copy.deepcopy(files).survivor()) == [b"a", b"b"]
    put(writer, b"c")
    writer.work()
    writer.work()  # the first time, the tail had been filled since
    assert writer.durable == (0 if word == "never" else 3)
    assert stored(files) == []
    wanted = [b"a", b"b", b"c", *fill(writer, 100)]
    writer.work()
    assert read(files.survivor(power=False)) == wanted
    writer.close()
    assert stored(files) == wanted


@pytest.mark.parametrize("word", WORDS)
def test_close_stores_the_tail_and_removes_its_file(tmp_path: Path, word: str) -> None:
    settings = LogSettings(fsync=word)
    with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
        writer.begin(7)
        wanted = fill(writer, 100)
        assert Path(writer.folder.path, TAIL_FILE).stat().st_size == AREAS * settings.area_bytes
    assert not Path(writer.folder.path, TAIL_FILE).exists()
    with LogReader(writer.folder) as reader:
        reader.seek_earliest()
        (run,) = reader.runs()  # one frame of them all
        assert run.frame.payloads.split(0, 100) == wanted


def test_tail_of_a_quiet_stream_expires() -> None:
    files = memory()
    now = SECOND_NS
    writer = tailed(files, retention=Retention(age_s=80), clock=lambda: now, segment_bytes=1 << 20)
    put(writer, b"a", time_ns=now)
    writer.work()
    assert stored(files) == []
    now += 11 * SECOND_NS
    writer.work()
    assert stored(files) == [b"a"]
    put(writer, b"b", time_ns=now)
    now += 11 * SECOND_NS
    writer.work()
    files.now_ns = now
    put(writer, b"c", time_ns=now)
    now += 200 * SECOND_NS
    writer.work()
    assert len(read(files, (7, 0))) < 4
    assert isinstance(read(files, (7, 0))[0], Loss)


def test_tail_of_a_slow_stream_expires() -> None:
    """Its newest event is never old, and it is long before the tail is full."""
    files = memory()
    now = SECOND_NS
    writer = tailed(files, retention=Retention(age_s=80), clock=lambda: now, tail_bytes=1 << 17)
    for n in range(200):
        put(writer, b"%d" % n, time_ns=now)
        now += SECOND_NS
        files.now_ns = now
        writer.work()
    loss, *rest = read(files, (7, 0))
    assert isinstance(loss, Loss)
    assert loss.reason == "expired"
    assert len(rest) + loss.stop == 200
    assert 80 <= len(rest) <= 80 + 3 * 10 + 1


def test_recorders_log_with_losses_and_gaps() -> None:
    files = memory()
    writer = opened(files, tail_bytes=AREA)
    assert writer.follow(7, 5) == 5
    wanted: list[Any] = fill(writer, 3)
    writer.append_loss(8, 12, "overflow")
    wanted += [Loss(STREAM, 7, 8, 12, "overflow"), *fill(writer, 2)]
    frame = frame_of(7, 20, [b"behind a gap"])
    writer.append_loss(14, 20, "gone")
    writer.write(frame, 20, 21)
    wanted += [Loss(STREAM, 7, 14, 20, "gone"), b"behind a gap"]
    assert read(files) == wanted
    after = reopened(files.survivor(power=False))
    assert after.follow(7, 0) == 21
    wanted += fill(after, 30)
    assert after.follow(9, 3) == 3
    wanted += fill(after, 2)
    assert read(after.folder.files) == wanted  # type: ignore[arg-type]
    after.close()
    assert read(after.folder.files) == wanted  # type: ignore[arg-type]
    assert verify(after.folder).is_good


def test_log_without_a_tail() -> None:
    files = memory()
    writer = tailed(files, tail_bytes=0)
    assert writer.event_bytes_max == 0
    assert not writer.frame.has_room(8)
    wanted = fill(writer, 3)
    assert stored(files) == wanted
    assert TAIL not in files.paths()


def test_strange_files_in_the_place_of_the_tail(tmp_path: Path) -> None:
    settings = LogSettings(tail_bytes=AREA)
    with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
        writer.begin(7)
        fill(writer, 3)
    path = Path(writer.folder.path, TAIL_FILE)
    for data in (b"", b"x", bytes(100), Random(1).randbytes(5000), b"MMTAIL\0\1" * 400):
        path.write_bytes(data)
        with LogReader(writer.folder) as reader:
            reader.seek_earliest()
            assert sum(run.hi - run.lo for run in reader.runs()) == 3
        with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
            assert writer.recovery.tail_events == 0
        assert not path.exists()


def test_reader_that_may_not_read_the_tail_is_told() -> None:
    class Closed(FaultyFiles):
        def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
            if path == TAIL and not create:
                raise PermissionError(13, "Permission denied", path)
            return super().open(path, write=write, create=create)

    files = Closed(Random(1))
    writer = tailed(files)
    put(writer, b"a")
    with pytest.raises(LogError, match="may not be read"):
        read(files)
    with pytest.raises(LogError, match="may not be read"):
        TailReader(files, PATH).stop(7, 0)


# Another process ---------------------------------------------------------------------------------


def test_readers_in_other_processes_see_a_prefix_at_every_moment(tmp_path: Path) -> None:
    """While this one publishes flat out: never a torn event, each one once, none left out."""
    settings = LogSettings(segment_bytes=1 << 20, tail_bytes=16 * 1024)
    with LogWriter(str(tmp_path), STREAM, settings=settings) as writer:
        writer.begin(7)
        readers = [
            processes.start(
                processes.program("prefix_reader", writer.folder.path, seed),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(2)
        ]
        said: list[list[str]] = [[] for _ in readers]
        threads = [
            threading.Thread(target=lines.extend, args=(reader.stdout,))
            for reader, lines in zip(readers, said, strict=True)
        ]
        for thread in threads:
            thread.start()
        n = 0
        while n < 60_000 or any(len(lines) < LOOKS for lines in said):
            publish_one(writer, n)
            n += 1
            if n > 60_000 and n % 100 == 0:  # no longer flat out, or readers would have too much
                threading.Event().wait(0.001)
            if any(lines and lines[-1] != "looked\n" for lines in said):
                break
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write(f"{n}\n")
            reader.stdin.close()
        for thread in threads:
            thread.join(60)
    assert [lines[-1] for lines in said] == [f"good {n}\n"] * len(readers)


def publish_one(writer: LogWriter, n: int) -> None:
    """As a publisher does it: straight into the tail, and room is made where there is none."""
    payload = b"%d " % n * (n % 23 + 1)
    while writer.frame.shut or not writer.frame.add("orders.eu", payload, n, raw=True):
        writer.make_room(ENTRY.size + len("orders.eu" + payload.decode()))
    if n % 5000 == 0:
        writer.flush()
