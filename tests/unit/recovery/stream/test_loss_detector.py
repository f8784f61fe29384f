"""When a gap is asked for, asked for again, and given up: `now` is moved by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg.recovery.stream.loss_detector import NEVER, LossDetector, NackTiming

AT_ONCE = NackTiming(retry_s=0.2, retry_max_s=2.0, deadline_s=5.0)
NOTHING: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])


def run_until(detector: LossDetector, stop: float) -> list[tuple[float, str, tuple[int, int]]]:
    """Call `on_deadline` when it is due, as a shell does, and note what it says and when."""
    said: list[tuple[float, str, tuple[int, int]]] = []
    while detector.deadline() <= stop:
        now = detector.deadline()
        ask, lost = detector.on_deadline(now=now)
        said += [(round(now, 6), "ask", one) for one in ask]
        said += [(round(now, 6), "lost", one) for one in lost]
    return said


# Asking ----------------------------------------------------------------------------------------


def test_without_gaps_there_is_nothing_to_do() -> None:
    detector = LossDetector(AT_ONCE)
    assert not detector
    assert detector.deadline() == NEVER
    assert detector.on_deadline(now=100.0) == NOTHING


def test_gap_is_asked_for_at_once_without_a_delay() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(3, 7, now=1.0)
    assert detector.deadline() == 1.0
    assert detector.on_deadline(now=1.0) == ([(3, 7)], [])
    assert (detector.missing, detector.nacks, len(detector)) == (4, 1, 1)


def test_gap_is_asked_for_after_the_delay_and_not_before() -> None:
    detector = LossDetector(NackTiming(delay_s=0.5))
    detector.add(3, 7, now=1.0)
    assert detector.on_deadline(now=1.49) == NOTHING
    assert detector.on_deadline(now=1.5) == ([(3, 7)], [])


def test_gap_that_closes_within_the_delay_is_never_asked_for() -> None:
    detector = LossDetector(NackTiming(delay_s=0.5))
    detector.add(3, 7, now=1.0)
    assert detector.arrived(3, 7, now=1.2) == 4
    assert detector.deadline() == NEVER
    assert detector.on_deadline(now=2.0) == NOTHING
    assert detector.nacks == 0


def test_each_repeat_waits_longer_up_to_a_limit() -> None:
    detector = LossDetector(NackTiming(retry_s=0.2, retry_max_s=1.0, deadline_s=10.0))
    detector.add(0, 1, now=0.0)
    asked = [when for when, what, _ in run_until(detector, 9.9) if what == "ask"]
    waits = [round(late - early, 6) for early, late in pairwise(asked)]
    assert waits == [0.2, 0.4, 0.8] + [1.0] * 8


def test_several_gaps_are_asked_for_together_and_in_order() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 2, now=0.0)
    detector.add(5, 6, now=0.0)
    detector.add(9, 12, now=0.0)
    assert detector.on_deadline(now=0.0) == ([(0, 2), (5, 6), (9, 12)], [])


def test_gaps_that_touch_are_asked_for_as_one_range() -> None:
    detector = LossDetector(AT_ONCE)
    for first in range(0, 1000, 2):
        detector.add(first, first + 2, now=0.0)
    detector.add(1001, 1002, now=0.0)
    assert detector.on_deadline(now=0.0, ranges_max=2) == ([(0, 1000), (1001, 1002)], [])


def test_more_gaps_than_fit_one_request_are_asked_for_in_the_next() -> None:
    detector = LossDetector(AT_ONCE)
    for first in range(0, 20, 2):
        detector.add(first, first + 1, now=0.0)
    asked: list[tuple[int, int]] = []
    for _ in range(3):
        assert detector.deadline() <= 0.0
        asked += detector.on_deadline(now=0.0, ranges_max=4)[0]
    assert asked == [(first, first + 1) for first in range(0, 20, 2)]
    assert detector.deadline() > 0.0


def test_gaps_of_different_age_keep_their_own_time() -> None:
    detector = LossDetector(NackTiming(delay_s=0.5, retry_s=1.0))
    detector.add(0, 1, now=0.0)
    detector.add(5, 6, now=0.25)
    assert detector.on_deadline(now=0.5) == ([(0, 1)], [])
    assert detector.on_deadline(now=0.75) == ([(5, 6)], [])


def test_spread_moves_requests_apart_and_stays_in_its_bound() -> None:
    timing = NackTiming(delay_s=0.1, spread_s=0.4)
    dues = []
    for seed in range(50):
        detector = LossDetector(timing, random.Random(seed))
        detector.add(0, 1, now=0.0)
        dues.append(detector.deadline())
    assert len(set(dues)) == 50
    assert all(0.1 <= due <= 0.14 for due in dues)  # nobody else is there to be heard first
    assert LossDetector(timing, random.Random(1))._jitter(0) == pytest.approx(
        random.Random(1).random() * 0.04
    )


def test_new_gap_does_not_inherit_the_time_of_one_that_closed() -> None:
    detector = LossDetector(NackTiming(delay_s=0.5))
    detector.add(0, 1, now=0.0)
    detector.arrived(0, 1, now=0.1)
    detector.add(5, 6, now=10.0)
    assert detector.deadline() == 10.5


# Arrivals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "stop", "found", "left"),
    [
        (10, 20, 10, []),
        (0, 30, 10, []),
        (10, 15, 5, [(15, 20)]),
        (15, 20, 5, [(10, 15)]),
        (12, 14, 2, [(10, 12), (14, 20)]),
        (0, 10, 0, [(10, 20)]),
        (20, 30, 0, [(10, 20)]),
        (15, 40, 5, [(10, 15)]),
    ],
)
def test_what_arrives_is_cut_out_of_its_gap(
    first: int, stop: int, found: int, left: list[tuple[int, int]]
) -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(10, 20, now=0.0)
    assert detector.arrived(first, stop, now=0.0) == found
    assert detector.ranges() == left
    assert detector.missing == 10 - found


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30))
def test_gaps_are_a_set_of_numbers(arrivals: list[tuple[int, int]]) -> None:
    detector = LossDetector(AT_ONCE)
    missing: set[int] = set()
    for first in range(0, 60, 12):
        detector.add(first, first + 9, now=0.0)
        missing |= set(range(first, first + 9))
    for one, two in arrivals:
        first, stop = min(one, two), max(one, two)
        came = missing & set(range(first, stop))
        assert detector.arrived(first, stop, now=0.0) == len(came)
        missing -= came
        assert {n for low, high in detector.ranges() for n in range(low, high)} == missing
        assert detector.missing == len(missing)


def test_gap_found_late_is_put_in_its_place() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(10, 12, now=0.0)
    detector.add(2, 4, now=0.0)
    detector.add(6, 7, now=0.0)
    assert detector.ranges() == [(2, 4), (6, 7), (10, 12)]


# Giving up -------------------------------------------------------------------------------------


def test_gap_without_an_answer_is_lost_at_the_deadline() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(3, 7, now=1.0)
    said = run_until(detector, 100.0)
    assert said[-1] == (6.0, "lost", (3, 7))
    assert [what for _, what, _ in said].count("lost") == 1
    assert (detector.missing, detector.deadline()) == (0, NEVER)


def test_progress_puts_the_deadline_off() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    run_until(detector, 4.0)
    detector.arrived(0, 2, now=4.0)
    assert run_until(detector, 100.0)[-1] == (9.0, "lost", (2, 10))


def test_progress_in_one_gap_is_progress_for_those_that_wait_their_turn() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    detector.add(20, 30, now=0.0)
    for step in range(8):
        run_until(detector, step)
        detector.arrived(step, step + 1, now=float(step))
    lost = [(when, gap) for when, what, gap in run_until(detector, 100.0) if what == "lost"]
    assert lost == [(12.0, (8, 10)), (12.0, (20, 30))]


def test_what_was_not_missing_is_no_progress() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    run_until(detector, 4.0)
    detector.arrived(50, 60, now=4.0)
    assert run_until(detector, 100.0)[-1] == (5.0, "lost", (0, 10))


def test_time_in_which_the_receiver_did_not_run_does_not_count() -> None:
    """A stopped process finds its timers long overdue, and the answers still unread."""
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    assert detector.on_deadline(now=0.0) == ([(0, 10)], [])
    assert detector.on_deadline(now=60.0) == ([(0, 10)], [])
    detector.arrived(0, 10, now=60.1)
    assert detector.on_deadline(now=200.0) == NOTHING


def test_deadline_comes_even_if_every_call_is_late() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    now, lost = 0.0, []
    for _ in range(10):
        now += 7.0
        lost += detector.on_deadline(now=now)[1]
    assert lost == [(0, 10)]


def test_while_held_back_on_purpose_nothing_is_given_up() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    run_until(detector, 1.0)
    for tenth in range(10, 200):
        detector.hold(now=tenth / 10)
    ask, lost = detector.on_deadline(now=20.0)
    assert (ask, lost) == ([(0, 10)], [])
    assert run_until(detector, 100.0)[-1] == (24.9 + 0.1, "lost", (0, 10))


# Asking on -------------------------------------------------------------------------------------


def test_answered_request_is_followed_by_the_next_at_once() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    detector.on_deadline(now=0.0)
    detector.arrived(0, 4, now=0.05)
    assert detector.on_deadline(now=0.05) == NOTHING
    detector.rearm(now=0.05)
    assert detector.deadline() == 0.05
    assert detector.on_deadline(now=0.05) == ([(4, 10)], [])


def test_gap_not_asked_for_yet_keeps_its_delay_when_another_is_answered() -> None:
    detector = LossDetector(NackTiming(delay_s=0.5))
    detector.add(0, 10, now=0.0)
    detector.on_deadline(now=0.5)
    detector.add(20, 30, now=0.5)
    detector.arrived(0, 4, now=0.6)
    detector.rearm(now=0.6)
    assert detector.on_deadline(now=0.6) == ([(4, 10)], [])


def test_answer_that_brought_nothing_is_not_followed_at_once() -> None:
    """Two requests for the same events under way must not become two for ever."""
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    detector.on_deadline(now=0.0)
    detector.on_deadline(now=0.2)  # the first answer is slow
    for _ in range(2):  # both answers come: the same four events
        detector.arrived(0, 4, now=0.3)
        detector.rearm(now=0.3)
    assert detector.on_deadline(now=0.3) == ([(4, 10)], [])
    detector.rearm(now=0.3)
    assert detector.on_deadline(now=0.3) == NOTHING


def test_after_an_answer_repeats_start_short_again() -> None:
    detector = LossDetector(AT_ONCE)
    detector.add(0, 10, now=0.0)
    run_until(detector, 2.0)
    detector.arrived(0, 1, now=2.0)
    detector.rearm(now=2.0)
    asked = [when for when, what, _ in run_until(detector, 2.7) if what == "ask"]
    assert asked == [2.0, 2.2, 2.6]


# With others ------------------------------------------------------------------------------------

SHARED = NackTiming(delay_s=0.001, spread_s=0.002, retry_s=0.02, deadline_s=4.0)


def test_only_what_others_asked_for_is_held_back() -> None:
    detector = LossDetector(SHARED, random.Random(1))
    detector.add(0, 10, now=0.0)
    assert detector.suppress(3, 5, now=0.0) == 2
    assert detector.on_deadline(now=0.01) == ([(0, 3), (5, 10)], [])
    assert detector.missing == 10
    assert detector.suppress(90, 95, now=0.0) == 0


def test_holding_back_for_others_ends_with_a_part_of_the_deadline() -> None:
    detector = LossDetector(SHARED, random.Random(1))
    detector.add(0, 10, now=0.0)
    assert detector.suppress(0, 10, now=1.0) == 10
    assert detector.suppress(0, 10, now=1.001) == 0


def test_gaps_due_within_the_spread_are_asked_for_together() -> None:
    detector = LossDetector(SHARED, random.Random(1))
    detector.in_group_of(2)
    for n in range(0, 20, 2):
        detector.add(n, n + 1, now=n / 100_000)
    asked, _ = detector.on_deadline(now=detector.deadline())
    assert len(asked) >= 8
    assert asked[0] == (0, 1)


def test_gap_after_hundreds_of_tries_is_still_asked_for() -> None:
    detector = LossDetector(NackTiming(retry_s=0.2, retry_max_s=0.2, deadline_s=1e6))
    detector.add(0, 1, now=0.0)
    for _ in range(2000):
        assert detector.on_deadline(now=detector.deadline()) == ([(0, 1)], [])


def test_answers_that_take_long_make_the_waits_longer() -> None:
    timing = NackTiming(retry_s=0.02, retry_growth=1.5, retry_max_s=0.2, learns=True)
    detector = LossDetector(timing)
    now = 0.0
    for n in range(50):  # each answer takes 80 ms
        detector.add(n, n + 1, now=now)
        detector.on_deadline(now=now)
        while detector.deadline() < now + 0.08:
            detector.on_deadline(now=detector.deadline())
        now += 0.08
        detector.arrived(n, n + 1, now=now)
    asked = detector.nacks
    for n in range(50, 60):
        detector.add(n, n + 1, now=now)
        detector.on_deadline(now=now)
        assert 0.08 < detector.deadline() - now <= 0.2
        now += 0.08
        detector.arrived(n, n + 1, now=now)
    assert detector.nacks == asked + 10


def test_answers_of_which_few_are_lost_do_not_make_the_waits_longer() -> None:
    detector = LossDetector(NackTiming(retry_s=0.02, learns=True))
    for n in range(60):
        detector.add(n, n + 1, now=float(n))
        detector.on_deadline(now=float(n))
        detector.arrived(n, n + 1, now=n + (0.001 if n % 3 else 0.5))
    detector.add(60, 61, now=60.0)
    detector.on_deadline(now=60.0)
    assert detector.deadline() == pytest.approx(60.02)


def test_waits_are_not_longer_where_that_was_not_asked_for() -> None:
    detector = LossDetector(NackTiming(retry_s=0.02))
    for n in range(20):
        detector.add(n, n + 1, now=float(n))
        detector.on_deadline(now=float(n))
        detector.arrived(n, n + 1, now=n + 0.5)
    detector.add(20, 21, now=20.0)
    detector.on_deadline(now=20.0)
    assert detector.deadline() == pytest.approx(20.02)


# Many losses -----------------------------------------------------------------------------------


def test_requests_are_apart_by_the_back_off_and_then_ask_for_all_gaps() -> None:
    detector = LossDetector(NackTiming(delay_s=0.001, spread_s=0.01), random.Random(1))
    detector.add(10, 11, now=0.0)
    assert detector.on_deadline(now=0.003)[0] == [(10, 11)]
    for n in range(20, 30, 2):
        detector.add(n, n + 1, now=0.004)
    assert detector.deadline() >= 0.013
    assert detector.on_deadline(now=0.012) == ([], [])
    asked, lost = detector.on_deadline(now=0.02)
    assert asked == [(n, n + 1) for n in range(20, 30, 2)]
    assert lost == []


def test_a_single_loss_after_a_while_is_asked_for_as_soon_as_the_first() -> None:
    detector = LossDetector(NackTiming(delay_s=0.001, spread_s=0.01), random.Random(1))
    for at in (0.0, 1.0, 2.0):
        detector.add(int(at) + 1, int(at) + 2, now=at)
        assert detector.deadline() <= at + 0.002 + 1e-9
        asked, _ = detector.on_deadline(now=at + 0.003)
        assert asked == [(int(at) + 1, int(at) + 2)]
        detector.arrived(int(at) + 1, int(at) + 2, now=at + 0.004)


def test_what_is_asked_for_together_with_others_is_still_given_up_in_time() -> None:
    detector = LossDetector(NackTiming(spread_s=0.01, deadline_s=0.005), random.Random(1))
    detector.add(1, 2, now=0.0)
    assert detector.on_deadline(now=0.002)[0] == [(1, 2)]
    assert detector.on_deadline(now=0.006) == ([], [])
    assert detector.on_deadline(now=0.03)[1] == [(1, 2)]
