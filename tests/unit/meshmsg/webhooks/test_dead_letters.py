"""What cannot be delivered: published first, then dead in the book; who is disabled, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream, Subscription
from meshmsg.webhooks.dead_letters import Undertaker
from meshmsg.webhooks.delivery_queue import Line
from meshmsg.webhooks.retry import Lane, Verdict
from meshmsg.webhooks.store import Book
from meshmsg.webhooks.types import Endpoint, Secret, Stored, pack

NOW = 1000.0
DEAD = Verdict("dead", 3, reason="500")


class Parts:
    """An undertaker with its book, and what it publishes."""

    def __init__(self, peer: Peer, letters: Subscription, folder: Path) -> None:
        self.peer = peer
        self.letters = letters
        self.book = Book(folder, durable=False)
        self.counters: Counter[str] = Counter()
        self.undertaker = Undertaker(peer, self.book, self.counters)

    def put(self, name: str = "hook", **options: Any) -> Endpoint:
        made = Endpoint(
            name=name, url="https://a/", topics=("**",), secrets=(Secret("whsec_x"),), **options
        )
        self.book.put(made)
        return made

    def take(self, count: int, first: int = 0) -> list[Line]:
        events = [
            Stored("shop/a", 7, first + n, "a.b", 0, pack("k", {"h": 1}, first + n, b""))
            for n in range(count)
        ]
        self.book.take(events, self.book.endpoints(), now=NOW)
        return self.book.waiting_lines("hook", 1000)

    def upkeep(self, lanes: dict[str, Lane] | None = None) -> bool:
        return self.undertaker.upkeep(self.book.endpoints(), lanes or {}, 0.0)

    def letters_of(self, count: int) -> list[Any]:
        return [self.letters.get(timeout=60) for _ in range(count)]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    streams = [Stream("dead.webhook.**")]
    with (
        Peer("hooks", streams=streams) as peer,
        Peer("reader", connect=peer.address) as reader,
        reader.subscribe("dead.**") as letters,
    ):
        peer.wait_for_subscribers("dead.webhook.hook", count=1, timeout=60)
        made = Parts(peer, letters, tmp_path)
        yield made
        made.book.close()


def test_a_dead_letter_has_the_event_and_its_history(parts: Parts) -> None:
    hook = parts.put()
    assert parts.undertaker.bury(hook, parts.take(1), DEAD) == DEAD
    [letter] = parts.letters_of(1)
    assert (letter.topic, letter.key, letter.data) == ("dead.webhook.hook", "k", 0)
    headers = letter.headers
    assert (headers["h"], headers["dead.topic"], headers["dead.seq"]) == (1, "a.b", 0)
    assert (headers["dead.attempts"], headers["dead.reason"]) == (3, "dead")
    assert headers["dead.error"] == "500"


def test_a_letter_that_cannot_be_published_waits_and_so_do_the_next(parts: Parts) -> None:
    hook = parts.put()
    lines = parts.take(2)
    parts.peer.close()
    for line in lines:
        later = parts.undertaker.bury(hook, [line], DEAD)
        assert (later.word, later.attempts) == ("retry", 0)
    assert parts.counters["dead_unpublished"] == 1  # the second was not tried


def test_an_endpoint_that_is_gone_is_disabled_at_once(parts: Parts) -> None:
    hook = parts.put()
    parts.undertaker.consider(hook, parts.take(1), Verdict("gone", 1), 410)
    assert parts.book.endpoint("hook").state == "disabled"
    parts.undertaker.consider(hook, parts.take(1, 1), Verdict("gone", 1), 410)
    assert parts.counters["disabled"] == 1


def test_one_that_refuses_an_event_is_disabled_when_another_dies(parts: Parts) -> None:
    hook = parts.put()
    first, second = parts.take(2)
    parts.book.record([("hook", [first], DEAD, 500)], now=NOW)
    parts.undertaker.consider(hook, [first], DEAD, 500)
    assert parts.book.endpoint("hook").state == "active"
    parts.book.record([("hook", [second], DEAD, 500)], now=NOW)
    parts.undertaker.consider(hook, [second], DEAD, 500)
    assert parts.book.endpoint("hook").state == "disabled"


def test_a_backlog_that_is_too_long_loses_its_oldest(parts: Parts) -> None:
    parts.put(backlog_max=2)
    parts.take(5)
    assert parts.upkeep() is False
    assert [letter.data for letter in parts.letters_of(3)] == [0, 1, 2]
    assert parts.book.waiting() == {"hook": 2}
    assert (parts.counters["dead"], parts.book.ledger().reconciles) == (3, True)


def test_a_disabled_endpoint_keeps_only_what_is_on_the_way(parts: Parts) -> None:
    parts.put()
    lines = parts.take(3)
    parts.put(state="disabled", reason="gone")
    lane = Lane("none", 4)
    lane.in_flight.add(lines[1].id)
    parts.upkeep({"hook": lane})
    assert [letter.data for letter in parts.letters_of(2)] == [0, 2]
    assert [line.id for line in parts.book.waiting_lines("hook", 9)] == [lines[1].id]
