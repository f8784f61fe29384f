"""What a member of a group may speak of: each event once, under its attempt, and within bounds."""

from __future__ import annotations

import pytest

from meshmsg.recovery.groups import trust as module
from meshmsg.recovery.groups.trust import Departed, Trust, by_attempt
from meshmsg.recovery.stream.ranges import RangeSet


def test_event_is_spoken_of_once() -> None:
    trust = Trust(held=[(0, 10, 1)])
    assert trust.take(RangeSet([(2, 4)]), 1) == [(2, 4)]
    assert trust.take(RangeSet([(0, 10)]), 1) == [(0, 2), (4, 10)]
    assert trust.take(RangeSet([(0, 10)]), 1) == []
    awaited = Trust([(0, 10)])
    assert awaited.take(RangeSet([(0, 10)]), 3) == [(0, 10)]
    assert awaited.take(RangeSet([(0, 10)]), 2) == []


def test_attempts_that_are_told_apart_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    found = by_attempt([(0, 1, 5), (1, 2, 6), (2, 3, 7), (3, 4, 6)])
    assert [(attempt, list(ranges)) for attempt, ranges in found] == [
        (6, [(1, 2), (3, 4)]),
        (5, [(0, 1)]),
    ]


def test_of_members_that_are_gone_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES_MAX", 3)
    departed = Departed()
    for number in range(3):
        departed.add(number, [(0, 1, 1), (5, 6, 2)])
    assert [departed.events(number).count for number in range(3)] == [0, 0, 2]
    assert departed.take(2).take(RangeSet([(0, 9)]), 2) == [(5, 6)]
    assert not departed.events(2)
