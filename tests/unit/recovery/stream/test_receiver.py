"""The receiving half of a stream: order, gaps, repair, losses; each number in exactly one place."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

from meshmsg._model.event import Loss
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.stream.loss_detector import NEVER, NackTiming
from meshmsg.recovery.stream.receiver import HINT_GRACE_S, Delivery, StreamReceiver

STREAM = "p/a.**"
TIMING = NackTiming(retry_s=0.2, deadline_s=5.0)


@lru_cache(maxsize=5000)
def frame(first: int, stop: int) -> Frame:
    """Events `first` to `stop`; each payload is the event's number."""
    payloads = [str(seq).encode() for seq in range(first, stop)]
    return Frame(encode_frame(7, 1, first, "a", payloads, 0))


FRAME_BYTES = len(frame(10, 15).data)


def receiver(start: int = 0, *, pending: int = 1 << 20, delay_s: float = 0.0) -> StreamReceiver:
    timing = NackTiming(delay_s=delay_s, retry_s=0.2, deadline_s=5.0)
    return StreamReceiver(STREAM, 1, start, timing=timing, pending_bytes_max=pending)


def told(deliveries: list[Delivery]) -> list[tuple[int, int] | tuple[int, int, str]]:
    """Runs as (first, stop), losses as (first, stop, reason)."""
    out: list[tuple[int, int] | tuple[int, int, str]] = []
    for delivery in deliveries:
        if isinstance(delivery, Loss):
            assert (delivery.stream, delivery.epoch) == (STREAM, 1)
            out.append((delivery.first, delivery.stop, delivery.reason))
        else:
            first = delivery.frame.first
            out.append((first + delivery.lo, first + delivery.hi))
    return out


def feed(to: StreamReceiver, first: int, stop: int, now: float = 0.0, **more: bool) -> list[object]:
    return list(told(to.on_frame(frame(first, stop), now=now, **more)))


# In order --------------------------------------------------------------------------------------


def test_frames_in_order_are_handed_on_as_they_come() -> None:
    it = receiver()
    assert feed(it, 0, 5) == [(0, 5)]
    assert feed(it, 5, 6) == [(5, 6)]
    assert (it.next, it.high, it.missing, it.pending) == (6, 6, 0, 0)
    assert it.deadline() == NEVER
    assert it.on_deadline(now=100.0) == ([], [])


def test_first_frame_is_cut_at_the_start() -> None:
    it = receiver(start=3)
    assert feed(it, 0, 5) == [(3, 5)]
    assert it.missing == 0


def test_frame_wholly_before_the_start_is_a_duplicate() -> None:
    it = receiver(start=5)
    assert feed(it, 0, 5) == []
    assert it.counters["duplicate_frames"] == 1


def test_duplicate_is_counted_and_not_handed_on() -> None:
    it = receiver()
    feed(it, 0, 5)
    assert feed(it, 0, 5) == []
    feed(it, 10, 15)
    assert feed(it, 10, 15) == []
    assert it.counters["duplicate_frames"] == 2


def test_frame_that_overlaps_what_was_handed_on_gives_only_what_is_new() -> None:
    it = receiver()
    feed(it, 0, 5)
    assert feed(it, 3, 8) == [(5, 8)]


# Gaps ------------------------------------------------------------------------------------------


def test_gap_holds_back_what_follows_and_is_asked_for() -> None:
    it = receiver()
    feed(it, 0, 5)
    assert feed(it, 8, 10, now=1.0) == []
    assert (it.next, it.high, it.missing, it.pending) == (5, 10, 3, 1)
    assert it.deadline() == 1.0
    assert it.on_deadline(now=1.0) == ([(5, 8)], [])
    assert (it.request, it.nacks) == (1, 1)


def test_gap_before_the_first_frame_is_found_too() -> None:
    it = receiver()
    feed(it, 8, 10)
    assert it.on_deadline(now=0.0) == ([(0, 8)], [])


def test_gap_is_asked_for_after_the_delay() -> None:
    it = receiver(delay_s=0.5)
    feed(it, 5, 6)
    assert it.on_deadline(now=0.25) == ([], [])
    assert it.on_deadline(now=0.5) == ([(0, 5)], [])


