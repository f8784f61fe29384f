"""What comes again in a group, who is suspected, and what is given up."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.groups.attempts import ERROR_CHARS_MAX, LOTS_MAX, MEMBERS_NAMED_MAX
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
