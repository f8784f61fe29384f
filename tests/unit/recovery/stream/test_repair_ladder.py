"""Whom to ask for what is missing."""

from __future__ import annotations

from collections.abc import Hashable

from meshmsg.recovery.stream.repair_ladder import CLAIMED_EPOCHS_MAX, MUTE_S, SLOW_S, Ladder, Range

Routed = tuple[dict[Hashable, list[Range]], list[Range]]
PUBLISHER, ONE, TWO = "publisher", "one", "two"


def test_the_first_source_is_asked_for_everything() -> None:
    assert Ladder().route([(5, 9), (1, 3)], [PUBLISHER], [ONE], proved=100, now=0.0) == (
        {PUBLISHER: [(1, 3), (5, 9)]},
        [],
    )


def test_what_one_refuses_is_asked_of_the_next() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "overflow")
    asks, left = ladder.route([(3, 9)], [PUBLISHER], [ONE, TWO], proved=100, now=0.0)
    assert asks == {PUBLISHER: [(5, 9)], ONE: [(3, 5)]}
    assert left == []
    ladder.refuse(ONE, [(4, 5)], "gone")
    asks, left = ladder.route([(3, 9)], [PUBLISHER], [ONE, TWO], proved=100, now=0.0)
    assert asks == {PUBLISHER: [(5, 9)], ONE: [(3, 4)], TWO: [(4, 5)]}


def test_what_all_refuse_is_left_with_the_first_reason() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "overflow")
    ladder.refuse(PUBLISHER, [(5, 7)], "expired")
    ladder.refuse(ONE, [(0, 9)], "gone")
    asks, left = ladder.route([(3, 8)], [PUBLISHER], [ONE], proved=100, now=0.0)
    assert asks == {PUBLISHER: [(7, 8)]}
    assert left == [(3, 7)]
    assert ladder.by_reason(left) == {"overflow": [(3, 5)], "expired": [(5, 7)]}


def test_nobody_there_leaves_everything_without_a_reason() -> None:
    ladder = Ladder()
    asks, left = ladder.route([(3, 8)], [], [], proved=100, now=0.0)
    assert (asks, left) == ({}, [(3, 8)])
    assert ladder.by_reason(left) == {}


def test_noted_is_the_last_of_which_a_source_has_said_that_it_is_gone() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5)], "corrupt")
    ladder.refuse(TWO, [(5, 9)], "gone")
    assert ladder.noted([(1, 4), (6, 12)]) == 9
    assert ladder.noted([(1, 7)]) == 7
    assert ladder.noted([(9, 12)]) == Ladder().noted([(0, 1)]) == 0


def test_a_source_that_is_not_reached_is_skipped() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5)], "gone")
    assert ladder.route([(0, 5)], [], [ONE], proved=100, now=0.0)[1] == [(0, 5)]
    assert ladder.route([(0, 5)], [PUBLISHER], [ONE], proved=100, now=0.0)[0] == {
        PUBLISHER: [(0, 5)]
    }


def test_a_source_that_is_back_is_asked_again() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5)], "gone")
    ladder.forget(ONE)
    assert ladder.route([(0, 5)], [], [ONE], proved=100, now=0.0) == ({ONE: [(0, 5)]}, [])


def test_what_is_settled_is_forgotten() -> None:
    ladder = Ladder()
    ladder.refuse(ONE, [(0, 5), (7, 9)], "gone")
    ladder.refuse(ONE, [(8, 8), (9, 3)], "gone")  # nonsense from the network
    ladder.discard_before(8)
    assert ladder.by_reason([(0, 20)]) == {"gone": [(8, 9)]}
    ladder.enter(2)
    assert ladder.by_reason([(0, 20)]) == {}
    assert ladder.route([(0, 20)], [], [ONE], proved=100, now=0.0) == ({ONE: [(0, 20)]}, [])


# What recorders claim -----------------------------------------------------------------------------


