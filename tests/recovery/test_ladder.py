"""Whom to ask for what is missing."""

from __future__ import annotations

from meshmsg.recovery.ladder import Ladder

PUBLISHER, ONE, TWO = "publisher", "one", "two"


def test_the_first_source_is_asked_for_everything() -> None:
    assert Ladder().route([(5, 9), (1, 3)], [PUBLISHER, ONE]) == ({PUBLISHER: [(1, 3), (5, 9)]}, [])


def test_what_one_refuses_is_asked_of_the_next() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "overflow")
    asks, left = ladder.route([(3, 9)], [PUBLISHER, ONE, TWO])
    assert asks == {PUBLISHER: [(5, 9)], ONE: [(3, 5)]}
    assert left == []
    ladder.refuse(ONE, [(4, 5)], "gone")
    asks, left = ladder.route([(3, 9)], [PUBLISHER, ONE, TWO])
    assert asks == {PUBLISHER: [(5, 9)], ONE: [(3, 4)], TWO: [(4, 5)]}


def test_what_all_refuse_is_left_with_the_first_reason() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "overflow")
    ladder.refuse(PUBLISHER, [(5, 7)], "expired")
    ladder.refuse(ONE, [(0, 9)], "gone")
    asks, left = ladder.route([(3, 8)], [PUBLISHER, ONE])
    assert asks == {PUBLISHER: [(7, 8)]}
    assert left == [(3, 7)]
    assert ladder.by_reason(left) == {"overflow": [(3, 5)], "expired": [(5, 7)]}


def test_nobody_there_leaves_everything_without_a_reason() -> None:
    ladder = Ladder()
    asks, left = ladder.route([(3, 8)], [])
    assert (asks, left) == ({}, [(3, 8)])
    assert ladder.by_reason(left) == {}


def test_a_source_that_is_not_reached_is_skipped() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5)], "gone")
    assert ladder.route([(0, 5)], [ONE])[1] == [(0, 5)]
    assert ladder.route([(0, 5)], [ONE, PUBLISHER])[0] == {PUBLISHER: [(0, 5)]}


def test_a_source_that_is_back_is_asked_again() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5)], "gone")
    ladder.forget(ONE)
    assert ladder.route([(0, 5)], [ONE]) == ({ONE: [(0, 5)]}, [])


def test_what_is_settled_is_forgotten() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5), (7, 9)], "gone")
    ladder.refuse(ONE, [(8, 8), (9, 3)], "gone")  # nonsense from the network
    ladder.discard_before(8)
    assert ladder.by_reason([(0, 20)]) == {"gone": [(8, 9)]}
    ladder.clear()
    assert ladder.by_reason([(0, 20)]) == {}
    assert ladder.route([(0, 20)], [ONE]) == ({ONE: [(0, 20)]}, [])
