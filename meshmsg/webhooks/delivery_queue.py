"""What is to be posted next: deliveries that are due, in the order that an endpoint asks for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

from meshmsg.webhooks.tables import WAITING
from meshmsg.webhooks.types import Endpoint, Stored

#: A batch is not filled further than this; an event that is larger goes alone.
BATCH_BYTES_MAX = 4 * 1024 * 1024
#: Deliveries looked at in one go; with many large batches the rest is for the next turn.
LOOK_MAX = 20_000
EVENT = "e.stream, e.epoch, e.seq, e.topic, e.time_ns, e.content"


class Line(NamedTuple):
    """A delivery to be made."""

    id: int
    attempts: int
    lead: int | None
    by_hand: int
    key: str | None
    """Where the endpoint has its events in the order of their keys."""
    event: Stored


class _Head(NamedTuple):
    id: int
    lead: int | None
    key: str | None
    due: float


class Queue:
    """Looks up what is due; `change` begins a transaction."""

    def __init__(
        self,
        db: sqlite3.Connection,
        change: Callable[[], AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        self._db = db
        self._change = change

    def due(
        self, endpoint: Endpoint, requests: int, skip: set[int], *, now: float
    ) -> tuple[list[list[Line]], float | None]:
        """What to send now, a list for each request; and when to look again if nothing is due."""
        parcels: list[list[Line]] = []
        taken = set(skip)
        heads = self._heads(endpoint, requests, skip, now)
        for place, head in enumerate(heads):
            if len(parcels) == requests:
                break
            if head.id in taken:
                continue
            behind = (x for x in islice(heads, place, None) if x.id not in taken)
            lines = self._parcel(endpoint, head, behind)
            taken.update(line.id for line in lines)
            if lines:
                parcels.append(lines)
        return (parcels, None) if parcels else ([], self._next(endpoint, skip))

    def _heads(self, endpoint: Endpoint, requests: int, skip: set[int], now: float) -> list[_Head]:
        most = min(LOOK_MAX, requests * endpoint.batch) + len(skip)
        select = "SELECT id, lead, key, due FROM deliveries WHERE endpoint=? AND state=0 "
        if endpoint.order == "all":
            rows = self._db.execute(select + "ORDER BY id LIMIT ?", (endpoint.name, most))
            heads = [_Head(*row) for row in rows]
            # Nothing goes before the first, be it on the way or waiting for its next attempt.
            return [] if not heads or heads[0].due > now or heads[0].id in skip else heads
        rows = self._db.execute(
            select + "AND due<=? ORDER BY due, id LIMIT ?", (endpoint.name, now, most)
        )
        return [_Head(*row) for row in rows]

    def _next(self, endpoint: Endpoint, skip: set[int]) -> float | None:
        order = "id" if endpoint.order == "all" else "due"
        rows = self._db.execute(
            "SELECT due, id FROM deliveries WHERE endpoint=? AND state=0 AND due IS NOT NULL "
            f"ORDER BY {order} LIMIT ?",
            (endpoint.name, 1 + len(skip)),
        )
        return next((float(due) for due, one in rows if one not in skip), None)

    def _parcel(self, endpoint: Endpoint, head: _Head, behind: Iterable[_Head]) -> list[Line]:
        """What goes in one request with the head."""
        if endpoint.batch == 1:
            return list(self._fetch([head.id]))
        if head.lead is not None:  # it was sent in this company, under this id, and stays in it
            return self.lines("d.lead=? AND d.state=0", "d.id", (head.lead,), -1)
        if head.key is not None:  # those behind it are not due yet, or a failure would pass it by
            rows = self._db.execute(
                "SELECT id FROM deliveries WHERE endpoint=? AND key=? AND state=0 AND id>=? "
                "AND lead IS NULL ORDER BY id LIMIT ?",
                (endpoint.name, head.key, head.id, endpoint.batch),
            )
            ids = [int(row[0]) for row in rows]
        else:
            # A failed batch behind the head stays apart; so does what is sent again by hand.
            company = (x.id for x in behind if x.lead is None and x.key is None)
            ids = list(islice(company, endpoint.batch))
        fresh: list[Line] = []
        size = 0
        for line in self._fetch(ids):
            size += len(line.event.content)
            if fresh and size > BATCH_BYTES_MAX:
                break
            fresh.append(line._replace(lead=head.id))
        with self._change() as db:
            db.executemany(
                "UPDATE deliveries SET lead=? WHERE id=?", [(head.id, x.id) for x in fresh]
            )
        return fresh

    def _fetch(self, ids: Iterable[int]) -> Iterable[Line]:
        """One by one: of large events only those that are wanted are read."""
        for one in ids:
            yield from self.lines("d.id=? AND d.state=0", "d.id", (one,), 1)

    def lines(self, where: str, order: str, values: tuple[Any, ...], most: int) -> list[Line]:
        """Deliveries with their events."""
        rows = self._db.execute(
            f"SELECT d.id, d.attempts, d.lead, d.by_hand, d.key, {EVENT} FROM deliveries d "
            f"JOIN events e ON e.id = d.event WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        return [Line._make((*row[:5], Stored(*row[5:]))) for row in rows]


class Keys:
    """Deliveries in the order of their keys: who is behind whom."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def due(self, endpoint: str, key: str | None, now: float) -> float | None:
        """When a new delivery of a key is due: not before the one before it is settled."""
        return now if key is None or self._first(endpoint, key) is None else None

    def hand_on(self, endpoint: str, keys: Iterable[str], now: float) -> None:
        """The next of each key is due."""
        for key in keys:
            self._db.execute(
                "UPDATE deliveries SET due=? WHERE id=? AND due IS NULL",
                (now, self._first(endpoint, key)),
            )

    def _first(self, endpoint: str, key: str) -> int | None:
        row = self._db.execute(
            "SELECT id FROM deliveries WHERE endpoint=? AND key=? AND state=? ORDER BY id LIMIT 1",
            (endpoint, key, WAITING),
        ).fetchone()
        return None if row is None else int(row[0])
