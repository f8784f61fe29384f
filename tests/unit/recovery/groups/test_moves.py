"""Groups of a log that nobody writes: paused and reset on disk; else left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg import LogError
from meshmsg.recovery.groups.moves import GroupMoves
from meshmsg.recovery.groups.store import CURSOR_PREFIX, GroupRecord, GroupStore
from meshmsg.recovery.log.cursors import Cursors
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import frame_of

STREAM = "shop/jobs.**"


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    """A log of five events, of which a group has done two, and one has failed."""
    with LogWriter(str(tmp_path), STREAM) as writer:
        epoch = writer.begin(7)
        for n in range(5):
            writer.append(frame_of(epoch, n, [b"x"], 1000 * n), n, n + 1)
    found = LogFolder.of(str(tmp_path), STREAM)
    record = GroupRecord("g", (7, 2), [(7, 3, 4)], [(7, 2, 2)], "key", 9, ("jobs.a",), (5,), (7, 5))
    GroupStore(found, STREAM).save(record)
    return found


def record_of(folder: LogFolder) -> GroupRecord:
    (record,) = GroupStore(folder, STREAM).load()
    return record


def hold_of(folder: LogFolder) -> tuple[int, int]:
    cursor = Cursors(f"{folder.path}/cursors").get(f"{CURSOR_PREFIX}g", STREAM)
    assert cursor is not None
    return cursor.epoch, cursor.seq


def test_pause_is_kept_and_changes_nothing_else(folder: LogFolder) -> None:
    before = record_of(folder)
    assert GroupMoves(folder).pause("g", True, dry_run=True) == [
        {"group": "g", "stream": STREAM, "paused": True, "changes": True}
    ]
    assert record_of(folder) == before
    GroupMoves(folder).pause("g", True)
    assert record_of(folder).paused
    assert GroupMoves(folder).pause("g", True)[0]["changes"] is False
    GroupMoves(folder).pause("g", False)
    assert record_of(folder) == before


def test_reset_begins_a_generation_and_knows_no_members(folder: LogFolder) -> None:
    rows = GroupMoves(folder).reset("g", LogReader.seek_earliest)
    assert rows == [{"group": "g", "stream": STREAM, "from": "7:2", "to": "7:0", "generation": 1}]
    record = record_of(folder)
    assert record == GroupRecord("g", (7, 0), [], [], "key", 9, ("jobs.a",), generation=1)
    assert hold_of(folder) == (7, 0)
    GroupMoves(folder).reset("g", LogReader.seek_latest)
    assert (record_of(folder).floor, record_of(folder).generation) == ((7, 5), 2)
    assert hold_of(folder) == (7, 5)


@pytest.mark.parametrize("label", ["dead.g", "dead.g+raw"])
def test_reset_backwards_takes_its_letters_along(
    folder: LogFolder, tmp_path: Path, label: str
) -> None:
    for name in (label, "dead.other"):
        with LogWriter(str(tmp_path), f"shop/{name}") as writer:
            epoch = writer.begin(9)
            for n in range(3):
                writer.append(frame_of(epoch, n, [b"x"], 1000 * n), n, n + 1)
    GroupMoves(folder).reset("g", LogReader.seek_latest)
    assert record_of(folder).redriven == (0, 0)  # what was given up does not come again by this
    GroupMoves(folder).reset("g", LogReader.seek_earliest)
    assert record_of(folder).redriven == (9, 3)


def test_reset_in_a_dry_run_changes_nothing(folder: LogFolder) -> None:
    before = record_of(folder)
    assert GroupMoves(folder).reset("g", LogReader.seek_latest, dry_run=True)[0]["to"] == "7:5"
    assert record_of(folder) == before


def test_group_that_is_not_there(folder: LogFolder) -> None:
    assert GroupMoves(folder).pause("x", True) == []


def test_log_that_is_written_is_left_alone(folder: LogFolder, tmp_path: Path) -> None:
    with (
        LogWriter(str(tmp_path), STREAM),
        pytest.raises(LogError, match="writes this log: ask that peer, with --connect"),
    ):
        GroupMoves(folder).pause("g", True)
    GroupMoves(folder).pause("g", True)  # and the lock is free again
    GroupMoves(folder).pause("g", False)
