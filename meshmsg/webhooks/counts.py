"""How many events each endpoint had of each stream, and what became of them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence

from meshmsg._model.event import Loss
from meshmsg.recovery.stream.ledger import Ledger, LedgerRow
from meshmsg.webhooks.types import Stored


class Tallies:
    """The counts of a transaction, written at its end."""

    def __init__(self, db: sqlite3.Connection, names: Sequence[str]) -> None:
        self._db = db
        self._names = names
        self._next: dict[tuple[str, int], int | None] = {}
        self._first: dict[tuple[str, int], set[str]] = {}
        self._new: list[tuple[str, str, int, int]] = []
        self._filtered: Counter[tuple[str, str, int]] = Counter()
        self._lost: Counter[tuple[str, str, int]] = Counter()

    def _known(self, source: tuple[str, int]) -> int | None:
        if source not in self._next:
            row = self._db.execute(
                "SELECT next FROM sources WHERE stream=? AND epoch=?", source
            ).fetchone()
            self._next[source] = None if row is None else int(row[0])
            rows = self._db.execute(
                "SELECT endpoint FROM tallies WHERE stream=? AND epoch=?", source
            )
            self._first[source] = {name for (name,) in rows}
        return self._next[source]

    def _begin(self, source: tuple[str, int], first: int) -> None:
        """Endpoints that meet a source for the first time start here."""
        for name in self._names:
            if name not in self._first[source]:
                self._first[source].add(name)
                self._new.append((name, *source, first))

    def take(self, event: Stored) -> bool:
        """Whether the event is new; what lies between was filtered before it came here."""
        source = (event.stream, event.epoch)
        known = self._known(source)
        if known is not None and event.seq < known:
            return False
        old = set(self._first[source])
        self._begin(source, event.seq)
        if known is not None and event.seq > known:
            for name in old & set(self._names):
                self._filtered[name, *source] += event.seq - known
        self._next[source] = event.seq + 1
        return True

    def filtered(self, event: Stored, wanted: set[str]) -> None:
        """The others do not want it."""
        for name in self._names:
            if name not in wanted:
                self._filtered[name, event.stream, event.epoch] += 1

    def lost(self, loss: Loss) -> None:
        """Events that never came."""
        source = (loss.stream, loss.epoch)
        known = self._known(source)
        first = loss.first if known is None else max(known, loss.first)
        if loss.stop <= first:
            return
        old = set(self._first[source])
        self._begin(source, first)
        for name in self._names:
            if name in old and known is not None:
                self._filtered[name, *source] += first - known
            self._lost[name, *source] += loss.stop - first
        self._next[source] = loss.stop

    def write(self) -> None:
        """Into the book."""
        self._db.executemany(
            "INSERT OR REPLACE INTO sources VALUES (?, ?, ?)",
            [(*source, stop) for source, stop in self._next.items() if stop is not None],
        )
        self._db.executemany(
            "INSERT INTO tallies (endpoint, stream, epoch, first) VALUES (?, ?, ?, ?)", self._new
        )
        for column, counts in (("filtered", self._filtered), ("lost", self._lost)):
            self._db.executemany(
                f"UPDATE tallies SET {column} = {column} + ? "
                "WHERE endpoint=? AND stream=? AND epoch=?",
                [(count, *key) for key, count in counts.items()],
            )


def ledger_of(db: sqlite3.Connection, states: Mapping[str, str]) -> Ledger:
    """Positions on one side, counts on the other."""
    rows = db.execute(
        "SELECT t.endpoint, t.stream, t.epoch, s.next - t.first, t.delivered, t.filtered, "
        "t.dead, t.lost, (SELECT COUNT(*) FROM deliveries d JOIN events e ON e.id = d.event "
        "WHERE d.endpoint = t.endpoint AND d.state = 0 AND d.by_hand = 0 "
        "AND e.stream = t.stream AND e.epoch = t.epoch) "
        "FROM tallies t JOIN sources s ON s.stream = t.stream AND s.epoch = t.epoch "
        "ORDER BY t.endpoint, t.stream, t.epoch"
    ).fetchall()
    return Ledger(
        tuple(
            LedgerRow(
                stream=stream,
                epoch=epoch,
                subscription=f"webhook {name}",
                published=published,
                delivered=delivered,
                filtered=filtered,
                lost={"lost": lost} if lost else {},
                in_flight=waiting,
                state=states.get(name, "gone"),
                dead=dead,
            )
            for name, stream, epoch, published, delivered, filtered, dead, lost, waiting in rows
        )
    )
