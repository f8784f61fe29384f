"""Packets in any order in, frames in order out: `now` is moved by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg._wire.frame import FRAME_EVENTS_MAX
from meshmsg._wire.packet import ANSWERS, CONFIRM, DATA_HEAD, ENDS, PARITY, REPAIR, PacketRequest
from meshmsg.recovery.multicast import packet_receiver
from meshmsg.recovery.multicast.packet_receiver import AHEAD_S, PacketReceiver
from meshmsg.recovery.multicast.packet_sender import PacketSender
from meshmsg.recovery.stream.loss_detector import NEVER
from tests.support.cores import (
    EPOCH,
    PACKET_BYTES,
    STREAM,
    asked,
    beat,
    firsts,
    frame_of,
    give,
    nack,
    packets_of,
    policy,
    receiver,
    sender,
    split,
)

LATER = 0.02  # by then every first back-off is over


def large(size: int = 2000, first: int = 0) -> list[bytes]:
    """The packets of one large frame."""
    core = sender()
    core.add(frame_of(first, size=size), first, first + 1, now=0.0)
    return split(core.take(now=0.0))


def forged(packet: bytes, **fields: int) -> bytes:
    """A packet of somebody who knows what the sender's look like."""
    head = list(DATA_HEAD.unpack_from(packet))
    names = ("magic", "kind", "flags", "place", "stream", "epoch", "number", "first", "bytes")
    for name, value in fields.items():
        head[(*names, "packets", "events").index(name)] = value
    return DATA_HEAD.pack(*head) + b"\xee" * (len(packet) - DATA_HEAD.size)


def confirm(*ranges: tuple[int, int], group: int = 0) -> bytes:
    return PacketRequest(CONFIRM, STREAM, EPOCH, group, list(ranges)).encode()


# In order ---------------------------------------------------------------------------------------


def test_frames_of_one_packet_come_out_as_they_come_in() -> None:
    core = receiver()
    assert firsts(give(core, *packets_of(5))) == [0, 1, 2, 3, 4]
    assert (core.next, core.high, core.missing, core.is_behind) == (5, 5, 0, False)
    assert core.deadline() == NEVER
    assert core.lines[0] == {"first": 5}


def test_burst_of_a_large_frame_is_taken_at_once() -> None:
    core = receiver()
    packets = large(5000)
    (frame,) = core.receive(b"".join(packets), PACKET_BYTES, now=0.0)
    assert frame.data == frame_of(0, size=5000)
    assert core.next == len(packets) == core.counters["packets"]


def test_burst_of_frames_of_one_packet_is_taken_at_once() -> None:
    packets = packets_of(9)
    core = receiver()
    assert firsts(core.receive(b"".join(packets), len(packets[0]), now=0.0)) == list(range(9))


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_large_frame_may_come_in_several_bursts(cut: int) -> None:
    packets = large(3000)
    core = receiver()
    out = []
    for at in range(0, len(packets), cut):
        out += core.receive(b"".join(packets[at : at + cut]), PACKET_BYTES, now=0.0)
    assert firsts(out) == [0]


def test_burst_with_a_hole_is_no_run() -> None:
    packets = large(3000)
    core = receiver()
    assert core.receive(b"".join(packets[:4] + packets[5:]), PACKET_BYTES, now=0.0) == []
    assert (core.next, core.missing) == (4, 1)
    assert firsts(give(core, packets[4])) == [0]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_any_order_and_any_cut_give_the_frames_in_order(rng: random.Random, swaps: int) -> None:
    core = sender()
    for n, size in enumerate([20, 900, 20, 3000, 1, 500]):
        core.add(frame_of(n, size=size), n, n + 1, now=0.0)
    packets = split(core.take(now=0.0))
    for _ in range(swaps):
        a, b = rng.randrange(len(packets)), rng.randrange(len(packets))
        packets[a], packets[b] = packets[b], packets[a]
    packets += rng.sample(packets, 5)  # some twice
    to, out = receiver(), []
    while packets:
        run = packets[: rng.randint(1, 9)]
        short = [n for n, packet in enumerate(run) if len(packet) < PACKET_BYTES]
        run = run[: short[0] + 1] if short else run
        del packets[: len(run)]
        out += to.receive(b"".join(run), PACKET_BYTES, now=0.0)
    assert firsts(out) == [0, 1, 2, 3, 4, 5]
    assert (to.missing, to.held_bytes, to.is_behind) == (0, 0, False)
    assert to.counters["spoiled_frames"] == to.counters["misfits"] == 0


