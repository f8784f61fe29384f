"""Runs of packets behind a gap, and what becomes of them when the gap is given up."""

from __future__ import annotations

import random

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.multicast.held_packets import HeldPackets
from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from meshmsg.recovery.multicast.packet_runs import Run, run_packet, run_size
from meshmsg.recovery.multicast.packet_sender import PacketPolicy, PacketSender
from meshmsg.recovery.stream.loss_detector import NackTiming

STREAM, EPOCH, PACKET_BYTES = 7, 9, 200


def run_of(count: int, data: bytes, at: int, packet_bytes: int) -> Run:
    return (count, data, at, packet_bytes, 0, (1, 2, 3, 4))


def test_run_is_as_large_as_its_packets() -> None:
    assert run_size(run_of(3, bytes(1000), 100, 200)) == 600
    assert run_size(run_of(3, bytes(650), 100, 200)) == 600  # the last one is shorter


def test_run_is_taken_by_its_first_packet_and_once() -> None:
    held = HeldPackets()
    held.add(5, run_of(3, bytes(600), 0, 200))
    assert held.take(6) is None
    assert held.take(5) == run_of(3, bytes(600), 0, 200)
    assert (held.take(5), held.bytes, len(held)) == (None, 0, 0)


def test_run_in_which_something_is_forgotten_keeps_its_beginning() -> None:
    held = HeldPackets()
    held.add(5, run_of(3, bytes(600), 0, 200))
    held.add(10, run_of(2, bytes(400), 0, 200))
    held.drop_from(7)
    assert held.take(5) == run_of(2, bytes(600), 0, 200)
    assert (held.take(10), held.bytes) == (None, 0)


def test_run_that_was_split_is_packets_of_their_own() -> None:
    held = HeldPackets()
    held.split(5, run_of(2, b"a" * 200 + b"b" * 50, 0, 200))
    assert held.bytes == 250
    first, second = held.take(5), held.take(6)
    assert first is not None
    assert second is not None
    assert (run_packet(first, 0), run_packet(second, 0)) == (b"a" * 200, b"b" * 50)


def test_rest_of_a_frame_whose_beginning_is_lost_is_left_out() -> None:
    policy = PacketPolicy(PACKET_BYTES, "fastest", 1e9, 1e9, 1 << 20, 60, 0.005, 0.01, 1.0, 3.0)
    sender = PacketSender(STREAM, EPOCH, policy)
    for first in (0, 5):
        frame = encode_frame(STREAM, EPOCH, first, "a.b", [bytes(150)] * 5, 1, raw=True)
        sender.add(frame, first, first + 5, now=0.0)
    bursts = [data for data, _ in sender.take(now=0.0)]
    receiver = PacketReceiver(
        STREAM,
        EPOCH,
        0,
        receiver=1,
        timing=NackTiming(delay_s=0.001, retry_s=0.02, deadline_s=0.1),
        held_bytes_max=1 << 20,
        rng=random.Random(1),
    )
    out = receiver.receive(bursts[0][PACKET_BYTES:], PACKET_BYTES, now=0.0)
    for burst in bursts[1:]:
        out += receiver.receive(burst, PACKET_BYTES, now=0.0)
    assert out == []
    for _ in range(100):
        if receiver.deadline() > 1e6:
            break
        out += receiver.on_deadline(now=receiver.deadline())[1]
    assert [(frame.first, frame.stop) for frame in out] == [(5, 10)]
    assert receiver.counters["orphans"] > 0
    assert (receiver.counters["spoiled_frames"], receiver.held_bytes) == (0, 0)
