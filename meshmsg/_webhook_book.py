"""The book of webhooks: endpoints, the events taken for them, and every delivery.

It is an SQLite file in `data_dir`, so that commands can look at it and change it while a runner
delivers.  What is taken is on the disk before the mesh is told that it is (`take`); what was
delivered need only outlive the process, since an event may come twice but must not be missed.
One `Book` is one connection and belongs to one thread.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from meshmsg._errors import ConfigError, LogError
from meshmsg._event import Loss
from meshmsg._topics import TopicFilter
from meshmsg._webhook_tallies import Tallies, ledger_of
from meshmsg._webhook_types import STATES, Delivery, Endpoint, Stored
from meshmsg.recovery.ledger import Ledger
from meshmsg.recovery.webhook_retry import Verdict

FILE = "webhooks.db"
WAITING, DELIVERED, DEAD = range(3)
BUSY_S = 30.0
ENDPOINTS_MAX = 100_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS endpoints (name TEXT PRIMARY KEY, settings TEXT, good REAL);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT, epoch INTEGER, seq INTEGER, topic TEXT,
    time_ns INTEGER, content BLOB);
CREATE TABLE IF NOT EXISTS deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, endpoint TEXT, event INTEGER, state INTEGER DEFAULT 0,
    attempts INTEGER DEFAULT 0, due REAL, lead INTEGER, began REAL, status INTEGER,
    error TEXT DEFAULT '', updated REAL, by_hand INTEGER DEFAULT 0);
CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (endpoint, state, due, id);
CREATE INDEX IF NOT EXISTS deliveries_order ON deliveries (endpoint, state, id);
CREATE INDEX IF NOT EXISTS deliveries_lead ON deliveries (lead) WHERE lead IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_event ON deliveries (event);
CREATE INDEX IF NOT EXISTS deliveries_updated ON deliveries (state, updated);
CREATE TABLE IF NOT EXISTS sources (
    stream TEXT, epoch INTEGER, next INTEGER, PRIMARY KEY (stream, epoch));
CREATE TABLE IF NOT EXISTS tallies (
    endpoint TEXT, stream TEXT, epoch INTEGER, first INTEGER, filtered INTEGER DEFAULT 0,
    delivered INTEGER DEFAULT 0, dead INTEGER DEFAULT 0, lost INTEGER DEFAULT 0,
    PRIMARY KEY (endpoint, stream, epoch));
CREATE TABLE IF NOT EXISTS changes (id INTEGER PRIMARY KEY, number INTEGER);
INSERT OR IGNORE INTO changes VALUES (1, 0);
"""
_EVENT = "e.stream, e.epoch, e.seq, e.topic, e.time_ns, e.content"


class Line(NamedTuple):
    """A delivery to be made."""

    id: int
    attempts: int
    lead: int | None
    by_hand: int
    event: Stored


