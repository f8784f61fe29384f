"""Which subscriptions the I/O thread watches: those whose consumers are busy, and not too often."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._receive.background import REST_S, Background
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.zmq.context import Poller


class Busy:
    """A subscription as the I/O thread sees it; something has come on its descriptor."""

    background_s = 0.05
    closed = False
    timer_due = 0.0

    def __init__(self) -> None:
        self.driven_at = 10.0
        self.ends = os.pipe()
        self.arrival_fds: tuple[int, ...] = self.ends[:1]
        os.write(self.ends[1], b"x")


@pytest.fixture
def busy() -> Iterator[Any]:
    made = Busy()
    yield made
    for end in made.ends:
        os.close(end)


@pytest.fixture
def poller() -> Poller:
    return Poller()


def watched(poller: Poller) -> list[Any]:
    return [owner.intake for owner in poller.wait(0)]  # type: ignore[attr-defined]


def test_consumer_that_read_just_now_is_left_alone(poller: Poller, busy: Any) -> None:
    background = Background(poller)
    assert background.look([busy], 10.01, 0.0) == pytest.approx(10.05)
    assert watched(poller) == []


def test_consumer_that_waits_is_looked_at_when_all_is_calm(poller: Poller, busy: Any) -> None:
    background = Background(poller)
    assert background.look([busy], 9.0, 11.0) == 11.0
    assert background.look([busy], 9.0, 0.0) == pytest.approx(10.05)


def test_consumer_that_has_not_read_for_a_while_is_watched(poller: Poller, busy: Any) -> None:
    background = Background(poller)
    assert background.look([busy], 10.05, 0.0) == pytest.approx(10.05 + REST_S)
    assert watched(poller) == [busy]
    busy.driven_at = 10.06
    background.look([busy], 10.07, 0.0)
    assert watched(poller) == []


def test_timer_of_a_busy_subscription_is_waited_for_but_not_without_a_rest(
    poller: Poller, busy: Any
) -> None:
    background = Background(poller)
    busy.timer_due = 30.0
    assert background.look([busy], 20.0, 0.0) == 30.0
    busy.timer_due = 19.0
    assert background.look([busy], 20.0, 0.0) == pytest.approx(20.0 + REST_S)


def test_after_something_came_a_busy_stream_is_let_rest(poller: Poller, busy: Any) -> None:
    background = Background(poller)
    background.look([busy], 20.0, 0.0)
    (arrival,) = poller.wait(0)
    background.on_arrival(arrival, 20.0)  # type: ignore[arg-type]
    assert background.look([busy], 20.001, 0.0) == pytest.approx(20.0 + REST_S)
    assert watched(poller) == []
    background.look([busy], 20.0 + REST_S, 0.0)
    assert watched(poller) == [busy]


def test_descriptors_that_changed_are_watched_anew(poller: Poller, busy: Any) -> None:
    background = Background(poller)
    background.look([busy], 20.0, 0.0)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")
        busy.arrival_fds = (reader,)
        background.look([busy], 20.1, 0.0)
        assert [owner.pollable for owner in poller.wait(0)] == [reader]
        background.look([], 20.2, 0.0)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("closed", [False, True])
def test_subscription_that_is_gone_is_watched_no_more(
    poller: Poller, busy: Any, closed: bool
) -> None:
    background = Background(poller)
    background.look([busy], 20.0, 0.0)
    busy.closed = closed
    due = background.look([busy] if closed else [], 20.1, 0.0)
    assert watched(poller) == []
    assert closed or due == NEVER
