"""What becomes of deliveries: the schedule, throttling, the end; no sockets."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg.webhooks.retry import (
    JITTER,
    RETRY_AFTER_MAX_S,
    SCHEDULE_S,
    Alarms,
    Answer,
    Lane,
    Verdict,
    judge,
    retry_after_s,
)

NOW = 1_700_000_000.0


def verdict(answer: Answer, attempts: int = 0) -> Verdict:
    return judge(answer, attempts, SCHEDULE_S, now=NOW, rng=Random(1))


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success_is_delivered(status: int) -> None:
    assert verdict(Answer(status)) == Verdict("delivered", 1)


@pytest.mark.parametrize("status", [301, 302, 400, 404, 500, None])
def test_failure_is_tried_again_on_the_schedule_with_jitter(status: int | None) -> None:
    for attempts in range(len(SCHEDULE_S) - 1):
        found = verdict(Answer(status, error="no"), attempts)
        wait = SCHEDULE_S[attempts + 1]
        assert (found.word, found.attempts) == ("retry", attempts + 1)
        assert wait <= found.due - NOW <= wait * (1 + JITTER)
        assert found.hold_until == 0


def test_jitter_differs() -> None:
    rng = Random(2)
    dues = {judge(Answer(500), 1, SCHEDULE_S, now=NOW, rng=rng).due for _ in range(20)}
    assert len(dues) == 20


def test_the_last_attempt_is_the_end() -> None:
    found = verdict(Answer(500), len(SCHEDULE_S) - 1)
    assert (found.word, found.attempts, found.reason) == ("dead", len(SCHEDULE_S), "status 500")


def test_peace_is_kept_though_the_one_that_asked_is_dead() -> None:
    last = len(SCHEDULE_S) - 1
    answer = Answer(503, retry_after="120")
    found = judge(answer, last, SCHEDULE_S, now=NOW, rng=Random(1), patient=False)
    assert (found.word, found.hold_until) == ("dead", NOW + 120)


def test_an_alarm_that_is_set_again_and_again_is_one() -> None:
    alarms = Alarms()
    for _ in range(1000):  # an event came, and the endpoint waits for tomorrow
        alarms.ring(NOW + 86_400, "slow")
    alarms.ring(NOW + 1, "fast")
    assert len(alarms) == 2
    assert alarms.wait_s(5.0, now=NOW) == 1.0
    assert alarms.due(now=NOW + 0.5) == set()
    assert alarms.due(now=NOW + 1) == {"fast"}
    assert alarms.wait_s(5.0, now=NOW + 1) == 5.0
    assert alarms.due(now=NOW + 86_400) == {"slow"}
    assert alarms.wait_s(5.0, now=NOW) == 5.0


def test_gone_is_gone_at_once() -> None:
    assert verdict(Answer(410)).word == "gone"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_holds_the_whole_endpoint(status: int) -> None:
    for attempts in (0, 2, len(SCHEDULE_S) - 1):
        found = verdict(Answer(status, retry_after="120"), attempts)
        assert (found.word, found.attempts) == ("retry", attempts), "it costs no attempt"
        assert (found.due, found.hold_until) == (NOW + 120, NOW + 120)
    soon = verdict(Answer(status, retry_after="0"))
    assert soon.due == NOW + 1, "and yet not in a loop"


def test_throttled_without_a_time_holds_for_a_moment() -> None:
    assert verdict(Answer(429)).hold_until > NOW
    assert verdict(Answer(502)).hold_until == 0


def test_a_failure_of_this_side_does_not_count() -> None:
    found = verdict(Answer(error="too many open files", local=True), 3)
    assert (found.word, found.attempts) == ("retry", 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("999999999999", RETRY_AFTER_MAX_S),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60),
        ("Tue, 14 Nov 2000 22:14:20 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
        ("", None),
        (None, None),
        ("Tue, 99 Nov 2023 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, now=NOW) == seconds


def test_a_lane_has_room_for_its_concurrency_and_one_where_order_holds() -> None:
    lane = Lane("none", 2)
    assert lane.room(now=0) == 2
    lane.begin([1])
    lane.begin([2, 3])
    assert (lane.room(now=0), lane.in_flight) == (0, {1, 2, 3})
    lane.end([2, 3], Verdict("delivered", 1), now=NOW)
    assert (lane.room(now=0), lane.in_flight) == (1, {1})
    assert Lane("all", 10).room(now=0) == 1


def test_a_failing_lane_gets_one_request_until_one_succeeds() -> None:
    lane = Lane("none", 8)
    for n in range(3):
        lane.begin([n])
        lane.end([n], Verdict("retry", 1), now=NOW)
    assert lane.room(now=0) == 1
    lane.begin([9])
    lane.end([9], Verdict("delivered", 1), now=NOW)
    assert lane.room(now=0) == 8


def test_a_held_lane_has_no_room_until_then() -> None:
    lane = Lane("none", 8)
    lane.begin([1])
    lane.end([1], Verdict("retry", 1, due=20.0, hold_until=20.0), now=NOW)
    assert (lane.room(now=19.9), lane.room(now=20.0)) == (0, 8)


THROTTLED = Verdict("retry", 0, hold_until=NOW)


def test_patience_with_an_endpoint_that_only_puts_off_has_an_end() -> None:
    lane, later = Lane("none", 1), NOW + RETRY_AFTER_MAX_S
    assert lane.is_patient((0.0, 5.0), now=NOW)
    lane.end([1], THROTTLED, now=NOW)
    assert lane.is_patient((0.0, 5.0), now=later - 1)
    assert not lane.is_patient((0.0, 5.0), now=later)
    assert lane.is_patient(SCHEDULE_S, now=later)
    lane.end([1], Verdict("retry", 1), now=later)  # it failed in another way
    assert lane.is_patient((0.0, 5.0), now=later)


def end(lane: Lane, word: str, now: float) -> bool:
    return lane.end([], Verdict(word, 1), now=now)


def test_the_first_success_after_an_outage_wakes_what_waits() -> None:
    lane = Lane("none", 4)
    assert not end(lane, "delivered", NOW)
    for n in range(4):
        end(lane, "retry", NOW + n)
    assert end(lane, "delivered", NOW + 120)
    assert not end(lane, "delivered", NOW + 121)


def test_an_endpoint_that_is_not_away_wakes_nothing() -> None:
    lane = Lane("none", 4)
    for n in range(100):  # it takes one of four, or each but one
        for _ in range(3):
            end(lane, "retry", NOW + n / 10)
        assert not end(lane, "delivered", NOW + n / 10)
        end(lane, "retry", NOW + n * 100)
        assert not end(lane, "delivered", NOW + n * 100 + 50)


def test_outages_that_follow_each_other_wake_at_most_every_five_minutes() -> None:
    lane = Lane("none", 4)
    woken = 0
    for n in range(60):
        for _ in range(3):
            end(lane, "retry", NOW + n * 60)
        woken += end(lane, "delivered", NOW + n * 60 + 30)
    assert woken == 12
