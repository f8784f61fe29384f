"""The tables of the book of webhooks, in an SQLite file that several processes open at once."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from meshmsg._model.errors import LogError

FILE = "webhooks.db"
WAITING, DELIVERED, DEAD = range(3)
BUSY_S = 30.0

# `due` of a delivery is NULL while another one of its key is before it (`order="key"`): that one
# hands it on when it is settled, so that a key that waits costs nothing to look past.
_TABLES = """
CREATE TABLE IF NOT EXISTS endpoints (name TEXT PRIMARY KEY, settings TEXT, good REAL);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT, epoch INTEGER, seq INTEGER, topic TEXT,
    time_ns INTEGER, content BLOB);
CREATE TABLE IF NOT EXISTS deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, endpoint TEXT, event INTEGER, state INTEGER DEFAULT 0,
    attempts INTEGER DEFAULT 0, due REAL, lead INTEGER, began REAL, status INTEGER,
    error TEXT DEFAULT '', updated REAL, by_hand INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS sources (
    stream TEXT, epoch INTEGER, next INTEGER, PRIMARY KEY (stream, epoch));
CREATE TABLE IF NOT EXISTS tallies (
    endpoint TEXT, stream TEXT, epoch INTEGER, first INTEGER, filtered INTEGER DEFAULT 0,
    delivered INTEGER DEFAULT 0, dead INTEGER DEFAULT 0, lost INTEGER DEFAULT 0,
    PRIMARY KEY (endpoint, stream, epoch));
CREATE TABLE IF NOT EXISTS changes (id INTEGER PRIMARY KEY, number INTEGER);
INSERT OR IGNORE INTO changes VALUES (1, 0);
"""
#: Columns that books had not from the beginning.
_LATER = (("endpoints", "hold", "REAL"), ("deliveries", "key", "TEXT"))
_INDEXES = """
CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (endpoint, state, due, id);
CREATE INDEX IF NOT EXISTS deliveries_order ON deliveries (endpoint, state, id);
CREATE INDEX IF NOT EXISTS deliveries_lead ON deliveries (lead) WHERE lead IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_key ON deliveries (endpoint, key, state, id)
    WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_event ON deliveries (event);
CREATE INDEX IF NOT EXISTS deliveries_updated ON deliveries (state, updated);
CREATE INDEX IF NOT EXISTS deliveries_waiting ON deliveries (endpoint, state) WHERE state = 0;
"""


def open_tables(path: Path, *, durable: bool) -> sqlite3.Connection:
    """A connection to the file, made if it is not there; raises `LogError`."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():  # it holds secrets
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            db.executescript(_TABLES)
            _add_columns(db)
            db.executescript(_INDEXES)
        except BaseException:
            db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise LogError(str(path), f"the book of webhooks: {error}") from None
    return db


def _add_columns(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")  # or two processes add the same one
    for table, column, kind in _LATER:
        known = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if column not in known:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    db.execute("COMMIT")
