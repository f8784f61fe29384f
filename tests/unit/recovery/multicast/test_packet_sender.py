"""What a multicast sender sends and when: `now` is moved by hand."""

from __future__ import annotations

import pytest

from meshmsg._wire.packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    ENDS,
    HEARTBEAT,
    PARITY,
    PARITY_MORE_BYTES,
    REPAIR,
    PacketBeat,
    PacketRequest,
    decode_packet,
)
from meshmsg.recovery.multicast import packet_sender
from meshmsg.recovery.multicast.pacing import TokenBucket
from meshmsg.recovery.multicast.packet_sender import Burst, PacketSender
from meshmsg.recovery.stream.loss_detector import NEVER
from tests.support.cores import PACKET_BYTES, frame_of, nack, numbers, sender, split, status


def data_of(bursts: list[Burst]) -> list[int]:
    return numbers(split(bursts))


def repairs_of(bursts: list[Burst]) -> list[int]:
    return numbers(split(bursts, REPAIR))


def beats_of(bursts: list[Burst]) -> list[PacketBeat]:
    beats = [decode_packet(packet) for packet in split(bursts, HEARTBEAT)]
    return [beat for beat in beats if isinstance(beat, PacketBeat)]


def confirmed(bursts: list[Burst]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for packet in split(bursts, CONFIRM):
        message = decode_packet(packet)
        assert isinstance(message, PacketRequest)
        ranges += message.ranges
    return ranges


def run_until(core: PacketSender, start: float, stop: float) -> list[tuple[float, Burst]]:
    """Call `take` when it is due, as a shell does."""
    sent: list[tuple[float, Burst]] = []
    now = start
    while now <= stop:
        core.on_deadline(now=now)
        sent += [(now, burst) for burst in core.take(now=now)]
        due = core.deadline(now=now)
        now = max(due, now + 1e-6)
    return sent


# Live packets -----------------------------------------------------------------------------------


def test_frames_leave_as_numbered_packets_at_once() -> None:
    core = sender(3)
    assert core.deadline(now=0.0) == 0.0
    assert data_of(core.take(now=0.0)) == [0, 1, 2]
    assert (core.sent, core.unsent_bytes, core.counters["packets"]) == (3, 0, 3)
    assert core.take(now=0.0) == []


def test_large_frame_leaves_in_bursts_that_the_kernel_takes() -> None:
    core = sender()
    core.add(frame_of(0, size=30_000), 0, 1, now=0.0)
    bursts = core.take(now=0.0)
    assert [size for _, size in bursts] == [PACKET_BYTES] * len(bursts)
    assert max(len(data) // PACKET_BYTES for data, _ in bursts) == packet_sender.BURST_PACKETS_MAX
    assert data_of(bursts) == list(range(core.store.next))


def test_one_turn_gives_a_bounded_number_of_bursts() -> None:
    core = sender(100)
    assert len(core.take(now=0.0)) == packet_sender.TURN_BURSTS_MAX
    assert core.deadline(now=0.0) == 0.0
    while core.sent < 100:
        core.take(now=0.0)


def test_rate_paces_live_packets() -> None:
    core = sender(400, size=60, flow="rate", rate=10_000.0)
    core._pace = TokenBucket(10_000.0, burst_bytes=500)
    sent = run_until(core, 0.0, 5.0)
    assert sum(len(data) for at, (data, _) in sent if data[4] == DATA) == pytest.approx(
        50_000, rel=0.05
    )


def test_slowest_receiver_with_a_full_window_stops_all() -> None:
    core = sender(10, flow="slowest")
    core.on_status(status(0, 10 * PACKET_BYTES, who=1), now=0.0)
    core.on_status(status(0, 3 * PACKET_BYTES, who=2), now=0.0)
    assert data_of(core.take(now=0.0)) == [0, 1, 2]
    core.on_status(status(2, 3 * PACKET_BYTES, who=2), now=0.0)
    assert data_of(core.take(now=0.0)) == [3, 4]
    core.release(2)
    assert data_of(core.take(now=0.0)) == [5, 6, 7, 8, 9]


def test_late_report_does_not_bring_a_receiver_back_that_has_closed() -> None:
    core = sender(100, flow="slowest")
    core.admit(1, 10 * PACKET_BYTES, now=0.0)
    core.forget(1)
    core.on_status(status(0, 3 * PACKET_BYTES), now=0.0)
    assert len(data_of(core.take(now=0.0))) > 3
    assert (core.receivers, core.counters["late_status"]) == (0, 1)
    core.admit(1, 0, now=0.0)  # it is back
    core.on_status(status(100, 10 * PACKET_BYTES), now=0.0)
    assert core.receiver_ids() == [1]


def test_receiver_that_was_released_counts_when_it_reports_again() -> None:
    core = sender(10, flow="slowest")
    core.admit(1, 0, now=0.0)
    core.release(1)
    core.on_status(status(0, 3 * PACKET_BYTES), now=0.0)
    assert data_of(core.take(now=0.0)) == [0, 1, 2]


def test_memory_of_closed_receivers_is_bounded() -> None:
    core = sender()
    for n in range(packet_sender.CLOSED_MAX + 10):
        core.forget(n)
    assert len(core._closed) == packet_sender.CLOSED_MAX


def test_window_ends_in_the_middle_of_a_frame() -> None:
    core = sender(flow="slowest")
    core.add(frame_of(0, size=3000), 0, 1, now=0.0)
    core.on_status(status(0, 4 * PACKET_BYTES), now=0.0)
    assert data_of(core.take(now=0.0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("flow", ["fastest", "rate"])
def test_other_words_wait_for_nobody(flow: str) -> None:
    core = sender(10, flow=flow, rate=1e9)
    core.on_status(status(0, 0), now=0.0)
    assert len(data_of(core.take(now=0.0))) == 10


def test_silent_receiver_stops_counting() -> None:
    core = sender(5, flow="slowest")
    core.on_status(status(0, 0), now=0.0)
    assert core.take(now=0.0) == []
    core.on_deadline(now=2.9)
    assert core.receivers == 1
    core.on_deadline(now=3.0)
    assert (core.receivers, core.counters["silent_receivers"]) == (0, 1)
    assert len(data_of(core.take(now=3.0))) == 5


def small_buffer_sender(packets: int, kept: int) -> PacketSender:
    """A sender whose buffer keeps so many packets for a receiver that lags."""
    core = sender(flow="slowest", buffer_bytes=kept * PACKET_BYTES * 4 // 3)
    assert core.reach == kept
    for number in range(packets):
        core.add(frame_of(number), number, number + 1, now=0.0)
    return core


def take_all(core: PacketSender, *, now: float) -> list[int]:
    """The numbers of all data packets that may be sent now."""
    numbers: list[int] = []
    while some := data_of(core.take(now=now)):
        numbers += some
    return numbers


def test_receiver_that_misses_three_reports_is_waited_for_only_when_the_buffer_is_full() -> None:
    core = small_buffer_sender(100, kept=64)
    core.on_status(status(0, 2 * PACKET_BYTES), now=0.0)
    assert data_of(core.take(now=0.0)) == [0, 1]
    core.on_deadline(now=0.29)
    assert take_all(core, now=0.29) == []
    core.on_deadline(now=0.31)
    assert core.counters["lagging_receivers"] == 1
    assert take_all(core, now=0.31) == list(range(2, 64))
    core.on_deadline(now=2.9)
    assert take_all(core, now=2.9) == []


def test_receiver_that_lagged_and_reports_again_holds_nobody_up_until_it_has_caught_up() -> None:
    core = small_buffer_sender(60, kept=64)
    core.on_status(status(0, 2 * PACKET_BYTES), now=0.0)
    take_all(core, now=0.0)
    core.on_deadline(now=0.31)
    assert take_all(core, now=0.31) == list(range(2, 60))
    core.on_status(status(1, 2 * PACKET_BYTES), now=1.0)  # it is back, and far behind
    for number in range(60, 70):
        core.add(frame_of(number), number, number + 1, now=1.0)
    assert take_all(core, now=1.0) == list(range(60, 65))
    core.on_status(status(65, 2 * PACKET_BYTES), now=1.1)
    assert take_all(core, now=1.1) == [65, 66]  # it has caught up: its own window counts


def test_receiver_that_has_room_and_gets_no_packets_stops_nobody() -> None:
    core = small_buffer_sender(200, kept=64)
    for step in range(31):
        core.on_status(status(3, 2 * PACKET_BYTES, who=7), now=step / 10)
        core.on_deadline(now=step / 10)
        core.take(now=step / 10)
    assert core.sent == 3 + 64  # all that is kept for it
    core.on_deadline(now=3.1)
    assert core.unreached() == [7]
    assert core.holders() == []
    take_all(core, now=3.1)
    assert core.sent == 200
    core.on_status(status(199, 2 * PACKET_BYTES, who=7), now=3.2)
    assert core.unreached() == []


def test_receiver_without_room_is_slow_and_not_unreached() -> None:
    core = small_buffer_sender(200, kept=64)
    core.on_status(status(0, 2 * PACKET_BYTES, who=7), now=0.0)
    core.take(now=0.0)
    for step in range(100):
        core.on_status(status(1, 0, who=7), now=step / 10)
        core.on_deadline(now=step / 10)
        core.take(now=step / 10)
    assert (core.sent, core.unreached(), core.holders()) == (2, [], [7])


def test_receiver_that_holds_all_up_without_progress_is_evicted_and_the_others_are_not() -> None:
    core = sender(20, flow="slowest", evict_after_s=1.0)
    for second in (0.0, 0.5):
        core.on_status(status(0, 0, who=1), now=second)
        core.on_status(status(0, 3 * PACKET_BYTES, who=2), now=second)
        assert core.evict(now=second) == []
        assert core.take(now=second) == []
    assert core.holders() == [1]
    assert core.evict(now=1.0) == [1]
    assert (core.counters["evicted_receivers"], core.receivers) == (1, 2)
    assert data_of(core.take(now=1.0)) == [0, 1, 2]
    core.on_status(status(2, 0, who=1), now=1.1)  # still without room: it does not count
    core.on_status(status(2, 4 * PACKET_BYTES, who=2), now=1.1)
    assert data_of(core.take(now=1.1)) == [3, 4, 5]


def test_progress_puts_eviction_off() -> None:
    core = sender(20, flow="slowest", evict_after_s=1.0)
    for n in range(10):
        now = 0.8 * n
        core.on_status(status(n, PACKET_BYTES), now=now)
        assert core.evict(now=now) == []
        assert data_of(core.take(now=now)) == [n]
        assert core.evict(now=now) == []  # it holds up what comes next, from now on


def test_evicted_receiver_counts_again_when_it_has_room_for_what_is_next() -> None:
    core = sender(10, flow="slowest", evict_after_s=1.0)
    core.on_status(status(0, 0), now=0.0)
    core.evict(now=0.0)
    assert core.evict(now=1.0) == [1]
    assert len(data_of(core.take(now=1.0))) == 10
    assert core.slowest == core.sent, "nothing is kept for it, and nobody waits for it"
    core.on_status(status(4, 2 * PACKET_BYTES), now=1.1)
    assert core.slowest == core.sent
    core.on_status(status(9, 2 * PACKET_BYTES), now=1.2)
    assert core.slowest == 9
    for n in range(10, 13):
        core.add(frame_of(n), n, n + 1, now=1.3)
    assert data_of(core.take(now=1.3)) == [10]
    assert core.holders() == [1]


def test_what_is_not_held_up_evicts_nobody() -> None:
    core = sender(1, flow="slowest", evict_after_s=1.0)
    core.on_status(status(0, PACKET_BYTES), now=0.0)
    assert data_of(core.take(now=0.0)) == [0]
    for second in range(5):  # it has no room, and nobody has anything to send
        core.on_status(status(1, 0), now=float(second))
        assert core.evict(now=float(second)) == []
    core.add(frame_of(1), 1, 2, now=5.0)
    assert core.evict(now=5.0) == []
    assert core.evict(now=5.9) == []
    assert core.evict(now=6.0) == [1]


def test_nobody_is_evicted_where_that_was_not_asked_for() -> None:
    core = sender(1, flow="slowest")
    for second in range(100):
        core.on_status(status(0, 0), now=float(second))
        assert core.evict(now=float(second)) == []
    assert core.take(now=100.0) == []


def test_receivers_that_the_stream_does_not_wait_for_hold_nothing_up() -> None:
    core = sender(10, flow="slowest")
    core.on_status(status(0, 0, who=1), now=0.0)
    core.on_status(status(0, 3 * PACKET_BYTES, who=2), now=0.0)
    core.set_aside([1])
    assert data_of(core.take(now=0.0)) == [0, 1, 2]
    assert core.holders() == [2]
    core.set_aside([1, 2])
    assert len(data_of(core.take(now=0.0))) == 7
    core.set_aside([])
    core.add(frame_of(10), 10, 11, now=0.0)
    assert core.take(now=0.0) == []
    assert core.holders() == [1, 2]


def test_receiver_that_reports_keeps_counting() -> None:
    core = sender(1)
    for second in range(20):
        core.on_status(status(0, 100), now=float(second))
        core.on_deadline(now=float(second))
    assert core.receivers == 1


def test_report_that_was_overtaken_changes_nothing() -> None:
    core = sender(10, flow="slowest")
    core.admit(1, 10 * PACKET_BYTES, now=0.0)
    core.on_status(status(8, 10 * PACKET_BYTES), now=0.1)
    core.on_status(status(1, 0), now=0.1)
    assert core.slowest == 10
    assert len(data_of(core.take(now=0.1))) == 10


def test_receiver_admitted_again_starts_anew() -> None:
    core = sender(3, flow="slowest")
    core.on_status(status(0, 0), now=0.0)
    assert core.take(now=0.0) == []
    assert core.admit(1, 100 * PACKET_BYTES, now=2.5) == 3
    core.on_deadline(now=4.0)
    assert core.receivers == 1
    assert len(data_of(core.take(now=4.0))) == 3


def test_strangers_reports_are_counted_and_ignored() -> None:
    core = sender(3, flow="slowest")
    core.on_status(status(0, 0, epoch=99), now=0.0)
    core.on_status(status(4, 0), now=0.0)
    assert (core.receivers, core.counters["strange_status"]) == (0, 2)


def test_number_of_receivers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_sender, "RECEIVERS_MAX", 3)
    core = sender(1)
    for who in range(5):
        core.on_status(status(0, 100, who=who), now=0.0)
    core.admit(9, 100, now=0.0)
    assert (core.receivers, core.counters["receivers_full"]) == (3, 3)


# Heartbeats -------------------------------------------------------------------------------------


def test_heartbeats_follow_data_densely_and_back_off() -> None:
    core = sender(2)
    core.take(now=0.0)
    times = [at for at, (data, _) in run_until(core, 0.0, 3.0) if data[4] == HEARTBEAT]
    assert [round(at, 3) for at in times] == [
        0.01,
        0.03,
        0.07,
        0.15,
        0.31,
        0.63,
        1.27,
        2.27,
    ]


def test_heartbeat_tells_what_can_be_asked_for() -> None:
    core = sender(5, buffer_bytes=200)
    core.take(now=0.0)
    core.on_deadline(now=0.0)
    core.admit(1, 100, now=0.0)
    (told,) = beats_of(core.take(now=0.01))
    assert (told.first, told.next, told.next_event, told.receivers) == (
        core.store.first,
        5,
        5,
        1,
    )
    assert told.first_event == core.store.first_event > 0
    assert told.flags == 0


def test_heartbeat_tells_nothing_of_what_is_not_sent_yet() -> None:
    core = sender(1, flow="slowest")
    core.add(frame_of(1, count=3, size=100), 1, 4, now=0.0)
    core.on_status(status(0, 2 * PACKET_BYTES), now=0.0)
    assert data_of(core.take(now=0.0)) == [0, 1]
    (told,) = beats_of(core.take(now=0.01))
    assert (told.next, told.next_event) == (2, 1)


def test_heartbeat_comes_through_a_steady_stream() -> None:
    core = sender()
    core.admit(1, 1 << 20, now=0.0)
    heard: list[float] = []
    for n in range(3000):
        now = n / 1000
        core.add(frame_of(n), n, n + 1, now=now)
        heard += [now for _ in beats_of(core.take(now=now))]
    assert heard == [0.01, 1.01, 2.01]


def test_end_is_told_when_all_is_sent() -> None:
    core = sender(3, flow="slowest")
    core.on_status(status(0, 2 * PACKET_BYTES), now=0.0)
    core.take(now=0.0)
    core.end(now=0.0)
    assert [beat.flags for beat in beats_of(core.take(now=0.0))] == [0]
    core.release(1)
    core.take(now=0.1)
    assert [beat.flags for beat in beats_of(core.take(now=0.2))] == [ENDS]


def test_idle_sender_has_nothing_to_do() -> None:
    assert sender().deadline(now=0.0) == NEVER
    assert sender().take(now=0.0) == []


# Repairs ----------------------------------------------------------------------------------------


def test_what_is_asked_for_is_sent_again_once() -> None:
    core = sender(10)
    core.take(now=0.0)
    core.on_request(nack((2, 4), (7, 8)), "a", now=1.0)
    assert core.deadline(now=1.0) <= 1.0
    bursts = core.take(now=1.0)
    assert repairs_of(bursts) == [2, 3, 7]
    assert confirmed(bursts) == []
    assert repairs_of(core.take(now=1.001)) == []


def test_one_fragment_of_a_large_event_is_repaired_alone() -> None:
    core = PacketSender(7, 3, sender(packet_bytes=1400, buffer_bytes=1 << 30).policy)
    core.add(frame_of(0, size=16 << 20), 0, 1, now=0.0)
    while core.sent < core.store.next:
        core.take(now=0.0)
    assert core.store.next > 12_000
    core.on_request(nack((7000, 7001)), "a", now=1.0)
    (burst,) = [data for data, _ in core.take(now=1.0) if data[4] == REPAIR]
    assert len(burst) == 1400
    assert core.counters["repairs"] == 1


def test_full_packets_are_repaired_in_one_burst() -> None:
    core = sender()
    core.add(frame_of(0, size=5000), 0, 1, now=0.0)
    core.take(now=0.0)
    core.on_request(nack((1, 2), (4, 6), (9, 10)), "a", now=1.0)
    bursts = [burst for burst in core.take(now=1.0) if burst[0][4] == REPAIR]
    assert len(bursts) == 1
    assert repairs_of(bursts) == [1, 4, 5, 9]


def test_overlapping_requests_are_ignored_while_it_lingers() -> None:
    core = sender(10)
    core.take(now=0.0)
    core.on_request(nack((2, 5)), "a", now=1.0)
    core.take(now=1.0)
    core.on_request(nack((3, 7)), "b", now=1.004)
    assert repairs_of(core.take(now=1.004)) == [5, 6]
    assert core.counters["suppressed"] == 2
    core.on_request(nack((2, 5)), "c", now=1.02)
    assert repairs_of(core.take(now=1.02)) == [2, 3, 4]


def test_linger_ends_after_twice_its_time_whatever_else_is_repaired() -> None:
    core = sender(100)
    core.take(now=0.0)
    while core.sent < 100:
        core.take(now=0.0)
    core.on_request(nack((0, 1)), "a", now=1.0)
    core.take(now=1.0)
    for n in range(1, 10):
        core.on_request(nack((n, n + 1)), "a", now=1.0 + n / 1000)
        core.take(now=1.0 + n / 1000)
    core.on_request(nack((0, 1)), "b", now=1.0101)
    assert repairs_of(core.take(now=1.0101)) == [0]


def test_request_for_what_was_just_repaired_is_confirmed() -> None:
    """The repair may have been lost for everybody: the others need not ask, too."""
    core = sender(10)
    core.admit(1, 1 << 20, now=0.0)
    core.take(now=0.0)
    core.on_request(nack((2, 3)), "a", now=1.0)
    core.take(now=1.0)
    core.on_request(nack((2, 3)), "b", now=1.001)
    bursts = core.take(now=1.001)
    assert (repairs_of(bursts), confirmed(bursts)) == ([], [(2, 3)])
    message = decode_packet(split(bursts, CONFIRM)[0])
    assert isinstance(message, PacketRequest)
    assert message.asker == 1  # the size of the group
    core.on_request(nack((2, 3)), "c", now=1.0012)
    assert confirmed(core.take(now=1.0012)) == []
    assert confirmed(core.take(now=1.0021)) == [(2, 3)]


def test_repair_that_has_to_wait_is_confirmed() -> None:
    core = sender(10, size=60, repair_rate=1000.0)
    core._repair_pace = TokenBucket(1000.0, burst_bytes=100)
    core.take(now=0.0)
    core.on_request(nack((2, 5)), "a", now=1.0)
    bursts = core.take(now=1.0)
    assert (repairs_of(bursts), confirmed(bursts)) == ([2], [(3, 5)])
    sent = run_until(core, 1.0, 2.0)
    assert numbers([data for _, (data, _) in sent if data[4] == REPAIR]) == [3, 4]


def test_repairs_have_a_budget_apart_from_live_packets() -> None:
    core = sender(2000, size=60, repair_rate=10_000.0)
    core._repair_pace = TokenBucket(10_000.0, burst_bytes=500)
    for _ in range(5):
        core.take(now=0.0)
    sent = core.sent
    assert sent > 100
    core.on_request(nack((0, sent)), "a", now=0.0)
    live = repairs = 0
    for n in range(200):
        bursts = core.take(now=n / 1000)
        live += len(data_of(bursts))
        repairs += sum(len(packet) for packet in split(bursts, REPAIR))
    assert live == 2000 - sent
    assert repairs <= 500 + 0.2 * 10_000 + PACKET_BYTES


def test_request_for_what_is_gone_or_never_was_is_answered_by_a_heartbeat() -> None:
    core = sender(10, buffer_bytes=500)
    core.take(now=0.0)
    core.on_deadline(now=0.0)
    first = core.store.first
    assert 0 < first < 9
    core.on_request(nack((first - 1, first + 1), (9, 30)), "a", now=0.001)
    bursts = core.take(now=0.001)
    assert repairs_of(bursts) == [first, 9]
    (told,) = beats_of(bursts)
    assert (told.first, told.next, told.flags) == (first, 10, ANSWERS)


def test_many_such_requests_are_answered_together() -> None:
    core = sender(3)
    core.take(now=0.0)
    answers = 0
    for n in range(100):
        now = 1.0 + n / 10_000
        core.on_request(nack((50, 60)), n, now=now)
        answers += sum(bool(told.flags & ANSWERS) for told in beats_of(core.take(now=now)))
    assert answers == 2
    assert core.deadline(now=now) <= now + 0.005


def test_repair_that_fell_out_of_the_buffer_while_it_waited_is_answered() -> None:
    core = sender(4, size=60, buffer_bytes=1000, repair_rate=1000.0)
    core._repair_pace = TokenBucket(1000.0, burst_bytes=1)
    core.take(now=0.0)
    core.on_request(nack((0, 3)), "a", now=0.001)
    assert repairs_of(core.take(now=0.001)) == [0]
    for n in range(4, 12):
        core.add(frame_of(n, size=60), n, n + 1, now=0.002)
    bursts = core.take(now=5.0)
    assert repairs_of(bursts) == []
    assert beats_of(bursts)[0].flags & ANSWERS
    assert core.deadline(now=5.0) > 5.0


def test_age_bounds_what_is_kept() -> None:
    core = sender(3, buffer_age_s=1.0)
    core.take(now=0.0)
    core.on_deadline(now=1.5)
    assert core.store.first == 2
    core.on_request(nack((0, 1)), "a", now=1.5)
    assert repairs_of(core.take(now=1.5)) == []


def test_ranges_waiting_for_repair_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_sender, "REPAIR_RANGES_MAX", 5)
    core = sender(40)
    core.take(now=0.0)
    core.take(now=0.0)
    core.on_request(nack(*((n, n + 1) for n in range(0, 40, 2))), "a", now=1.0)
    assert core.counters["repairs_full"] > 0
    assert repairs_of(core.take(now=1.0)) == [0, 2, 4, 6, 8]


def test_strange_requests_are_counted_and_ignored() -> None:
    core = sender(3)
    core.take(now=0.0)
    core.on_request(nack((0, 1), epoch=99), "a", now=1.0)
    core.on_request(PacketRequest(CONFIRM, 7, 3, 0, [(0, 1)]), "a", now=1.0)
    assert core.counters["strange_requests"] == 2
    assert repairs_of(core.take(now=1.0)) == []


def test_flood_of_requests_from_one_source_is_refused_and_changes_nothing_for_live() -> None:
    core = sender(repair_rate=50_000.0)
    core._repair_pace = TokenBucket(50_000.0, burst_bytes=1000)
    live = 0
    repaired = 0
    for n in range(1000):
        now = n / 1000
        core.add(frame_of(n), n, n + 1, now=now)
        for _ in range(20):
            core.on_request(nack((0, core.sent + 1)), "flood", now=now)
        bursts = core.take(now=now)
        live += len(data_of(bursts))
        repaired += sum(map(len, split(bursts, REPAIR)))
        assert len(bursts) < 100
    assert live == 1000
    assert core.counters["refused_requests"] > 10_000
    assert core.counters["nacks"] <= packet_sender.ASKED_PER_S  # each costs two at least
    assert repaired < 1000 + 50_000 + 64 * PACKET_BYTES
    core.on_request(nack((998, 999)), "honest", now=1.0)
    assert core.counters["refused_requests"] <= 20_000


def test_memory_of_askers_is_bounded() -> None:
    core = sender(3)
    core.take(now=0.0)
    for n in range(3000):
        core.on_request(nack((0, 1)), n, now=0.0)
    assert len(core._askers) == packet_sender.ASKERS_MAX


# Holding and dropping ---------------------------------------------------------------------------


def test_what_is_not_sent_yet_is_held() -> None:
    core = sender(20, flow="slowest", buffer_bytes=300)
    core.on_status(status(0, 0), now=0.0)
    core.on_deadline(now=0.0)
    core.release(1)
    assert len(data_of(core.take(now=0.0))) == 20


def test_what_is_not_sent_yet_may_be_dropped_and_is_not_told_as_sent() -> None:
    core = PacketSender(7, 3, sender(flow="slowest", buffer_bytes=300, hold=False).policy)
    core.admit(1, 0, now=0.0)
    for n in range(20):
        core.add(frame_of(n), n, n + 1, now=0.0)
    dropped = core.store.first
    assert dropped > 10
    assert core.counters["unsent_packets"] == dropped == core.sent
    (told,) = beats_of(core.take(now=0.01))
    assert (told.first, told.next, told.next_event) == (dropped, dropped, dropped)


# Parity -----------------------------------------------------------------------------------------


def test_parity_packets_protect_groups_and_are_longer_by_a_known_amount() -> None:
    core = sender(parity=(4, 2))
    core.add(frame_of(0, size=2000), 0, 1, now=0.0)
    bursts = core.take(now=0.0)
    packets = split(bursts, None)
    groups = -(-core.store.next // 4)
    assert core.counters["parity_packets"] == 2 * groups
    assert max(map(len, packets)) == PACKET_BYTES + PARITY_MORE_BYTES


def test_small_frames_of_one_turn_share_their_parity() -> None:
    core = sender(8, parity=(8, 1))
    assert len(split(core.take(now=0.0), PARITY)) == 1
