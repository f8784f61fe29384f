"""Cursors under a data directory: shown, moved and dropped, and those in use left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshmsg import LogError
from meshmsg._receive.committed_positions import Bookmarks
from meshmsg._wire.control import Operate, Start
from meshmsg.recovery.groups.store import CURSOR_PREFIX
from meshmsg.recovery.log.cursor_moves import CursorMoves
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import frame_of

STREAM = "pub/a.**"


def order(action: str, name: str = "audit", **more: Any) -> Operate:
    return Operate(1, f"cursor {action}", name, **more)  # type: ignore[arg-type]


@pytest.fixture
def moves(tmp_path: Path) -> CursorMoves:
    Cursors(f"{tmp_path}/cursors").set(Cursor("audit", STREAM, 7, 41))
    return CursorMoves(str(tmp_path))


def write_log(path: Path) -> tuple[int, Cursors]:
    """A log of three events beside which a consumer has a cursor; its epoch."""
    with LogWriter(str(path), STREAM) as writer:
        epoch = writer.begin(9)
        for n in range(3):
            writer.append(frame_of(epoch, n, [b"x"], 1000 * n), n, n + 1)
    folder = LogFolder.of(str(path), STREAM)
    beside = Cursors(f"{folder.path}/cursors")
    beside.set(Cursor("far/one", STREAM, epoch, 1, hold=True))
    beside.set(Cursor(f"{CURSOR_PREFIX}g", STREAM, epoch, 1, hold=True))
    return epoch, beside


def test_all_are_shown_but_those_of_groups(tmp_path: Path, moves: CursorMoves) -> None:
    epoch, _ = write_log(tmp_path)
    rows, problem = moves.do(order("ls", ""))
    assert problem == ""
    assert [(row["name"], row["at"], row["hold"]) for row in rows] == [
        ("audit", "7:41", False),
        ("far/one", f"{epoch}:1", True),
    ]


def test_a_name_that_is_not_there_is_answered_with_those_that_are(moves: CursorMoves) -> None:
    assert moves.do(order("drop", "x")) == ([], "there is no cursor 'x': known are audit")
    assert moves.do(order("drop", stream="pub/b")) == (
        [],
        "there is no cursor 'audit': known are audit",
    )


def test_drop_and_its_dry_run(moves: CursorMoves) -> None:
    rows, _ = moves.do(order("drop", dry_run=True))
    assert rows[0]["name"] == "audit"
    assert len(moves.rows()) == 1
    moves.do(order("drop"))
    assert moves.rows() == []


@pytest.mark.parametrize(
    ("start", "place"),
    [(Start(STREAM, "earliest"), "0:0"), (Start(STREAM, "resume", 5, 8), "8:5")],
)
def test_reset_to_what_needs_no_log(moves: CursorMoves, start: Start, place: str) -> None:
    rows, _ = moves.do(order("reset", start=start, dry_run=True))
    assert (rows[0]["at"], rows[0]["to"]) == ("7:41", place)
    assert moves.rows()[0]["at"] == "7:41"
    moves.do(order("reset", start=start))
    assert moves.rows()[0]["at"] == place


def test_reset_to_a_time_needs_the_log(tmp_path: Path, moves: CursorMoves) -> None:
    rows, problem = moves.do(order("reset", start=Start(STREAM, "time", 5)))
    assert (rows, "is not here: give a position of it" in problem) == ([], True)


@pytest.mark.parametrize(("kind", "value", "seq"), [("live", 0, 3), ("last", 2, 1)])
def test_reset_looks_into_the_log_that_is_here(
    tmp_path: Path, moves: CursorMoves, kind: Any, value: int, seq: int
) -> None:
    epoch, _ = write_log(tmp_path)
    rows, _ = moves.do(order("reset", start=Start(STREAM, kind, value)))
    assert rows[0]["to"] == f"{epoch}:{seq}"


def test_cursor_that_is_in_use_is_left_alone(tmp_path: Path, moves: CursorMoves) -> None:
    bookmarks = Bookmarks(str(tmp_path), "audit")
    bookmarks.claim()
    try:
        for action in ("reset", "drop"):
            rows, problem = moves.do(order(action, start=Start(STREAM, "earliest")))
            assert (rows, problem) == ([], "'audit' is in use: close that subscription first")
    finally:
        bookmarks.close()
    assert moves.do(order("drop"))[1] == ""


def test_cursor_that_holds_a_log_is_dropped_and_not_moved(
    tmp_path: Path, moves: CursorMoves
) -> None:
    _, beside = write_log(tmp_path)
    start = Start(STREAM, "earliest")
    assert "for a consumer elsewhere" in moves.do(order("reset", "far/one", start=start))[1]
    moves.do(order("drop", "far/one"))
    assert [cursor.name for cursor in beside.all()] == [f"{CURSOR_PREFIX}g"]


def test_a_disk_that_fails_says_so(tmp_path: Path, moves: CursorMoves) -> None:
    (tmp_path / "cursors" / "audit.lock").mkdir()
    with pytest.raises(LogError, match="cannot be used"):
        moves.do(order("drop"))
