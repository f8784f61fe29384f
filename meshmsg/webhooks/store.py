"""The book of webhooks: endpoints, the events taken for them, and every delivery.

It is an SQLite file in `data_dir`, so that commands can look at it and change it while a runner
delivers.  What is taken is on the disk before the mesh is told that it is (`take`); what was
delivered need only outlive the process, since an event may come twice but must not be missed.
One `Book` is one connection and belongs to one thread.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from meshmsg._model.errors import ConfigError, LogError
from meshmsg._model.event import Loss
from meshmsg._model.topics import TopicFilter
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.webhooks.counts import Tallies, ledger_of
from meshmsg.webhooks.delivery_queue import EVENT, Keys, Line, Queue
from meshmsg.webhooks.retry import Verdict
from meshmsg.webhooks.tables import DEAD, DELIVERED, FILE, WAITING, open_tables
from meshmsg.webhooks.types import STATES, Delivery, Endpoint, Stored, key_of

ENDPOINTS_MAX = 100_000
#: Asked for every few seconds, with all that waits for endpoints that hang: out of an index alone.
COUNT_WAITING = (
    "SELECT endpoint, COUNT(*) FROM deliveries INDEXED BY deliveries_waiting "
    "WHERE state=0 GROUP BY endpoint"
)
#: Settled deliveries that are forgotten in one go.
FORGET_MAX = 1_000


class Book:
    """One connection to the book in a folder; `durable` waits for the disk at each change."""

    def __init__(self, data_dir: str | Path, *, durable: bool = True) -> None:
        self.path = Path(data_dir) / FILE
        self._db = open_tables(self.path, durable=durable)
        self._queue = Queue(self._db, self.change)
        self._keys = Keys(self._db)
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
                db.execute(
                    "INSERT INTO endpoints (name, settings) VALUES (?, ?)", (endpoint.name, text)
                )
            else:
                db.execute("UPDATE endpoints SET settings=? WHERE name=?", (text, endpoint.name))
            db.execute("UPDATE changes SET number = number + 1")

    def remove(self, name: str) -> int:
        """Forget an endpoint with all its deliveries; how many of them were still waiting."""
        self.endpoint(name)
        with self.change() as db:
            waiting = self._waiting(name)
            rows = db.execute("SELECT DISTINCT event FROM deliveries WHERE endpoint=?", (name,))
            events = [event for (event,) in rows]
            for table in ("deliveries", "tallies"):
                db.execute(f"DELETE FROM {table} WHERE endpoint=?", (name,))
            _drop_unwanted(db, events)
            db.execute("DELETE FROM endpoints WHERE name=?", (name,))
            db.execute("UPDATE changes SET number = number + 1")
        return waiting

    # Taking events ---------------------------------------------------------------------------

    def take(
        self,
        items: Sequence[Stored | Loss],
        endpoints: Sequence[Endpoint],
        *,
        now: float,
        version: int | None = None,
    ) -> tuple[set[str], int]:
        """Put events down for the endpoints that want them, once each however often they come.

        If the endpoints are no longer those of `version`, for those that there are now: nothing
        may wait for one that was removed in this moment, since nobody would ever send it.

        Returns the endpoints that have something new, and how many events had come before.
        """
        changed: set[str] = set()
        again = 0
        with self.change() as db:
            if version is not None and version != self.version():
                endpoints = self.endpoints()
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
                for one in wanted:
                    key = key_of(item) if one.order == "key" else None
                    db.execute(
                        "INSERT INTO deliveries (endpoint, event, due, updated, key) "
                        "VALUES (?, ?, ?, ?, ?)",
                        (one.name, row.lastrowid, self._keys.due(one.name, key, now), now, key),
                    )
                    changed.add(one.name)
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
        return self._queue.due(endpoint, requests, skip, now=now)

    def waiting_lines(self, name: str, most: int) -> list[Line]:
        """The oldest that an endpoint has waiting."""
        return self._queue.lines("d.endpoint=? AND d.state=0", "d.id", (name,), most)

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

    def wake(self, name: str, *, now: float) -> None:
        """An endpoint is back: what waits because it was away is due.

        What it refused (4xx) waits on: that it takes others says nothing about these.
        """
        with self.change() as db:
            db.execute(
                "UPDATE deliveries SET due=? WHERE endpoint=? AND state=0 AND due>? "
                "AND (status IS NULL OR status >= 500 OR status = 429)",
                (now, name, now),
            )

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
                "UPDATE deliveries SET state=?, attempts=?, status=?, error=?, updated=?, "
                "due=CASE WHEN due IS NOT NULL THEN ? END, began=COALESCE(began, ?) "
                "WHERE id=? AND state=0",
                (state, verdict.attempts, status, verdict.reason, now, verdict.due or now, now,
                 line.id),
            )  # fmt: skip
            if done.rowcount and not line.by_hand:
                counted[line.event.stream, line.event.epoch] += 1
        if state == DELIVERED:
            db.execute("UPDATE endpoints SET good=? WHERE name=?", (now, name))
        if verdict.hold_until:
            db.execute("UPDATE endpoints SET hold=? WHERE name=?", (verdict.hold_until, name))
        if state != WAITING:
            keys = dict.fromkeys(line.key for line in lines if line.key is not None)
            self._keys.hand_on(name, keys, now)
            column = "delivered" if state == DELIVERED else "dead"
            db.executemany(
                f"UPDATE tallies SET {column} = {column} + ? "
                "WHERE endpoint=? AND stream=? AND epoch=?",
                [(count, name, *source) for source, count in counted.items()],
            )

    def holds(self) -> dict[str, float]:
        """Until when endpoints have asked for peace."""
        return dict(self._db.execute("SELECT name, hold FROM endpoints WHERE hold IS NOT NULL"))

    def failing_since(self, name: str, line: Line) -> bool:
        """Whether nothing succeeded at an endpoint since this delivery was first tried."""
        row = self._db.execute(
            "SELECT e.good, d.began FROM endpoints e, deliveries d WHERE e.name=? AND d.id=?",
            (name, line.id),
        ).fetchone()
        return row is not None and (row[0] is None or row[0] < (row[1] or 0.0))

    def others_died(self, name: str, lines: Sequence[Line]) -> bool:
        """Whether all attempts at another delivery failed as well, since the last success."""
        row = self._db.execute(
            "SELECT 1 FROM deliveries d JOIN endpoints e ON e.name = d.endpoint WHERE e.name=? "
            "AND d.state=? AND d.attempts>0 AND d.updated > COALESCE(e.good, 0) "
            "AND d.id NOT BETWEEN ? AND ? LIMIT 1",
            (name, DEAD, lines[0].id, lines[-1].id),
        ).fetchone()
        return row is not None

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
            f"{EVENT} FROM deliveries d JOIN events e ON e.id = d.event WHERE {where} "
            "ORDER BY d.id DESC LIMIT ?",
            (*values, limit),
        )
        return [_delivery(row) for row in rows]

    def resend(self, ids: Sequence[int], *, now: float) -> int:
        """Send these once more, under the same message ids; raises `ConfigError`."""
        disabled = {one.name for one in self.endpoints() if one.state != "active"}
        with self.change() as db:
            for one in ids:
                row = db.execute(
                    "SELECT endpoint, event, state FROM deliveries WHERE id=?", (one,)
                ).fetchone()
                if row is None:
                    raise ConfigError("id", f"there is no delivery {one}")
                if row[0] in disabled:
                    raise ConfigError("id", f"webhook {row[0]!r} is disabled: enable it first")
                if row[2] == WAITING:
                    # One that is behind another of its key stays there.
                    db.execute(
                        "UPDATE deliveries SET due=? WHERE id=? AND due IS NOT NULL", (now, one)
                    )
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
        return dict(self._db.execute(COUNT_WAITING).fetchall())

    def _waiting(self, name: str) -> int:
        row = self._db.execute(
            "SELECT COUNT(*) FROM deliveries WHERE endpoint=? AND state=0", (name,)
        )
        return int(row.fetchone()[0])

    def ledger(self) -> Ledger:
        """A row for each endpoint, stream and epoch: positions on one side, counts on the other."""
        return ledger_of(self._db, {one.name: one.state for one in self.endpoints()})

    def forget(self, before: float, most: int = FORGET_MAX) -> int:
        """Remove settled deliveries last touched before a time, and events that nobody has left.

        How many, up to `most`: nobody is to wait until a week's worth is looked through.
        """
        with self.change() as db:
            rows = db.execute(
                "SELECT id, event FROM deliveries WHERE state IN (?, ?) AND updated<? LIMIT ?",
                (DELIVERED, DEAD, before, most),
            ).fetchall()
            db.executemany("DELETE FROM deliveries WHERE id=?", [(one,) for one, _ in rows])
            _drop_unwanted(db, {event for _, event in rows})
        return len(rows)


def _drop_unwanted(db: sqlite3.Connection, events: Iterable[int]) -> None:
    """Remove those of the events that no delivery has left."""
    db.executemany(
        "DELETE FROM events WHERE id=?1 AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.event=?1)",
        [(event,) for event in events],
    )


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
