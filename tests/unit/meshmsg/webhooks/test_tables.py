"""The file of the book: private, of any age, and opened by several at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from meshmsg._model.errors import LogError
from meshmsg.webhooks.tables import FILE, open_tables


def columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def test_file_with_secrets_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / FILE
    open_tables(path, durable=False).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_file_that_is_there_is_opened_as_it_is(tmp_path: Path) -> None:
    with open_tables(tmp_path / FILE, durable=False) as db:
        db.execute("INSERT INTO endpoints (name) VALUES ('erp')")
        db.execute("UPDATE changes SET number = 7")
    db.close()
    again = open_tables(tmp_path / FILE, durable=True)
    assert again.execute("SELECT name FROM endpoints").fetchall() == [("erp",)]
    assert again.execute("SELECT number FROM changes").fetchall() == [(7,)]
    again.close()


def test_file_of_an_earlier_release_gets_the_columns_that_came_later(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / FILE)
    old.execute("CREATE TABLE endpoints (name TEXT PRIMARY KEY, settings TEXT, good REAL)")
    old.execute("INSERT INTO endpoints (name) VALUES ('erp')")
    old.commit()
    old.close()
    db = open_tables(tmp_path / FILE, durable=False)
    assert "hold" in columns(db, "endpoints")
    assert "key" in columns(db, "deliveries")
    assert db.execute("SELECT name, hold FROM endpoints").fetchall() == [("erp", None)]
    db.close()


@pytest.mark.parametrize(("durable", "word"), [(True, 2), (False, 1)])
def test_what_is_committed_is_on_the_disk_where_that_is_promised(
    tmp_path: Path, durable: bool, word: int
) -> None:
    db = open_tables(tmp_path / FILE, durable=durable)
    assert db.execute("PRAGMA synchronous").fetchone() == (word,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


def test_two_open_the_file_at_once(tmp_path: Path) -> None:
    one, other = (open_tables(tmp_path / FILE, durable=False) for _ in range(2))
    one.execute("INSERT INTO endpoints (name) VALUES ('erp')")
    assert other.execute("SELECT COUNT(*) FROM endpoints").fetchone() == (1,)
    one.close()
    other.close()


def test_what_is_no_book_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"something else" * 100)
    for path in (tmp_path / FILE, tmp_path / FILE / "below"):
        with pytest.raises(LogError, match="the book of webhooks"):
            open_tables(path, durable=False)