def test_repair_closes_the_gap_and_frees_what_was_held() -> None:
    it = receiver()
    feed(it, 5, 10)
    feed(it, 15, 20)
    assert feed(it, 0, 5, repair=True) == [(0, 5), (5, 10)]
    assert feed(it, 10, 15, repair=True) == [(10, 15), (15, 20)]
    assert (it.missing, it.pending, it.pending_bytes) == (0, 0, 0)
    assert (it.counters["repaired"], it.counters["late"]) == (10, 0)


def test_live_frame_that_is_only_late_closes_the_gap_too() -> None:
    it = receiver(delay_s=0.5)
    feed(it, 5, 10)
    assert feed(it, 0, 5) == [(0, 5), (5, 10)]
    assert it.counters["late"] == 5
    assert it.deadline() == NEVER


def test_repair_may_be_cut_otherwise_than_the_live_frames() -> None:
    it = receiver()
    feed(it, 4, 8)
    feed(it, 12, 16)
    assert feed(it, 2, 6, repair=True) == []
    assert feed(it, 0, 3, repair=True) == [(0, 3), (3, 6), (6, 8)]
    assert feed(it, 5, 14, repair=True) == [(8, 14), (14, 16)]


def test_part_of_a_gap_that_arrives_leaves_the_rest_open() -> None:
    it = receiver()
    feed(it, 9, 10)
    assert feed(it, 3, 5, repair=True) == []
    assert it.on_deadline(now=0.0) == ([(0, 3), (5, 9)], [])
    assert it.missing == 7


def test_answer_to_the_last_request_lets_the_rest_be_asked_for_at_once() -> None:
    it = receiver()
    feed(it, 9, 10)
    it.on_deadline(now=0.0)
    feed(it, 0, 3, repair=True)
    it.on_answered(it.request, now=0.05)
    assert it.deadline() == 0.05
    assert it.on_deadline(now=0.05) == ([(3, 9)], [])


@pytest.mark.parametrize("request_number", [0, 1])
def test_answer_that_goes_on_or_to_an_earlier_request_changes_nothing(request_number: int) -> None:
    it = receiver()
    feed(it, 9, 10)
    it.on_deadline(now=0.0)
    feed(it, 14, 15)
    it.on_deadline(now=0.1)
    feed(it, 0, 3, now=0.15, repair=True)
    it.on_answered(request_number, now=0.15)
    assert it.on_deadline(now=0.15) == ([], [])


# Losses ----------------------------------------------------------------------------------------


def test_gap_without_an_answer_becomes_a_loss_and_frees_what_was_held() -> None:
    it = receiver()
    feed(it, 5, 10)
    now, deliveries = 0.0, []
    while not deliveries:
        now = it.deadline()
        _, deliveries = it.on_deadline(now=now)
    assert now == 5.0
    assert told(deliveries) == [(0, 5, "deadline"), (5, 10)]
    assert it.counters["lost"] == 5


def test_progress_puts_the_deadline_off() -> None:
    it = receiver()
    feed(it, 5, 10)
    for step in range(4):
        it.on_deadline(now=float(step))
        feed(it, step, step + 1, now=float(step), repair=True)
    for tenth in range(30, 80):
        assert it.on_deadline(now=tenth / 10)[1] == []
    assert told(it.on_deadline(now=8.0)[1]) == [(4, 5, "deadline"), (5, 10)]


def test_gone_range_becomes_a_loss_in_its_place() -> None:
    it = receiver()
    feed(it, 0, 2)
    feed(it, 8, 10)
    assert told(it.on_gone([(2, 8)], "overflow", now=0.0)) == [(2, 8, "overflow"), (8, 10)]
    assert it.deadline() == NEVER


def test_loss_behind_an_open_gap_is_told_in_its_turn() -> None:
    it = receiver()
    feed(it, 2, 4)
    feed(it, 6, 8)
    assert it.on_gone([(4, 6)], "overflow", now=0.0) == []
    assert feed(it, 0, 2, repair=True) == [(0, 2), (2, 4), (4, 6, "overflow"), (6, 8)]


