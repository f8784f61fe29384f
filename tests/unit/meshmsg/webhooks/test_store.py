"""The book of webhooks: what is taken once, what is due, and accounts that always add up."""

from __future__ import annotations

import random
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshmsg import ConfigError, Loss
from meshmsg.webhooks import delivery_queue as _webhook_queue
from meshmsg.webhooks.retry import Verdict
from meshmsg.webhooks.store import COUNT_WAITING, Book
from meshmsg.webhooks.tables import FILE
from meshmsg.webhooks.types import Endpoint, Secret, Stored, batch_id, body_of, pack

STREAM, EPOCH = "shop/orders.**", 1_700_000_000_000_000
NOW = 1_700_000_000.0


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path, durable=False)
    yield made
    made.close()


def endpoint(name: str = "hook", **options: Any) -> Endpoint:
    fields: dict[str, Any] = {"url": "https://example.com/", "topics": ("orders.**",)}
    return Endpoint(name=name, secrets=(Secret("whsec_x"),), **(fields | options))


def event(
    seq: int,
    topic: str = "orders.eu",
    epoch: int = EPOCH,
    data: Any = None,
    key: str | None = None,
) -> Stored:
    return Stored(STREAM, epoch, seq, topic, int(NOW * 1e9), pack(key, {}, data or seq, b""))


def ids(parcels: list[Any]) -> list[list[int]]:
    return [[line.event.seq for line in lines] for lines in parcels]


def test_an_event_is_taken_once_however_often_it_comes(book: Book) -> None:
    hooks = [endpoint()]
    assert book.take([event(0), event(1)], hooks, now=NOW) == ({"hook"}, 0)
    assert book.take([event(0), event(1), event(2)], hooks, now=NOW) == ({"hook"}, 2)
    assert book.waiting() == {"hook": 3}
    assert book.take([event(0, epoch=EPOCH + 1)], hooks, now=NOW) == ({"hook"}, 0)
    assert book.waiting() == {"hook": 4}


def test_gaps_were_filtered_and_losses_are_lost(book: Book) -> None:
    hooks = [endpoint("all"), endpoint("us", topics=("orders.us",))]
    for one in hooks:
        book.put(one)
    book.take([event(5), event(8), event(9, "orders.us")], hooks, now=NOW)
    book.take([Loss(STREAM, EPOCH, 10, 15, "gone"), event(16)], hooks, now=NOW)
    rows = {row.subscription: row for row in book.ledger().rows}
    assert book.ledger().reconciles
    everything, us = rows["webhook all"], rows["webhook us"]
    assert (everything.published, everything.in_flight) == (12, 4)
    assert (everything.filtered, everything.lost) == (3, {"lost": 5})
    assert (us.published, us.in_flight, us.filtered, us.lost) == (12, 1, 6, {"lost": 5})
    # A loss that is told again after a restart is not counted again.
    book.take([Loss(STREAM, EPOCH, 10, 15, "gone")], hooks, now=NOW)
    assert book.ledger().rows == tuple(sorted(rows.values(), key=lambda row: row.subscription))


def test_an_endpoint_that_comes_later_starts_there(book: Book) -> None:
    first, second = endpoint("first"), endpoint("second")
    book.take([event(0), event(1)], [first], now=NOW)
    book.take([event(2)], [first, second], now=NOW)
    assert book.waiting() == {"first": 3, "second": 1}
    assert book.ledger().reconciles


def test_events_from_before_its_time_and_for_disabled_ones_are_filtered(book: Book) -> None:
    hooks = [endpoint("late", since=NOW + 1), endpoint("off", state="disabled"), endpoint("on")]
    assert book.take([event(0)], hooks, now=NOW)[0] == {"on"}
    assert book.ledger().reconciles


def test_order_all_waits_for_its_head_and_none_goes_round_it(book: Book) -> None:
    for order in ("all", "none"):
        one = endpoint(order, order=order)
        book.put(one)
    hooks = book.endpoints()
    book.take([event(n) for n in range(3)], hooks, now=NOW)
    retry = Verdict("retry", 1, due=NOW + 60)
    for one in hooks:
        (lines,), due = book.due(one, 1, set(), now=NOW)
        assert (ids([lines]), due) == ([[0]], None)
        book.record([(one.name, lines, retry, 500)], now=NOW)
    ordered, loose = hooks
    assert book.due(ordered, 4, set(), now=NOW + 1) == ([], NOW + 60)
    assert ids(book.due(loose, 4, set(), now=NOW + 1)[0]) == [[1], [2]]
    assert ids(book.due(ordered, 1, set(), now=NOW + 60)[0]) == [[0]]


