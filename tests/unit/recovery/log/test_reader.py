"""Reading a log: from anywhere, while it is written, and past everything that is damaged."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg._model.errors import LogError, ProtocolError
from meshmsg._model.event import Loss
from meshmsg._model.log_policy import Retention
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor, Cursors, decode_cursor
from meshmsg.recovery.log.faults import Crashed, FaultyFiles
from meshmsg.recovery.log.folder import LogFolder, decode_checked, escape, find_logs, unescape
from meshmsg.recovery.log.format import (
    DATA_START,
    FRAME_RECORD,
    SegmentHead,
    SegmentName,
    encode_record,
    latest_time,
    parse_name,
    read_head,
    read_record_head,
    salt_of,
)
from meshmsg.recovery.log.index import IndexEntry, decode_index, encode_index
from meshmsg.recovery.log.journal import decode_journal
from meshmsg.recovery.log.reader import Entry, LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.log.verify import summarize, verify
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import (
    DATA,
    STREAM,
    WIRE_ID,
    closed_log,
    frame_of,
    items_of,
)
from tests.support import processes

HEAD = SegmentHead(WIRE_ID, 7, 0, b"saltsalt", 1, 0)


def written(count: int = 100, epochs: int = 2, **options: Any) -> FaultyFiles:
    """Epochs 7, 8, ... of `count` frames of two events each; times grow by 10 a frame."""
    files = FaultyFiles(Random(1))
    now = 0
    for epoch in range(7, 7 + epochs):
        chosen = LogSettings(
            **{"segment_bytes": 8000, "allocate_bytes": 0, "tail_bytes": 0, **options}
        )
        writer = LogWriter(DATA, STREAM, settings=chosen, files=files, background=False)
        writer.open()
        assert writer.begin(epoch) == epoch
        for n in range(count):
            now += 10
            payloads = [b"%d:%d" % (epoch, 2 * n), b"%d:%d" % (epoch, 2 * n + 1)]
            times = [now, now + 5]
            frame = encode_frame(WIRE_ID, epoch, 2 * n, "orders.eu", payloads, times)
            writer.append(frame, 2 * n, 2 * n + 2)
        writer.close()
    return files


def folder_of(files: FaultyFiles) -> LogFolder:
    return LogFolder.of(DATA, STREAM, files=files)


def places(reader: LogReader) -> list[Any]:
    found: list[Any] = []
    for item in reader.runs():
        if isinstance(item, Loss):
            found.append(item)
        else:
            found += item.frame.payloads.split(item.lo, item.hi)
    return found


# Where to start -----------------------------------------------------------------------------------


def test_earliest_reads_everything_across_segments_and_epochs() -> None:
    files = written()
    with LogReader(folder_of(files)) as reader:
        assert len(reader.segments) > 4
        reader.seek_earliest()
        assert places(reader) == [b"%d:%d" % (e, n) for e in (7, 8) for n in range(200)]
        assert places(reader) == []
        assert str(reader.position) == f"{STREAM}@8:200"


@pytest.mark.parametrize("place", [(7, 0), (7, 1), (7, 57), (7, 199), (8, 0), (8, 199)])
def test_reads_from_a_position(place: tuple[int, int]) -> None:
    with LogReader(folder_of(written())) as reader:
        reader.seek(*place)
        assert places(reader)[0] == b"%d:%d" % place


def test_position_behind_the_end_of_an_epoch_goes_on_in_the_next() -> None:
    with LogReader(folder_of(written())) as reader:
        reader.seek(7, 500)
        assert places(reader)[0] == b"8:0"
        reader.seek(3, 3)
        assert places(reader)[0] == b"7:0"
        reader.seek(99, 0)
        assert places(reader) == []


@pytest.mark.parametrize("count", [0, 1, 3, 150, 200, 201, 350, 400, 1000])
def test_last_counts_back_across_segments_and_epochs(count: int) -> None:
    with LogReader(folder_of(written())) as reader:
        reader.seek_last(count)
        assert len(places(reader)) == min(count, 400)


@pytest.mark.parametrize("at", [0, 9, 10, 11, 14, 15, 16, 700, 995, 1000, 1005, 1010, 2005])
def test_time_finds_the_first_event_that_is_as_late(at: int) -> None:
    times = [t for n in range(1, 201) for t in (10 * n, 10 * n + 5)]
    wanted = next(i for i, t in enumerate(times) if t >= at)
    with LogReader(folder_of(written())) as reader:
        reader.seek_time(at)
        assert places(reader)[0] == b"%d:%d" % (7 + wanted // 200, wanted % 200)


def test_time_in_the_future_waits_for_the_next_event() -> None:
    with LogReader(folder_of(written())) as reader:
        reader.seek_time(10**9)
        assert places(reader) == []
        assert str(reader.position) == f"{STREAM}@8:200"


def test_clock_that_went_back_still_gives_the_first_event_that_is_as_late() -> None:
    files = FaultyFiles(Random(1))
    writer = LogWriter(DATA, STREAM, files=files, background=False)
    writer.open()
    writer.begin(7)
    for n, time_ns in enumerate([10, 50, 20, 30, 60]):
        writer.append(frame_of(7, n, [b"%d" % n], time_ns), n, n + 1)
    writer.close()
    with LogReader(folder_of(files)) as reader:
        reader.seek_time(40)
        assert places(reader)[0] == b"1"


def test_latest_time_of_a_frame_is_that_of_its_last_event() -> None:
    for topics in ("a", ["a", "b", "a"]):
        frame = encode_frame(1, 2, 0, topics, [b"x", b"y", b"z"], [5, 6, 9])
        assert latest_time(frame) == 9
    assert latest_time(encode_frame(1, 2, 0, "a", [b"x"], 4)) == 4


# While it is written ------------------------------------------------------------------------------


def test_reader_sees_what_comes_into_new_segments_and_epochs() -> None:
    files = FaultyFiles(Random(1))
    options = LogSettings(segment_bytes=5000, allocate_bytes=3000, tail_bytes=0)
    wanted: list[bytes] = []
    seen: list[Any] = []
    reader = None
    for epoch in (7, 8, 9):
        writer = LogWriter(DATA, STREAM, settings=options, files=files, background=False)
        writer.open()
        writer.begin(epoch)
        reader = reader or LogReader(folder_of(files))
        if not reader.stream:
            reader.open()
            reader.seek_earliest()
        for n in range(30):
            wanted.append(b"%d:%d" % (epoch, n) * 20)
            writer.append(frame_of(epoch, n, [wanted[-1]]), n, n + 1)
            seen += places(reader)
            assert seen == wanted
        if epoch != 8:
            writer.close()  # and 8 crashes
        else:
            writer._release()
    assert reader is not None
    reader.close()


def test_name_that_was_given_while_the_folder_was_listed_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = written(epochs=1)
    with LogReader(folder_of(files)) as reader:
        left_out = [reader.segments[2].file]
        list_all = files.names

        def names(folder: str) -> dict[str, int]:
            found = list_all(folder)
            if folder == reader.folder.path and left_out:
                del found[left_out.pop()]
            return found

        monkeypatch.setattr(files, "names", names)
        reader.seek_earliest()
        assert not left_out
        assert places(reader) == [b"7:%d" % n for n in range(200)]


def test_reader_in_another_process_follows_a_log_that_is_written(tmp_path: Path) -> None:
    chosen = LogSettings(segment_bytes=300_000, allocate_bytes=50_000)
    with LogWriter(str(tmp_path), STREAM, settings=chosen) as writer:
        writer.begin(7)
        writer.append(frame_of(7, 0, [b"x"]), 0, 1)
        child = processes.start(
            processes.program("log_follower", writer.folder.path, 30_000),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        rng = Random(5)
        while writer.next < 30_000:
            first = writer.next
            count = min(rng.choice([1, 1, 7, 300]), 30_000 - first)
            payloads = [bytes(rng.randrange(100)) for _ in range(count)]
            writer.append(frame_of(7, first, payloads), first, first + count)
        out, err = child.communicate(timeout=60)
        assert out == "all 30000\n", err


def test_reader_at_the_live_edge_waits_for_a_write_under_way() -> None:
    """The head of a record may be seen before its content is."""
    files = written(count=1, epochs=1)
    path = next(p for p in files.paths() if p.endswith(".seg"))
    data = files.content(path)
    at = DATA_START
    head, _ = read_head(data, SegmentName(7, 0, 0))
    assert head is not None
    first = read_record_head(salt_of(head), at, data, at)
    assert first is not None
    end = at + first.size
    for cut in range(at, end, 7):
        copy = FaultyFiles(Random(2))
        for name in files.paths():
            if "epochs" not in name:
                copy.open(name, create=True).write_at([files.content(name)], 0)
        file = copy.open(path, write=True)
        file.truncate(cut)
        file.truncate(5000)  # zeros behind it, as in reserved space
        with LogReader(folder_of(copy)) as reader:
            reader.seek_earliest()
            assert places(reader) == []
            file.write_at([data[cut:end]], cut)
            assert places(reader) == [b"7:0", b"7:1"]


def test_removed_segments_are_reported_to_a_reader_that_stands_before_them() -> None:
    files = written(epochs=1, retention=Retention(bytes_max=20_000))
    with LogReader(folder_of(files)) as reader:
        reader.seek(7, 10)
        writer = LogWriter(
            DATA,
            STREAM,
            settings=LogSettings(retention=Retention(bytes_max=14_000), tail_bytes=0),
            files=files,
            background=False,
        )
        writer.open()
        writer.begin(8)
        writer.retain()
        loss, *rest = places(reader)
        assert (loss.epoch, loss.first, loss.reason) == (7, 10, "expired")
        assert rest[0] == b"7:%d" % loss.stop


def test_segment_removed_by_hand_is_reported_as_corrupt() -> None:
    files = written(epochs=1)
    names = folder_of(files).segments()
    files.remove(f"{folder_of(files).path}/{names[1].file}")
    with LogReader(folder_of(files)) as reader:
        reader.seek_earliest()
        losses = [item for item in places(reader) if isinstance(item, Loss)]
    assert losses == [Loss(STREAM, 7, names[1].first, names[2].first, "corrupt")]


def remove(files: FaultyFiles, names: list[SegmentName]) -> None:
    for name in names:
        files.remove(f"{folder_of(files).path}/{name.file}")


@pytest.mark.parametrize(
    "gone", ["first segment", "first epoch", "last segment", "last epoch", "all of it"]
)
@pytest.mark.parametrize("start", ["earliest", "time", "last"])
def test_the_journal_tells_what_is_missing_at_either_end(gone: str, start: str) -> None:
    files = written(epochs=3)
    names = folder_of(files).segments()
    missing, wanted = {
        "first segment": (names[:1], [(7, 0, names[1].first)]),
        "first epoch": ([n for n in names if n.epoch == 7], [(7, 0, 200)]),
        "last segment": (names[-1:], [(9, names[-1].first, 200)]),
        "last epoch": ([n for n in names if n.epoch == 9], [(9, 0, 200)]),
        "all of it": (names, [(7, 0, 200), (8, 0, 200), (9, 0, 200)]),
    }[gone]
    remove(files, missing)
    with LogReader(folder_of(files)) as reader:
        if start == "earliest":
            reader.seek_earliest()
        elif start == "time":
            reader.seek_time(1)
        else:
            reader.seek_last(599)
            wanted[0] = (*wanted[0][:1], 1, wanted[0][2]) if wanted[0][0] == 7 else wanted[0]
        found = places(reader)
        assert places(reader) == []
    losses = [item for item in found if isinstance(item, Loss)]
    assert losses == [Loss(STREAM, *which, "corrupt") for which in wanted]
    skipped = 1 if start == "last" else 0
    assert len(found) - len(losses) + sum(loss.count for loss in losses) == 600 - skipped
    assert not verify(folder_of(files)).is_good
    assert len(verify(folder_of(files)).losses) == len(wanted)


def test_a_start_in_the_middle_of_the_missing_end_is_told_the_rest() -> None:
    files = written(epochs=2)
    remove(files, [name for name in folder_of(files).segments() if name.epoch == 8])
    with LogReader(folder_of(files)) as reader:
        reader.seek(8, 150)
        assert places(reader) == [Loss(STREAM, 8, 150, 200, "corrupt")]
        reader.seek_latest()
        assert (reader.epoch, reader.next) == (8, 200)


def test_what_has_expired_is_not_missed_at_the_beginning() -> None:
    files = written(epochs=1)
    first = folder_of(files).segments()[2]
    settings = LogSettings(retention=Retention(bytes_max=10_000), tail_bytes=0)
    writer = LogWriter(DATA, STREAM, settings=settings, files=files, background=False)
    writer.open()
    writer.begin(8)
    assert writer.retain()
    with LogReader(folder_of(files)) as reader:
        reader.seek_earliest()
        assert (reader.epoch, reader.next) >= (first.epoch, first.first)
        assert not [item for item in places(reader) if isinstance(item, Loss)]
    assert verify(folder_of(files)).is_good


def test_an_epoch_that_ends_while_a_reader_looks_is_not_taken_for_missing() -> None:
    files = written(epochs=1)
    folder = folder_of(files)
    names = folder.files.names
    with LogReader(folder) as reader:
        reader.seek_earliest()
        places(reader)

        def just_before_another_epoch(path: str) -> dict[str, int]:
            files.names = names  # type: ignore[method-assign]
            listed = names(path)
            writer = LogWriter(DATA, STREAM, files=files, background=False)
            writer.open()
            writer.begin(8)
            writer.append(frame_of(8, 0, [b"a", b"b"]), 0, 2)
            writer.close()
            return listed  # without its segments, though the journal is read with its end

        files.names = just_before_another_epoch  # type: ignore[method-assign]
        assert places(reader) + places(reader) == [b"a", b"b"]


def test_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no log here"):
        LogReader(str(tmp_path)).open()


# Bytes and repair ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("joins", "places"), [(False, [(3, 4), (4, 6)]), (True, [(3, 6)])])
def test_entries_are_whole_frames_as_they_were_written_or_joined(
    joins: bool, places: list[tuple[int, int]]
) -> None:
    files = written(count=3, epochs=1)
    with LogReader(folder_of(files), joins=joins) as reader:
        reader.seek(7, 3)
        found = [item for item in reader.entries() if isinstance(item, Entry)]
    assert [(entry.first, entry.stop) for entry in found] == places
    assert Frame(found[0].data).first == 2


def test_repair_gives_frames_once_and_says_what_is_gone() -> None:
    files = written(epochs=1)
    path = f"{folder_of(files).path}/{folder_of(files).segments()[0].file}"
    files.flip(path, DATA_START + 60)  # the first frame: events 0 and 1
    with LogReader(folder_of(files)) as reader:
        frames, gone, complete = find_frames(
            reader, 7, [(0, 3), (3, 5), (9, 10), (150, 152), (500, 600)], bytes_max=10**6
        )
        # No more than was asked for is joined.
        places = [(f.first, f.stop) for f in map(Frame, frames)]
        assert places == [(2, 6), (8, 10), (150, 152)]
        assert gone == {"corrupt": [(0, 2)]}
        assert complete
        backward = [(2**63, 0), (5, 5), (9, 3)]  # as they may come from the network
        assert find_frames(reader, 7, backward, bytes_max=500) == ([], {}, True)
        assert find_frames(reader, 6, [(0, 5)], bytes_max=500) == ([], {}, True)
    with LogReader(folder_of(files), joins=False) as reader:
        frames, _, complete = find_frames(reader, 7, [(2, 200)], bytes_max=500)
        assert not complete
        assert 0 < len(frames) < 5


# Damage -------------------------------------------------------------------------------------------


def test_payload_that_holds_a_log_is_not_read_as_one() -> None:
    """A record inside an event is none: its place and the segment's salt are not its own."""
    inner = written(count=3, epochs=1)
    image = inner.content(next(p for p in inner.paths() if p.endswith(".seg")))
    files = FaultyFiles(Random(2))
    settings = LogSettings(tail_bytes=0)
    writer = LogWriter(DATA, STREAM, settings=settings, files=files, background=False)
    writer.open()
    writer.begin(7)
    for n, pad in enumerate(range(8)):
        writer.append(frame_of(7, n, [bytes(pad) + image[DATA_START:]]), n, n + 1)
    writer.close()
    path = next(p for p in files.paths() if p.endswith(".seg"))
    files.flip(path, DATA_START)  # the head of the first record: the reader has to look further
    with LogReader(folder_of(files)) as reader:
        reader.seek_earliest()
        loss, *rest = places(reader)
    assert loss == Loss(STREAM, 7, 0, 1, "corrupt")
    assert len(rest) == 7


