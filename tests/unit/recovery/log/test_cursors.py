"""Cursors survive crashes, damage is told, and retention then holds everything."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from meshmsg._model.errors import LogError
from meshmsg.recovery.log import cursors as log_cursors
from meshmsg.recovery.log.cursors import Cursor, Cursors, decode_cursor
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import encode_checked

FOLDER = "/data/s/cursors"
AUDIT = Cursor("audit", "pricing/orders.**", 7, 41, hold=True, time_ns=5)
FIELDS = {
    "version": 1,
    "name": "a",
    "stream": "s",
    "epoch": 1,
    "seq": 2,
    "hold": False,
    "time_ns": 3,
}


def cursors() -> tuple[Cursors, FaultyFiles]:
    files = FaultyFiles(Random(1))
    return Cursors(FOLDER, files=files), files


def test_a_cursor_comes_back_and_survives_a_power_failure() -> None:
    kept, files = cursors()
    assert kept.get("audit", AUDIT.stream) is None
    kept.set(AUDIT)
    after = Cursors(FOLDER, files=files.survivor())
    assert after.get("audit", AUDIT.stream) == AUDIT
    assert after.problems == []


@pytest.mark.parametrize("crash_after", range(8))
def test_a_crash_while_it_is_set_leaves_the_old_one_or_the_new_one(crash_after: int) -> None:
    from meshmsg.recovery.log.faults import Crashed

    kept, files = cursors()
    kept.set(AUDIT)
    newer = Cursor("audit", AUDIT.stream, 7, 50)
    files.faults.crash_after = crash_after
    try:
        kept.set(newer)
    except Crashed:
        pass
    after = Cursors(FOLDER, files=files.survivor())
    assert after.get("audit", AUDIT.stream) in (AUDIT, newer)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"seq": 1 << 63},
        {"seq": "2"},
        {"hold": 1},
        {"name": None},
        {"more": 1},
        {"time_ns": 1.0},
    ],
)
def test_a_cursor_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    assert decode_cursor(encode_checked(FIELDS)) == Cursor("a", "s", 1, 2, False, 3)
    assert decode_cursor(encode_checked(FIELDS | change)) is None


def test_a_damaged_one_is_told_and_holds_everything() -> None:
    kept, files = cursors()
    kept.set(AUDIT)
    kept.set(Cursor("other", "s", 9, 0))
    assert kept.held() == (7, 41)
    files.flip(files.paths()[0], 5)
    assert [cursor.name for cursor in kept.all()] == ["other"]
    assert "damaged" in kept.problems[0]
    assert kept.held() == (0, 0)


def test_a_cursor_under_the_name_of_another_is_damaged() -> None:
    kept, files = cursors()
    kept.set(AUDIT)
    [path] = files.paths()
    kept.set(Cursor("other", AUDIT.stream, 1, 1))
    files.replace(path, next(p for p in files.paths() if p != path))
    assert kept.get("other", AUDIT.stream) is None
    assert "damaged" in kept.problems[0]


def test_what_holds_nothing_is_not_held() -> None:
    kept, _ = cursors()
    assert kept.held() is None
    kept.set(Cursor("a", "s", 1, 1))
    assert kept.held() is None


def test_a_removed_one_is_gone_and_removing_it_again_does_nothing() -> None:
    kept, _ = cursors()
    kept.set(AUDIT)
    kept.remove("audit", AUDIT.stream)
    kept.remove("audit", AUDIT.stream)
    assert kept.get("audit", AUDIT.stream) is None


def test_a_disk_that_fails_is_a_log_error_and_the_old_place_stays() -> None:
    kept, files = cursors()
    kept.set(AUDIT)
    files.faults.write_error = 1.0
    with pytest.raises(LogError, match="could not be set"):
        kept.set(Cursor("audit", AUDIT.stream, 7, 50))
    files.faults.write_error, files.faults.sync_error = 0.0, 1.0
    with pytest.raises(LogError, match="could not be removed"):
        kept.remove("audit", "else")
    files.faults.sync_error, files.faults.read_error = 0.0, 1.0
    assert kept.get("audit", AUDIT.stream) is None
    assert "cannot be read" in kept.problems[0]
    files.faults.read_error = 0.0
    assert kept.get("audit", AUDIT.stream) == AUDIT


def test_more_than_are_looked_at_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cursors, "CURSORS_MAX", 2)
    kept, _ = cursors()
    for n in range(3):
        kept.set(Cursor(f"c{n}", "s", 1, n))
    assert len(kept.all()) == 2
    assert kept.problems == ["3 cursors: 2 are looked at"]
    assert kept.held() == (0, 0)
