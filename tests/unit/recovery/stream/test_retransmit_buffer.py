"""What a publisher keeps: bounds, both policies of letting go, and answers to requests."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

ALL = 1 << 60


def filled(
    frames: int, *, size: int = 10, events: int = 5, ring: int = 1000, backlog: int = 0
) -> RetransmitBuffer:
    """Frames of five events each, numbered from 0; every frame's bytes tell which it is."""
    buffer = RetransmitBuffer(ring, backlog)
    add(buffer, frames, size=size, events=events)
    return buffer


def add(buffer: RetransmitBuffer, frames: int, *, size: int = 10, events: int = 5) -> None:
    done = buffer.total_bytes // size
    for n in range(done, done + frames):
        buffer.append(n * events, (n + 1) * events, bytes([n % 256]) * size)


def names(frames: list[bytes]) -> list[int]:
    return [frame[0] for frame in frames]


# Keeping ---------------------------------------------------------------------------------------


def test_empty_buffer_has_nothing() -> None:
    buffer = RetransmitBuffer(100)
    assert (buffer.bytes, buffer.first, buffer.bytes_since(0)) == (0, None, 0)
    assert buffer.find([(0, 5)], stop=0, bytes_max=ALL) == ([], [], True)


def test_oldest_frames_leave_when_the_ring_is_full() -> None:
    buffer = filled(15, ring=100)
    assert (buffer.bytes, buffer.first) == (100, 25)
    assert (buffer.discarded, buffer.discarded_claimed) == (25, 0)


def test_one_frame_is_kept_however_large() -> None:
    buffer = RetransmitBuffer(100)
    buffer.append(0, 5, b"x" * 10)
    buffer.append(5, 6, b"y" * 1000)
    assert (buffer.first, buffer.bytes) == (5, 1000)


def test_events_that_somebody_waited_for_are_counted_when_they_leave() -> None:
    buffer = RetransmitBuffer(100)
    buffer.claim(12)
    add(buffer, 15)
    assert (buffer.discarded, buffer.discarded_claimed) == (25, 13)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 200))
def test_bytes_are_those_of_the_frames_held(sizes: list[int], ring: int) -> None:
    buffer = RetransmitBuffer(ring)
    for n, size in enumerate(sizes):
        buffer.append(n, n + 1, b"x" * size)
        held, gone, whole = buffer.find([(0, n + 1)], stop=n + 1, bytes_max=ALL)
        assert whole
        assert buffer.bytes == sum(map(len, held))
        assert buffer.bytes <= max(ring, size)
        assert buffer.first == n + 1 - len(held)
        assert gone == ([(0, buffer.first)] if buffer.first else [])


def test_long_life_does_not_grow_the_buffer() -> None:
    buffer = filled(20_000, ring=100)
    assert len(buffer._ring._firsts) < 5000
    assert buffer.first == 20_000 * 5 - 50


# Answers ---------------------------------------------------------------------------------------


def test_frames_that_overlap_a_range_are_found() -> None:
    buffer = filled(6)
    assert names(buffer.find([(7, 16)], stop=30, bytes_max=ALL)[0]) == [1, 2, 3]
    assert names(buffer.find([(5, 10)], stop=30, bytes_max=ALL)[0]) == [1]
    assert names(buffer.find([(9, 10), (29, 30)], stop=30, bytes_max=ALL)[0]) == [1, 5]


def test_what_has_left_is_gone_and_what_is_to_come_is_not() -> None:
    buffer = filled(15, ring=100)
    frames, gone, whole = buffer.find([(3, 30), (70, 99)], stop=75, bytes_max=ALL)
    assert names(frames) == [5, 14]
    assert gone == [(3, 25)]
    assert whole


def test_range_wholly_in_the_future_is_left_unanswered() -> None:
    assert filled(3).find([(15, 99)], stop=15, bytes_max=ALL) == ([], [], True)


def test_frame_that_two_ranges_touch_is_sent_once() -> None:
    assert names(filled(3).find([(5, 6), (8, 9)], stop=15, bytes_max=ALL)[0]) == [1]