# Gaps and requests ------------------------------------------------------------------------------


def test_frames_that_a_repair_completes_are_put_together_a_few_at_a_time() -> None:
    core = receiver()
    core.frames_max = 2
    packets = packets_of(20)
    assert give(core, packets[0]) != []
    assert give(core, *packets[2:10]) == []
    assert not core.more
    assert firsts(give(core, packets[1])) == [1, 2]
    assert (core.more, core.complete, core.is_behind) == (True, 7, True)
    assert give(core, packets[10], packets[12]) == [], "what comes meanwhile waits its turn"
    assert core.complete == 8, "up to the next gap"
    assert give(core, packets[4]) == []
    assert core.counters["duplicates"] == 1
    found = []
    while core.more:
        found += firsts(core.go_on(now=0.0))
    assert found == list(range(3, 11))
    assert (core.complete, core.missing, core.next) == (0, 1, 11)
    assert core.go_on(now=0.0) == []
    assert firsts(give(core, packets[11])) == [11, 12]
    assert not core.more


def test_nacks_missing_range_after_delay() -> None:
    core = receiver()
    packets = packets_of(6)
    assert firsts(give(core, packets[0], *packets[3:])) == [0]
    assert core.missing == 2
    assert core.deadline() >= 0.001
    assert asked(core, now=0.0009) == []
    assert asked(core, now=LATER) == [(1, 3)]
    assert core.counters["nacks"] == 1
    assert firsts(give(core, packets[1], packets[2], now=LATER)) == [1, 2, 3, 4, 5]


def test_reorder_within_the_back_off_causes_no_nack() -> None:
    core = receiver()
    packets = packets_of(4)
    give(core, packets[1], packets[3], packets[2])
    assert firsts(give(core, packets[0], now=0.0009)) == [0, 1, 2, 3]
    assert core.deadline() == NEVER
    assert core.counters["late"] == 2
    assert core.counters["nacks"] == 0


def test_several_ranges_go_in_one_nack() -> None:
    core = receiver()
    packets = packets_of(20)
    for n, packet in enumerate(packets):
        if n % 3:
            give(core, packet, now=n * 1e-5)
    due = core.deadline()
    requests, _ = core.on_deadline(now=due)
    assert len(requests) == 1
    core = receiver()
    give(core, *(packet for n, packet in enumerate(packets) if n % 3))
    assert asked(core, now=LATER) == [(n, n + 1) for n in range(0, 19, 3)]
    assert core.counters["nacks"] == 1


def test_gap_found_just_now_does_not_go_along() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, packets[0], packets[2])
    due = core.deadline()
    give(core, packets[4], now=due - 0.0005)
    assert asked(core, now=due) == [(1, 2)]


def test_nack_is_repeated_and_ever_later() -> None:
    core = receiver()
    give(core, packets_of(3)[2])
    times = []
    while len(times) < 5:
        now = core.deadline()
        assert asked(core, now=now) == [(0, 2)]
        times.append(now)
    waits = [b - a for a, b in pairwise(times)]
    spread = core._detector._spread_s
    for wait, least in zip(waits, (0.02, 0.03, 0.045, 0.0675), strict=True):
        assert least <= wait <= least + spread