def test_index_that_lies_is_not_believed() -> None:
    files = written(count=2000, epochs=1, segment_bytes=10**9)
    path = f"{folder_of(files).path}/{folder_of(files).segments()[0].index_file}"
    data = files.content(path)
    entries = decode_index(data, b"?")
    assert entries == []
    (name,) = folder_of(files).segments()
    segment_head, _ = read_head(files.content(path.replace(".idx", ".seg")), name)
    assert segment_head is not None
    good = decode_index(data, segment_head.salt)
    assert len(good) >= 2
    lies = [entry._replace(offset=entry.offset + 8) for entry in good]
    files.open(path, write=True).write_at([encode_index(lies, segment_head.salt)], 0)
    with LogReader(folder_of(files)) as reader:
        reader.seek(7, 3000)
        assert places(reader)[0] == b"7:3000"
        reader.seek_time(15_005)
        assert len(places(reader)) == 4000 - 2999
    assert any("idx" in problem for problem in verify(folder_of(files)).problems)


def test_index_shortens_the_way() -> None:
    files = written(count=2000, epochs=1, segment_bytes=10**9)
    with LogReader(folder_of(files)) as reader:
        reader.seek(7, 3999)
        reader.step()
        assert reader._segment is not None
    (name,) = folder_of(files).segments()
    assert decode_index(b"", b"") == []
    files.remove(f"{folder_of(files).path}/{name.index_file}")
    with LogReader(folder_of(files)) as reader:
        reader.seek(7, 3999)
        assert places(reader) == [b"7:3999"]