def test_overlapping_and_repeated_ranges_are_answered_once() -> None:
    buffer = filled(15, ring=100)
    ranges = [(30, 40), (20, 33), (30, 40), (0, 5), (0, 5)]
    frames, gone, _ = buffer.find(ranges, stop=75, bytes_max=ALL)
    assert names(frames) == [5, 6, 7]
    assert gone == [(0, 5), (20, 25)]


def test_answer_stops_at_the_limit_and_says_so() -> None:
    buffer = filled(6)
    frames, _, whole = buffer.find([(0, 30)], stop=30, bytes_max=25)
    assert (names(frames), whole) == ([0, 1], False)


def test_at_least_one_frame_is_given_however_large() -> None:
    buffer = filled(6)
    frames, _, whole = buffer.find([(0, 30)], stop=30, bytes_max=1)
    assert (names(frames), whole) == ([0], False)


def test_what_is_gone_before_the_limit_is_told_with_the_frames() -> None:
    buffer = filled(15, ring=100)
    frames, gone, whole = buffer.find([(0, 75)], stop=75, bytes_max=10)
    assert (names(frames), gone, whole) == ([5], [(0, 25)], False)


# Holding (block, buffer) -----------------------------------------------------------------------


def test_nothing_that_is_waited_for_leaves_a_buffer_that_holds() -> None:
    buffer = RetransmitBuffer(100, hold=True)
    buffer.claim(12)
    add(buffer, 15)
    assert (buffer.first, buffer.bytes, buffer.discarded_claimed) == (10, 130, 0)


def test_a_frame_larger_than_the_bound_pushes_out_nothing_that_is_waited_for() -> None:
    buffer = RetransmitBuffer(100, hold=True)
    buffer.claim(0)
    add(buffer, 2)
    buffer.append(10, 11, b"z" * 5000)
    assert (buffer.first, buffer.bytes) == (0, 5020)


def test_what_was_held_leaves_as_soon_as_nobody_waits_for_it() -> None:
    buffer = RetransmitBuffer(100, hold=True)
    buffer.claim(0)
    add(buffer, 15)
    assert buffer.bytes == 150
    buffer.claim(12)
    assert (buffer.first, buffer.bytes) == (10, 130)
    buffer.claim(None)
    assert (buffer.first, buffer.bytes) == (25, 100)
    assert (buffer.discarded, buffer.discarded_claimed) == (25, 0)


# The backlog (drop_newest) ---------------------------------------------------------------------


def test_what_leaves_the_ring_unclaimed_is_not_kept_elsewhere() -> None:
    buffer = filled(15, ring=100, backlog=100)
    assert (buffer.first, buffer.bytes) == (25, 100)


def test_backlog_keeps_the_oldest_that_are_waited_for_and_refuses_the_newest() -> None:
    buffer = RetransmitBuffer(50, 30)
    buffer.claim(0)
    add(buffer, 20)
    frames, gone, _ = buffer.find([(0, 100)], stop=100, bytes_max=ALL)
    assert names(frames) == [0, 1, 2, 15, 16, 17, 18, 19]
    assert gone == [(15, 75)]
    assert (buffer.first, buffer.bytes) == (0, 80)
    assert (buffer.discarded, buffer.discarded_claimed) == (60, 60)


def test_backlog_lets_go_of_what_was_taken_and_has_room_again() -> None:
    buffer = RetransmitBuffer(50, 30)
    buffer.claim(0)
    add(buffer, 20)
    buffer.claim(10)
    assert buffer.first == 10
    add(buffer, 5)
    frames, gone, _ = buffer.find([(10, 125)], stop=125, bytes_max=ALL)
    assert names(frames) == [2, 15, 16, 20, 21, 22, 23, 24]
    assert gone == [(15, 75), (85, 100)]
    assert buffer.bytes == 80


