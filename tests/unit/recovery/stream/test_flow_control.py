"""Whom a stream waits for: the gate, claims, reports, eviction and return."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg.recovery.stream.flow_control import BRAKE_S, GONE_RANGES_MAX, Claim, FlowControl
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

FRAME_BYTES = 10
FRAME_EVENTS = 5


class Stream:
    """A buffer and its claims; frames of 10 bytes and 5 events."""

    def __init__(
        self,
        window: int | None = 100,
        evict_after_s: float | None = None,
        ring: int = 1000,
        hold: bool = True,
    ) -> None:
        self.buffer = RetransmitBuffer(ring, hold=hold)
        self.flow = FlowControl(self.buffer, window, evict_after_s)
        self.stop = 0

    def publish(self, frames: int) -> None:
        for _ in range(frames):
            first, self.stop = self.stop, self.stop + FRAME_EVENTS
            self.buffer.append(first, self.stop, b"x" * FRAME_BYTES)

    def report(self, sub: int, consumed: int, *, now: float = 0.0, **more: Any) -> Claim | None:
        figures = {
            "received": consumed,
            "delivered": consumed,
            "filtered": 0,
            "lost": {},
            "stop": self.stop,
        } | more
        return self.flow.report(sub, consumed=consumed, now=now, **figures)


# The gate --------------------------------------------------------------------------------------


def test_gate_is_open_without_subscribers() -> None:
    stream = Stream()
    stream.publish(50)
    assert not stream.flow.is_shut()
    assert stream.flow.blockers() == []


def test_gate_shuts_when_a_subscriber_is_further_behind_than_the_window() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(10)
    assert not stream.flow.is_shut()
    stream.publish(1)
    assert stream.flow.is_shut()
    assert [claim.label for claim in stream.flow.blockers()] == ["one"]


def test_gate_opens_when_the_subscriber_has_consumed() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(11)
    stream.report(1, 4)
    assert stream.flow.is_shut()
    stream.report(1, 5)
    assert not stream.flow.is_shut()


def test_receiving_without_consuming_does_not_open_the_gate() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(11)
    stream.report(1, 0, received=55)
    assert stream.flow.is_shut()


def test_slowest_subscriber_decides() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.flow.admit(2, "two", 0, now=0.0)
    stream.publish(11)
    stream.report(1, 55)
    assert stream.flow.is_shut()
    assert [claim.label for claim in stream.flow.blockers()] == ["two"]
    stream.report(2, 55)
    assert not stream.flow.is_shut()


def test_gate_opens_when_the_slowest_leaves() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(11)
    claim = stream.flow.release(1, now=0.0)
    assert claim is not None
    assert claim.label == "one"
    assert not stream.flow.is_shut()
    assert stream.flow.release(1, now=0.0) is None


def test_late_joiner_blocks_only_for_what_comes_after_it() -> None:
    stream = Stream()
    stream.publish(50)
    stream.flow.admit(1, "one", 250, now=0.0)
    assert not stream.flow.is_shut()
    stream.publish(11)
    assert stream.flow.is_shut()


def test_joiner_that_starts_in_the_past_blocks_at_once() -> None:
    stream = Stream()
    stream.publish(50)
    stream.flow.admit(1, "one", 0, now=0.0)
    assert stream.flow.is_shut()


def test_without_a_window_the_gate_never_shuts() -> None:
    stream = Stream(window=None, hold=False)
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(500)
    assert not stream.flow.is_shut()
    assert stream.flow.blockers() == []
    assert stream.flow.on_deadline(now=1e9) == []


# Claims ----------------------------------------------------------------------------------------


def test_what_is_yet_to_be_received_is_held() -> None:
    stream = Stream(ring=50)
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(10)
    assert stream.buffer.first == 0
    stream.report(1, 0, received=30)
    assert stream.buffer.first == 25
    stream.flow.release(1, now=0.0)
    assert (stream.buffer.claimed_from, stream.buffer.first) == (None, 25)


def test_slowest_to_receive_decides_what_is_held() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.flow.admit(2, "two", 0, now=0.0)
    stream.publish(10)
    stream.report(1, 50)
    assert stream.buffer.claimed_from == 0
    stream.report(2, 20)
    assert stream.buffer.claimed_from == 20


def test_admitted_again_a_subscriber_keeps_its_place() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, ["a.**"], now=0.0)
    stream.publish(3)
    stream.report(1, 10)
    stream.flow.claims[1].attached = False
    claim = stream.flow.admit(1, "one", 15, now=1.0)
    assert (claim.start, claim.consumed, claim.attached) == (0, 10, True)
    assert claim.patterns == ("a.**",)


def test_who_has_yet_to_receive_is_named() -> None:
    stream = Stream()
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.flow.admit(2, "two", 0, now=0.0)
    stream.publish(2)
    stream.report(1, 0, received=10)
    assert [claim.label for claim in stream.flow.behind(10)] == ["two"]
    assert stream.flow.behind(0) == []


# Reports ---------------------------------------------------------------------------------------


def test_report_is_written_to_the_claim() -> None:
    stream = Stream()
    claim = stream.flow.admit(1, "one", 0, now=0.0)
    assert not claim.reported
    stream.publish(4)
    stream.report(1, 15, received=20, delivered=9, filtered=4, lost={"overflow": 2}, now=3.0)
    assert (claim.received, claim.consumed, claim.reported) == (20, 15, True)
    assert (claim.delivered, claim.filtered, claim.lost) == (9, 4, {"overflow": 2})
    assert claim.progress_at == 3.0


@pytest.mark.parametrize(
    ("received", "consumed"),
    [(21, 20), (99, 99), (10, 11), (20, 4), (4, 4), (1 << 62, 20)],
)
def test_report_from_the_future_or_from_before_the_start_is_refused(
    received: int, consumed: int
) -> None:
    stream = Stream()
    claim = stream.flow.admit(1, "one", 5, now=0.0)
    stream.publish(4)
    assert stream.report(1, consumed, received=received) is None
    assert (claim.received, claim.consumed, claim.reported) == (5, 5, False)


def test_report_of_a_stranger_is_refused() -> None:
    stream = Stream()
    stream.publish(4)
    assert stream.report(7, 5) is None
    assert stream.flow.claims == {}


def test_old_report_takes_nothing_back() -> None:
    stream = Stream()
    claim = stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(4)
    stream.report(1, 20, now=1.0)
    stream.report(1, 10, now=2.0)
    assert (claim.received, claim.consumed, claim.progress_at) == (20, 20, 1.0)


# Eviction --------------------------------------------------------------------------------------


def blocked(evict_after_s: float | None = 2.0, now: float = 0.0) -> Stream:
    stream = Stream(evict_after_s=evict_after_s)
    stream.flow.admit(1, "slow", 0, now=now)
    stream.flow.admit(2, "fast", 0, now=now)
    stream.publish(11)
    stream.report(2, 55, now=now)
    assert stream.flow.on_deadline(now=now) == []
    return stream


def test_what_is_gone_counts_once_and_ranges_are_not_remembered_without_end() -> None:
    claim = Claim(1, "a", 0, 0, 0, 0.0)
    claim.note_gone([(0, 10), (20, 30)])
    claim.note_gone([(5, 25)])
    assert claim.gone == 30
    claim.note_gone([(100 + 2 * n, 101 + 2 * n) for n in range(2 * GONE_RANGES_MAX)])
    assert claim.gone == 30 + 2 * GONE_RANGES_MAX
    assert len(claim.gone_ranges) == GONE_RANGES_MAX


def test_subscriber_that_blocks_without_progress_is_evicted_in_time() -> None:
    stream = blocked()
    assert stream.flow.on_deadline(now=1.99) == []
    (claim,) = stream.flow.on_deadline(now=2.0)
    assert (claim.label, claim.evicted, claim.evictions) == ("slow", True, 1)
    assert not stream.flow.is_shut()
    assert stream.flow.on_deadline(now=50.0) == []


def test_eviction_counts_from_when_it_began_to_block() -> None:
    """Also on a clock that starts at zero, and for one that was idle long before."""
    stream = Stream(evict_after_s=2.0)
    stream.flow.admit(1, "slow", 0, now=0.0)
    assert stream.flow.on_deadline(now=100.0) == []
    stream.publish(11)
    assert stream.flow.on_deadline(now=101.0) == []
    assert stream.flow.on_deadline(now=102.9) == []
    assert len(stream.flow.on_deadline(now=103.0)) == 1


def test_progress_puts_eviction_off() -> None:
    stream = blocked()
    stream.report(1, 1, now=1.5)
    assert stream.flow.on_deadline(now=3.4) == []
    assert len(stream.flow.on_deadline(now=3.5)) == 1


def test_repeated_report_without_progress_does_not() -> None:
    stream = blocked()
    stream.report(1, 0, now=1.5)
    assert len(stream.flow.on_deadline(now=2.0)) == 1


def test_subscriber_that_opens_the_gate_in_between_starts_anew() -> None:
    stream = blocked()
    stream.report(1, 55, now=1.0)
    assert stream.flow.on_deadline(now=1.0) == []
    stream.publish(11)
    stream.report(2, 110, now=5.0)
    assert stream.flow.on_deadline(now=5.0) == []
    assert stream.flow.on_deadline(now=6.9) == []
    assert len(stream.flow.on_deadline(now=7.0)) == 1


def test_without_a_limit_nobody_is_evicted() -> None:
    stream = blocked(evict_after_s=None)
    assert stream.flow.on_deadline(now=1e9) == []
    assert stream.flow.is_shut()
    assert stream.flow.claims[1].blocked_since == 0.0


def test_evicted_subscriber_claims_nothing_and_is_waited_for_by_nobody() -> None:
    stream = blocked()
    stream.flow.on_deadline(now=2.0)
    assert stream.buffer.claimed_from == 55
    assert stream.flow.blockers() == []
    assert stream.flow.behind(55) == []
    stream.publish(200)
    assert stream.flow.is_shut()  # for the fast one, which has not consumed these
    stream.report(2, stream.stop, now=3.0)
    assert not stream.flow.is_shut()


def test_evicted_subscriber_returns_when_it_has_caught_up() -> None:
    stream = blocked()
    (claim,) = stream.flow.on_deadline(now=2.0)
    stream.report(1, 4, now=3.0)
    assert claim.evicted
    stream.report(1, 5, now=4.0)
    assert not claim.evicted
    assert stream.buffer.claimed_from == 5
    stream.publish(1)
    stream.report(2, stream.stop, now=4.0)
    assert stream.flow.is_shut()


def test_evicted_subscriber_does_not_return_while_it_misses_what_was_let_go() -> None:
    """Else the rest would be reported lost for another reason than the true one."""
    stream = Stream(window=100, evict_after_s=2.0, ring=100)
    claim = stream.flow.admit(1, "slow", 0, now=0.0)
    stream.publish(11)
    stream.flow.on_deadline(now=0.0)
    stream.flow.on_deadline(now=2.0)
    stream.publish(20)
    assert stream.buffer.first == 105
    assert stream.buffer.bytes_since(5) == 100
    stream.report(1, 5, now=3.0)
    assert claim.evicted
    stream.report(1, 105, now=4.0)
    assert not claim.evicted


def test_one_that_blocks_again_is_evicted_again() -> None:
    stream = blocked()
    (claim,) = stream.flow.on_deadline(now=2.0)
    stream.report(1, 55, now=3.0)
    stream.publish(11)
    stream.report(2, stream.stop, now=3.0)
    stream.flow.on_deadline(now=4.0)
    assert stream.flow.on_deadline(now=6.0) == [claim]
    assert claim.evictions == 2


def test_who_is_evicted_by_its_packets_is_not_waited_for_until_it_has_caught_up() -> None:
    stream = Stream(evict_after_s=5.0)
    stream.flow.admit(1, "one", 0, now=0.0)
    stream.publish(20)
    assert stream.flow.is_shut()
    claim = stream.flow.evict(1, now=1.0)
    assert claim is not None
    assert (claim.evicted, claim.evictions) == (True, 1)
    assert stream.flow.aside() == [1]
    assert not stream.flow.is_shut()
    assert stream.flow.evict(1, now=1.0) is None
    assert stream.flow.evict(2, now=1.0) is None
    stream.report(1, stream.stop, now=2.0)
    assert stream.flow.aside() == []


# The brake -------------------------------------------------------------------------------------


class Flood(Stream):
    """A window with much room, a queue of 10 frames, and frames of half a MiB."""

    def __init__(self, queue_frames: int | None = 10) -> None:
        super().__init__(window=1 << 30, ring=1 << 30)
        self.flow = FlowControl(self.buffer, 1 << 30, None, queue_frames)

    def publish(self, frames: int, size: int = 1 << 19) -> None:
        for _ in range(frames):
            first, self.stop = self.stop, self.stop + FRAME_EVENTS
            self.buffer.append(first, self.stop, bytes(size))


def test_publisher_waits_a_moment_before_queues_are_full() -> None:
    flood = Flood()
    flood.flow.admit(1, "one", 0, now=0.0)
    flood.publish(10)
    assert not flood.flow.is_crowded(0.001)
    flood.publish(1)
    assert flood.flow.is_crowded(0.001)
    assert not flood.flow.is_shut()
    flood.report(1, 5, now=0.002)
    assert not flood.flow.is_crowded(0.002)


def test_nobody_brakes_for_one_that_has_stopped_reading() -> None:
    flood = Flood()
    flood.flow.admit(1, "stalled", 0, now=0.0)
    flood.flow.admit(2, "healthy", 0, now=0.0)
    flood.publish(20)
    assert flood.flow.is_crowded(0.0)
    assert not flood.flow.is_crowded(BRAKE_S)
    flood.report(2, flood.stop, now=1.0)
    assert not flood.flow.is_crowded(1.0)
    flood.report(1, 5, now=2.0)  # it reads again
    assert flood.flow.is_crowded(2.0)
    assert not flood.flow.is_crowded(2.0 + BRAKE_S)


def test_small_frames_are_no_flood() -> None:
    flood = Flood()
    flood.flow.admit(1, "one", 0, now=0.0)
    flood.publish(1000, size=100)
    assert not flood.flow.is_crowded(0.0)


def test_no_brake_without_subscribers_or_without_a_queue() -> None:
    flood = Flood()
    flood.publish(20)
    assert not flood.flow.is_crowded(0.0)
    unbound = Flood(queue_frames=None)
    unbound.flow.admit(1, "one", 0, now=0.0)
    unbound.publish(20)
    assert not unbound.flow.is_crowded(0.0)


def test_brake_ends_with_the_subscriber_that_held_it() -> None:
    flood = Flood()
    flood.flow.admit(1, "one", 0, now=0.0)
    flood.publish(20)
    assert flood.flow.is_crowded(0.0)
    flood.flow.release(1, now=0.0)
    assert not flood.flow.is_crowded(0.0)