def test_confirmation_holds_the_nack_back() -> None:
    core = receiver()
    give(core, packets_of(9)[8])
    give(core, confirm((0, 3), (5, 6)), now=0.0005)
    assert asked(core, now=0.0195) == [(3, 5), (6, 8)]
    assert asked(core, now=0.06) == [(0, 8)]


def test_repair_that_another_asked_for_is_counted_as_suppressed() -> None:
    core = receiver()
    packets = packets_of(4)
    give(core, packets[3])
    give(core, confirm((0, 1)), now=0.0005)
    give(core, packets[0][:4] + bytes([REPAIR]) + packets[0][5:], now=0.001)
    assert core.counters["suppressed"] == 1
    assert asked(core, now=0.0195) == [(1, 3)]
    give(core, packets[1][:4] + bytes([REPAIR]) + packets[1][5:], now=0.02)
    assert (core.counters["repaired"], core.counters["suppressed"]) == (2, 1)


def test_anothers_nack_holds_it_back_too() -> None:
    core = receiver()
    give(core, packets_of(3)[2])
    give(core, nack((0, 2)).encode(), now=0.0005)
    assert asked(core, now=0.0195) == []


def test_confirmations_without_end_do_not_silence_a_receiver() -> None:
    core = receiver()
    give(core, packets_of(3)[2])
    now, ranges = 0.0, []
    while now < 2.0 and not ranges:
        now += 0.005
        give(core, confirm((0, 2)), now=now)
        ranges = asked(core, now=now)
    assert ranges == [(0, 2)]


def test_larger_group_waits_longer_on_average() -> None:
    def mean_wait(size: int) -> float:
        total = 0.0
        for seed in range(200):
            core = receiver(rng=random.Random(seed))
            give(core, beat(0, receivers=size), packets_of(2)[1])
            total += core.deadline()
        return total / 200

    assert mean_wait(1) < mean_wait(10) < mean_wait(100) < 0.001 + 0.002 * 5


def test_loss_of_the_tail_is_found_by_a_heartbeat() -> None:
    core = receiver()
    packets = packets_of(4)
    give(core, packets[0], beat(4))
    assert core.missing == 3
    assert asked(core, now=LATER) == [(1, 4)]
    assert core.is_behind


def test_one_lost_fragment_of_a_large_event_is_asked_for_and_repaired_alone() -> None:
    out_core = PacketSender(STREAM, EPOCH, policy(packet_bytes=1400, buffer_bytes=1 << 26))
    data = frame_of(0, size=16 << 20)
    out_core.add(data, 0, 1, now=0.0)
    core = receiver(held_bytes_max=1 << 25)
    while out_core.sent < out_core.store.next:
        for burst, size in out_core.take(now=0.0):
            packets = split([(burst, size)], None)
            kept = [p for p in packets if DATA_HEAD.unpack_from(p)[6] != 7000]
            assert core.receive(b"".join(kept), size, now=0.0) == []
    assert asked(core, now=LATER) == [(7000, 7001)]
    out_core.on_request(nack((7000, 7001)), "a", now=LATER)
    repairs = split(out_core.take(now=LATER), REPAIR)
    assert len(repairs) == 1
    (frame,) = give(core, *repairs, now=LATER)
    assert frame.data == data
    assert core.counters["repaired"] == 1


def test_nothing_is_asked_for_while_there_is_no_room() -> None:
    core = receiver()
    give(core, packets_of(3)[2])
    for n in range(1, 100):
        core.hold(now=n / 10)
    requests, frames = core.on_deadline(now=10.0)
    assert (len(requests), frames, core.missing) == (1, [], 2)


# Giving up --------------------------------------------------------------------------------------


def test_gap_is_given_up_at_its_deadline_and_the_rest_goes_on() -> None:
    core = receiver()
    packets = packets_of(4)
    give(core, packets[0], packets[2], packets[3])
    out = []
    while core.deadline() < NEVER:
        now = core.deadline()
        out += core.on_deadline(now=now)[1]
    assert now == pytest.approx(5.0)
    assert firsts(out) == [2, 3]
    assert (core.next, core.counters["lost_packets"], core.missing) == (4, 1, 0)


