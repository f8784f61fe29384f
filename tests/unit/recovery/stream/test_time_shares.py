"""Budgets of a thread's time: who has used one up waits, by turns, and nobody else does."""

from __future__ import annotations

import pytest

from meshmsg.recovery.stream import time_shares
from meshmsg.recovery.stream.time_shares import (
    BURST_S,
    MESSAGE_S,
    NEVER,
    SHARE,
    TimeBudget,
    TimeShares,
)

Shares = TimeShares[str, str]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_shares, "MESSAGE_S", 0.0)


def spent(shares: Shares, *owners: str, now: float = 100.0) -> None:
    for owner in owners:
        shares.spend(owner, 2 * BURST_S, now=now)


def test_a_budget_lasts_for_a_burst_and_fills_by_its_share() -> None:
    budget = TimeBudget()
    budget.spend(BURST_S / 2, now=100.0)
    budget.spend(BURST_S / 2, now=100.0)
    assert budget.due <= 100.0
    budget.spend(0.1, now=100.0)
    assert budget.due == pytest.approx(100.0 + 0.1 / SHARE)
    assert not budget.is_full(now=100.0 + 0.1 / SHARE)
    assert budget.is_full(now=100.0 + (0.1 + BURST_S) / SHARE + 1e-6)


def test_a_long_rest_gives_no_more_than_a_burst() -> None:
    budget = TimeBudget()
    budget.spend(0.001, now=1.0)
    budget.spend(2 * BURST_S, now=1000.0)
    assert budget.due == pytest.approx(1000.0 + BURST_S / SHARE)


def test_each_message_costs_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_shares, "MESSAGE_S", MESSAGE_S)
    budget = TimeBudget()
    for _ in range(int(BURST_S / MESSAGE_S) + 1):
        budget.spend(0.0, now=100.0)
    assert budget.due > 100.0


def test_whoever_has_time_does_not_wait() -> None:
    shares = Shares()
    spent(shares, "greedy")
    assert shares.must_wait(b"1", "greedy", now=100.0)
    assert not shares.must_wait(b"2", "modest", now=100.0)
    assert not shares.must_wait(b"1", "greedy", now=100.0 + BURST_S / SHARE)


def test_what_waits_comes_in_order_and_by_turns() -> None:
    shares = Shares()
    spent(shares, "a", "b")
    for text in ("a1", "a2", "a3", "b1", "b2"):
        assert shares.put(text[0].encode(), text[0], text, 1) is None
    assert shares.take(now=100.0) is None
    later = shares.due()
    assert later == pytest.approx(100.0 + BURST_S / SHARE)
    assert shares.must_wait(b"a", "a", now=later)  # behind what it said before
    assert [shares.take(now=later) for _ in range(6)] == ["a1", "b1", "a2", "b2", "a3", None]
    assert shares.due() == NEVER
    assert not shares.must_wait(b"a", "a", now=later)


def test_one_whose_time_has_not_come_holds_up_nobody() -> None:
    shares = Shares()
    spent(shares, "a", "b")
    shares.put(b"a", "a", "a1", 1)
    shares.put(b"b", "b", "b1", 1)
    later = shares.due()
    shares.spend("a", 1.0, now=later)
    assert [shares.take(now=later) for _ in range(2)] == ["b1", None]
    assert shares.due() > later


@pytest.mark.parametrize(("bound", "value"), [("WAITING_MAX", 3), ("WAITING_BYTES_MAX", 30)])
def test_a_connection_of_which_too_much_waits_is_named_and_forgotten(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_shares, bound, value)
    shares = Shares()
    spent(shares, "a", "b")
    shares.put(b"b", "b", "b1", 10)
    assert [shares.put(b"a", "a", f"a{n}", 10) for n in range(4)] == [None, None, None, "a3"]
    later = shares.due()
    assert [shares.take(now=later) for _ in range(2)] == ["b1", None]


def test_of_all_together_the_one_with_most_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_shares, "WAITING_TOTAL_BYTES_MAX", 100)
    shares = Shares()
    spent(shares, "a", "b")
    assert shares.put(b"a", "a", "a1", 60) is None
    assert shares.put(b"b", "b", "b1", 30) is None
    assert shares.put(b"b", "b", "b2", 20) == "a1"
    assert [shares.take(now=shares.due()) for _ in range(3)] == ["b1", "b2", None]
    assert shares.put(b"a", "a", "a2", 100) is None  # what was taken is not counted any more


def test_what_waits_of_a_connection_that_is_gone_goes_with_it() -> None:
    shares = Shares()
    spent(shares, "a")
    shares.put(b"1", "a", "x", 1)
    shares.forget(b"1")
    assert len(shares) == 0
    assert shares.take(now=shares.due()) is None


def test_budgets_of_those_who_owe_nothing_are_forgotten() -> None:
    shares = Shares()
    spent(shares, "a", "b")
    shares.put(b"b", "b", "b1", 1)
    shares.sweep(now=100.0)
    assert set(shares._budgets) == {"a", "b"}
    shares.sweep(now=1000.0)
    assert set(shares._budgets) == {"b"}  # of whom something waits
    assert shares.take(now=1000.0) == "b1"
    shares.sweep(now=1000.0)
    assert not shares._budgets