def test_verify_names_the_damaged_range_and_nothing_else() -> None:
    files = written(epochs=1)
    assert verify(folder_of(files)).is_good
    name = folder_of(files).segments()[1]
    files.flip(f"{folder_of(files).path}/{name.file}", DATA_START + 100)
    report = verify(folder_of(files))
    assert report.corrupt == [Loss(STREAM, 7, name.first, name.first + 2, "corrupt")]
    assert report.events == 198
    assert not report.is_good


def test_summary_counts_without_reading() -> None:
    summary = summarize(folder_of(written()))
    assert summary.events == 400
    assert [(e.epoch, e.first, e.stop) for e in summary.epochs] == [(7, 0, 200), (8, 0, 200)]


def test_logs_of_a_data_directory_are_found(tmp_path: Path) -> None:
    for stream in ("a/x", "b/y.**"):
        with LogWriter(str(tmp_path), stream) as writer:
            writer.begin(1)
    (tmp_path / "something else").mkdir()
    assert [folder.about().stream for folder in find_logs(str(tmp_path))] == ["a/x", "b/y.**"]  # type: ignore[union-attr]
    assert len(find_logs(str(tmp_path / "a%2Fx"))) == 1


def test_stream_is_known_though_its_description_is_damaged() -> None:
    files = written()
    files.flip(f"{folder_of(files).path}/stream.json", 30)
    folder = folder_of(files)
    about = folder.about()
    assert about is not None
    assert (about.stream, about.mesh, about.wire_id) == (STREAM, "default", WIRE_ID)
    assert folder.problems == ["stream.json is damaged"]
    with LogReader(folder_of(files)) as reader:
        reader.seek_earliest()
        assert len(places(reader)) == 400