def test_gone_touches_only_what_is_missing() -> None:
    it = receiver()
    feed(it, 0, 3)
    feed(it, 5, 8)
    assert told(it.on_gone([(0, 99)], "overflow", now=0.0)) == [(3, 5, "overflow"), (5, 8)]
    assert (it.next, it.high) == (8, 8)


@pytest.mark.parametrize("ranges", [[], [(5, 5)], [(9, 3)], [(0, 2)], [(50, 60)]])
def test_gone_range_that_is_not_missing_changes_nothing(ranges: list[tuple[int, int]]) -> None:
    it = receiver()
    feed(it, 0, 3)
    feed(it, 5, 8)
    assert it.on_gone(ranges, "overflow", now=0.0) == []
    assert it.missing == 2


def test_losses_that_touch_become_one_report_if_their_reason_is_one() -> None:
    it = receiver()
    feed(it, 4, 6)
    feed(it, 8, 9)
    it.on_gone([(6, 7)], "overflow", now=0.0)
    it.on_gone([(7, 8)], "evicted", now=0.0)
    it.on_gone([(2, 4)], "overflow", now=0.0)
    assert told(it.on_gone([(0, 2)], "overflow", now=0.0)) == [
        (0, 4, "overflow"),
        (4, 6),
        (6, 7, "overflow"),
        (7, 8, "evicted"),
        (8, 9),
    ]


def test_what_was_given_up_but_not_yet_told_and_comes_after_all_is_not_lost() -> None:
    it = receiver()
    feed(it, 2, 4)
    feed(it, 9, 10)
    it.on_gone([(4, 9)], "overflow", now=0.0)
    assert feed(it, 5, 7) == []
    assert feed(it, 0, 2, repair=True) == [
        (0, 2),
        (2, 4),
        (4, 5, "overflow"),
        (5, 7),
        (7, 9, "overflow"),
        (9, 10),
    ]
    assert it.counters["lost"] == 3


def test_what_comes_after_its_loss_was_told_is_a_duplicate() -> None:
    it = receiver()
    feed(it, 2, 4)
    it.on_gone([(0, 2)], "overflow", now=0.0)
    assert feed(it, 0, 2, repair=True) == []
    assert it.counters["duplicate_frames"] == 1


def test_end_of_an_epoch_accounts_for_everything_before_it() -> None:
    it = receiver()
    feed(it, 0, 3)
    feed(it, 5, 8)
    assert told(it.on_end(12, "gone", now=0.0)) == [(3, 5, "gone"), (5, 8), (8, 12, "gone")]
    assert (it.next, it.missing, it.pending) == (12, 0, 0)


def test_end_that_is_behind_what_was_heard_changes_nothing() -> None:
    it = receiver()
    feed(it, 0, 3)
    assert it.on_end(2, "gone", now=0.0) == []
    assert it.next == 3


# The tail --------------------------------------------------------------------------------------


def test_lost_tail_is_found_by_a_heartbeat() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_tail(8, now=1.0)
    assert it.on_deadline(now=1.0) == ([(5, 8)], [])
    assert feed(it, 5, 8, now=1.1, repair=True) == [(5, 8)]


def test_heartbeat_that_says_nothing_new_changes_nothing() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_tail(5, now=1.0)
    it.on_tail(3, now=1.0)
    assert (it.missing, it.deadline()) == (0, NEVER)


def test_tail_heard_beside_the_data_is_believed_only_after_a_while() -> None:
    it = receiver()
    it.on_tail_hint(5, now=1.0)
    assert it.deadline() == 1.0 + HINT_GRACE_S
    assert it.on_deadline(now=1.2) == ([], [])
    assert it.missing == 0
    assert it.on_deadline(now=1.25) == ([(0, 5)], [])


def test_tail_heard_beside_the_data_is_not_believed_while_data_waits_unread() -> None:
    it = receiver()
    it.on_tail_hint(5, now=1.0)
    assert it.on_deadline(now=2.0, drained=False) == ([], [])
    assert it.on_deadline(now=2.0, drained=True) == ([(0, 5)], [])


