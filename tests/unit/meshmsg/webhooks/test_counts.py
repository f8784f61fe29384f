"""Counts of a transaction: what is new, what was filtered, what is lost, and that it adds up."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import Loss
from meshmsg.webhooks.counts import Tallies, ledger_of
from meshmsg.webhooks.tables import open_tables
from meshmsg.webhooks.types import Stored

STREAM, EPOCH = "shop/orders.**", 7


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = open_tables(tmp_path / "book.db", durable=False)
    yield made
    made.close()


def event(seq: int) -> Stored:
    return Stored(STREAM, EPOCH, seq, "orders.eu", 0, b"")


def rows(db: sqlite3.Connection) -> dict[str, tuple[int, int, int]]:
    """Published, filtered and lost, by endpoint."""
    return {
        row.subscription.removeprefix("webhook "): (
            row.published,
            row.filtered,
            sum(row.lost.values()),
        )
        for row in ledger_of(db, {}).rows
    }


def test_an_event_that_came_before_is_not_new(db: sqlite3.Connection) -> None:
    tallies = Tallies(db, ["hook"])
    assert [tallies.take(event(seq)) for seq in (3, 3, 2, 4)] == [True, False, False, True]
    tallies.write()
    assert [Tallies(db, ["hook"]).take(event(seq)) for seq in (4, 5)] == [False, True]


def test_what_lies_between_two_events_was_filtered(db: sqlite3.Connection) -> None:
    tallies = Tallies(db, ["hook"])
    tallies.take(event(3))
    tallies.take(event(10))
    tallies.write()
    assert rows(db) == {"hook": (8, 6, 0)}


def test_others_do_not_want_it(db: sqlite3.Connection) -> None:
    tallies = Tallies(db, ["all", "us"])
    tallies.take(event(0))
    tallies.filtered(event(0), {"us"})
    tallies.write()
    assert rows(db) == {"all": (1, 1, 0), "us": (1, 0, 0)}


def test_a_loss_counts_from_where_it_is_not_known_yet(db: sqlite3.Connection) -> None:
    tallies = Tallies(db, ["hook"])
    tallies.take(event(0))
    tallies.lost(Loss(STREAM, EPOCH, 2, 6, "gone"))  # 1 was filtered
    tallies.lost(Loss(STREAM, EPOCH, 4, 8, "gone"))  # 4 and 5 are counted
    tallies.lost(Loss(STREAM, EPOCH, 0, 8, "gone"))
    tallies.write()
    assert rows(db) == {"hook": (8, 1, 6)}


def test_an_endpoint_begins_where_it_comes(db: sqlite3.Connection) -> None:
    first = Tallies(db, ["old"])
    first.take(event(0))
    first.write()
    second = Tallies(db, ["old", "new"])
    second.take(event(5))
    second.write()
    assert rows(db) == {"old": (6, 4, 0), "new": (1, 0, 0)}


def test_the_ledger_says_how_an_endpoint_is_and_which_are_gone(db: sqlite3.Connection) -> None:
    tallies = Tallies(db, ["here", "removed"])
    tallies.take(event(0))
    tallies.write()
    found = ledger_of(db, {"here": "disabled"})
    assert {row.subscription: row.state for row in found.rows} == {
        "webhook here": "disabled",
        "webhook removed": "gone",
    }
    assert not found.reconciles  # the event was not put down as waiting, delivered or filtered
