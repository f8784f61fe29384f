"""Bursts are sealed and opened alike with and without the compiled core."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from meshmsg._native import COMPILED
from meshmsg._wire.packet import DATA, SEAL_BYTES
from meshmsg.recovery.multicast import seal as packet_seal
from meshmsg.recovery.multicast.seal import Opener, Sealer
from meshmsg.recovery.multicast.seal_keys import SealKeys
from tests.support.cores import STREAM, sender

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)

KEY = bytes(range(32))


def sealed(data: bytes, size: int, *, compiled: bool) -> bytes:
    with mock.patch.object(packet_seal, "COMPILED", compiled):
        sealer = Sealer(STREAM, 1 << 63)
        sealer.use(70_000, KEY)
        sealer.counter = 7
        return bytes(sealer.seal(data, size))


def opener(lines: int = 1) -> Opener:
    made = Opener(STREAM, SealKeys(lambda g: (KEY,), overlap_s=1.0), (DATA,), lines=lines)
    made.begin(70_000)
    return made


@pytest.mark.parametrize("size", [1, 17, 150, 152, 153, 1000, 5000])
def test_bursts_are_sealed_to_the_same_bytes(size: int) -> None:
    for data, packet_bytes in sender(2, size=size).take(now=0.0):
        wire = sealed(data, packet_bytes, compiled=True)
        assert wire == sealed(data, packet_bytes, compiled=False)
        assert opener().open(wire, packet_bytes + SEAL_BYTES, now=0.0) == data


@pytest.mark.parametrize("seed", range(10))
def test_bad_bursts_are_opened_and_counted_alike(seed: int) -> None:
    rng = random.Random(seed)
    ways = [opener(lines=2), opener(lines=2)]
    ((data, size),) = sender(1, size=4000).take(now=0.0)
    wire = sealed(data, size, compiled=False)
    step = size + SEAL_BYTES
    packets = [wire[at : at + step] for at in range(0, len(wire), step)]
    for _ in range(60):
        some = [packets[n] for n in sorted(rng.sample(range(len(packets) - 1), 8))]
        if rng.random() < 0.3:
            rng.shuffle(some)
        burst = bytearray(b"".join(some) + rng.choice((b"", packets[-1], packets[0][:40])))
        for _ in range(rng.choice((0, 0, 1, 3))):
            burst[rng.randrange(len(burst))] ^= 1 << rng.randrange(8)
        line, given = rng.randrange(2), rng.choice((step, step, step + 1, 33, 1))
        out = []
        for compiled, way in zip((True, False), ways, strict=True):
            with mock.patch.object(packet_seal, "COMPILED", compiled):
                out.append(way.open(bytes(burst), given, now=0.0, line=line))
        assert out[0] == out[1]
    assert ways[0].counters == ways[1].counters
    assert ways[0].copies == ways[1].copies
    assert ways[0]._senders[1 << 63].window.next == ways[1]._senders[1 << 63].window.next


def test_compiled_functions_refuse_what_they_cannot_use() -> None:
    from meshmsg import _speed

    def encrypt(nonce: bytes, data: bytes, clear: bytes) -> bytes:
        return b"short"

    room = bytearray(1000)
    with pytest.raises(ValueError, match="another size"):
        _speed.seal_packets(encrypt, bytes(100), 50, 1, 2, 3, room)
    for size in (0, 16, -5):
        with pytest.raises(ValueError, match="longer than their head"):
            _speed.seal_packets(encrypt, bytes(100), size, 1, 2, 3, room)
    with pytest.raises(ValueError, match="have room"):
        _speed.seal_packets(encrypt, bytes(100), 50, 1, 2, 3, bytearray(100))
    with pytest.raises(TypeError):
        _speed.seal_packets(encrypt, bytearray(100), 50, 1, 2, 3, room)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        _speed.seal_packets(encrypt, bytes(100), 50, 1 << 64, 2, 3, room)
    for at in (-1, 100, 500):
        found = _speed.open_packets(encrypt, ValueError, bytes(100), at, 50, 1, 2, 3, 2)
        assert found == (b"", 0)
