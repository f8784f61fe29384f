"""What members of a group must agree on, and the history of an event."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.groups.policy import DeadLetter, GroupPolicy, Trouble


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GroupPolicy("key", 5, ("a", "b")), "order='key', and the group has order='none'"),
        (GroupPolicy("none", 3, ("a", "b")), "max_attempts=3, and the group has max_attempts=5"),
        (GroupPolicy("none", 5, ("a",)), "the topics a, and the group has a b"),
    ],
)
def test_a_difference_names_both_values(other: GroupPolicy, words: str) -> None:
    assert GroupPolicy("none", 5, ("a", "b")).difference(other) == words


def test_the_order_of_patterns_is_no_difference() -> None:
    one, other = GroupPolicy(patterns=("a", "b")), GroupPolicy(patterns=("b", "a"))
    assert one.difference(other) == ""


def test_a_spared_attempt_is_a_new_one_that_does_not_count() -> None:
    trouble = Trouble(attempt=3)
    trouble.spare()
    assert (trouble.attempt, trouble.spared, trouble.counted) == (4, 1, 3)


def test_a_dead_letter_has_the_number_of_its_place_in_the_frame() -> None:
    frame = Frame(encode_frame(5, 7, 40, "t", [b"a", b"b", b"c"], 0))
    assert DeadLetter(frame, 2, Trouble()).seq == 42