def route(ladder: Ladder, ranges: list[Range], now: float = 0.0) -> Routed:
    """With everything before 10 proved."""
    return ladder.route(ranges, [PUBLISHER], [ONE, TWO], proved=10, now=now)


def test_claimed_numbers_are_asked_of_who_claims_them() -> None:
    ladder = Ladder()
    ladder.claim(ONE, 0, 15, now=0.0)
    ladder.claim(TWO, 0, 20, now=0.0)
    assert ladder.claimed([ONE]) == 15
    assert ladder.claimed([ONE, TWO]) == 20
    asks, left = route(ladder, [(5, 25)])
    assert asks == {PUBLISHER: [(5, 10)], ONE: [(10, 15)], TWO: [(15, 20)]}
    assert left == [(20, 25)]


def test_claims_are_of_an_epoch() -> None:
    ladder = Ladder()
    ladder.claim(ONE, 1, 15, now=0.0)
    ladder.claim(ONE, 3, 30, now=0.0)
    ladder.enter(3)
    assert ladder.claimed([ONE]) == 30
    ladder.claim(ONE, 1, 99, now=0.0)
    ladder.enter(1)
    assert ladder.claimed([ONE]) == 0


def test_epochs_that_are_claimed_are_bounded() -> None:
    ladder = Ladder()
    for epoch in range(CLAIMED_EPOCHS_MAX + 10):
        ladder.claim(ONE, epoch, 5, now=0.0)
    assert len(ladder._claims) == CLAIMED_EPOCHS_MAX


def test_who_claimed_in_vain_is_not_heard_for_a_while() -> None:
    ladder = Ladder()
    ladder.claim(ONE, 0, 15, now=0.0)
    ladder.claim(TWO, 0, 10, now=0.0)
    ladder.withdraw(10, now=1.0)
    assert ladder.claimed([ONE, TWO]) == 0
    ladder.claim(ONE, 0, 15, now=2.0)
    ladder.claim(TWO, 0, 12, now=2.0)
    assert ladder.claimed([ONE, TWO]) == 12
    ladder.claim(ONE, 0, 15, now=1.0 + MUTE_S)
    assert ladder.claimed([ONE]) == 15


def test_recorder_that_does_not_answer_comes_after_the_others() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 10)], "expired")
    assert route(ladder, [(0, 10)])[0] == {ONE: [(0, 10)]}
    assert route(ladder, [(0, 10)], SLOW_S)[0] == {ONE: [(0, 10)]}
    assert route(ladder, [(0, 10)], SLOW_S)[0] == {TWO: [(0, 10)]}
    # Also for the next gap, until it serves something.
    assert route(ladder, [(3, 10)], 1.0)[0] == {TWO: [(3, 10)]}
    ladder.served(ONE)
    assert route(ladder, [(5, 10)], 1.0)[0] == {ONE: [(5, 10)]}


def test_recorder_that_never_answers_does_not_keep_a_gap_open() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "expired")
    ladder.refuse(TWO, [(0, 9)], "gone")
    now = 0.0
    while route(ladder, [(3, 5), (7, 9)], now)[1] == []:
        assert now < 10 * MUTE_S
        now += 1.0
    assert now >= MUTE_S
    assert ladder.by_reason([(3, 5)]) == {"expired": [(3, 5)]}
    assert ladder.by_reason([(7, 9)]) == {"gone": [(7, 9)]}


def test_time_in_which_nobody_asked_does_not_count_against_a_recorder() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 10)], "expired")
    ladder.refuse(TWO, [(0, 10)], "gone")
    assert route(ladder, [(0, 10)], 0.0)[1] == []
    assert route(ladder, [(0, 10)], 3600.0)[1] == []


def test_recorder_that_comes_again_and_again_keeps_no_gap_open() -> None:
    ladder = Ladder()
    ladder.refuse(PUBLISHER, [(0, 5)], "expired")
    ladder.refuse(TWO, [(0, 5)], "gone")
    now = 0.0
    while route(ladder, [(3, 5)], now)[1] == []:
        ladder.forget(ONE)
        assert now < 10 * MUTE_S
        now += 1.0
