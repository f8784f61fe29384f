"""The short ways of the packet cores give what the long ones do, and refuse what is not theirs."""

from __future__ import annotations

import random

import pytest

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.packet import DATA_HEAD
from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from meshmsg.recovery.multicast.packet_sender import PacketPolicy, PacketSender
from meshmsg.recovery.stream.loss_detector import NackTiming

STREAM, EPOCH = 7, 9
PACKET_BYTES = 200
TIMING = NackTiming(delay_s=0.001, retry_s=0.02)


def frame_of(first: int, sizes: list[int]) -> bytes:
    rng = random.Random(first)
    payloads = [rng.randbytes(size) for size in sizes]
    return encode_frame(STREAM, EPOCH, first, "a.b", payloads, 1, raw=True)


def sender(flow: str = "fastest", rate: float = 1e9, **options: object) -> PacketSender:
    policy = PacketPolicy(
        PACKET_BYTES, flow, rate, 1e9, 1 << 20, 60, 0.005, 0.01, 1.0, 3.0, **options
    )
    return PacketSender(STREAM, EPOCH, policy)


def receiver(held_bytes_max: int = 1 << 20) -> PacketReceiver:
    return PacketReceiver(
        STREAM,
        EPOCH,
        0,
        receiver=1,
        timing=TIMING,
        held_bytes_max=held_bytes_max,
        rng=random.Random(1),
    )


def take_single(into: PacketReceiver, packet: bytes, event: int) -> Frame | None:
    """As a subscription does it."""
    if not packet.startswith(into.single_prefix) or not into.is_single(packet, event):
        return None
    try:
        frame = Frame(packet[DATA_HEAD.size :])
    except ProtocolError:
        return None
    into.take_single()
    return frame


def packets_of(*frames: bytes) -> list[bytes]:
    out = sender()
    found = []
    first = 0
    for frame in frames:
        count = int.from_bytes(frame[20:24], "little")
        out.add(frame, first, first + count, now=0.0)
        first += count
        for data, size in out.take(now=0.0):
            found += [data[at : at + size] for at in range(0, len(data), size)]
    return [packet for packet in found if len(packet) > DATA_HEAD.size and packet[4] == 1]


def test_single_packet_is_what_the_long_way_sends() -> None:
    short, long = sender(), sender()
    for first in range(3):
        frame = frame_of(first, [40])
        long.add(frame, first, first + 1, now=0.0)
        packet = short.send_single(frame, first, first + 1, now=0.0)
        assert [(packet, PACKET_BYTES)] == long.take(now=0.0)[:1]
    assert short.store.next == long.store.next == short.sent == 3
    assert short.counters == long.counters
    assert short.store.find(1).data == frame_of(1, [40])  # type: ignore[union-attr]


def test_single_packet_waits_its_turn() -> None:
    frame = frame_of(0, [40])
    assert sender().send_single(frame_of(0, [400]), 0, 1, now=0.0) is None  # more than a packet
    assert sender(parity=(4, 1)).send_single(frame, 0, 1, now=0.0) is None
    behind = sender()
    behind.add(frame, 0, 1, now=0.0)
    assert behind.send_single(frame_of(1, [40]), 1, 2, now=0.0) is None
    full = sender(flow="slowest")
    full.admit(5, PACKET_BYTES, now=0.0)
    assert full.send_single(frame, 0, 1, now=0.0) is not None
    assert full.send_single(frame_of(1, [40]), 1, 2, now=0.0) is None
    paced = sender(flow="rate", rate=1.0)
    for _ in range(10_000):
        if paced.send_single(frame, 0, 1, now=0.0) is None:
            break
    else:
        pytest.fail("a rate has to hold up a sender")


def test_single_frames_come_out_one_by_one() -> None:
    into = receiver()
    for number, packet in enumerate(packets_of(*(frame_of(n, [40]) for n in range(5)))):
        assert packet.startswith(into.single_prefix)
        frame = take_single(into, packet, number)
        assert frame is not None
        assert frame.first == number
        assert take_single(into, packet, number) is None  # a second time it is not the next
    assert into.figures()["packets"] == into.figures()["frames"] == 5
    assert into.missing == 0