def keyed(book: Book, keys: str, **options: Any) -> Endpoint:
    """An endpoint by key, with an event for each letter; `-` has none."""
    one = endpoint(order="key", **options)
    book.put(one)
    run = [event(n, key=None if key == "-" else key) for n, key in enumerate(keys)]
    book.take(run, [one], now=NOW)
    return one


def test_order_by_key_holds_only_the_key_that_failed(book: Book, tmp_path: Path) -> None:
    one = keyed(book, "ab-aab")
    parcels, _ = book.due(one, 9, set(), now=NOW)
    assert ids(parcels) == [[0], [1], [2]], "the first of each key, and what has none"
    a, b, free = parcels
    flying = {line.id for lines in parcels for line in lines}
    assert book.due(one, 9, flying, now=NOW) == ([], None)
    good, retry = Verdict("delivered", 1), Verdict("retry", 1, due=NOW + 60)
    book.record([("hook", a, retry, 500), ("hook", b, good, 200)], now=NOW)
    book.record([("hook", free, good, 200)], now=NOW)
    again = Book(tmp_path, durable=False)  # a restart knows all that
    (b2,), _ = again.due(one, 9, set(), now=NOW + 1)
    assert ids([b2]) == [[5]]
    again.record([("hook", b2, good, 200)], now=NOW)
    assert again.due(one, 9, set(), now=NOW + 1) == ([], NOW + 60)
    again.take([event(6, key="b"), event(7, key="a")], [one], now=NOW)
    assert ids(again.due(one, 9, set(), now=NOW + 1)[0]) == [[6]], "b goes on, a waits"
    again.close()
    for seq in (0, 3, 4, 7):
        found = book.due(one, 9, set(), now=NOW + 60)[0]
        head = next(lines for lines in found if lines[0].event.seq == seq)
        book.record([("hook", head, Verdict("dead" if seq == 3 else "delivered", 2), 1)], now=NOW)
    assert book.ledger().reconciles


def test_a_batch_by_key_has_one_key_and_stays_in_order(book: Book) -> None:
    one = keyed(book, "aabaa-a-b", batch=3)
    parcels, _ = book.due(one, 9, set(), now=NOW)
    assert ids(parcels) == [[0, 1, 3], [2, 8], [5, 7]]
    first = parcels[0]
    book.record([("hook", first, Verdict("retry", 1, due=NOW + 5), 500)], now=NOW)
    flying = {line.id for lines in parcels[1:] for line in lines}
    assert book.due(one, 9, flying, now=NOW) == ([], NOW + 5), "nothing of a passes it by"
    assert ids(book.due(one, 9, flying, now=NOW + 5)[0]) == [[0, 1, 3]]
    book.record([("hook", first, Verdict("delivered", 2), 200)], now=NOW)
    assert ids(book.due(one, 9, flying, now=NOW + 5)[0]) == [[4, 6]]


def test_a_batch_is_not_filled_beyond_its_bytes(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_webhook_queue, "BATCH_BYTES_MAX", 1_000)
    one = endpoint(batch=10)
    sizes = [400, 400, 400, 5_000, 10]
    book.take([event(n, data="x" * size) for n, size in enumerate(sizes)], [one], now=NOW)
    parcels, _ = book.due(one, 9, set(), now=NOW)
    assert ids(parcels) == [[0, 1], [2], [3], [4]]


def test_what_was_asked_for_with_retry_after_outlives_a_restart(book: Book, tmp_path: Path) -> None:
    one = endpoint()
    book.put(one)
    book.take([event(0)], [one], now=NOW)
    (lines,), _ = book.due(one, 1, set(), now=NOW)
    book.record([("hook", lines, Verdict("retry", 1, NOW + 90, NOW + 90, "x"), 503)], now=NOW)
    book.put(msgspec.structs.replace(one, batch=2))
    again = Book(tmp_path, durable=False)
    assert again.holds() == {"hook": NOW + 90}
    again.close()


