"""Multicast packets of every kind, for tests: cut from frames, made up, and protected by parity."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import reduce

from meshmsg._wire.packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    DATA_HEAD,
    ENDS,
    LEAVES,
    LENGTH,
    NACK,
    NUMBER_MAX,
    PACKET_MAGIC,
    PARITY_DATA_MAX,
    PARITY_EXTRA_MAX,
    RANGES_MAX,
    PacketBeat,
    PacketParity,
    PacketRequest,
    PacketStatus,
)


def cut_frame(
    frame: bytes,
    *,
    stream: int,
    epoch: int,
    number: int,
    first: int,
    events: int,
    payload_bytes: int,
    kind: int = DATA,
) -> list[bytes]:
    """The packets of a frame, from packet `number` on."""
    pieces = [frame[at : at + payload_bytes] for at in range(0, len(frame), payload_bytes)]
    tail = (first, len(frame), len(pieces), events)
    return [
        DATA_HEAD.pack(PACKET_MAGIC, kind, 0, place, stream, epoch, number + place, *tail) + piece
        for place, piece in enumerate(pieces)
    ]


# Packets of the other kinds --------------------------------------------------------------------


def some_packet(rng: random.Random) -> PacketBeat | PacketRequest | PacketStatus | PacketParity:
    """A packet that is not data, often at the end of what it allows."""
    stream, epoch = rng.getrandbits(64), _below(1 << 63, rng)
    number, event = _below(NUMBER_MAX, rng), _below(NUMBER_MAX, rng)
    match rng.randrange(5):
        case 0:
            first, first_event = _below(number + 1, rng), _below(event + 1, rng)
            flags = rng.choice((0, ENDS, ANSWERS, ENDS | ANSWERS))
            receivers = _below(1 << 16, rng)
            return PacketBeat(stream, epoch, number, first, first_event, event, receivers, flags)
        case 1:
            window, flags = _below(1 << 32, rng), rng.choice((0, LEAVES))
            return PacketStatus(stream, epoch, number, rng.getrandbits(64), window, flags)
        case 2:
            count, extra = _below(PARITY_DATA_MAX, rng) + 1, _below(PARITY_EXTRA_MAX, rng) + 1
            block = rng.randbytes(rng.choice((3, 50, 1400)))
            first = _below(NUMBER_MAX - count, rng)
            return PacketParity(stream, epoch, first, _below(extra, rng), count, extra, block)
    ranges = []
    for _ in range(rng.choice((1, 2, RANGES_MAX))):
        first = _below(NUMBER_MAX - 1, rng)
        room = min(NUMBER_MAX - 1 - first, 0xFFFFFFFF)
        ranges.append((first, first + 1 + _below(room, rng)))
    kind, asker = rng.choice(((NACK, rng.getrandbits(64)), (CONFIRM, 0)))
    return PacketRequest(kind, stream, epoch, asker, ranges)


def _below(stop: int, rng: random.Random) -> int:
    return rng.choice((0, stop - 1, rng.randrange(stop)))


# Parity, as docs/wire-format.md gives it -------------------------------------------------------

_EXP = [1]
while len(_EXP) < 255:
    _EXP.append(_EXP[-1] << 1 ^ (0x11D if _EXP[-1] & 0x80 else 0))
_LOG = {value: power for power, value in enumerate(_EXP)}
_POINTS = [0, *_EXP]


def _times(one: int, two: int) -> int:
    return _EXP[(_LOG[one] + _LOG[two]) % 255] if one and two else 0


def _over(one: int, two: int) -> int:
    return _EXP[(_LOG[one] - _LOG[two]) % 255] if one else 0


def code_blocks(blocks: Sequence[bytes], numbers: Sequence[int], wanted: int) -> bytes:
    """Block `wanted` from as many others as were protected, which have these numbers.

    All blocks are values of one polynomial for each byte, so any of them follow from any as many.
    """
    at = [_POINTS[number] for number in numbers]
    x = _POINTS[wanted]
    weights = [
        reduce(_times, (_over(x ^ b, a ^ b) for j, b in enumerate(at) if j != i), 1)
        for i, a in enumerate(at)
    ]
    return bytes(
        reduce(int.__xor__, map(_times, weights, column), 0) for column in zip(*blocks, strict=True)
    )


def blocks_of(packets: Sequence[bytes]) -> list[bytes]:
    """The blocks of packets to be protected: length, packet, zeros."""
    longest = LENGTH.size + max(map(len, packets))
    return [(LENGTH.pack(len(packet)) + packet).ljust(longest, b"\0") for packet in packets]


def parity_of(
    packets: Sequence[bytes], extra: int, *, stream: int, epoch: int, first: int
) -> list[PacketParity]:
    """The parity packets over data packets that begin with number `first`."""
    blocks, count = blocks_of(packets), len(packets)
    coded = [code_blocks(blocks, range(count), count + place) for place in range(extra)]
    return [
        PacketParity(stream, epoch, first, place, count, extra, block)
        for place, block in enumerate(coded)
    ]