def test_full_backlog_refuses_small_frames_too_until_something_was_taken() -> None:
    """What is lost is one range, not as many as there are frames that happened to fit."""
    buffer = RetransmitBuffer(1, 100)
    buffer.claim(0)
    for n in range(19):
        buffer.append(n, n + 1, b"x" * (70 if n % 2 else 20))
    frames, gone, _ = buffer.find([(0, 19)], stop=19, bytes_max=ALL)
    assert [len(frame) for frame in frames] == [20, 70, 20]
    assert gone == [(2, 18)]
    buffer.claim(1)
    buffer.append(19, 20, b"x")
    buffer.append(20, 21, b"x")
    assert buffer.find([(1, 21)], stop=21, bytes_max=ALL)[1] == [(2, 18)]


def test_frame_too_large_for_the_backlog_does_not_shut_it_for_good() -> None:
    buffer = RetransmitBuffer(1, 100)
    buffer.claim(0)
    for n, size in enumerate((500, 10, 10, 10)):
        buffer.append(n, n + 1, b"x" * size)
    assert buffer.find([(0, 4)], stop=4, bytes_max=ALL)[1] == [(0, 3)]
    buffer.claim(3)
    buffer.append(4, 5, b"x")
    assert buffer.find([(3, 5)], stop=5, bytes_max=ALL)[1] == []


def test_room_in_the_backlog_is_measured_by_what_it_holds() -> None:
    """Not by the distance in the stream, which holes make longer."""
    buffer = RetransmitBuffer(20, 30)
    for claim in range(0, 500, 5):
        buffer.claim(claim)
        add(buffer, 2)
        assert buffer._backlog.bytes == 10 * len(buffer._backlog)
        assert buffer.bytes <= 50
    assert len(buffer._backlog) == 3


def test_backlog_is_empty_when_nobody_waits() -> None:
    buffer = RetransmitBuffer(50, 30)
    buffer.claim(0)
    add(buffer, 20)
    buffer.claim(None)
    assert (buffer.first, buffer.bytes) == (75, 50)


# Distances -------------------------------------------------------------------------------------


def test_distance_is_counted_from_the_frame_that_holds_a_number() -> None:
    buffer = filled(6)
    assert [buffer.bytes_since(seq) for seq in (0, 4, 5, 14, 25, 29, 30, 99)] == [
        60,
        60,
        50,
        40,
        10,
        10,
        0,
        0,
    ]


def test_distance_to_what_has_left_is_that_of_the_oldest_kept() -> None:
    buffer = filled(15, ring=100)
    assert buffer.bytes_since(0) == 100


def test_distance_across_the_hole_behind_a_backlog() -> None:
    buffer = RetransmitBuffer(50, 30)
    buffer.claim(0)
    add(buffer, 20)
    assert buffer.bytes_since(0) == 200
    assert buffer.bytes_since(14) == 180
    assert buffer.bytes_since(40) == 50
    assert buffer.bytes_since(99) == 10
    assert buffer.bytes_since(100) == 0


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("backlog", [0, 100])
def test_every_number_is_held_gone_or_to_come(hold: bool, backlog: int) -> None:
    """Whatever the order of appends and claims: an answer leaves no number out."""
    for seed in range(30):
        rng = random.Random(seed)
        buffer = RetransmitBuffer(rng.choice((1, 50, 200)), backlog, hold=hold)
        frames: dict[bytes, tuple[int, int]] = {}
        stop, claim = 0, 0
        for _ in range(60):
            if rng.random() < 0.3:
                claim = min(stop, claim + rng.randrange(10))
                buffer.claim(claim if rng.random() < 0.9 else None)
            first, stop = stop, stop + rng.randint(1, 4)
            frame = f"{first}:".encode() + bytes(rng.randrange(40))
            frames[frame] = (first, stop)
            buffer.append(first, stop, frame)
            if hold and buffer.claimed_from is not None:
                assert buffer.first is not None
                assert buffer.first <= buffer.claimed_from or not buffer.discarded_claimed
        found, gone, whole = buffer.find([(0, stop + 9)], stop=stop, bytes_max=ALL)
        ranges = sorted([frames[frame] for frame in found] + gone)
        assert whole
        assert ranges[0][0] == 0
        assert ranges[-1][1] == stop
        assert all(one[1] == two[0] for one, two in pairwise(ranges))