def test_data_that_comes_settles_what_was_heard() -> None:
    it = receiver()
    it.on_tail_hint(5, now=1.0)
    assert feed(it, 0, 5, now=1.1) == [(0, 5)]
    assert it.deadline() == NEVER


def test_data_on_its_way_puts_off_belief() -> None:
    it = receiver()
    it.on_tail_hint(9, now=1.0)
    feed(it, 0, 5, now=1.125)
    assert it.deadline() == 1.125 + HINT_GRACE_S
    assert it.on_deadline(now=1.375) == ([(5, 9)], [])


def test_what_is_missing_before_the_tail_is_settled_first() -> None:
    it = receiver()
    feed(it, 2, 4, now=1.0)
    it.on_deadline(now=1.0)
    it.on_tail_hint(9, now=1.0)
    assert it.on_deadline(now=1.25)[0] == [(0, 2)]
    assert it.high == 4
    feed(it, 0, 2, now=1.3, repair=True)
    assert it.on_deadline(now=1.3 + HINT_GRACE_S) == ([(4, 9)], [])


def test_several_hints_count_from_the_first() -> None:
    it = receiver()
    for tenth in range(3):
        it.on_tail_hint(5 + tenth, now=1.0 + tenth / 10)
    assert it.on_deadline(now=1.25) == ([(0, 7)], [])


# Bounds ----------------------------------------------------------------------------------------


def test_what_is_held_behind_a_gap_is_bounded() -> None:
    it = receiver(pending=3 * FRAME_BYTES)
    for first in range(10, 60, 5):
        feed(it, first, first + 5)
    assert (it.pending, it.pending_bytes) == (3, 3 * FRAME_BYTES)
    assert it.counters["pending_full"] == 7


def test_frames_refused_for_want_of_room_are_asked_for_when_there_is_some() -> None:
    it = receiver(pending=3 * FRAME_BYTES)
    for first in range(10, 60, 5):
        feed(it, first, first + 5)
    assert it.on_deadline(now=0.0) == ([(0, 10)], [])
    assert feed(it, 0, 5, repair=True) == [(0, 5)]
    assert feed(it, 5, 10, now=1.0, repair=True) == [(5, 10), (10, 15), (15, 20), (20, 25)]
    assert it.on_deadline(now=1.0 + HINT_GRACE_S) == ([(25, 60)], [])


def test_frame_that_is_next_is_taken_however_full_it_is() -> None:
    it = receiver(pending=3 * FRAME_BYTES)
    for first in range(10, 60, 5):
        feed(it, first, first + 5)
    assert told(it.on_frame(frame(0, 10), now=0.0, repair=True))[0] == (0, 10)


def test_refused_frames_do_not_grow_the_list_of_gaps() -> None:
    it = receiver(pending=FRAME_BYTES)
    feed(it, 10, 15)
    for first in range(15, 5000, 5):
        feed(it, first, first + 5)
        it.on_deadline(now=0.0)
    assert it.missing == 10
    assert it.nacks == 1


def test_while_held_back_nothing_is_given_up() -> None:
    it = receiver()
    feed(it, 5, 10)
    it.on_deadline(now=0.0)
    for second in range(1, 60):
        it.hold(now=float(second))
    assert it.on_deadline(now=60.0) == ([(0, 5)], [])