def test_a_book_of_before_gets_what_it_has_not(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / FILE)
    db.executescript(
        "CREATE TABLE endpoints (name TEXT PRIMARY KEY, settings TEXT, good REAL);"
        "CREATE TABLE deliveries (id INTEGER PRIMARY KEY AUTOINCREMENT, endpoint TEXT, event "
        "INTEGER, state INTEGER DEFAULT 0, attempts INTEGER DEFAULT 0, due REAL, lead INTEGER, "
        "began REAL, status INTEGER, error TEXT DEFAULT '', updated REAL, by_hand INTEGER "
        "DEFAULT 0); INSERT INTO endpoints VALUES ('hook', '{}', 1.0);"
    )
    db.close()
    book = Book(tmp_path, durable=False)
    book.put(endpoint())
    assert book.holds() == {}
    one = keyed(book, "aa", name="new")
    assert ids(book.due(one, 9, set(), now=NOW)[0]) == [[0]]
    book.close()


def test_nothing_is_sent_again_to_a_disabled_endpoint(book: Book) -> None:
    one = endpoint()
    book.put(one)
    book.take([event(0)], [one], now=NOW)
    (lines,), _ = book.due(one, 1, set(), now=NOW)
    book.record([("hook", lines, Verdict("gone", 1), 410)], now=NOW)
    book.put(msgspec.structs.replace(one, state="disabled"))
    with pytest.raises(ConfigError, match="enable it first"):
        book.resend([lines[0].id], now=NOW)
    book.put(one)
    assert book.resend([lines[0].id], now=NOW) == 1


def test_what_is_on_the_way_is_not_given_again(book: Book) -> None:
    one = endpoint()
    book.take([event(n) for n in range(4)], [one], now=NOW)
    parcels, _ = book.due(one, 2, set(), now=NOW)
    flying = {line.id for lines in parcels for line in lines}
    assert ids(book.due(one, 9, flying, now=NOW)[0]) == [[2], [3]]


def test_a_batch_stays_together_through_failures_and_restarts(book: Book, tmp_path: Path) -> None:
    one = endpoint(batch=3)
    book.take([event(n) for n in range(5)], [one], now=NOW)
    (first,), _ = book.due(one, 1, set(), now=NOW)
    assert ids([first]) == [[0, 1, 2]]
    book.record([("hook", first, Verdict("retry", 1, due=NOW + 5), None)], now=NOW)
    book.take([event(5)], [one], now=NOW)
    again = Book(tmp_path, durable=False)
    parcels, _ = again.due(one, 2, set(), now=NOW + 6)
    again.close()
    assert sorted(ids(parcels)) == [[0, 1, 2], [3, 4, 5]]
    same = next(lines for lines in parcels if lines[0].event.seq == 0)
    assert batch_id([x.event for x in same]) == batch_id([x.event for x in first])
    assert body_of([x.event for x in same], True) == body_of([x.event for x in first], True)
    assert {line.attempts for line in same} == {1}


def test_settled_deliveries_are_forgotten_in_time_and_waiting_ones_are_not(book: Book) -> None:
    one = endpoint()
    book.put(one)
    book.take([event(0), event(1)], [one], now=NOW)
    (lines,), _ = book.due(one, 1, set(), now=NOW)
    book.record([("hook", lines, Verdict("delivered", 1), 200)], now=NOW)
    assert book.forget(NOW) == 0
    assert book.forget(NOW + 1) == 1
    assert [x.state for x in book.deliveries()] == ["waiting"]
    assert book.ledger().reconciles, "counts outlive what they count"


def kept(book: Book) -> list[int]:
    return [seq for (seq,) in book._db.execute("SELECT seq FROM events ORDER BY seq")]


