"""Datagrams from the network, harmed in every way we know, through the packet codec.

As for frames: a packet is readable or refused with `ProtocolError`, never anything else, and what
is readable says the same when it is written again.  `FUZZ_FRAMES` says how many.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter

import pytest
from crc32c import crc32c

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import encode_frame
from meshmsg._wire.packet import (
    DATA,
    DATA_HEAD,
    NUMBER_MAX,
    PACKET_MAGIC,
    REPAIR,
    DataHead,
    check_data_head,
    decode_packet,
    packet_kind,
)
from tests.support.packets import cut_frame, some_packet

SEED = 20_260_102
SHORT = 4_000

#: Offset and size of the fields worth an edge value.
FIELDS = ((4, 1), (5, 1), (6, 2), (16, 8), (24, 8), (32, 2), (32, 8), (34, 2), (36, 2), (40, 4))
FIELDS += ((40, 8), (44, 2), (46, 2), (48, 8))


def some_data(rng: random.Random) -> bytes:
    """One of the packets of a frame."""
    count, size = rng.choice((1, 3, 40)), rng.choice((0, 10, 200))
    stream, epoch = rng.getrandbits(64), rng.getrandbits(62)
    first = rng.choice((0, rng.getrandbits(60), NUMBER_MAX - count - 1))
    packets = cut_frame(
        encode_frame(stream, epoch, first, "a.b", [rng.randbytes(size)] * count, 5),
        stream=stream,
        epoch=epoch,
        number=rng.choice((0, rng.getrandbits(60))),
        first=first,
        events=count,
        payload_bytes=rng.choice((64, 500, 1400)),
        kind=rng.choice((DATA, REPAIR)),
    )
    return rng.choice(packets)


def harm(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(6):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at] = rng.randrange(256)
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 12, 64)))
            case 3:
                del changed[at : at + rng.choice((1, 4, 12, 64))]
            case 4:
                del changed[at:]
            case 5:
                at, size = rng.choice(FIELDS)
                top = 1 << 8 * size
                edge = rng.choice((0, 1, 2, 100, 101, top // 4, top // 2, top - 2, top - 1)) % top
                changed[at : at + size] = edge.to_bytes(size, "little")
    return bytes(changed)


def mend(data: bytes, rng: random.Random) -> bytes:
    """Mostly make the checksum true again, so that what lies behind is reached."""
    if len(data) < 8 or packet_kind(data) not in (3, 4, 5, 6) or rng.random() < 0.3:
        return data
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


def read(data: bytes) -> None:
    """As a receiver does it."""
    kind = packet_kind(data)
    if not kind:
        raise ProtocolError("none of ours")
    assert data.startswith(PACKET_MAGIC)
    if kind not in (DATA, REPAIR):
        packet = decode_packet(data)
        assert decode_packet(packet.encode()) == packet
        return
    if len(data) < DATA_HEAD.size:
        raise ProtocolError("short")
    head = DataHead._make(DATA_HEAD.unpack_from(data))
    check_data_head(head, len(data) - DATA_HEAD.size)
    assert head.place <= head.number < NUMBER_MAX
    assert head.place < head.packets <= head.frame_bytes


def fuzz(number: int) -> Counter[str]:
    rng = random.Random(SEED)
    outcome: Counter[str] = Counter()
    for case in range(number):
        data = some_data(rng) if case % 4 == 0 else some_packet(rng).encode()
        read(data)  # unharmed, it is fine
        kind = packet_kind(data)
        data = mend(harm(data, rng), rng)
        try:
            read(data)
        except ProtocolError:
            outcome[f"{kind} refused"] += 1
        except BaseException as error:
            raise AssertionError(f"case {case}: {error!r} from {data.hex()}") from error
        else:
            outcome[f"{kind} readable"] += 1
    return outcome


def check(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = fuzz(number)
    assert outcome.total() == number
    for kind in range(1, 8):  # both ways out are really taken
        assert outcome[f"{kind} refused"] > number // 100
        assert outcome[f"{kind} readable"] > number // 1000
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(outcome.items()))
    with capsys.disabled():
        sys.stdout.write(f"\n{number:,} packets harmed, by kind: {counts}\n")


def test_harmed_packets_are_readable_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    check(SHORT, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_harmed_packets_are_readable_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    check(int(os.environ.get("FUZZ_FRAMES", SHORT)), capsys)