# Anything goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_each_number_is_told_once_and_in_order_whatever_comes(first_seed: int) -> None:
    """Frames cut anyhow, in any order, repeated; ranges gone; deadlines passed; a tail; an end."""
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        start, stop = rng.randrange(5), rng.randint(20, 60)
        it = receiver(start, pending=rng.choice((100, 400, 1 << 20)))
        heard: list[Delivery] = []
        now = 0.0
        for _ in range(rng.randint(5, 60)):
            now += rng.choice((0.0, 0.01, 0.3, 3.0))
            first = rng.randrange(stop)
            last = min(stop, first + rng.randint(1, 12))
            match rng.randrange(6):
                case 0 | 1 | 2:
                    heard += it.on_frame(frame(first, last), now=now, repair=rng.random() < 0.5)
                case 3:
                    heard += it.on_gone([(first, last)], "overflow", now=now)
                case 4:
                    heard += it.on_deadline(now=now, drained=rng.random() < 0.5)[1]
                case 5:
                    rng.choice((it.on_tail, it.on_tail_hint))(last, now=now)
                    it.on_answered(rng.choice((0, it.request)), now=now)
            assert it.pending_bytes == sum(len(held.data) for held in it._pending)
            assert it.missing == sum(high - low for low, high in it._detector.ranges())
        heard += it.on_end(stop, "gone", now=now)
        at = start
        for item in told(heard):
            assert item[0] == at, f"seed {seed}"
            assert item[1] > at
            at = item[1]
        assert at == max(start, stop) == it.next
        assert (it.missing, it.pending, it.pending_bytes) == (0, 0, 0)


# What only repair sources say --------------------------------------------------------------------

FAR = 1 << 62


def wait(it: StreamReceiver, now: float, until: float) -> list[object]:
    """Nothing comes for a while; returns what that leads to."""
    found: list[object] = []
    while now < until:
        found += told(it.on_deadline(now=now)[1])
        now += 0.1
    return found


def test_claimed_events_are_asked_for_and_delivered_when_they_come() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_claim(15, now=1.0)
    assert (it.high, it.proved, it.claimed) == (15, 5, [(5, 15)])
    assert it.on_deadline(now=1.0) == ([(5, 15)], [])
    assert feed(it, 5, 10, 1.0, repair=True, lent=True) == [(5, 10)]
    assert (it.proved, it.claimed, it.lent) == (10, [(10, 15)], 10)
    assert feed(it, 10, 15, 1.0, repair=True, lent=True) == [(10, 15)]
    assert (it.high, it.proved, it.missing, it.claimed) == (15, 15, 0, [])


def test_claimed_events_are_never_lost() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_claim(FAR, now=1.0)
    assert it.on_gone([(0, FAR)], "gone", now=1.0) == []
    assert it.on_deadline(now=1.0) == ([(5, FAR)], [])
    assert wait(it, 1.0, 10.0) == []
    assert (it.next, it.high, it.missing) == (5, 5, 0)
    assert feed(it, 5, 10, 10.0) == [(5, 10)]


def test_claimed_events_are_lost_once_whoever_claims_them_has_noted_it() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_claim(15, now=1.0)
    it.on_claim_noted(12)
    assert (it.claimed, it.lent) == ([(12, 15)], 12)
    assert told(it.on_gone([(5, 15)], "corrupt", now=1.0)) == [(5, 12, "corrupt")]
    it.on_claim_noted(15)
    assert (it.claimed, it.lent) == ([], 15)
    assert told(it.on_gone([(5, 15)], "corrupt", now=1.0)) == [(12, 15, "corrupt")]


def test_only_the_proved_part_of_a_gap_is_lost() -> None:
    it = receiver()
    it.on_tail(5, now=0.0)
    it.on_claim(FAR, now=0.0)
    assert told(it.on_gone([(0, FAR)], "gone", now=0.0)) == [(0, 5, "gone")]
    it.on_claim(FAR, now=0.0)
    assert told(it.on_end(7, "gone", now=0.0)) == [(5, 7, "gone")]
    assert (it.next, it.high) == (7, 7)


def test_deadline_loses_the_proved_part_of_a_gap_and_forgets_the_rest() -> None:
    it = receiver()
    it.on_tail(5, now=0.0)
    it.on_claim(FAR, now=0.0)
    assert wait(it, 0.0, 10.0) == [(0, 5, "deadline")]
    assert (it.next, it.high, it.missing) == (5, 5, 0)


def test_gap_that_is_proved_in_part_is_lost_up_to_there() -> None:
    it = receiver()
    it.on_claim(15, now=0.0)
    it.on_tail(8, now=0.0)  # in the middle of what was asked for in one go
    assert wait(it, 0.0, 10.0) == [(0, 8, "deadline")]
    assert (it.next, it.high, it.missing) == (8, 8, 0)


