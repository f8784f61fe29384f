"""Taking events into the book: once each, and on after a failure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from meshmsg import LogError, Peer, Stream
from meshmsg.webhooks import ingest
from meshmsg.webhooks.ingest import Taker
from meshmsg.webhooks.store import Book
from meshmsg.webhooks.types import Endpoint, Secret
from tests.support.waiting import wait_until

HOOK = Endpoint(
    name="hook", url="https://example.com/", topics=("a.**",), secrets=(Secret("whsec_x"),)
)


class Taking:
    """A taker in its thread, a look at its book, and what it was told to look at."""

    def __init__(self, taker: Taker, book: Book, changed: list[set[str]]) -> None:
        self.counters = taker.counters
        self.thread = threading.Thread(target=taker.run)
        self.book = book
        self.changed = changed

    def has(self, count: int) -> None:
        wait_until(lambda: self.book.waiting().get("hook", 0) == count, what=f"{count} deliveries")


@contextmanager
def taking(peer: Peer, folder: Path) -> Iterator[Taking]:
    stopping = threading.Event()
    changed: list[set[str]] = []
    book = Book(folder, durable=False)
    # The taker closes its own connection when it ends.
    taker = Taker(
        peer, Book(folder, durable=False), stopping, changed.append, Counter(), hold=False
    )
    made = Taking(taker, book, changed)
    made.thread.start()
    try:
        yield made
    finally:
        stopping.set()
        made.thread.join()
        book.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Peer]:
    streams = [Stream("a.**", durability="log"), Stream("b.**")]
    with Peer("shop", streams=streams, data_dir=tmp_path / "shop") as made:
        yield made


@pytest.fixture
def peer(shop: Peer, tmp_path: Path) -> Iterator[Peer]:
    with Peer("hooks", connect=shop.address, data_dir=tmp_path) as made:
        yield made


def test_nothing_is_taken_before_an_endpoint_wants_it(
    shop: Peer, peer: Peer, tmp_path: Path
) -> None:
    with taking(peer, tmp_path) as found:
        assert found.counters["taken"] == 0
        found.book.put(HOOK)  # seen by the taker that runs
        shop.wait_for_subscribers("a.b", count=1, timeout=60)
        shop.publish("a.b", 1)
        found.has(1)
        wait_until(lambda: found.counters["taken"] == 1)
        wait_until(lambda: found.changed == [{"hook"}])
        other = msgspec.structs.replace(HOOK, name="other", topics=("b.**",))
        found.book.put(other)  # which takes another subscription
        shop.wait_for_subscribers("b.c", count=1, timeout=60)


def test_the_next_goes_on_where_the_last_one_was(shop: Peer, peer: Peer, tmp_path: Path) -> None:
    with taking(peer, tmp_path) as first:
        first.book.put(HOOK)
        shop.wait_for_subscribers("a.b", count=1, timeout=60)
        shop.publish("a.b", 1)
        first.has(1)
    shop.publish("a.b", 2)
    with taking(peer, tmp_path) as second:
        second.has(2)
        wait_until(lambda: second.counters["taken"] == 1)
        assert [one.topic for one in second.book.deliveries()] == ["a.b", "a.b"]


def test_what_cannot_be_taken_now_is_taken_later(
    shop: Peer, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "AFTER_FAILURE_S", 0.0)
    take, failures = Book.take, [LogError("book", "no space"), ValueError("a defect")]

    def fail_first(*args: object, **options: object) -> object:
        if failures:
            raise failures.pop(0)
        return take(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Book, "take", fail_first)
    with taking(peer, tmp_path) as found:
        found.book.put(HOOK)
        shop.wait_for_subscribers("a.b", count=1, timeout=60)
        shop.publish("a.b", 1)
        found.has(1)
        assert (found.counters["take_errors"], found.counters["io_errors"]) == (1, 1)


def test_a_taker_ends_with_its_peer(shop: Peer, peer: Peer, tmp_path: Path) -> None:
    with taking(peer, tmp_path) as found:
        found.book.put(HOOK)
        shop.wait_for_subscribers("a.b", count=1, timeout=60)
        peer.close()
        found.thread.join(60)
        assert not found.thread.is_alive()
