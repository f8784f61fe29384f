"""What comes again in a group, who is suspected, and what is given up."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.groups.attempts import (
    ERROR_CHARS_MAX,
    LOTS_MAX,
    MEMBERS_NAMED_MAX,
    Revival,
)
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

A, B = 1, 2


def group_with(count: int, *, durable: bool = False, **policy: int) -> WorkGroup:
    buffer = RetransmitBuffer(1_000_000)
    buffer.claim(0)
    buffer.append(0, count, encode_frame(5, 1, 0, "t", [b"x"] * count, 0))
    shelf = Shelf(buffer, Line(1), durable=durable)
    group = WorkGroup("g", buffer, 0, GroupPolicy(**policy), takes_all=True, shelf=shelf)
    group.join(A, "a", 1000, 30.0, now=0)
    group.dispatch(count, now=0)
    return group


def test_a_lost_member_that_held_one_event_has_had_its_attempt() -> None:
    group = group_with(1)
    group.leave(A, "lost", now=1)
    assert group.state()[2] == {0: 2}
    assert group.spared == {}


def test_a_member_that_is_put_out_has_failed_at_nothing() -> None:
    group = group_with(1, max_attempts=1)
    group.leave(A, "evicted", now=1, put_out=True)
    assert (group.state()[2], group.spared, group.dead) == ({0: 2}, {0: 1}, 0)
    group.join(B, "b", 10, 30.0, now=1)
    [(_, work)] = group.dispatch(1, now=1)
    assert work.attempt == 2


def test_a_lost_member_that_held_several_spares_all_and_suspects_each() -> None:
    group = group_with(3)
    group.leave(A, "lost", now=1)
    assert group.state()[2] == {0: 2, 1: 2, 2: 2}
    assert group.spared == {0: 1, 1: 1, 2: 1}
    assert {trouble.lot for trouble in group._trouble.values()} == {1}


def test_lots_are_as_many_as_are_allowed() -> None:
    group = group_with(LOTS_MAX * 3)
    group.leave(A, "lost", now=1)
    assert {trouble.lot for trouble in group._trouble.values()} == {3}


def test_an_event_that_fails_too_often_is_a_dead_letter_and_is_settled() -> None:
    group = group_with(2, max_attempts=2)
    group._fail(0, group.members[A], "refused", "first", 0.0, now=0)
    group._fail(0, group.members[A], "refused", "", 0.0, now=0)
    [letter] = group.dead_letters
    assert (letter.seq, letter.trouble.error, letter.trouble.members) == (0, "first", ["a", "a"])
    assert group.dead == 1
    assert 0 not in group._trouble


def test_errors_and_names_are_kept_within_bounds() -> None:
    group = group_with(1, max_attempts=10 * MEMBERS_NAMED_MAX)
    for _ in range(MEMBERS_NAMED_MAX + 5):
        group._fail(0, group.members[A], "refused", "e" * 10_000, 0.0, now=0)
    trouble = group._trouble[0]
    assert len(trouble.error) == ERROR_CHARS_MAX
    assert len(trouble.members) == MEMBERS_NAMED_MAX


def test_a_delay_is_waited_for_and_the_next_attempt_goes_to_somebody_else() -> None:
    group = group_with(1)
    group.join(B, "b", 10, 30.0, now=0)
    group.nack(A, 0, 1, 5.0, "no", now=1)
    assert group.dispatch(1, now=5.9) == []
    assert group.deadline() == 6.0
    [(number, work)] = group.dispatch(1, now=6.0)
    assert (number, work.attempt) == (B, 2)


@pytest.mark.parametrize("durable", [False, True])
def test_what_cannot_be_read_when_it_is_given_up_is_lost_or_fetched(durable: bool) -> None:
    group = group_with(1, durable=durable, max_attempts=1)
    group.shelf._buffer = RetransmitBuffer(1000)  # it has fallen out
    group._fail(0, group.members[A], "refused", "no", 0.0, now=0)
    assert group.dead_letters == []
    assert list(group.shelf.wanted) == ([(0, 1)] if durable else [])
    assert group.lost == ({} if durable else {"overflow": 1})


def test_a_dead_letter_comes_again_once_with_all_its_attempts() -> None:
    group = group_with(3, max_attempts=2)
    for attempt in (1, 2):
        group.nack(A, 1, attempt, 0.0, "", now=0)
        group.dispatch(3, now=0)
    group.dead_letters.clear()
    group.ack(A, [(0, 1, 1), (2, 3, 1)], now=0)
    assert (group.floor, group.dead, group.acked) == (3, 1, 2)
    letters = [Revival(1, 2, None), Revival(1, 2, None)]  # a crash may have written it twice
    assert group.revive(letters) == 1
    assert (group.floor, group.dead, group.pending(3)) == (1, 0, 1)
    [(member, work)] = group.dispatch(3, now=1)
    assert (member, work.attempt) == (A, 3)
    assert group.ack(A, [(1, 2, 2)], now=1) == 1  # of before: stale
    group.nack(A, 1, 3, 0.0, "", now=1)
    assert not group.dead_letters  # the first of two attempts
    [(_, work)] = group.dispatch(3, now=2)
    assert group.ack(A, [(1, 2, work.attempt)], now=2) == 0
    assert (group.floor, group.acked, group.in_flight, group.pending(3)) == (3, 3, 0, 0)


def test_what_is_not_settled_is_nobodys_dead_letter() -> None:
    group = group_with(3)
    assert group.revive([Revival(1, 2, None), Revival(9, 1, None)]) == 0
    assert (group.in_flight, group.changes) == (3, 0)


def test_a_letter_of_before_the_group_began_keeps_its_account() -> None:
    group = group_with(6)
    group.ack(A, [(0, 6, 1)], now=0)
    later = WorkGroup("g", RetransmitBuffer(1_000), 4, takes_all=True)
    assert later.revive([Revival(1, 1, None), Revival(3, 1, None)]) == 2
    # Events 1 to 4 are the group's now: 2 was done, the two letters wait.
    assert (later.start, later.floor, later.acked, later.pending(4)) == (1, 1, 1, 2)


def test_letters_wait_for_a_member_and_stand_in_line_behind_their_key() -> None:
    group = group_with(4)
    group.ack(A, [(0, 4, 1)], now=0)
    group.set_policy(GroupPolicy("key"), takes_all=True)
    group.leave(A, "left", now=0, in_order=True)
    assert group.revive([Revival(1, 1, "k"), Revival(2, 1, "k")]) == 2
    assert group.dispatch(4, now=0) == []
    assert group.waiting == 2
    group.join(B, "b", 10, 30.0, now=0)
    [(_, work)] = group.dispatch(4, now=0)
    assert work.count == 1  # one event of a key at a time
    group.ack(B, [(1, 2, 2)], now=0)
    [(_, work)] = group.dispatch(4, now=0)
    group.ack(B, [(2, 3, 2)], now=0)
    assert group.floor == 4


def test_a_paused_group_deals_out_nothing_and_hears_what_is_done() -> None:
    group = group_with(3)
    group.paused = True
    group.nack(A, 0, 1, 0.0, "", now=0)
    group.ack(A, [(1, 3, 1)], now=0)
    assert group.dispatch(3, now=1) == []
    assert group.acked == 2
    group.paused = False
    [(_, work)] = group.dispatch(3, now=1)
    assert work.attempt == 2