def test_what_is_gone_at_the_sender_is_skipped_to_the_next_frame() -> None:
    packets = large(1000)
    count = len(packets)
    core = receiver()
    rest = packets_of(3)
    follow = [forge_number(packet, count + n) for n, packet in enumerate(rest)]
    give(core, packets[0], *packets[2:])
    assert give(core, *follow) == []
    out = give(core, beat(count + 3, first=count, first_event=1), now=0.1)
    assert firsts(out) == [0, 1, 2]
    assert core.counters["orphans"] == count - 2
    assert core.counters["dropped_frames"] == 1
    assert not core.is_behind


def forge_number(packet: bytes, number: int) -> bytes:
    return packet[:24] + number.to_bytes(8, "little") + packet[32:]


def test_events_of_what_was_given_up_are_told() -> None:
    core = receiver()
    give(core, packets_of(1)[0], beat(5, first=0, next_event=9))
    assert core.take_tail(1) == 0
    give(core, beat(5, first=5, first_event=9, next_event=9), now=0.1)
    assert (core.next, core.take_tail(1)) == (5, 0)  # once may be a forgery
    give(core, beat(5, first=5, first_event=9, next_event=9), now=0.1 + AHEAD_S)
    assert core.take_tail(1) == 9
    assert core.take_tail(1) == 0  # told


def test_packet_that_comes_after_it_was_given_up_is_used_if_it_still_can_be() -> None:
    core = receiver()
    packets = packets_of(6)
    give(core, packets[5])
    core._give_up([(2, 4)], 0.0)
    assert firsts(give(core, packets[2])) == []
    assert firsts(give(core, packets[0], packets[1])) == [0, 1, 2]
    assert core.counters["lost_packets"] == 1


def test_end_is_heard() -> None:
    core = receiver()
    give(core, *packets_of(2), beat(2))
    assert not core.ended
    give(core, beat(2, flags=ENDS))
    assert core.ended


# Joining ----------------------------------------------------------------------------------------


def test_late_receiver_starts_with_the_next_frame() -> None:
    core = receiver(None)
    packets = large(1000)
    last = forge_number(packets_of(1)[0], len(packets))
    assert give(core, beat(3), *packets[4:]) == []
    assert (core.started, core.missing) == (False, 0)
    assert firsts(give(core, last)) == [0]
    assert core.started


def test_late_receiver_does_not_start_with_a_repair() -> None:
    core = receiver(None)
    packets = packets_of(9)
    old = packets[1][:4] + bytes([REPAIR]) + packets[1][5:]
    assert give(core, old) == []
    assert firsts(give(core, packets[7])) == [7]
    assert core.missing == 0


def test_late_receiver_may_start_with_the_oldest() -> None:
    core = receiver(None)
    told = packet_receiver.decode_packet(beat(9, first=4))
    assert isinstance(told, packet_receiver.PacketBeat)
    core.start_from(told)
    give(core, beat(9, first=4))
    assert (core.next, core.missing) == (4, 5)


def test_given_start_asks_for_what_lies_between() -> None:
    core = receiver(3)
    packets = packets_of(6)
    assert give(core, packets[0], packets[5]) == []
    assert asked(core, now=LATER) == [(3, 5)]


# Two lines --------------------------------------------------------------------------------------


def test_first_copy_wins_and_a_gap_is_where_both_lost_it() -> None:
    core = receiver(lines=2)
    packets = packets_of(6)
    out = give(core, packets[0], packets[1], packets[3], packets[5], line=0)
    out += give(core, packets[0], packets[2], packets[3], packets[5], line=1)
    assert firsts(out) == [0, 1, 2, 3]
    assert asked(core, now=LATER) == [(4, 5)]
    assert core.lines[0] == {"first": 4}
    assert core.lines[1] == {"first": 1, "again": 3}


