"""The thread that sends what was left behind: called, it comes; it outlives what fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from meshmsg._publish.flush_thread import GatheredSender
from tests.support.waiting import wait_until

NAME = "meshmsg-pub send"


class Sends:
    """What the thread sends; `more` times it says that there is more."""

    def __init__(self) -> None:
        self.done = self.more = 0
        self.fails = False
        self.counters: Counter[str] = Counter()
        self.name = f"{NAME} {id(self)}"  # other tests' publishers have theirs
        self.sender = GatheredSender(self.name, self._send, self.counters)

    def _send(self) -> bool:
        self.done += 1
        if self.fails:
            self.fails = False
            raise OSError("no buffer space")
        self.more -= 1
        return self.more >= 0

    def has_thread(self) -> bool:
        return self.name in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def sends() -> Iterator[Sends]:
    made = Sends()
    yield made
    made.sender.close()


def test_it_costs_no_thread_until_it_is_called(sends: Sends) -> None:
    assert not sends.has_thread()
    sends.sender.call()
    wait_until(lambda: sends.done == 1)
    assert sends.has_thread()
    sends.sender.close()
    assert not sends.has_thread()


def test_it_sends_for_each_call_and_again_while_there_is_more(sends: Sends) -> None:
    for done in (1, 2):
        sends.sender.call()
        wait_until(lambda done=done: sends.done == done)
    sends.more = 3
    sends.sender.call()
    wait_until(lambda: sends.done == 6)


def test_calls_that_it_has_not_heard_are_one(sends: Sends) -> None:
    heard, go_on = threading.Event(), threading.Event()
    first = sends._send

    def slow() -> bool:
        heard.set()
        go_on.wait(60)
        return first()

    sends.sender = GatheredSender(sends.name, slow, sends.counters)
    sends.sender.call()
    heard.wait(60)
    for _ in range(10):
        sends.sender.call()
    go_on.set()
    wait_until(lambda: sends.done == 2)
    sends.sender.close()
    assert sends.done == 2


def test_it_goes_on_after_a_failure_and_counts_it(sends: Sends) -> None:
    sends.fails = True
    sends.sender.call()
    wait_until(lambda: sends.counters["io_errors"] == 1)
    sends.sender.call()
    wait_until(lambda: sends.done == 2)
    assert sends.sender.guard.ended is None


def test_closed_it_starts_no_more(sends: Sends) -> None:
    sends.sender.close()
    sends.sender.close()
    sends.sender.call()
    assert not sends.has_thread()
    assert sends.done == 0


def test_it_may_be_closed_by_what_it_sends() -> None:
    """A callback of the user may close the peer."""
    closed = threading.Event()

    def send() -> bool:
        sender.close()
        closed.set()
        return True

    sender = GatheredSender(NAME, send, Counter())
    sender.call()
    assert closed.wait(60)
    sender.close()
