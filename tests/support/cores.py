"""Frames, senders and receivers of packets, for tests of the multicast cores."""

from __future__ import annotations

import random
from typing import Any

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.packet import (
    DATA,
    HEAD,
    NACK,
    PacketBeat,
    PacketRequest,
    PacketStatus,
    decode_packet,
)
from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from meshmsg.recovery.multicast.packet_sender import Burst, PacketPolicy, PacketSender
from meshmsg.recovery.stream.loss_detector import NackTiming

STREAM, EPOCH, PACKET_BYTES = 7, 3, 200
TIMING = NackTiming(
    delay_s=0.001,
    spread_s=0.002,
    retry_s=0.02,
    retry_growth=1.5,
    retry_max_s=0.2,
    deadline_s=5.0,
)


def frame_of(first: int, count: int = 1, size: int = 20, *, epoch: int = EPOCH) -> bytes:
    payloads = [bytes([(first + n) % 256]) * size for n in range(count)]
    return encode_frame(STREAM, epoch, first, "a.b", payloads, 0)


def policy(**chosen: Any) -> PacketPolicy:
    given: dict[str, Any] = {
        "packet_bytes": PACKET_BYTES,
        "flow": "fastest",
        "rate": None,
        "repair_rate": 1e9,
        "buffer_bytes": 1 << 20,
        "buffer_age_s": 1e9,
        "linger_s": 0.005,
        "heartbeat_min_s": 0.01,
        "heartbeat_max_s": 1.0,
        "receiver_timeout_s": 3.0,
    }
    return PacketPolicy(**{**given, **chosen})


def sender(frames: int = 0, size: int = 20, **chosen: Any) -> PacketSender:
    """A sender with so many frames of one event each, not sent yet."""
    made = PacketSender(STREAM, EPOCH, policy(**chosen))
    for n in range(frames):
        made.add(frame_of(n, size=size), n, n + 1, now=0.0)
    return made


def receiver(start: int | None = 0, **chosen: Any) -> PacketReceiver:
    given: dict[str, Any] = {
        "receiver": 1,
        "timing": TIMING,
        "held_bytes_max": 1 << 20,
        "rng": random.Random(1),
    }
    return PacketReceiver(STREAM, EPOCH, start, **{**given, **chosen})


def split(bursts: list[Burst], kind: int | None = DATA) -> list[bytes]:
    """The packets of bursts, of one kind or all."""
    packets = [data[at : at + size] for data, size in bursts for at in range(0, len(data), size)]
    return [p for p in packets if kind is None or p[4] == kind]


def packets_of(frames: int, size: int = 20, **chosen: Any) -> list[bytes]:
    return split(sender(frames, size, **chosen).take(now=0.0))


def give(to: PacketReceiver, *packets: bytes, now: float = 0.0, line: int = 0) -> list[Frame]:
    """Packets arrive one by one."""
    out: list[Frame] = []
    for packet in packets:
        out += to.receive(packet, len(packet), now=now, line=line)
    return out


def firsts(frames: list[Frame]) -> list[int]:
    return [frame.first for frame in frames]


def asked(to: PacketReceiver, *, now: float) -> list[tuple[int, int]]:
    """The ranges of the requests that are due."""
    ranges: list[tuple[int, int]] = []
    for request in to.on_deadline(now=now)[0]:
        message = decode_packet(request)
        assert isinstance(message, PacketRequest)
        ranges += message.ranges
    return ranges


def nack(*ranges: tuple[int, int], epoch: int = EPOCH) -> PacketRequest:
    return PacketRequest(NACK, STREAM, epoch, 1, list(ranges))


def status(next_: int, window_bytes: int, who: int = 1, *, epoch: int = EPOCH) -> PacketStatus:
    return PacketStatus(STREAM, epoch, next_, who, window_bytes)


def beat(
    next_: int,
    first: int = 0,
    *,
    first_event: int = 0,
    next_event: int | None = None,
    receivers: int = 1,
    flags: int = 0,
    epoch: int = EPOCH,
) -> bytes:
    next_event = next_ if next_event is None else next_event
    return PacketBeat(
        STREAM, epoch, next_, first, first_event, next_event, receivers, flags
    ).encode()


def numbers(packets: list[bytes]) -> list[int]:
    return [HEAD.unpack_from(packet)[6] for packet in packets]