# Strangers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"x",
        b"x" * 300,
        bytes(60),
        b"MMP1",
        beat(9, epoch=99),
        beat(9)[:-1] + b"\0",
        nack((0, 1), epoch=99).encode(),
        *(packet[:40] for packet in packets_of(1)),
        *(packet[: DATA_HEAD.size] for packet in packets_of(1)),
        *(forged(packet, stream=8) for packet in packets_of(1)),
        *(forged(packet, epoch=99) for packet in packets_of(1)),
        *(forged(packet, kind=0) for packet in packets_of(1)),
        *(forged(packet, packets=2, place=2) for packet in packets_of(1)),
        *(forged(packet, number=9, packets=0) for packet in packets_of(1)),
        *(forged(packet, number=9, events=0) for packet in packets_of(1)),
        *(forged(packet, number=9, bytes=1 << 31) for packet in packets_of(1)),
        *(forged(packet, number=1 << 63) for packet in packets_of(1)),
    ],
)
def test_noise_is_counted_and_changes_nothing(noise: bytes) -> None:
    core = receiver()
    give(core, noise)
    assert (core.next, core.high, core.missing) == (0, 0, 0)
    if noise:
        counted = core.counters["bad_packets"] + core.counters["strange_packets"]
        assert counted == 1
    assert firsts(give(core, *packets_of(2))) == [0, 1]


def test_random_datagrams_never_raise() -> None:
    rng = random.Random(1)
    core = receiver()
    core.use_parity()
    genuine = [
        *packets_of(5),
        beat(5),
        confirm((0, 2)),
        *split(sender(4, parity=(2, 1)).take(now=0.0), PARITY),
    ]
    for _ in range(3000):
        data = bytearray(rng.choice(genuine))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(5, len(data))] = rng.randrange(256)
        core.receive(bytes(data[: rng.randint(1, len(data))]), rng.randint(1, 300), now=0.0)
        assert core.held_bytes <= 1 << 20


def test_frame_spoiled_by_a_strangers_packet_is_asked_for_again_and_healed() -> None:
    packets = large(1000)
    core = receiver()
    out = give(core, *packets[:3], forged(packets[3]), *packets[3:])
    assert out == []
    assert core.counters["spoiled_frames"] == 1
    assert asked(core, now=LATER) == [(0, len(packets))]
    assert firsts(give(core, *packets, now=LATER)) == [0]


@pytest.mark.parametrize("fields", [{"first": 77}, {"place": 0}, {"place": 2}, {"packets": 1000}])
def test_packet_that_does_not_fit_its_frame_is_asked_for_again_and_healed(
    fields: dict[str, int],
) -> None:
    packets = large(1000)
    core = receiver()
    give(core, *packets[:3], forged(packets[3], **fields), *packets[4:])
    assert core.counters["misfits"] == 1
    assert asked(core, now=LATER)
    assert firsts(give(core, *packets, now=LATER)) == [0]


def test_orphan_that_cannot_be_one_is_asked_for_again() -> None:
    """After a loss, whatever calls itself the rest of a frame must have begun before it."""
    core = receiver()
    packets = packets_of(6)
    give(core, beat(2, first=2, first_event=2), forged(packets[2], place=1, packets=2))
    assert core.counters["orphans"] == 1
    give(core, forged(packets[3], place=1, packets=3))
    assert core.counters["misfits"] == 1
    assert firsts(give(core, *packets[3:])) == [3, 4, 5]


def test_frame_that_stays_spoiled_is_dropped_in_the_end() -> None:
    core = receiver()
    fake = forged(packets_of(1)[0])
    for _ in range(packet_receiver.SPOILED_MAX):
        give(core, fake)
        assert core.next == 0
    give(core, fake)
    assert (core.next, core.counters["dropped_frames"]) == (1, 1)
    follow = packets_of(3)
    assert firsts(give(core, *follow[1:])) == [1, 2]