def test_what_is_forgotten_at_once_has_a_bound_and_takes_no_event_that_others_have(
    book: Book,
) -> None:
    hooks = [endpoint("one"), endpoint("two")]
    for one in hooks:
        book.put(one)
    book.take([event(n) for n in range(10)], hooks, now=NOW)
    parcels, _ = book.due(hooks[0], 10, set(), now=NOW)
    book.record([("one", lines, Verdict("delivered", 1), 200) for lines in parcels], now=NOW)
    assert [book.forget(NOW + 1, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert kept(book) == list(range(10)), "the other waits for them"
    parcels, _ = book.due(hooks[1], 7, set(), now=NOW)
    book.record([("two", lines, Verdict("dead", 1), 500) for lines in parcels], now=NOW)
    assert book.forget(NOW + 1) == 7
    assert kept(book) == [7, 8, 9]
    book.remove("two")
    assert kept(book) == []


def test_what_waits_is_counted_out_of_an_index_alone(book: Book) -> None:
    """Millions wait where endpoints hang, and the others must not wait for them to be counted."""
    ((*_, plan),) = book._db.execute("EXPLAIN QUERY PLAN " + COUNT_WAITING).fetchall()
    assert "USING COVERING INDEX deliveries_waiting" in plan


def test_removing_an_endpoint_forgets_it(book: Book) -> None:
    one = endpoint()
    book.put(one)
    book.take([event(0), event(1)], [one], now=NOW)
    (lines,), _ = book.due(one, 1, set(), now=NOW)
    assert book.remove("hook") == 2
    book.record([("hook", lines, Verdict("delivered", 1), 200)], now=NOW)  # it was on the way
    assert (book.deliveries(), book.ledger().rows, book.waiting()) == ([], (), {})


def test_nothing_is_taken_for_an_endpoint_that_was_removed_in_this_moment(book: Book) -> None:
    hooks = [endpoint("one"), endpoint("two")]
    for one in hooks:
        book.put(one)
    version = book.version()
    book.remove("two")
    assert book.take([event(0)], hooks, now=NOW, version=version) == ({"one"}, 0)
    assert book.waiting() == {"one": 1}
    assert [row.subscription for row in book.ledger().rows] == ["webhook one"]


def test_the_file_is_for_its_owner(book: Book, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_versions_change_with_endpoints(book: Book) -> None:
    before = book.version()
    book.put(endpoint())
    assert book.version() > before
    changed = msgspec.structs.replace(endpoint(), state="disabled", reason="x")
    book.put(changed)
    assert book.endpoint("hook") == changed


def key_of(n: int) -> str | None:
    return None if n % 5 == 0 else f"k{n % 3}"


@pytest.mark.parametrize("seed", range(8))
def test_accounts_add_up_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Takes, takes again, losses, outcomes of all kinds, restarts: in any order."""
    rng = random.Random(seed)
    hooks = [
        endpoint("a", batch=rng.choice([1, 3])),
        endpoint("b", topics=("orders.us",), order="all"),
        endpoint("c", topics=("**",), batch=2, order="all"),
        endpoint("d", order="key", batch=rng.choice([1, 3])),
    ]
    book = Book(tmp_path, durable=False)
    for one in hooks:
        book.put(one)
    place, now = 0, NOW
    lost: set[int] = set()
    seen: dict[str, list[int]] = {one.name: [] for one in hooks}
    wanted: dict[str, set[int]] = {one.name: set() for one in hooks}
    for _ in range(120):
        now += rng.random()
        step = rng.randrange(10)
        if step < 4:
            first = max(0, place - rng.randrange(4))  # some of them again
            place = max(place, first + rng.randrange(1, 6))
            numbers = [n for n in range(first, place) if n not in lost]
            run = [event(n, "orders.us" if n % 2 else "orders.eu", key=key_of(n)) for n in numbers]
            book.take(run, hooks, now=now)
            for n in numbers:
                wanted["a"].add(n)
                wanted["c"].add(n)
                wanted["d"].add(n)
                wanted["b"] |= {n} if n % 2 else set()
        elif step == 4:
            book.take([Loss(STREAM, EPOCH, place, place + 2, "gone")], hooks, now=now)
            lost |= {place, place + 1}
            place += 2
        elif step == 5:
            book.close()
            book = Book(tmp_path, durable=False)
        else:
            one = rng.choice(hooks)
            word = rng.choice(["delivered", "delivered", "retry", "dead"])
            parcels = book.due(one, 1 if one.order == "all" else 3, set(), now=now)[0]
            rng.shuffle(parcels)  # they come back in any order
            for lines in parcels:
                verdict = Verdict(word, lines[0].attempts + 1, due=now + rng.random())
                book.record([(one.name, lines, verdict, None)], now=now)
                if word != "retry":
                    seen[one.name] += [line.event.seq for line in lines]
        assert book.ledger().reconciles
    for one in hooks:
        while True:
            now += 10
            parcels, due = book.due(one, 1, set(), now=now)
            if not parcels and due is None:
                break
            for lines in parcels:
                book.record([(one.name, lines, Verdict("delivered", 1), 200)], now=now)
                seen[one.name] += [line.event.seq for line in lines]
        assert sorted(seen[one.name]) == sorted(wanted[one.name]), "each once"
        if one.order == "all":
            assert seen[one.name] == sorted(seen[one.name]), "in order"
        if one.order == "key":
            for key in ("k0", "k1", "k2"):
                mine = [n for n in seen[one.name] if key_of(n) == key]
                assert mine == sorted(mine), "in the order of its key"
    assert book.ledger().reconciles
    assert book.ledger().in_flight == 0
    book.close()
