"""One member of a group: its credit, what it holds, and when its time is up."""

from __future__ import annotations

import pytest

from meshmsg.recovery.groups.member import APART_S, LEASES_SLACK, GroupMember
from meshmsg.recovery.stream.loss_detector import NEVER


def member(prefetch: int = 10, ack_timeout_s: float = 30.0, number: int = 1) -> GroupMember:
    return GroupMember(number, f"m{number}", prefetch, ack_timeout_s, now=0.0)


def lent(one: GroupMember, first: int, stop: int, *, now: float) -> None:
    one.hold(first, stop, 1)
    one.lend(range(first, stop), now=now)


def test_credit_shrinks_by_what_is_held_and_grows_by_what_is_released() -> None:
    one = member(prefetch=10)
    one.hold(0, 4, 1)
    one.hold(7, 8, 3)
    assert (one.in_flight, one.free) == (5, 5)
    assert one.release(2, 9, 1) == [(2, 4)]
    assert one.release(7, 8, 3) == [(7, 8)]
    assert one.holdings() == [(0, 2, 1)]


@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_only_the_attempt_under_which_an_event_is_held_releases_it(attempt: int) -> None:
    one = member()
    one.hold(5, 6, 3)
    assert one.release(0, 100, attempt) == []
    assert one.attempt_of(5) == 3
    assert one.attempt_of(6) == 0


def test_a_range_that_runs_backward_releases_nothing() -> None:
    one = member()
    one.hold(0, 10, 1)
    assert one.release(8, 2, 1) == []
    assert one.in_flight == 10


def test_a_lease_is_overdue_when_nothing_was_settled_for_the_timeout() -> None:
    one = member(ack_timeout_s=30)
    lent(one, 0, 2, now=0)
    lent(one, 2, 4, now=10)
    assert one.deadline() == 30
    assert one.overdue(now=29.9) == []
    one.release(0, 1, 1)
    one.note_settled(1, now=20)
    assert one.deadline() == 50
    assert one.overdue(now=30) == []
    assert one.overdue(now=50) == [1, 2, 3]
    assert one.overdue(now=51) == []


def test_a_lease_that_must_have_begun_runs_out_although_others_are_settled() -> None:
    one = member(prefetch=2, ack_timeout_s=30)
    lent(one, 0, 1, now=0)
    for n in range(1, 4):
        lent(one, n, n + 1, now=n)
        one.release(n, n + 1, 1)
        one.note_settled(1, now=n)
    assert one.overdue(now=5) == []  # known to have begun from here on
    one.note_settled(1, now=34)
    assert one.overdue(now=34.9) == []
    assert one.overdue(now=35) == [0]


def test_without_leases_there_is_no_deadline() -> None:
    one = member()
    assert one.deadline() == NEVER
    lent(one, 0, 3, now=0)
    one.release(0, 3, 1)
    assert one.deadline() == NEVER


def test_a_lease_speaks_only_of_the_attempt_under_which_it_was_sent() -> None:
    one = member(ack_timeout_s=30)
    lent(one, 0, 1, now=0)
    one.release(0, 1, 1)
    one.hold(0, 1, 2)
    one.lend([0], [2], now=20)
    assert one.overdue(now=30) == []
    assert one.overdue(now=50) == [0]


def test_leases_that_hold_nothing_are_thrown_out() -> None:
    one = member(prefetch=1)
    lent(one, 0, 1, now=0)
    for n in range(1, 3 * LEASES_SLACK):
        lent(one, n, n + 1, now=n)
        one.release(n, n + 1, 1)
    assert len(one._leases) <= LEASES_SLACK + 2
    assert one.overdue(now=1e9) == [0]


def test_what_was_sent_after_the_last_receipt_is_told() -> None:
    one = member()
    lent(one, 0, 4, now=0)
    lent(one, 4, 6, now=0)
    one.hold(9, 10, 2)
    one.lend([9], [2], now=0)
    assert one.unreceived(4) == [(4, 6, 1), (9, 10, 2)]
    assert one.unreceived(5) == [(9, 10, 2)]
    assert one.unreceived(7) == []


def test_what_it_had_before_it_joined_was_not_sent_now() -> None:
    one = member(ack_timeout_s=30)
    one.regain(range(3, 5), 1, now=5)
    one.regain(range(7, 8), 4, now=5)
    assert one.holdings() == [(3, 5, 1), (7, 8, 4)]
    assert one.unreceived(0) == []
    assert one.overdue(now=35) == [3, 4, 7]


def test_a_suspect_waits_until_its_member_is_empty_but_not_for_ever() -> None:
    one = member(prefetch=3)
    assert one.may_try(1, now=0)
    one.hold(0, 1, 1)
    assert not one.may_try(1, now=0)
    assert one.free == 0  # it gets nothing else meanwhile
    assert not one.may_try(1, now=APART_S - 0.01)
    assert one.may_try(1, now=APART_S)
    one.hold(1, 3, 1)
    assert not one.may_try(1, now=APART_S)


def test_a_lot_is_as_small_as_its_smallest_event_asks() -> None:
    one = member()
    for seq in (1, 2):
        one.hold(seq, seq + 1, 2)
        one.try_apart(seq, 3, now=0)
    assert one.may_try(3, now=0)
    assert not one.may_try(2, now=0)
    one.release(1, 2, 2)
    assert one.lot == {2}
    assert one.may_try(2, now=0)


def test_the_better_member_is_another_one_then_the_freer_then_the_longer_idle() -> None:
    one, other = member(number=1), member(number=2)
    assert one.is_better(other, avoid=2)
    assert not one.is_better(other, avoid=1)
    other.hold(0, 1, 1)
    assert one.is_better(other, avoid=-1)
    one.hold(1, 2, 1)
    other.served_at = 5.0
    assert one.is_better(other, avoid=-1)
    assert not other.is_better(one, avoid=-1)


def test_a_piece_is_a_part_of_the_credit_and_never_nothing() -> None:
    one = member(prefetch=1)
    assert one.piece == 1
    one.change(100, 5.0)
    assert (one.piece, one.ack_timeout_s) == (25, 5.0)
