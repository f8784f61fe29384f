"""Cursors of a named subscription: kept, read again, and of one subscription at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg._model.errors import ConfigError, LogError
from meshmsg._model.event import Position
from meshmsg._receive.committed_positions import Bookmarks, release
from meshmsg.recovery.log.folder import CURSORS_FOLDER

ONE, OTHER = Position("pub/a", 3, 9), Position("pub/b", 1, 2)


def test_what_was_kept_is_read_by_the_next_of_the_name(tmp_path: Path) -> None:
    Bookmarks(str(tmp_path), "audit").keep([ONE, OTHER])
    assert Bookmarks(str(tmp_path), "audit").read() == {"pub/a": ONE, "pub/b": OTHER}
    assert Bookmarks(str(tmp_path), "other").read() == {}


def test_later_position_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    bookmarks = Bookmarks(str(tmp_path), "audit")
    bookmarks.keep([ONE, Position("pub/a", 4, 0)])
    assert bookmarks.kept() == [Position("pub/a", 4, 0)]
    assert Bookmarks(str(tmp_path), "audit").read() == {"pub/a": Position("pub/a", 4, 0)}


def test_position_that_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    bookmarks = Bookmarks(str(tmp_path), "audit")
    bookmarks.keep([ONE])
    (file,) = (tmp_path / CURSORS_FOLDER).glob("*.cursor")
    file.unlink()
    bookmarks.keep([ONE])
    assert not file.exists()


def test_damaged_cursor_counts_as_not_there_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Bookmarks(str(tmp_path), "audit").keep([ONE, OTHER])
    first, *_ = sorted((tmp_path / CURSORS_FOLDER).glob("*.cursor"))
    first.write_bytes(b"{}")
    assert list(Bookmarks(str(tmp_path), "audit").read()) == ["pub/b"]
    assert first.name in caplog.text


def test_name_is_of_one_subscription_until_it_lets_go(tmp_path: Path) -> None:
    first, second = Bookmarks(str(tmp_path), "audit"), Bookmarks(str(tmp_path), "audit")
    first.claim()
    Bookmarks(str(tmp_path), "other").claim()
    with pytest.raises(ConfigError, match="'audit' is in use"):
        second.claim()
    release(first)
    first.close()  # harmless
    second.claim()
    release(second)
    release(None)


def test_claim_of_somebody_who_forgot_to_let_go_ends_with_it(tmp_path: Path) -> None:
    Bookmarks(str(tmp_path), "audit").claim()  # dropped at once
    second = Bookmarks(str(tmp_path), "audit")
    second.claim()
    release(second)


def test_place_that_cannot_be_used_is_an_error_of_the_log(tmp_path: Path) -> None:
    (tmp_path / CURSORS_FOLDER).write_text("a file where a folder has to be")
    bookmarks = Bookmarks(str(tmp_path), "audit")
    with pytest.raises(LogError, match="cannot be used"):
        bookmarks.claim()
    with pytest.raises(LogError):
        bookmarks.keep([ONE])
