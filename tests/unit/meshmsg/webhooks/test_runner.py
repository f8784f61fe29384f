"""The runner beside a book that the test fills: no publisher, and a real HTTP server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import ConfigError, LogError, Peer
from meshmsg.webhooks import runner as webhook_runner
from meshmsg.webhooks.runner import Runner
from meshmsg.webhooks.store import Book, wall
from meshmsg.webhooks.tables import FILE
from meshmsg.webhooks.types import Endpoint, Secret, Stored, pack
from tests.support.hooks import HANG, RESET, Receiver
from tests.support.waiting import wait_until

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" * 2
PATIENCE_S = 30


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with Peer("hooks", data_dir=tmp_path) as made:
        yield made


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path, durable=False)
    yield made
    made.close()


def runner_of(peer: Peer) -> Runner:
    return Runner(peer, str(peer.config.data_dir), 3600.0, hold=False)


@contextmanager
def running(peer: Peer) -> Iterator[Runner]:
    runner = runner_of(peer)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def endpoint(url: str, **options: Any) -> Endpoint:
    fields: dict[str, Any] = {"schedule_s": (0.0, 0.02, 0.02), "allow": ("127.0.0.1",)}
    whole = {"name": "hook", "topics": ("orders.**",), "secrets": (Secret(SECRET),)} | fields
    return Endpoint(url=url, **(whole | options))


def put_event(book: Book, seq: int, *hooks: Endpoint) -> Stored:
    now = wall()
    event = Stored("shop/orders.**", 7, seq, "orders.eu", int(now * 1e9), pack(None, {}, seq, b""))
    book.take([event], hooks, now=now)
    return event


def delivered(runner: Runner, count: int) -> None:
    wait_until(lambda: runner.counters["delivered"] == count, PATIENCE_S, f"{count} delivered")


def test_failures_are_tried_again_under_the_same_id(peer: Peer, book: Book) -> None:
    answers = [500, RESET, 204]
    with Receiver(lambda post: answers[post.number]) as receiver:
        hook = endpoint(receiver.url)
        book.put(hook, new=True)
        event = put_event(book, 0, hook)
        with running(peer) as runner:
            delivered(runner, 1)
            figures = runner.figures()
    assert figures == {"delivered": 1, "failed_requests": 2, "requests": 3, "on_the_way": 0}
    assert [post.id for post in receiver.posts] == [event.message] * 3
    assert receiver.taken[0].verify(SECRET)["data"] == 0
    assert book.waiting() == {}


def test_a_request_that_hangs_at_the_end_is_sent_again_by_the_next_under_the_same_id(
    peer: Peer, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_runner, "DRAIN_S", 0.0)
    with Receiver(lambda post: 204 if post.number else HANG) as receiver:
        hook = endpoint(receiver.url)
        book.put(hook, new=True)
        event = put_event(book, 0, hook)
        with running(peer) as runner:
            wait_until(lambda: receiver.posts, PATIENCE_S, "it hangs")
            assert runner.figures()["on_the_way"] == 1
        assert book.waiting() == {"hook": 1}
        with running(peer) as runner:
            delivered(runner, 1)
    assert [post.id for post in receiver.posts] == [event.message] * 2
    assert book.deliveries("hook", None, 1)[0].attempts == 1, "what was cut off costs no attempt"


def test_it_sleeps_until_it_is_told_to_look(
    peer: Peer, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_runner, "IDLE_S", 3600.0)
    with Receiver() as receiver, running(peer) as runner:
        hook = endpoint(receiver.url)
        book.put(hook, new=True)
        for n in range(3):
            put_event(book, n, hook)
            runner.look({"hook"})
            delivered(runner, n + 1)
    assert [post.data["data"] for post in receiver.taken] == [0, 1, 2]


def test_one_runner_delivers_from_a_folder(peer: Peer) -> None:
    with running(peer) as first:
        second = runner_of(peer)
        with pytest.raises(ConfigError, match=rf"pid {os.getpid()}\) delivers") as caught:
            second.start()
        second.stop()
        assert caught.value.field == "data_dir"
        assert first.alive
    assert not first.alive
    with running(peer) as third:
        assert third.alive


def test_a_damaged_book_leaves_no_lock_and_no_thread(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database" * 100)
    runner = runner_of(peer)
    with pytest.raises(LogError, match="the book of webhooks"):
        runner.start()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("meshmsg-webhooks")]
    (tmp_path / FILE).unlink()
    with running(peer) as again:
        runner.stop()  # the first, which holds nothing
        assert again.alive
        with pytest.raises(ConfigError, match="delivers the webhooks"):
            runner_of(peer).start()