class Book:
    """One connection to the book in a folder; `durable` waits for the disk at each change."""

    def __init__(self, data_dir: str | Path, *, durable: bool = True) -> None:
        self.path = Path(data_dir) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():  # it holds secrets
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise LogError(str(self.path), f"the book of webhooks: {error}") from None
        self._filters: dict[str, TopicFilter] = {}
        self._changing = threading.RLock()

    def close(self) -> None:
        """Close the connection; safe to call again."""
        self._db.close()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it or nothing."""
        try:
            with self._changing:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LogError(str(self.path), f"the book of webhooks: {error}") from None

    # Endpoints -------------------------------------------------------------------------------

    def version(self) -> int:
        """Changes whenever an endpoint does, whoever changed it."""
        return int(self._db.execute("SELECT number FROM changes").fetchone()[0])

    def endpoints(self) -> list[Endpoint]:
        """All of them, by name."""
        rows = self._db.execute("SELECT settings FROM endpoints ORDER BY name")
        return [msgspec.json.decode(text, type=Endpoint) for (text,) in rows]

    def endpoint(self, name: str) -> Endpoint:
        """One by its name; raises `ConfigError`."""
        row = self._db.execute("SELECT settings FROM endpoints WHERE name=?", (name,)).fetchone()
        if row is None:
            known = ", ".join(one.name for one in self.endpoints()[:10]) or "none"
            raise ConfigError("name", f"there is no webhook {name!r}: {known}")
        return msgspec.json.decode(row[0], type=Endpoint)

    def put(self, endpoint: Endpoint, *, new: bool = False) -> None:
        """Add or change an endpoint; raises `ConfigError` if a new one is there already."""
        text = msgspec.json.encode(endpoint).decode()
        with self.change() as db:
            there = db.execute("SELECT COUNT(*) FROM endpoints WHERE name=?", (endpoint.name,))
            known = there.fetchone()[0]
            if new and known:
                raise ConfigError("name", f"there is a webhook {endpoint.name!r} already")
            if not known:
                if db.execute("SELECT COUNT(*) FROM endpoints").fetchone()[0] >= ENDPOINTS_MAX:
                    raise ConfigError("name", f"there are {ENDPOINTS_MAX:,} webhooks already")
                db.execute("INSERT INTO endpoints VALUES (?, ?, NULL)", (endpoint.name, text))
            else:
                db.execute("UPDATE endpoints SET settings=? WHERE name=?", (text, endpoint.name))
            db.execute("UPDATE changes SET number = number + 1")

    def remove(self, name: str) -> int:
        """Forget an endpoint with all its deliveries; how many of them were still waiting."""
        self.endpoint(name)
        with self.change() as db:
            waiting = self._waiting(name)
            for table in ("deliveries", "tallies"):
                db.execute(f"DELETE FROM {table} WHERE endpoint=?", (name,))
            db.execute("DELETE FROM endpoints WHERE name=?", (name,))
            db.execute("UPDATE changes SET number = number + 1")
        return waiting

    # Taking events ---------------------------------------------------------------------------

    def take(
        self, items: Sequence[Stored | Loss], endpoints: Sequence[Endpoint], *, now: float
    ) -> tuple[set[str], int]:
        """Put events down for the endpoints that want them, once each however often they come.

        Returns the endpoints that have something new, and how many events had come before.
        """
        changed: set[str] = set()
        again = 0
        with self.change() as db:
            tallies = Tallies(db, [endpoint.name for endpoint in endpoints])
            for item in items:
                if isinstance(item, Loss):
                    tallies.lost(item)
                    continue
                if not tallies.take(item):
                    again += 1
                    continue
                wanted = [one for one in endpoints if self._wants(one, item)]
                tallies.filtered(item, {one.name for one in wanted})
                if not wanted:
                    continue
                row = db.execute(
                    "INSERT INTO events (stream, epoch, seq, topic, time_ns, content) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    item,
                )
                db.executemany(
                    "INSERT INTO deliveries (endpoint, event, due, updated) VALUES (?, ?, ?, ?)",
                    [(one.name, row.lastrowid, now, now) for one in wanted],
                )
                changed.update(one.name for one in wanted)
            tallies.write()
        return changed, again

    def _wants(self, endpoint: Endpoint, event: Stored) -> bool:
        if endpoint.state != "active" or event.time_ns < endpoint.since * 1e9:
            return False
        key = "\n".join(endpoint.topics)
        wanted = self._filters.get(key)
        if wanted is None:
            wanted = self._filters[key] = TopicFilter(endpoint.topics)
        return wanted.matches(event.topic)

    # Delivering ------------------------------------------------------------------------------

    def due(
        self, endpoint: Endpoint, requests: int, skip: set[int], *, now: float
    ) -> tuple[list[list[Line]], float | None]:
        """What to send now, a list for each request; and when to look again if nothing is due."""
        parcels: list[list[Line]] = []
        skip = set(skip)
        for _ in range(requests):
            lines = self._parcel(endpoint, skip, now)
            if not lines:
                break
            parcels.append(lines)
            skip.update(line.id for line in lines)
        if parcels:
            return parcels, None
        order = "id" if endpoint.order == "all" else "due"
        rows = self._db.execute(
            f"SELECT due, id FROM deliveries WHERE endpoint=? AND state=0 ORDER BY {order} LIMIT ?",
            (endpoint.name, 1 + len(skip)),
        )
        return [], next((float(due) for due, one in rows if one not in skip), None)

    def _parcel(self, endpoint: Endpoint, skip: set[int], now: float) -> list[Line]:
        ordered = endpoint.order == "all"
        found = self._lines(
            "d.endpoint=? AND d.state=0" + ("" if ordered else " AND d.due<=?"),
            "d.id" if ordered else "d.due, d.id",
            (endpoint.name,) if ordered else (endpoint.name, now),
            endpoint.batch + len(skip),
        )
        if ordered and (not found or self._not_yet(found[0].id, now)):
            return []
        lines = [line for line in found if line.id not in skip]
        if not lines or endpoint.batch == 1:
            return lines[:1]
        lead = lines[0].lead
        if lead is not None:  # it was sent in this company, under this id, and stays in it
            return self._lines("d.lead=? AND d.state=0", "d.id", (lead,), -1)
        # A failed batch behind the head stays apart; so does what is sent again by hand.
        fresh = [line for line in lines if line.lead is None][: endpoint.batch]
        with self.change() as db:
            db.executemany(
                "UPDATE deliveries SET lead=? WHERE id=?", [(fresh[0].id, x.id) for x in fresh]
            )
        return [line._replace(lead=fresh[0].id) for line in fresh]

    def _not_yet(self, delivery: int, now: float) -> bool:
        row = self._db.execute("SELECT due FROM deliveries WHERE id=?", (delivery,)).fetchone()
        return row is None or float(row[0]) > now

    def _lines(self, where: str, order: str, values: tuple[Any, ...], most: int) -> list[Line]:
        rows = self._db.execute(
            f"SELECT d.id, d.attempts, d.lead, d.by_hand, {_EVENT} FROM deliveries d "
            f"JOIN events e ON e.id = d.event WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        return [Line(row[0], row[1], row[2], row[3], Stored(*row[4:])) for row in rows]

    def waiting_lines(self, name: str, most: int) -> list[Line]:
        """The oldest that an endpoint has waiting."""
        return self._lines("d.endpoint=? AND d.state=0", "d.id", (name,), most)

    def record(
        self,
        outcomes: Iterable[tuple[str, Sequence[Line], Verdict, int | None]],
        *,
        now: float,
    ) -> None:
        """Put down what became of deliveries, for many in one go."""
        states = {"delivered": DELIVERED, "retry": WAITING}
        with self.change() as db:
            for name, lines, verdict, status in outcomes:
                state = states.get(verdict.word, DEAD)
                self._settle(db, name, lines, verdict, state, status, now)

    def _settle(
        self,
        db: sqlite3.Connection,
        name: str,
        lines: Sequence[Line],
        verdict: Verdict,
        state: int,
        status: int | None,
        now: float,
    ) -> None:
        counted: Counter[tuple[str, int]] = Counter()
        for line in lines:
            done = db.execute(
                "UPDATE deliveries SET state=?, attempts=?, due=?, status=?, error=?, updated=?, "
                "began=COALESCE(began, ?) WHERE id=? AND state=0",
                (state, verdict.attempts, verdict.due or now, status, verdict.reason, now, now,
                 line.id),
            )  # fmt: skip
            if done.rowcount and not line.by_hand:
                counted[line.event.stream, line.event.epoch] += 1
        if state == DELIVERED:
            db.execute("UPDATE endpoints SET good=? WHERE name=?", (now, name))
        if state != WAITING:
            column = "delivered" if state == DELIVERED else "dead"
            db.executemany(
                f"UPDATE tallies SET {column} = {column} + ? "
                "WHERE endpoint=? AND stream=? AND epoch=?",
                [(count, name, *source) for source, count in counted.items()],
            )

    def failing_since(self, name: str, line: Line) -> bool:
        """Whether nothing succeeded at an endpoint since this delivery was first tried."""
        row = self._db.execute(
            "SELECT e.good, d.began FROM endpoints e, deliveries d WHERE e.name=? AND d.id=?",
            (name, line.id),
        ).fetchone()
        return row is not None and (row[0] is None or row[0] < (row[1] or 0.0))

    # Looking ---------------------------------------------------------------------------------

    def deliveries(
        self, name: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """The newest deliveries, of one endpoint or in one state if these are given."""
        where, values = "1", []
        if name is not None:
            where, values = "d.endpoint=?", [name]
        if state is not None:
            where += " AND d.state=?"
            values.append(STATES.index(state))  # type: ignore[arg-type]
        rows = self._db.execute(
            f"SELECT d.id, d.endpoint, d.state, d.attempts, d.due, d.status, d.error, d.updated, "
            f"{_EVENT} FROM deliveries d JOIN events e ON e.id = d.event WHERE {where} "
            "ORDER BY d.id DESC LIMIT ?",
            (*values, limit),
        )
        return [_delivery(row) for row in rows]

    def resend(self, ids: Sequence[int], *, now: float) -> int:
        """Send these once more, under the same message ids; raises `ConfigError`."""
        with self.change() as db:
            for one in ids:
                row = db.execute(
                    "SELECT endpoint, event, state FROM deliveries WHERE id=?", (one,)
                ).fetchone()
                if row is None:
                    raise ConfigError("id", f"there is no delivery {one}")
                if row[2] == WAITING:
                    db.execute("UPDATE deliveries SET due=? WHERE id=?", (now, one))
                    continue
                db.execute(
                    "INSERT INTO deliveries (endpoint, event, due, updated, by_hand) "
                    "VALUES (?, ?, ?, ?, 1)",
                    (row[0], row[1], now, now),
                )
            db.execute("UPDATE changes SET number = number + 1")
        return len(ids)

    def waiting(self) -> dict[str, int]:
        """How many deliveries each endpoint has waiting."""
        rows = self._db.execute(
            "SELECT endpoint, COUNT(*) FROM deliveries WHERE state=0 GROUP BY endpoint"
        )
        return dict(rows.fetchall())

    def _waiting(self, name: str) -> int:
        row = self._db.execute(
            "SELECT COUNT(*) FROM deliveries WHERE endpoint=? AND state=0", (name,)
        )
        return int(row.fetchone()[0])

    def ledger(self) -> Ledger:
        """A row for each endpoint, stream and epoch: positions on one side, counts on the other."""
        return ledger_of(self._db, {one.name: one.state for one in self.endpoints()})

    def forget(self, before: float) -> int:
        """Remove settled deliveries last touched before a time, and events that nobody has left."""
        with self.change() as db:
            gone = db.execute("DELETE FROM deliveries WHERE state>0 AND updated<?", (before,))
            db.execute(
                "DELETE FROM events WHERE NOT EXISTS "
                "(SELECT 1 FROM deliveries d WHERE d.event = events.id)"
            )
        return gone.rowcount


def _delivery(row: Sequence[Any]) -> Delivery:
    event = Stored(*row[8:])
    state = STATES[row[2]]
    return Delivery(
        id=row[0],
        endpoint=row[1],
        message=event.message,
        topic=event.topic,
        position=f"{event.stream}@{event.epoch}:{event.seq}",
        state=state,
        attempts=row[3],
        due=row[4] if state == "waiting" else None,
        status=row[5],
        error=row[6],
        updated=row[7],
    )


def wall() -> float:
    """Seconds since 1970: the book outlives processes, so its times are those of the calendar."""
    return time.time()
