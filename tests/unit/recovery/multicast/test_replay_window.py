"""Each packet of a sender is taken once, in whatever order packets come."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg.recovery.multicast.replay_window import GAPS_MAX, WINDOW_PACKETS, ReplayWindow


def test_a_packet_is_new_once() -> None:
    window = ReplayWindow(5)
    assert not window.is_new(4)
    window.take(5)
    assert not window.is_new(5)
    assert window.is_new(6)


def test_asking_changes_nothing() -> None:
    window = ReplayWindow(0)
    assert window.is_new(1000)
    assert window.is_new(0)
    assert window.next == 0


@pytest.mark.parametrize("seed", range(5))
def test_any_order_takes_each_once(seed: int) -> None:
    rng = Random(seed)
    window = ReplayWindow(0)
    counters = [n for n in range(500) if rng.random() < 0.8] * 2
    rng.shuffle(counters)
    taken = []
    for counter in counters:
        if window.is_new(counter):
            window.take(counter)
            taken.append(counter)
    assert sorted(taken) == sorted(set(counters))


def test_a_run_is_taken_like_its_packets() -> None:
    window = ReplayWindow(0)
    window.take_run(0, 3)
    window.take_run(10, 2)
    assert window.next == 12
    assert [n for n in range(14) if window.is_new(n)] == [*range(3, 10), 12, 13]
    window.take_run(4, 3)
    assert [n for n in range(12) if window.is_new(n)] == [3, 7, 8, 9]


def test_a_gap_is_remembered_no_further_back_than_the_window() -> None:
    window = ReplayWindow(0)
    window.take(10 * WINDOW_PACKETS)
    assert not window.is_new(9 * WINDOW_PACKETS)
    assert window.is_new(9 * WINDOW_PACKETS + 1)


def test_what_far_more_packets_have_overtaken_is_refused() -> None:
    window = ReplayWindow(0)
    window.take(1)
    window.take_run(2, 3 * WINDOW_PACKETS)
    assert window.is_new(0)  # a run in a row does not look back
    window.take(3 * WINDOW_PACKETS + 2)
    assert not window.is_new(0)


def test_gaps_are_bounded_and_the_older_ones_are_forgotten() -> None:
    window = ReplayWindow(0)
    for counter in range(1, 2 * GAPS_MAX + 10, 2):
        window.take(counter)
    assert len(window._missing) <= GAPS_MAX
    assert not window.is_new(0)
    assert window.is_new(2 * GAPS_MAX)
