"""What a group can say of one event, and what it cannot say any more."""

from __future__ import annotations

import pytest

from meshmsg.recovery.groups import fates
from meshmsg.recovery.groups.fates import Fate, Outcomes
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer
from tests.support.grouping import frame_of


def group(count: int, *, start: int = 0) -> WorkGroup:
    buffer = RetransmitBuffer(1 << 20)
    buffer.claim(0)
    buffer.append(0, count, frame_of(count).data)
    policy = GroupPolicy(order="none", max_attempts=2)
    made = WorkGroup("g", buffer, start, policy, takes_all=True)
    made.join(1, "worker", 2, 30.0, now=0.0)
    return made


def test_an_event_is_followed_from_line_to_end() -> None:
    made = group(6, start=1)
    assert made.fate(0) == Fate("before")
    assert made.fate(1) == Fate("waits", attempt=1)
    made.dispatch(6, now=0.0)
    assert made.fate(1) == Fate("held", "worker", 1)
    assert made.fate(5) == Fate("waits", attempt=1)
    made.ack(1, [(1, 2, 1)], now=1.0)
    assert made.fate(1) == Fate("settled")
    made.nack(1, 2, 1, 10.0, "no stock", now=1.0)
    assert made.fate(2) == Fate("waits", attempt=2, reason="no stock")
    made.dispatch(6, now=20.0)
    made.ack(1, [(3, 5, 1)], now=20.0)
    made.dispatch(6, now=20.0)
    assert made.fate(2) == Fate("held", "worker", 2)
    made.nack(1, 2, 2, 0.0, "no stock", now=21.0)
    assert made.fate(2) == Fate("dead")


def test_what_fell_out_of_memory_is_lost_with_its_reason() -> None:
    made = group(1)
    made.dispatch(4, now=0.0)
    assert made.fate(2) == Fate("lost", reason="overflow")


def test_what_an_earlier_start_settled_is_known_to_be_over_and_no_more() -> None:
    made = group(6)
    made.restore([(0, 3)], {})
    assert made.fate(1) == Fate("over")
    assert made.fate(4) == Fate("waits", attempt=1)


def test_the_oldest_outcomes_are_forgotten_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "REMEMBERED_MAX", 3)
    outcomes = Outcomes()
    for seq in (1, 3, 5, 7):
        outcomes.note_dead(seq)
    assert [outcomes.of(seq).state for seq in (1, 2, 3, 6)] == [
        "over",
        "settled",
        "dead",
        "settled",
    ]
    outcomes.note_lost(20, 30, "expired")
    assert outcomes.of(25) == Fate("lost", reason="expired")
