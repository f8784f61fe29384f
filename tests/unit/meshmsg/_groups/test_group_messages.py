"""What members say is understood by the group's own numbers, whatever epoch it is of."""

from __future__ import annotations

import pytest

from meshmsg import Stream
from meshmsg._groups.group_messages import (
    failures_on_line,
    had_by,
    on_line,
    policy_of,
    takes_all_of,
)
from meshmsg._wire.control import Claimed, Join, Refusal
from meshmsg.recovery.groups.numbering import Line, Past
from meshmsg.recovery.groups.policy import GroupPolicy
from tests.support.grouping import deal, seat_of
from tests.support.publishing import fill, outlet_of

#: Events 4 to 10 of epoch 2 lie below the first of epoch 3.
LINE = Line(3, 0, [Past(2, 4, 10)])


def test_a_member_asks_for_a_policy() -> None:
    join = Join(1, "g", ["a.*", "b"], [], 10, 30.0, 7, "key")
    assert policy_of(join) == GroupPolicy("key", 7, ("a.*", "b"))


def test_ranges_of_the_current_epoch_are_as_they_are() -> None:
    ranges = [(0, 5, 1), (9, 2, 1)]
    assert on_line(LINE, 3, ranges) is ranges


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ((4, 10, 1), (-6, 0, 1)),
        ((0, 5, 2), (-6, -5, 2)),  # all before 4 is settled
        ((9, 1 << 62, 1), (-1, 0, 1)),
        ((20, 30, 1), None),
        ((8, 5, 1), None),  # backward
    ],
)
def test_ranges_of_an_earlier_epoch_are_cut_to_what_the_group_has(
    said: tuple[int, int, int], found: tuple[int, int, int] | None
) -> None:
    [(first, stop, attempt)] = on_line(LINE, 2, [said])
    if found is None:
        assert first >= stop
    else:
        assert (first, stop, attempt) == found


def test_of_an_epoch_that_nobody_knows_nothing_is_left() -> None:
    [(first, stop, _)] = on_line(LINE, 1, [(0, 100, 1)])
    assert first == stop


def test_refusals_are_placed_or_left_out() -> None:
    nacks = [Refusal(4, 2, 1.5, "bad"), Refusal(3, 1), Refusal(10, 1)]
    [failure] = failures_on_line(LINE, 2, nacks)
    assert (failure.seq, failure.attempt, failure.delay_s, failure.error) == (-6, 2, 1.5, "bad")
    assert [one.seq for one in failures_on_line(LINE, 3, nacks)] == [4, 3, 10]


def test_of_what_a_member_claims_that_is_left_which_it_had() -> None:
    outlet = outlet_of(Stream("a"))
    seat = seat_of(outlet)
    fill(outlet, 10)
    seat.group.join(1, "w", 4, 30.0, now=0.0)
    assert deal(seat) == [(1, seq) for seq in range(4)]
    claim = Claimed(
        outlet.stream,
        outlet.epoch,
        acks=[(0, 1, 1), (7, 8, 1)],
        nacks=[Refusal(1, 1), Refusal(8, 1)],
        held=[(2, 4, 1), (4, 10, 1)],
    )
    left = had_by(seat.group, 1, claim)
    assert left == Claimed(
        outlet.stream, outlet.epoch, acks=[(0, 1, 1)], nacks=[Refusal(1, 1)], held=[(2, 4, 1)]
    )
    assert had_by(seat.group, 2, claim).pieces == 0
    other = Claimed(outlet.stream, outlet.epoch - 1, acks=[(0, 1, 1)])
    assert had_by(seat.group, 1, other) == Claimed(outlet.stream, outlet.epoch - 1)


@pytest.mark.parametrize(
    ("patterns", "topics", "all_of"),
    [
        (("**",), "a.*", True),
        (("a.*", "b"), "a.*", True),
        (("a.*",), "a.b", False),
        ((), "a", False),
    ],
)
def test_topics_are_looked_at_where_a_group_may_not_take_all(
    patterns: tuple[str, ...], topics: str, all_of: bool
) -> None:
    assert takes_all_of(GroupPolicy(patterns=patterns), topics) == all_of