# Cursors ------------------------------------------------------------------------------------------


def test_cursors_survive_and_are_replaced_as_a_whole() -> None:
    files = FaultyFiles(Random(3))
    cursors = Cursors("/c", files=files)
    assert cursors.get("audit", STREAM) is None
    for seq in (1, 2, 3):
        cursors.set(Cursor("audit", STREAM, 7, seq))
    cursors.set(Cursor("audit", "other/**", 9, 1, hold=True))
    after = Cursors("/c", files=files.survivor())
    assert after.get("audit", STREAM) == Cursor("audit", STREAM, 7, 3)
    assert {cursor.stream for cursor in after.all()} == {STREAM, "other/**"}
    after.remove("audit", STREAM)
    assert after.get("audit", STREAM) is None
    assert after.problems == []


def test_cursor_interrupted_at_any_point_is_the_old_or_the_new_one() -> None:
    for crash_after in range(8):
        files = FaultyFiles(Random(crash_after))
        Cursors("/c", files=files).set(Cursor("audit", STREAM, 7, 1))
        files.faults.crash_after = crash_after
        with contextlib.suppress(Crashed):
            Cursors("/c", files=files).set(Cursor("audit", STREAM, 7, 2))
        after = Cursors("/c", files=files.survivor())
        found = after.get("audit", STREAM)
        assert found is not None
        assert found.seq in (1, 2)