def test_the_publishers_word_ends_a_claim() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_claim(FAR, now=0.0)
    it.on_tail_hint(8, now=0.0)
    assert (it.high, it.missing) == (5, 0)
    it.on_deadline(now=1.0)
    assert (it.high, it.missing) == (8, 3)


def test_live_frame_proves_what_was_claimed_before_it() -> None:
    it = receiver()
    feed(it, 0, 5)
    it.on_claim(FAR, now=0.0)
    assert feed(it, 10, 15) == []
    assert (it.proved, it.claimed) == (15, [(15, FAR)])
    it.retract(now=0.0)
    assert (it.high, it.missing) == (15, 5)
    assert feed(it, 5, 10, repair=True) == [(5, 10), (10, 15)]


def test_lent_frame_is_cut_where_nothing_is_known_of() -> None:
    it = receiver()
    feed(it, 0, 5)
    assert feed(it, 5, 10, repair=True, lent=True) == []
    assert feed(it, FAR, FAR + 5, repair=True, lent=True) == []
    it.on_tail(8, now=0.0)
    assert feed(it, 5, 10, repair=True, lent=True) == [(5, 8)]
    assert (it.next, it.high, it.lent) == (8, 8, 0)
    assert it.counters["unproved_events"] == 12
    assert feed(it, 8, 10) == [(8, 10)]


def test_lent_frames_behind_a_hole_prove_the_hole() -> None:
    """A recorder that has missed events itself has what comes after them."""
    it = receiver()
    it.on_claim(20, now=0.0)
    it.on_deadline(now=0.0)
    assert feed(it, 10, 20, repair=True, lent=True) == []
    assert told(it.on_gone([(0, 10)], "overflow", now=0.0)) == [(0, 10, "overflow"), (10, 20)]


def test_lent_frame_without_room_proves_nothing() -> None:
    it = receiver(pending=10)
    it.on_claim(20, now=0.0)
    assert feed(it, 10, 20, repair=True, lent=True) == []
    assert it.proved == 0
    it.retract(now=0.0)
    assert it.high == 0


def test_range_that_runs_backward_is_empty() -> None:
    it = receiver()
    it.on_tail(100, now=0.0)
    assert it.missing_of([(60, 50)]) == []
    assert it.on_gone([(60, 50)], "gone", now=0.0) == []


def test_number_that_the_publisher_has_not_come_to_is_forgotten_at_its_second_word() -> None:
    it = receiver(delay_s=0.5)
    assert told(it.on_frame(frame(0, 5), now=0.0)) == [(0, 5)]
    it.on_tail(1 << 62, now=0.1)  # a heartbeat that somebody else sent
    assert it.on_word(7, now=0.2) is False  # it may have been sent before the heartbeat
    assert it.on_word(9, now=1.2) is True
    assert (it.high, it.missing) == (9, 4)
    assert told(it.on_frame(frame(5, 12), now=1.3)) == [(5, 12)]
    assert it.on_deadline(now=100.0) == ([], [])


def test_frame_from_far_ahead_that_the_publisher_never_sent_is_dropped() -> None:
    it = receiver(delay_s=0.5)
    it.on_frame(frame(0, 5), now=0.0)
    it.on_frame(frame(8, 10), now=0.0)
    it.on_frame(frame(1 << 40, (1 << 40) + 3), now=0.1)
    it.on_word(10, now=0.2)
    assert it.on_word(10, now=1.2) is True
    assert (it.high, it.missing, it.pending) == (10, 3, 1)
    assert told(it.on_frame(frame(5, 8), now=1.3)) == [(5, 8), (8, 10)]


def test_word_that_is_behind_the_data_changes_nothing() -> None:
    it = receiver(delay_s=0.5)
    it.on_word(0, now=0.0)
    for n in range(5):
        it.on_frame(frame(10 * n, 10 * n + 10), now=n / 10)
        assert it.on_word(10 * n, now=n / 10) is False
    assert (it.next, it.high) == (50, 50)
