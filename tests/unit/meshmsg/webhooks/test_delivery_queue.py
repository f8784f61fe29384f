"""What is posted next: what is due, in the order that an endpoint asks for, and what with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg.webhooks import delivery_queue
from meshmsg.webhooks.delivery_queue import Keys, Line, Queue
from meshmsg.webhooks.tables import DELIVERED, open_tables
from meshmsg.webhooks.types import Endpoint

NOW = 1000.0


class Deliveries:
    """A table of deliveries, and what looks up which are due."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.queue = Queue(db, self.change)
        self.keys = Keys(db)

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        yield self.db

    def add(self, due: float | None = NOW, key: str | None = None, content: bytes = b"x") -> int:
        event = self.db.execute(
            "INSERT INTO events (stream, epoch, seq, topic, time_ns, content) "
            "VALUES ('s', 1, 0, 'a', 0, ?)",
            (content,),
        ).lastrowid
        made = self.db.execute(
            "INSERT INTO deliveries (endpoint, event, due, key) VALUES ('hook', ?, ?, ?)",
            (event, due, key),
        ).lastrowid
        assert made is not None
        return made

    def settle(self, *ids: int) -> None:
        for one in ids:
            self.db.execute("UPDATE deliveries SET state=? WHERE id=?", (DELIVERED, one))

    def due(
        self, requests: int = 10, skip: set[int] | None = None, now: float = NOW, **options: Any
    ) -> tuple[list[list[int]], float | None]:
        hook = Endpoint(name="hook", url="", topics=("**",), secrets=(), **options)
        parcels, again = self.queue.due(hook, requests, skip or set(), now=now)
        return [list(map(id_of, lines)) for lines in parcels], again


def id_of(line: Line) -> int:
    return line.id


@pytest.fixture
def deliveries(tmp_path: Path) -> Iterator[Deliveries]:
    db = open_tables(tmp_path / "book.db", durable=False)
    yield Deliveries(db)
    db.close()


def test_the_longest_due_go_first_as_many_as_there_are_requests(deliveries: Deliveries) -> None:
    one, two, three = deliveries.add(NOW - 1), deliveries.add(NOW - 3), deliveries.add(NOW - 2)
    assert deliveries.due(2) == ([[two], [three]], None)
    assert deliveries.due(2, {two}) == ([[three], [one]], None)


def test_nothing_due_says_when_to_look_again(deliveries: Deliveries) -> None:
    assert deliveries.due() == ([], None)
    late, soon = deliveries.add(NOW + 9), deliveries.add(NOW + 5)
    assert deliveries.due() == ([], NOW + 5)
    assert deliveries.due(skip={soon}) == ([], NOW + 9)
    assert deliveries.due(skip={soon, late}) == ([], None)


def test_in_one_order_nothing_passes_the_first(deliveries: Deliveries) -> None:
    first = deliveries.add(NOW + 5)
    second = deliveries.add(NOW)
    assert deliveries.due(order="all") == ([], NOW + 5)
    assert deliveries.due(order="all", skip={first}, now=NOW + 5)[0] == []
    deliveries.settle(first)
    assert deliveries.due(order="all")[0] == [[second]]


def test_a_batch_that_was_sent_stays_together(deliveries: Deliveries) -> None:
    ids = [deliveries.add() for _ in range(3)]
    assert deliveries.due(1, batch=2)[0] == [ids[:2]]
    deliveries.add()
    # Its first failed with the second, and both come again in the same company.
    assert deliveries.due(batch=9)[0] == [ids[:2], [ids[2], ids[2] + 1]]


def test_a_batch_has_a_bound_in_bytes(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_queue, "BATCH_BYTES_MAX", 10)
    big = deliveries.add(content=b"x" * 11)
    small = [deliveries.add(content=b"x" * 5) for _ in range(3)]
    assert deliveries.due(batch=9)[0] == [[big], small[:2], small[2:]]


def test_keys_wait_for_the_one_before_and_are_handed_on(deliveries: Deliveries) -> None:
    keys = deliveries.keys
    assert keys.due("hook", None, NOW) == keys.due("hook", "a", NOW) == NOW
    first = deliveries.add(NOW, "a")
    assert keys.due("hook", "a", NOW) is None
    assert keys.due("hook", "b", NOW) == NOW
    second = deliveries.add(None, "a")
    third = deliveries.add(None, "a")
    assert deliveries.due()[0] == [[first]]
    deliveries.settle(first)
    keys.hand_on("hook", ["a"], NOW)
    assert deliveries.due()[0] == [[second]]
    assert deliveries.due(batch=5)[0] == [[second, third]]


def test_lines_have_their_events(deliveries: Deliveries) -> None:
    made = deliveries.add(key="a", content=b"text")
    [line] = deliveries.queue.lines("d.id=?", "d.id", (made,), 1)
    assert (line.id, line.attempts, line.lead, line.by_hand, line.key) == (made, 0, None, 0, "a")
    assert (line.event.stream, line.event.topic, line.event.content) == ("s", "a", b"text")