def test_full_disk_leaves_the_old_cursor() -> None:
    files = FaultyFiles(Random(3))
    cursors = Cursors("/c", files=files)
    cursors.set(Cursor("audit", STREAM, 7, 1))
    files.faults.capacity_bytes = files.used_bytes()
    with pytest.raises(LogError, match="cursor could not be set"):
        cursors.set(Cursor("audit", STREAM, 7, 2))
    assert cursors.get("audit", STREAM) == Cursor("audit", STREAM, 7, 1)


def test_damaged_cursor_is_reported_and_counts_as_not_there() -> None:
    files = FaultyFiles(Random(3))
    cursors = Cursors("/c", files=files)
    cursors.set(Cursor("audit", STREAM, 7, 1))
    (path,) = files.paths()
    for offset in range(len(files.content(path))):
        files.flip(path, offset)
        assert cursors.get("audit", STREAM) is None
        assert len(cursors.problems) == 1
        assert cursors.held() == (0, 0)
        files.flip(path, offset)
    assert cursors.get("audit", STREAM) is not None


# Anything may be on the disk ----------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_small_files(data: bytes) -> None:
    assert decode_checked(data) is None
    assert decode_journal(data) is None
    assert decode_cursor(data) is None
    decode_index(data, b"salt")


@given(st.text(min_size=1, max_size=80))
def test_escaped_names_are_safe_and_give_the_text_back(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    name = escape(text)
    assert name not in (".", "..")
    assert "/" not in name
    assert len(name) <= 200
    if "~" not in name:
        assert unescape(name) == text


@given(st.text(max_size=60))
def test_only_names_of_segments_are_read_as_such(text: str) -> None:
    found = parse_name(text)
    assert found is None or found.file == text
    made = SegmentName(7, 1, 41)
    assert parse_name(made.file) == made


@given(
    st.integers(0, 2**40).map(lambda n: n * 8),
    st.binary(max_size=200),
    st.integers(0, 2**62),
    st.integers(0, 239),
    st.integers(1, 255),
)
def test_record_is_valid_at_its_own_place_only(
    offset: int, note: bytes, first: int, flip: int, bits: int
) -> None:
    salt = salt_of(HEAD)
    content = bytes(64) + note
    parts = encode_record(salt, offset, FRAME_RECORD, first, first + 1, 5, content)
    data = b"".join(parts)
    head = read_record_head(salt, offset, data, 0)
    assert head is not None
    assert (head.first, head.stop, head.length) == (first, first + 1, len(content))
    assert head.size == len(data)
    assert read_record_head(salt, offset + 8, data, 0) is None
    assert read_record_head(salt ^ 1, offset, data, 0) is None
    broken = bytearray(data)
    broken[flip % 40] ^= bits
    assert read_record_head(salt, offset, bytes(broken), 0) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.data())