def test_healing_never_runs_out() -> None:
    core = receiver()
    count = packet_receiver.SPOILED_FRAMES_MAX + 10
    core_out = sender()
    for n in range(count):
        core_out.add(frame_of(n), n, n + 1, now=0.0)
        (packet,) = split(core_out.take(now=0.0))
        assert give(core, forged(packet)) == []
        assert firsts(give(core, packet)) == [n]


def test_imaginary_gap_after_a_forged_number_goes_when_the_sender_answers() -> None:
    core = receiver()
    packets = packets_of(3)
    give(core, packets[0], forge_number(packets[1], 1000))
    assert core.missing == 999
    assert asked(core, now=LATER) == [(1, 1000)]
    give(core, beat(1, flags=ANSWERS), now=LATER)  # too soon: it may be on its way
    assert core.missing == 999
    give(core, beat(1, flags=ANSWERS), now=0.2)
    assert (core.missing, core.high, core.held_bytes) == (0, 1, 0)
    assert core.counters["imaginary"] == 999
    assert firsts(give(core, *packets[1:], now=0.3)) == [1, 2]


def test_real_gap_stays_when_an_old_answer_is_heard() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, *packets[:5], packets[8])
    give(core, beat(3, flags=ANSWERS), now=1.0)
    assert core.missing == 3


def test_forged_heartbeat_from_ahead_is_overcome() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, packets[0])
    give(core, beat(1 << 20, first=1 << 20, first_event=1 << 20), now=0.1)
    assert core.next == 1 << 20
    for n in range(12):
        give(core, beat(1, next_event=1), now=0.2 + n / 10)
    assert core.counters["set_back"] == 1
    assert firsts(give(core, *packets[1:], now=2.0)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_late_heartbeats_do_not_set_back() -> None:
    core = receiver()
    packets = packets_of(9)
    for n, packet in enumerate(packets):
        give(core, packet, beat(max(0, n - 2)), now=float(n))
    give(core, beat(9), beat(5), now=20.0)
    give(core, beat(9), beat(5), now=21.5)
    assert core.counters["set_back"] == 0
    assert core.next == 9


def test_forged_heartbeat_cannot_invent_events_where_none_is_missing() -> None:
    core = receiver()
    give(core, *packets_of(3))
    for n in range(30):
        give(core, beat(3, next_event=1 << 50), now=n / 10)
    assert core.take_tail(3) == 0


def test_forged_heartbeat_cannot_invent_more_events_than_packets_can_hold() -> None:
    core = receiver()
    give(core, *packets_of(3))
    for n in range(30):
        give(core, beat(5, first=5, first_event=3, next_event=1 << 50), now=n / 10)
    assert core.take_tail(3) == 3 + 2 * FRAME_EVENTS_MAX


def test_events_of_a_heartbeat_that_the_sender_contradicts_do_not_count() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, *packets[:3])
    for n in range(30):  # one a second at most is the sender's own
        give(core, beat(1 << 20, first=1 << 20, first_event=3, next_event=1 << 50), now=n / 10)
        give(core, beat(3, next_event=3), now=n / 10)
    assert core.take_tail(3) == 0
    for n in range(12):
        give(core, beat(3, next_event=3), now=3.0 + n / 10)
    assert core.counters["set_back"] == 1
    assert firsts(give(core, *packets[3:], now=5.0)) == [3, 4, 5, 6, 7, 8]


def test_what_was_passed_over_by_a_forged_heartbeat_is_asked_for() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, *packets[:3])
    give(core, beat(1000, first=1000, first_event=3), now=0.0)
    give(core, *packets[3:], now=0.1)
    assert core.counters["duplicates"] == 6
    for n in range(12):
        give(core, beat(9, next_event=9), now=0.2 + n / 10)
    assert asked(core, now=2.0) == [(3, 9)]
    assert firsts(give(core, *packets[3:], now=2.0)) == [3, 4, 5, 6, 7, 8]


