"""The sending half of a stream: numbers, heartbeats, where a subscriber starts, and repair."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._wire.frame import Frame, FrameBuilder, Heartbeat
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.sender import Admission, SenderPolicy, StreamSender

ALL = 1 << 40


def sender(*, origin: int = 0, **changes: Any) -> StreamSender:
    policy: dict[str, Any] = {
        "overflow": "drop_oldest",
        "buffer_bytes": 100_000,
        "window_bytes": 1000,
        "evict_after_s": None,
        "frame_bytes": 64,
        "heartbeat_min_s": 0.05,
        "heartbeat_max_s": 0.4,
    }
    builder = FrameBuilder(origin)
    return StreamSender("p/a.**", 7, 1700, SenderPolicy(**(policy | changes)), builder=builder)


def publish(to: StreamSender, events: int, *, now: float = 0.0, size: int = 1) -> Frame:
    """Publish one frame; the time of an event is its number times ten."""
    for _ in range(events):
        to.builder.add("a.b", b"x" * size, to.next * 10)
    data = to.seal(now=now)
    assert data is not None
    return Frame(data)


def admit(to: StreamSender, kind: str, value: int = 0, epoch: int = 0, sub: int = 1) -> Admission:
    return to.admit(sub, f"s{sub}", ["a.**"], kind, value, epoch, now=0.0)


def consume(by: StreamSender, sub: int, upto: int) -> None:
    taken = by.flow.report(
        sub,
        received=upto,
        consumed=upto,
        delivered=upto,
        filtered=0,
        lost={},
        stop=by.sealed,
        now=0.0,
    )
    assert taken is not None


def spans(frames: list[bytes]) -> list[tuple[int, int]]:
    return [(frame.first, frame.stop) for frame in map(Frame, frames)]


# Numbers ---------------------------------------------------------------------------------------


def test_events_are_numbered_without_a_hole() -> None:
    it = sender()
    assert it.seal(now=0.0) is None
    assert (publish(it, 3).first, publish(it, 2).first) == (0, 3)
    run = Frame(it.seal_run("a.b", [b"1", b"2"], 50, raw=True, now=0.0))
    assert (run.first, run.stop, run.epoch, run.stream) == (5, 7, 1700, 7)
    assert (it.sealed, it.next, it.open_events, it.frames) == (7, 7, 0, 3)


def test_open_events_have_their_numbers_already() -> None:
    it = sender()
    publish(it, 3)
    it.builder.add("a.b", b"x", 0)
    assert (it.sealed, it.next, it.open_events) == (3, 4, 1)


def test_numbers_start_at_the_origin() -> None:
    it = sender(origin=100)
    assert (it.next, it.first_available, it.tail().next) == (100, 100, 100)
    assert publish(it, 2).first == 100


def test_a_run_needs_the_open_frame_to_be_sealed() -> None:
    it = sender()
    it.builder.add("a.b", b"x", 0)
    assert it.seal_run("a.b", [b"1"], 0, raw=True, now=0.0) is None
    assert it.seal(now=0.0) is not None
    frame = it.seal_run("a.b", [b"1"], 0, raw=True, now=0.0)
    assert frame is not None
    assert Frame(frame).first == 1


def test_what_is_published_is_counted_in_bytes() -> None:
    it = sender()
    size = len(publish(it, 3).data) + len(publish(it, 4).data)
    assert (it.published_bytes, it.buffer.total_bytes, it.buffer.bytes) == (size, size, size)


# Heartbeats ------------------------------------------------------------------------------------


def test_silent_stream_without_subscribers_has_no_heartbeat() -> None:
    assert sender().heartbeat_due() == NEVER


def test_heartbeats_start_with_the_first_subscriber() -> None:
    it = sender()
    admit(it, "live")
    assert it.heartbeat_due() == 0.05


def test_heartbeats_follow_data_and_each_comes_twice_as_late() -> None:
    it = sender()
    publish(it, 1, now=10.0)
    dues = []
    for _ in range(6):
        dues.append(round(it.heartbeat_due() - 10.0, 6))
        it.heartbeat(now=it.heartbeat_due())
    assert dues == [0.05, 0.15, 0.35, 0.75, 1.15, 1.55]


def test_data_makes_heartbeats_frequent_again() -> None:
    it = sender()
    publish(it, 1, now=0.0)
    for _ in range(6):
        it.heartbeat(now=it.heartbeat_due())
    publish(it, 1, now=20.0)
    assert it.heartbeat_due() == 20.05


def test_heartbeat_says_what_is_kept() -> None:
    it = sender(buffer_bytes=1)
    for _ in range(10):
        publish(it, 5)
    first = it.first_available
    assert 0 < first < 50
    assert it.heartbeat(now=0.0) == it.tail() == Heartbeat(7, 1700, first, 50)


def test_open_events_are_not_in_the_heartbeat() -> None:
    it = sender()
    publish(it, 5)
    it.builder.add("a.b", b"x", 0)
    assert it.tail().next == 5


# Where a subscriber starts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "epoch", "start"),
    [
        ("live", 0, 0, 24),
        ("earliest", 0, 0, 0),
        ("origin", 0, 0, 0),
        ("last", 0, 0, 24),
        ("last", 3, 0, 21),
        ("last", 24, 0, 0),
        ("last", 1 << 62, 0, 0),
        ("time", 0, 0, 0),
        ("time", 40, 0, 4),
        ("time", 41, 0, 5),
        ("time", 199, 0, 20),
        ("time", 220, 0, 22),
        ("time", 10_000, 0, 24),
        ("resume", 7, 1700, 7),
        ("resume", 24, 1700, 24),
        ("resume", 1 << 62, 1700, 24),
        ("resume", 7, 1699, 0),
        ("resume", 7, 1701, 0),
        ("of another release", 7, 0, 24),
    ],
)
def test_subscriber_starts_where_it_asked_to(kind: str, value: int, epoch: int, start: int) -> None:
    it = sender()
    for _ in range(4):
        publish(it, 5)
    for _ in range(4):
        it.builder.add("a.b", b"x", it.next * 10)  # open, but numbered
    given = admit(it, kind, value, epoch)
    assert given == Admission(epoch=1700, origin=0, first=0, next=20, start=start)
    assert it.flow.claims[1].start == start


def test_earliest_and_last_start_no_earlier_than_what_is_kept() -> None:
    it = sender(buffer_bytes=1)
    for _ in range(10):
        publish(it, 5)
    first = it.first_available
    assert first > 0
    assert admit(it, "earliest", sub=1).start == first
    assert admit(it, "last", 49, sub=2).start == first
    assert admit(it, "time", 0, sub=3).start == first
    assert admit(it, "last", 1, sub=4).start == 49


def test_resume_may_ask_for_what_is_gone_and_is_told_so() -> None:
    it = sender(buffer_bytes=1)
    for _ in range(10):
        publish(it, 5)
    given = admit(it, "resume", 3, 1700)
    assert (given.start, given.first) == (3, it.first_available)
    answer = it.repair(1, 1700, [(3, 50)], ALL)
    assert answer.gone == {"expired": [(3, it.first_available)]}


def test_what_was_gone_before_it_came_is_told_apart_from_what_it_was_too_slow_for() -> None:
    it = sender(buffer_bytes=1)
    for _ in range(10):
        publish(it, 5)
    kept_from = it.first_available
    admit(it, "origin")
    for _ in range(10):
        publish(it, 5)
    answer = it.repair(1, 1700, [(0, 10), (20, 100)], ALL)
    assert answer.gone == {
        "expired": [(0, 10), (20, kept_from)],
        "overflow": [(kept_from, it.first_available)],
    }


def test_resume_starts_no_earlier_than_the_origin() -> None:
    assert admit(sender(origin=100), "resume", 5, 1700).start == 100


def test_admitted_again_a_subscriber_starts_where_it_did() -> None:
    it = sender()
    publish(it, 5)
    assert admit(it, "earliest").start == 0
    publish(it, 5)
    assert admit(it, "live").start == 0


def test_start_by_time_is_found_where_times_are_equal_or_go_back() -> None:
    it = sender()
    it.seal_run("a.b", [b"1", b"2"], 100, raw=True, now=0.0)
    for time in (300, 200):
        it.builder.add("a.b", b"x", time)
    it.seal(now=0.0)
    assert admit(it, "time", 100, sub=1).start == 0
    assert admit(it, "time", 101, sub=2).start == 2
    assert admit(it, "time", 250, sub=3).start == 2


# Repair ----------------------------------------------------------------------------------------


def test_what_is_kept_is_sent_again_as_it_was() -> None:
    it = sender()
    sent = [publish(it, 5).data for _ in range(4)]
    admit(it, "earliest")
    answer = it.repair(1, 1700, [(7, 12)], ALL)
    assert answer.frames == sent[1:3]
    assert answer.gone == {}
    assert it.flow.claims[1].repaired == 2


def test_request_for_another_epoch_is_answered_with_gone() -> None:
    it = sender()
    publish(it, 5)
    answer = it.repair(1, 1699, [(0, 5), (9, 9), (8, 7)], ALL)
    assert (answer.frames, answer.gone) == ([], {"gone": [(0, 5)]})


def test_backward_and_empty_ranges_are_passed_over() -> None:
    it = sender()
    publish(it, 5)
    assert it.repair(1, 1700, [(3, 3), (4, 1), (0, 1)], ALL).frames != []
    assert it.repair(1, 1700, [(3, 3), (4, 1)], ALL).frames == []


def test_request_beyond_the_tail_is_not_answered_with_gone() -> None:
    it = sender()
    publish(it, 5)
    answer = it.repair(1, 1700, [(5, 1 << 62)], ALL)
    assert (answer.frames, answer.gone) == ([], {})


def test_answer_is_limited_and_the_rest_is_asked_for_again() -> None:
    it = sender()
    for _ in range(10):
        publish(it, 5)
    asked, got = [(0, 50)], []
    while asked:
        frames = spans(it.repair(1, 1700, asked, 1).frames)
        got += frames
        asked = [(frames[-1][1], 50)] if frames[-1][1] < 50 else []
    assert got == [(first, first + 5) for first in range(0, 50, 5)]


def test_stranger_is_answered_too_but_counted_nowhere() -> None:
    it = sender()
    publish(it, 5)
    assert spans(it.repair(99, 1700, [(0, 5)], ALL).frames) == [(0, 5)]
    assert it.flow.claims == {}


# Overflow --------------------------------------------------------------------------------------


def overrun(overflow: str, **changes: Any) -> StreamSender:
    """A hundred frames of five events for a subscriber that takes nothing; room for about ten."""
    it = sender(overflow=overflow, buffer_bytes=1100, frame_bytes=1, **changes)
    admit(it, "earliest")
    for _ in range(100):
        publish(it, 5)
    return it


def test_drop_oldest_keeps_the_newest() -> None:
    it = overrun("drop_oldest")
    answer = it.repair(1, 1700, [(0, 500)], ALL)
    first = it.first_available
    assert answer.gone == {"overflow": [(0, first)]}
    assert spans(answer.frames)[-1] == (495, 500)
    assert it.buffer.bytes <= 1102
    assert it.flow.claims[1].gone == first
    it.repair(1, 1700, [(first - 5, first + 5)], ALL)
    assert it.flow.claims[1].gone == first, "asked for again, they are counted already"
    assert it.buffer.discarded_claimed == first


def test_drop_newest_keeps_the_oldest_and_what_came_last() -> None:
    it = overrun("drop_newest")
    answer = it.repair(1, 1700, [(0, 500)], ALL)
    ((first, stop),) = answer.gone["overflow"]
    assert spans(answer.frames)[0] == (0, 5)
    assert first > 30
    assert stop > 440
    assert it.first_available == 0
    assert it.buffer.bytes <= 1100 + 1102


def test_drop_newest_goes_on_keeping_once_the_oldest_are_taken() -> None:
    it = overrun("drop_newest")
    consume(it, 1, 500)
    for _ in range(100):
        publish(it, 5)
    assert spans(it.repair(1, 1700, [(500, 1000)], ALL).frames)[0] == (500, 505)


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_dropping_streams_never_wait(overflow: str) -> None:
    assert not overrun(overflow).flow.is_shut()


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_waiting_streams_let_nothing_go_that_is_waited_for(overflow: str) -> None:
    """Even if the publisher does not heed the gate, as here."""
    it = overrun(overflow)
    answer = it.repair(1, 1700, [(0, 500)], ALL)
    assert answer.gone == {}
    assert it.flow.is_shut()


@pytest.mark.parametrize(("overflow", "behind"), [("block", 500), ("buffer", 1100)])
def test_gate_shuts_at_the_window_or_at_the_buffer(overflow: str, behind: int) -> None:
    it = sender(overflow=overflow, buffer_bytes=1100, window_bytes=500)
    admit(it, "live")
    while not it.flow.is_shut():
        publish(it, 1)
    frame = len(publish(it, 1).data)
    assert behind < it.buffer.total_bytes - frame <= behind + frame


def test_window_is_never_wider_than_the_buffer() -> None:
    it = sender(overflow="block", buffer_bytes=500, window_bytes=10_000)
    admit(it, "live")
    while not it.flow.is_shut():
        publish(it, 1)
    assert it.buffer.bytes < 700


def test_what_an_evicted_subscriber_missed_is_reported_as_evicted() -> None:
    it = sender(overflow="block", buffer_bytes=500, window_bytes=500, evict_after_s=1.0)
    admit(it, "live")
    while not it.flow.is_shut():
        publish(it, 1)
    it.flow.on_deadline(now=0.0)
    assert len(it.flow.on_deadline(now=1.0)) == 1
    for _ in range(50):
        publish(it, 1)
    answer = it.repair(1, 1700, [(0, it.sealed)], ALL)
    assert answer.gone == {"evicted": [(0, it.first_available)]}


def test_large_event_is_kept_and_pushes_out_nothing_that_is_waited_for() -> None:
    it = sender(overflow="block", buffer_bytes=1000, window_bytes=500)
    admit(it, "live")
    publish(it, 1)
    publish(it, 1, size=50_000)
    publish(it, 1)
    assert it.repair(1, 1700, [(0, 3)], ALL).gone == {}
    consume(it, 1, 3)
    publish(it, 1)
    assert it.buffer.bytes < 1200