def test_no_damage_gives_a_wrong_event_or_an_error(seed: int, data: st.DataObject) -> None:
    files, events = closed_log(seed)
    paths = [path for path in files.paths() if not path.endswith("lock")]
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(paths))
        content = files.content(path)
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 200))
        junk = data.draw(st.binary(max_size=200))
        file = files.open(path, write=True)
        file.truncate(0)
        file.write_at([content[:start] + junk + content[start + length :]], 0)
    for item in items_of(files, min(events)):
        if not isinstance(item, Loss):
            place, payload = item  # type: ignore[misc]
            assert events[place] == payload
    verify(LogFolder.of(DATA, STREAM, files=files))
    writer = LogWriter(DATA, STREAM, files=files, background=False)
    writer.open()
    writer.begin(1)
    writer.close()


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**62)), max_size=20))
def test_index_gives_back_what_stands_in_order(pairs: list[tuple[int, int]]) -> None:
    entries = [
        IndexEntry(DATA_START + 8 * offset, first, first)
        for offset, first in zip(
            sorted({a for a, _ in pairs}), sorted(b for _, b in pairs), strict=False
        )
    ]
    assert decode_index(encode_index(entries, b"s"), b"s") == entries
    assert decode_index(encode_index(entries, b"s") + b"torn", b"s") == entries


def test_frame_of_another_stream_is_not_taken(tmp_path: Path) -> None:
    files = FaultyFiles(Random(4))
    writer = LogWriter(DATA, STREAM, files=files, background=False)
    writer.open()
    writer.begin(7)
    writer.append(encode_frame(123, 7, 0, "a", [b"x"], 1), 0, 1)
    writer.append(frame_of(6, 1, [b"y"]), 1, 2)
    writer.append(frame_of(7, 2, [b"z"]), 2, 3)
    writer.close()
    found = items_of(files)
    assert found == [
        Loss(STREAM, 7, 0, 1, "corrupt"),
        Loss(STREAM, 7, 1, 2, "corrupt"),
        ((7, 2), b"z"),
    ]
    with pytest.raises(ProtocolError):
        Frame(b"")


def test_reading_does_not_wait_for_anything() -> None:
    began = time.monotonic()
    with LogReader(folder_of(written(count=1))) as reader:
        reader.seek_latest()
        for _ in range(100):
            assert places(reader) == []
    assert time.monotonic() - began < 30