def test_single_way_leaves_everything_else_to_the_long_one() -> None:
    first, second, *_ = packets_of(*(frame_of(n, [40]) for n in range(3)))
    into = receiver()
    assert take_single(into, second, 1) is None  # one is missing before it
    assert take_single(into, first[:-1], 0) is None
    assert (
        take_single(into, first[:-1] + bytes([first[-1] ^ 1]), 0) is None
    )  # does not prove itself
    assert take_single(into, first[: DATA_HEAD.size], 0) is None
    assert take_single(into, packets_of(frame_of(0, [400]))[0], 0) is None  # a part of a frame
    assert take_single(into, first, 5) is None  # other events than the next ones
    assert into.next == 0
    assert into.receive(second, PACKET_BYTES, now=0.0) == []
    assert take_single(into, first, 0) is None  # packets wait behind it
    assert [f.first for f in into.receive(first, PACKET_BYTES, now=0.0)] == [0, 1]


def test_run_of_packets_is_taken_together() -> None:
    packets = packets_of(frame_of(0, [900]), frame_of(1, [700]))
    cut = [DATA_HEAD.unpack_from(packet)[3] for packet in packets].index(0, 1)
    into = receiver()
    assert into.receive(b"".join(packets[:3]), PACKET_BYTES, now=0.0) == []
    (frame,) = into.receive(b"".join(packets[3:cut]), PACKET_BYTES, now=0.0)
    assert (frame.first, into.next, into.high) == (0, cut, cut)
    (frame,) = into.receive(b"".join(packets[cut:]), PACKET_BYTES, now=0.0)
    assert frame.first == 1
    assert into.counters["packets"] == len(packets) == into.lines[0]["first"]


def test_run_with_a_harmed_packet_is_asked_for_again() -> None:
    packets = packets_of(frame_of(0, [900]))
    harmed = list(packets)
    harmed[2] = harmed[2][:-1] + bytes([harmed[2][-1] ^ 1])
    into = receiver()
    assert into.receive(b"".join(harmed), PACKET_BYTES, now=0.0) == []
    assert into.missing == len(packets)
    (frame,) = into.receive(b"".join(packets), PACKET_BYTES, now=0.0)
    assert frame.first == 0
    assert into.missing == 0


def test_packets_out_of_order_in_one_call_are_put_in_order() -> None:
    packets = packets_of(frame_of(0, [900]))
    swapped = [packets[0], packets[2], packets[1], *packets[3:]]
    into = receiver()
    (frame,) = into.receive(b"".join(swapped), PACKET_BYTES, now=0.0)
    assert frame.first == 0
    assert into.missing == 0


def test_packets_behind_a_gap_are_held_within_the_bound() -> None:
    packets = packets_of(frame_of(0, [40]), frame_of(1, [2000]))
    into = receiver(held_bytes_max=4 * PACKET_BYTES)
    assert into.receive(b"".join(packets[1:]), PACKET_BYTES, now=0.0) == []
    assert into.held_bytes <= 4 * PACKET_BYTES
    assert into.counters["held_full"] > 0
    frames = into.receive(packets[0], PACKET_BYTES, now=0.0)
    frames += into.receive(b"".join(packets[1:]), PACKET_BYTES, now=0.0)
    assert [frame.first for frame in frames] == [0, 1]
    assert into.held_bytes == 0


@pytest.mark.parametrize("seed", range(200))
def test_bursts_give_what_single_packets_give(seed: int) -> None:
    rng = random.Random(seed)
    frames, first = [], 0
    for _ in range(rng.randint(1, 12)):
        sizes = [rng.randint(1, 600) for _ in range(rng.randint(1, 4))]
        frames.append(frame_of(first, sizes))
        first += len(sizes)
    packets = packets_of(*frames)
    came = [packet for packet in packets if rng.random() > 0.1]
    lost = [packet for packet in packets if packet not in came]
    rng.shuffle(lost)
    bursts: list[bytes] = []
    at = 0
    while at < len(came):  # as the kernel joins them: of one size, only the last shorter
        stop = at + 1
        while stop < len(came) and len(came[stop - 1]) == PACKET_BYTES and rng.random() < 0.8:
            stop += 1
        bursts.append(b"".join(came[at:stop]))
        at = stop
    into = receiver()
    out = []
    for burst in [*bursts, *lost]:
        single = None
        if len(burst) <= PACKET_BYTES:
            single = take_single(into, burst, out[-1].stop if out else 0)
        out += [single] if single is not None else into.receive(burst, PACKET_BYTES, now=0.0)
    assert [frame.data for frame in out] == frames
    assert (into.next, into.high, into.missing, into.held_bytes) == (len(packets),) * 2 + (0, 0)