def test_sender_that_no_longer_has_what_was_passed_over_is_followed() -> None:
    core = receiver()
    packets = packets_of(9)
    give(core, *packets[:3])
    give(core, beat(1000, first=1000, first_event=3), now=0.0)
    for n in range(12):
        give(core, beat(9, first=5, first_event=5, next_event=9), now=0.2 + n / 10)
    assert core.next == 5
    assert firsts(give(core, *packets[5:], now=2.0)) == [5, 6, 7, 8]


# Bounds -----------------------------------------------------------------------------------------


def test_what_is_held_is_bounded_in_bytes() -> None:
    core = receiver(held_bytes_max=1000)
    packets = packets_of(30)
    give(core, *packets[1:])
    assert core.held_bytes <= 1000
    assert core.counters["held_full"] > 0
    for _ in range(20):
        give(core, *packets)
    assert core.next == 30


def test_packet_that_is_next_always_has_room() -> None:
    core = receiver(held_bytes_max=0)
    packets = packets_of(5)
    give(core, beat(5), *reversed(packets))
    for _ in range(5):
        give(core, *packets)
    assert core.next == 5


def test_far_packets_are_not_believed() -> None:
    core = receiver()
    packet = packets_of(1)[0]
    give(core, forge_number(packet, packet_receiver.JUMP_PACKETS_MAX + 1))
    assert (core.missing, core.counters["far_packets"]) == (0, 1)


def test_number_of_gaps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_receiver, "GAPS_MAX", 10)
    core = receiver()
    packet = packets_of(1)[0]
    for n in range(1, 100, 2):
        give(core, forge_number(packet, n))
    assert len(core._detector) == 10
    assert core.counters["far_packets"] == 40


# Parity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", range(4))
def test_parity_computes_an_isolated_loss_without_any_nack(lost: int) -> None:
    packets = split(sender(4, parity=(4, 1)).take(now=0.0), None)
    core = receiver()
    core.use_parity()
    out = give(core, *(packet for n, packet in enumerate(packets) if n != lost))
    assert firsts(out) == [0, 1, 2, 3]
    assert core.counters["computed"] == 1
    assert core.on_deadline(now=1.0) == ([], [])
    assert core.counters["nacks"] == 0


def test_parity_mends_a_large_frame() -> None:
    out_core = sender(parity=(8, 2))
    data = frame_of(0, size=6000)
    out_core.add(data, 0, 1, now=0.0)
    packets = split(out_core.take(now=0.0), None)
    core = receiver()
    core.use_parity()
    out = give(core, *(packet for n, packet in enumerate(packets) if n % 8 != 3))
    assert [frame.data for frame in out] == [data]


def test_more_loss_than_parity_is_asked_for() -> None:
    packets = split(sender(4, parity=(4, 1)).take(now=0.0), None)
    core = receiver()
    core.use_parity()
    give(core, packets[1], packets[3], packets[4])
    assert asked(core, now=LATER) == [(0, 1), (2, 3)]
    assert firsts(give(core, packets[0], packets[4], now=LATER)) == [0, 1, 2, 3]


def test_parity_is_ignored_by_who_does_not_use_it() -> None:
    packets = split(sender(4, parity=(4, 1)).take(now=0.0), None)
    core = receiver()
    assert firsts(give(core, *packets)) == [0, 1, 2, 3]
    assert core.counters["parity_packets"] == 1


def test_memory_of_packets_for_parity_is_bounded() -> None:
    core = receiver()
    core.use_parity()
    out_core = sender()
    for n in range(1500):
        out_core.add(frame_of(n), n, n + 1, now=0.0)
        give(core, *split(out_core.take(now=0.0)))
    assert len(core._recent) <= packet_receiver.RECENT_MAX
    assert isinstance(core, PacketReceiver)
