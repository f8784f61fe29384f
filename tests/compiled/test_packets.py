"""Runs of packets, compiled and in Python: as long, and joined to the same bytes."""

from __future__ import annotations

import random

import pytest

from meshmsg._native import COMPILED
from meshmsg._wire.packet import DATA, DATA_HEAD, PACKET_MAGIC, REPAIR
from meshmsg.recovery.multicast.packet_runs import (
    Run,
    join_runs_in_python,
    run_length_in_python,
)

if not COMPILED:
    pytest.skip("the compiled core is not in use", allow_module_level=True)

from meshmsg import _speed

PACKET = 200


def packets(count: int, *, of: int, start: int = 0, number: int = 1000, last: int = 60) -> bytes:
    """Packets of one frame, one behind the other."""
    out = b""
    for n in range(count):
        place = start + n
        size = PACKET if place + 1 < of else DATA_HEAD.size + last
        kind = REPAIR if n % 7 == 3 else DATA
        head = DATA_HEAD.pack(PACKET_MAGIC, kind, 0, place, 5, 6, number + n, 77, 9999, of, 40)
        out += head + bytes([place & 0xFF]) * (size - DATA_HEAD.size)
    return out


def run(count: int, data: bytes, at: int, size: int) -> Run:
    return (count, data, at, size, 0, ())


@pytest.mark.parametrize("length", [run_length_in_python, _speed.run_length])
def test_run_ends_with_its_frame(length: object) -> None:
    assert callable(length)
    assert length(packets(10, of=10), 0, PACKET) == 10
    assert length(packets(10, of=10), 3 * PACKET, PACKET) == 7
    assert length(packets(4, of=10), 0, PACKET) == 4
    assert length(packets(1, of=1), 0, PACKET) == 1
    whole = packets(3, of=3, last=PACKET - DATA_HEAD.size)
    assert length(whole + packets(3, of=3, number=1003), 0, PACKET) == 3, "the next frame is not it"
    gap = packets(3, of=9) + packets(4, of=9, start=4, number=1004)
    assert length(gap, 0, PACKET) == 3
    assert length(packets(6, of=9, number=(1 << 40) - 2), 0, PACKET) == 6


def test_spoiled_packets_end_a_run_or_do_not_count() -> None:
    rng = random.Random(3)
    whole = packets(20, of=30)
    for _ in range(3000):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        compiled = _speed.run_length(bytes(data), 0, PACKET)
        assert 1 <= compiled <= 20
        in_head, packet = at % PACKET < DATA_HEAD.size, at // PACKET
        if not in_head:
            assert compiled == 20
        elif packet and at % PACKET not in (4, 5):  # of the first one anything is believed
            assert compiled == packet, "it ends before what is not what it should be"
        assert run_length_in_python(bytes(data), 0, PACKET) == compiled


def test_runs_are_joined_alike() -> None:
    rng = random.Random(4)
    for _ in range(500):
        runs = []
        for _ in range(rng.randrange(1, 5)):
            count = rng.randrange(1, 20)
            data = b"xx" * rng.randrange(3) + packets(count, of=count, last=rng.randrange(1, 152))
            at = data.index(PACKET_MAGIC)
            skip = rng.randrange(count)
            runs.append(run(count - skip, data, at + skip * PACKET, PACKET))
        assert _speed.join_runs(runs) == join_runs_in_python(runs)
    assert _speed.join_runs([]) == b""


def test_nonsense_is_refused() -> None:
    data = packets(3, of=3)
    outside = [(4, 0, PACKET), (1, -1, PACKET), (1, len(data), PACKET)]
    for count, at, size in [*outside, (0, 0, PACKET), (1, 0, 3), (1 << 40, 0, PACKET)]:
        with pytest.raises(ValueError, match="inside"):
            _speed.join_runs([run(count, data, at, size)])
    for bad in [(1, "text", 0, PACKET), (1, data, 0), None]:
        with pytest.raises(TypeError):
            _speed.join_runs([bad])  # type: ignore[list-item]
    for at, step in [(-1, PACKET), (len(data), PACKET), (0, 10)]:
        with pytest.raises(ValueError, match="no packet"):
            _speed.run_length(data, at, step)
    with pytest.raises(TypeError):
        _speed.run_length("text", 0, PACKET)  # type: ignore[arg-type]
