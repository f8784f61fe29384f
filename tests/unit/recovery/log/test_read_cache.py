"""Readers that come one behind the other share what was read of a log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from meshmsg._model.event import Loss
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log import read_cache as log_windows
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.read_cache import IDLE_S, WINDOWS_MAX, LogWindows
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.log.writer import LogWriter

BIG = 1 << 40


def append(writer: LogWriter, count: int) -> None:
    first = writer.next
    payloads = [b"%d" % n for n in range(first, first + count)]
    frame = encode_frame(writer.folder.about().wire_id, writer.epoch, first, "a.b", payloads, 1)  # type: ignore[union-attr]
    writer.append(frame, first, first + count)


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    writer = LogWriter(
        str(tmp_path), "pub/a.**", settings=LogSettings(segment_bytes=4096, tail_bytes=0)
    )
    writer.open()
    writer.begin(7)
    for _ in range(200):
        append(writer, 5)
    return writer


def test_second_reader_of_a_range_reads_nothing(writer: LogWriter) -> None:
    windows = LogWindows()
    one = find_frames(windows.choose(writer.folder, now=0), 7, [(3, 700)], bytes_max=BIG)
    assert windows.shared == 0
    two = find_frames(windows.choose(writer.folder, now=0), 7, [(3, 700)], bytes_max=BIG)
    assert one == two
    assert windows.shared == len(one[0]) == 140
    windows.close()
    writer.close()


def test_any_walk_gives_what_a_reader_gives(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked in whatever order, also while the log grows and windows are cut."""
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", 2000)
    windows, rng = LogWindows(), Random(5)
    for turn in range(400):
        if rng.random() < 0.3:
            append(writer, rng.choice([1, 30]))
        first = rng.randrange(writer.next)
        ranges = [(first, first + rng.randrange(1, 200))]
        if rng.random() < 0.2:
            ranges.append((ranges[0][1] + 10, ranges[0][1] + 60))
        most = rng.choice([300, 3000, BIG])
        with LogReader(writer.folder) as reader:
            wanted = find_frames(reader, 7, ranges, bytes_max=most)
        got = find_frames(windows.choose(writer.folder, now=turn), 7, ranges, bytes_max=most)
        assert got == wanted
        assert all(window._bytes <= 4000 for _, window in windows._windows)
        if rng.random() < 0.05:
            windows.rest(now=turn + IDLE_S)
            assert not windows
    assert windows.shared > 0
    windows.close()
    writer.close()


def test_loss_is_told_from_where_it_is_asked_for(writer: LogWriter) -> None:
    segments = sorted(Path(writer.folder.path).glob("*.seg"))
    assert len(segments) > 2
    segments[1].unlink()
    with LogReader(writer.folder) as reader:
        _, missing, _ = find_frames(reader, 7, [(0, 990)], bytes_max=BIG)
    ((inside, _),) = missing["corrupt"]
    windows = LogWindows()
    for first in (0, inside + 1, 0, inside + 1):
        frames, gone, _ = find_frames(
            windows.choose(writer.folder, now=0), 7, [(first, 990)], bytes_max=BIG
        )
        with LogReader(writer.folder) as reader:
            assert (frames, gone) == find_frames(reader, 7, [(first, 990)], bytes_max=BIG)[:2]
        assert gone["corrupt"][0][0] == max(first, inside)
    windows.seek(7, 0)
    assert any(isinstance(windows.step(BIG), Loss) for _ in range(150))
    windows.close()
    writer.close()


def test_what_is_a_little_further_on_needs_no_other_reader(writer: LogWriter) -> None:
    windows = LogWindows()
    for at in (3, 200, 50, 600):
        windows.choose(writer.folder, now=0).seek(7, at)
        item = windows.step(BIG)
        assert item is not None
        assert item.first == at
    assert len(windows._windows) == 1
    at = writer.next + 7
    windows.choose(writer.folder, now=0).seek(7, at)  # is yet to come
    assert windows.step(BIG) is None
    for _ in range(3):
        append(writer, 5)
    item = windows.step(BIG)
    assert item is not None
    assert (item.first, item.stop) == (at, at + 3)
    windows.close()
    writer.close()


def test_windows_are_few_and_let_go_of_files(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_windows, "SKIP_EVENTS", 0)
    windows = LogWindows()
    for n in range(WINDOWS_MAX + 3):
        windows.choose(writer.folder, now=n).seek(7, n * 40 + 20)
        assert windows.step(BIG) is not None
    assert len(windows._windows) == WINDOWS_MAX
    windows.rest(now=WINDOWS_MAX + 2)
    assert len(windows._windows) == 1
    windows.rest(now=WINDOWS_MAX + 2 + IDLE_S)
    assert not windows
    writer.close()
