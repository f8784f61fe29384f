"""What a sender of nonsense, or of too much, can do to the packet cores: little."""

from __future__ import annotations

import random

from meshmsg._wire.frame import encode_frame
from meshmsg._wire.packet import DATA_HEAD, NACK, PacketBeat, PacketRequest
from meshmsg.recovery.multicast.packet_receiver import FAR_S, JUMP_PACKETS_MAX, PacketReceiver
from meshmsg.recovery.multicast.packet_sender import PacketPolicy, PacketSender
from meshmsg.recovery.stream.loss_detector import NackTiming

POLICY = PacketPolicy(
    packet_bytes=200,
    flow="fastest",
    rate=None,
    repair_rate=100_000.0,
    buffer_bytes=1 << 20,
    buffer_age_s=60.0,
    linger_s=0.005,
    heartbeat_min_s=1.0,
    heartbeat_max_s=1.0,
    receiver_timeout_s=3.0,
)


def sender_of(frames: int) -> PacketSender:
    """A sender that has sent so many frames, each of several packets."""
    sender = PacketSender(1, 2, POLICY)
    for event in range(frames):
        sender.add(encode_frame(1, 2, event, "a", [bytes(500)], 1), event, event + 1, now=0.0)
    while sender.take(now=0.0):
        pass
    return sender


def repaired(sender: PacketSender, now: float) -> list[int]:
    """Numbers of the packets that are sent again."""
    numbers = []
    for data, size in sender.take(now=now):
        for at in range(0, len(data), size):
            if data[at + 4] == 2:
                numbers.append(DATA_HEAD.unpack_from(data, at)[6])
    return numbers


def live(event: int) -> list[bytes]:
    """The packets of one more frame: as many for each."""
    sender = PacketSender(1, 2, POLICY)
    for each in range(event + 1):
        sender.add(encode_frame(1, 2, each, "a", [bytes(500)], 1), each, each + 1, now=0.0)
        bursts = [burst for burst in sender.take(now=0.0) if burst[0][4] == 1]
    return [data[at : at + size] for data, size in bursts for at in range(0, len(data), size)]


def receiver_at(number: int) -> PacketReceiver:
    return PacketReceiver(
        1, 2, number, receiver=9, timing=NackTiming(), held_bytes_max=1 << 20, rng=random.Random(1)
    )


def beat(next_: int, first: int) -> bytes:
    return PacketBeat(1, 2, next_, first, 0, next_, 1, 0).encode()


class TestSender:
    def test_one_who_asks_again_and_again_does_not_keep_others_waiting(self) -> None:
        sender = sender_of(1000)
        flood = PacketRequest(NACK, 1, 2, 7, [(0, 3000)])
        sender.on_request(flood, "flood", now=1.0)
        sender.on_request(PacketRequest(NACK, 1, 2, 8, [(3500, 3501)]), "honest", now=1.0)
        now, seen = 1.0, False
        for _ in range(1000):
            now += 0.01
            sender.on_request(flood, "flood", now=now)
            if 3500 in repaired(sender, now):
                seen = True
                break
        assert seen, "one sweep over all that was asked for reaches everybody"
        assert now - 1.0 < 3501 * POLICY.packet_bytes / POLICY.repair_rate * 1.5

    def test_one_asker_is_refused_after_a_buffers_worth_and_others_are_not(self) -> None:
        sender = sender_of(1000)
        for _ in range(20_000):
            sender.on_request(PacketRequest(NACK, 1, 2, 7, [(5, 6)]), "flood", now=1.0)
        assert sender.counters["refused_requests"] > 10_000
        assert not sender.may_ask("flood", now=1.0)
        assert sender.may_ask("honest", now=1.0)
        assert sender.may_ask("flood", now=2.0)

    def test_asking_for_all_costs_no_more_than_what_there_is(self) -> None:
        sender = sender_of(10)
        for now in range(1, 100):
            sender.on_request(PacketRequest(NACK, 1, 2, 7, [(0, 1 << 32)]), "all", now=float(now))
            while repaired(sender, float(now)):
                pass
        assert sender.counters["repairs"] == 99 * sender.sent
        assert "refused_requests" not in sender.counters


class TestReceiver:
    def test_heartbeat_from_far_ahead_is_not_believed_at_once(self) -> None:
        receiver = receiver_at(5)
        far = beat(1 << 40, 1 << 40)
        assert receiver.receive(far, len(far), now=1.0) == []
        assert (receiver.next, receiver.missing) == (5, 0)
        assert receiver.counters["far_packets"] == 1

    def test_near_heartbeat_proves_the_far_one_wrong(self) -> None:
        receiver = receiver_at(5)
        far, near = beat(1 << 40, 1 << 40), beat(5, 0)
        for second in range(100):
            receiver.receive(far, len(far), now=second)
            receiver.receive(near, len(near), now=second + 0.5)
        assert (receiver.next, receiver.missing) == (5, 0)

    def test_data_proves_it_wrong_as_well(self) -> None:
        receiver = receiver_at(0)
        far = beat(1 << 40, 1 << 40)
        data = [d for event in range(100) for d in live(event)]
        for number, packet in enumerate(data):
            receiver.receive(far, len(far), now=number)
            receiver.receive(packet, len(packet), now=number + 0.5)
        assert (receiver.next, receiver.missing) == (len(data), 0)

    def test_sender_that_has_really_gone_so_far_is_believed_in_the_end(self) -> None:
        receiver = receiver_at(5)
        far = beat(JUMP_PACKETS_MAX * 2, JUMP_PACKETS_MAX * 2 - 10)
        receiver.receive(far, len(far), now=1.0)
        receiver.receive(far, len(far), now=1.0 + FAR_S)
        assert receiver.next == JUMP_PACKETS_MAX * 2 - 10
        assert receiver.missing == 10
