"""A token bucket: `now` is moved by hand."""

from __future__ import annotations

import pytest

from meshmsg.recovery.multicast.pacing import BURST_BYTES_MIN, BURST_S, TokenBucket


def test_without_a_rate_all_may_pass() -> None:
    bucket = TokenBucket(None)
    bucket.spend(1 << 40, now=1.0)
    assert bucket.ready_at(now=1.0) == 1.0


def test_burst_leaves_whole_and_its_debt_is_waited_for() -> None:
    bucket = TokenBucket(1000.0, burst_bytes=100)
    assert bucket.ready_at(now=5.0) == 5.0
    bucket.spend(600, now=5.0)
    assert bucket.ready_at(now=5.0) == pytest.approx(5.5)
    assert bucket.ready_at(now=5.4) == pytest.approx(5.5)
    assert bucket.ready_at(now=5.51) == 5.51


def test_it_is_ready_at_the_time_it_said() -> None:
    bucket = TokenBucket(3.0, burst_bytes=1)
    now = 0.1
    for _ in range(100):
        assert bucket.ready_at(now=now) == now
        bucket.spend(7, now=now)
        now = bucket.ready_at(now=now)


def test_no_more_is_saved_up_than_a_burst() -> None:
    bucket = TokenBucket(1000.0, burst_bytes=100)
    assert bucket.ready_at(now=0.0) == 0.0
    assert bucket.ready_at(now=1000.0) == 1000.0
    bucket.spend(200, now=1000.0)
    assert bucket.ready_at(now=1000.0) == pytest.approx(1000.1)


@pytest.mark.parametrize(("rate", "burst"), [(1.0, BURST_BYTES_MIN), (1e9, 1e9 * BURST_S)])
def test_burst_follows_the_rate_but_is_one_call_at_least(rate: float, burst: float) -> None:
    bucket = TokenBucket(rate)
    assert bucket.ready_at(now=0.0) == 0.0
    bucket.spend(int(burst) - 1, now=0.0)
    assert bucket.ready_at(now=0.0) == 0.0
    bucket.spend(1, now=0.0)
    assert bucket.ready_at(now=0.0) > 0.0


def test_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1000.0, burst_bytes=100)
    bucket.ready_at(now=10.0)
    bucket.spend(200, now=10.0)
    assert bucket.ready_at(now=9.0) > 9.0
    assert bucket.ready_at(now=10.0) == pytest.approx(10.1)


def test_rate_holds_over_time() -> None:
    bucket = TokenBucket(10_000.0, burst_bytes=500)
    now, sent = 0.0, 0
    while now < 10.0:
        now = bucket.ready_at(now=now)
        bucket.spend(300, now=now)
        sent += 300
    assert sent == pytest.approx(100_000, rel=0.02)
