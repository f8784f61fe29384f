"""What there is in a log and whether it is whole, without changing anything."""

from __future__ import annotations

from random import Random

from meshmsg.recovery.groups.store import GroupRecord, GroupStore
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import ABOUT_FILE
from meshmsg.recovery.log.format import SegmentName
from meshmsg.recovery.log.verify import EpochSummary, Summary, summarize, verify
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, frame_of

EPOCH = 7


def written(count: int, *, segment_bytes: int = 1 << 20) -> tuple[LogWriter, FaultyFiles]:
    files = FaultyFiles(Random(1))
    settings = LogSettings(allocate_bytes=0, tail_bytes=0, segment_bytes=segment_bytes)
    writer = LogWriter(
        DATA, STREAM, settings=settings, files=files, background=False, clock=lambda: 1
    )
    writer.open()
    writer.begin(EPOCH)
    for seq in range(count):
        writer.append(frame_of(EPOCH, seq, [b"x" * 100]), seq, seq + 1)
    return writer, files


def last_segment(writer: LogWriter) -> str:
    return f"{writer.folder.path}/{writer.folder.segments()[-1].file}"


def test_a_whole_log_is_good_and_nothing_is_changed() -> None:
    writer, files = written(10, segment_bytes=4096 + 500)
    before = {path: files.content(path) for path in files.paths()}
    report = verify(writer.folder)
    assert report.is_good
    assert (report.events, report.frames, report.losses) == (10, 10, [])
    assert (report.stream, report.tail_bytes) == (STREAM, 0)
    assert {path: files.content(path) for path in files.paths()} == before


def test_a_damaged_event_is_told_as_a_loss() -> None:
    writer, files = written(10)
    files.flip(last_segment(writer), 4096 + 100)
    report = verify(writer.folder)
    assert [(loss.first, loss.stop) for loss in report.corrupt] == [(0, 1)]
    assert (report.events, report.is_good) == (9, False)


def test_a_torn_write_at_the_end_is_counted_and_is_no_damage() -> None:
    writer, files = written(10)
    path = last_segment(writer)
    size = len(files.content(path))
    files.open(path, write=True).truncate(size - 8)
    report = verify(writer.folder)
    assert (report.events, report.losses, report.is_good) == (9, [], True)
    assert report.tail_bytes > 0
    files.open(path, write=True).truncate(size - 200)  # within its head
    assert verify(writer.folder).tail_bytes > 0


def test_a_damaged_head_costs_no_event_and_is_told() -> None:
    writer, files = written(3)
    files.flip(last_segment(writer), 10)
    report = verify(writer.folder)
    assert report.events == 3
    assert [problem.partition(": ")[2] for problem in report.problems] == [
        "1 of 2 heads are damaged"
    ]


def test_a_damaged_description_is_told() -> None:
    writer, files = written(3)
    writer.close()
    files.flip(f"{writer.folder.path}/{ABOUT_FILE}", 5)
    assert f"{ABOUT_FILE} is damaged" in verify(writer.folder).problems


def test_a_missing_segment_is_a_loss() -> None:
    writer, files = written(10, segment_bytes=4096 + 500)
    missing, after = writer.folder.segments()[1:3]
    files.remove(f"{writer.folder.path}/{missing.file}")
    report = verify(writer.folder)
    assert [(loss.first, loss.stop) for loss in report.losses] == [(missing.first, after.first)]


def test_a_summary_tells_epochs_cursors_and_groups_without_reading_events() -> None:
    writer, _ = written(10)
    writer.cursors().set(Cursor("audit", STREAM, EPOCH, 4))
    store = GroupStore(writer.folder, STREAM)
    store.save(GroupRecord("workers", (EPOCH, 2), settled=[(EPOCH, 5, 7)]))
    summary = summarize(writer.folder)
    assert (summary.stream, summary.mesh, summary.events) == (STREAM, "default", 10)
    assert [cursor.name for cursor in summary.cursors if " " not in cursor.name] == ["audit"]
    assert summary.behind(summary.cursors[0])[0] in (6, 8)
    [group] = summary.groups
    assert summary.backlog(group)[0] == 6
    assert summary.problems == []


def test_a_group_beyond_the_end_of_its_log_is_told() -> None:
    writer, _ = written(3)
    GroupStore(writer.folder, STREAM).save(GroupRecord("workers", (EPOCH, 9)))
    assert summarize(writer.folder).problems == [
        f"group workers stands at {EPOCH}:9, beyond the log's end"
    ]


def test_what_is_behind_a_place_is_counted_by_events_and_by_whole_segments() -> None:
    sizes = [(SegmentName(7, 0, 0), 100), (SegmentName(7, 0, 10), 50), (SegmentName(9, 0, 0), 7)]
    epochs = [EpochSummary(7, 0, 0, 20), EpochSummary(9, 0, 0, 5)]
    summary = Summary("p", "s", "m", 3, 157, epochs, [], [], sizes)
    assert summary.behind_place(7, 0) == (25, 157)
    assert summary.behind_place(7, 9) == (16, 157)
    assert summary.behind_place(7, 10) == (15, 57)
    assert summary.behind_place(8, 3) == (5, 57)
    assert summary.behind_place(9, 5) == (0, 7)
    assert summary.behind_place(11, 0) == (0, 7)
