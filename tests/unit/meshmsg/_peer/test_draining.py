"""A drain waits for what applications have in hand, within its time, and closes once."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from meshmsg import _platform
from meshmsg._peer.draining import WITHIN_S, Draining
from tests.support.waiting import wait_until


class World:
    def __init__(self, *in_hand: int) -> None:
        self.members: Any = {
            number: SimpleNamespace(sub=number, in_hand=count, closed=False, rest=Mock())
            for number, count in enumerate(in_hand)
        }
        self.closed = threading.Event()
        self.guard = Mock()
        self.draining = Draining("test", self.members, lambda sub: f"m{sub}", self.guard)
        self.draining.close = self._close
        self.deadlines: list[float] = []

    def _close(self, deadline: float) -> None:
        self.deadlines.append(deadline)
        self.closed.set()


def test_dry_run_says_what_is_in_hand_and_begins_nothing() -> None:
    world = World(2, 0)
    rows = world.draining.begin(0.0, dry_run=True)
    assert rows == [
        {"member": "m0", "in_hand": 2},
        {"member": "m1", "in_hand": 0},
        {"drains_within_s": WITHIN_S},
    ]
    assert not world.closed.wait(0.05)


def test_it_closes_when_nothing_is_in_hand() -> None:
    world = World(1)
    world.draining.begin(60.0, dry_run=False)
    wait_until(lambda: world.members[0].rest.called)
    assert not world.closed.wait(0.05)
    world.members[0].in_hand = 0
    assert world.closed.wait(60)


def test_it_waits_no_longer_than_it_may_and_for_no_closed_member() -> None:
    world = World(1, 5)
    world.members[1].closed = True
    began = _platform.monotonic()
    world.draining.begin(0.05, dry_run=False)
    assert world.closed.wait(60)
    assert began <= world.deadlines[0] <= _platform.monotonic() + 0.05


def test_it_happens_once() -> None:
    world = World()
    for _ in range(3):
        world.draining.begin(60.0, dry_run=False)
    assert world.closed.wait(60)
    assert len(world.deadlines) == 1


def test_one_that_fails_is_noted() -> None:
    world = World()
    world.draining.close = Mock(side_effect=RuntimeError)
    world.draining.begin(60.0, dry_run=False)
    wait_until(lambda: world.guard.failed.called)
