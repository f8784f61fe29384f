"""Where msgpack values stop: the skipper in Python, the compiled one, and msgspec agree."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import msgspec
import pytest

from meshmsg._native import COMPILED
from meshmsg._wire.msgpack import is_map, is_value

if COMPILED:
    from meshmsg import _speed

DEEP = 1_000_000


def by_msgspec(data: bytes) -> bool:
    try:
        msgspec.msgpack.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def compiled_is_value(data: bytes) -> bool:
    return _speed.is_value_each(struct.pack("<II", 0, len(data)), 0, data, 0, 1)


def cases() -> Iterator[bytes]:
    """Each first byte, with what may follow it, cut and extended; and noise."""
    rng = random.Random(1)
    for lead in range(256):
        for tail in (b"", b"\0", b"\1\0", b"\0\0\1\0", b"\0" * 4, b"\0\0\0\2\0\0", b"\xff" * 5):
            yield bytes([lead]) + tail
        for size in range(1, 40):
            yield bytes([lead]) + b"\1" * size
        for _ in range(50):
            yield bytes([lead]) + rng.randbytes(rng.randrange(40))
    for claim in (b"\xc6", b"\xc9", b"\xdb", b"\xdd", b"\xdf"):
        for inside in (b"", b"\x91", b"\x81\xa1a"):
            yield inside + claim + b"\xff\xff\xff\xff"
            yield inside + claim + b"\xff\xff\xff\xff" + b"\0" * 20


def test_skipper_takes_what_msgspec_takes() -> None:
    taken = 0
    for data in cases():
        expected = by_msgspec(data)
        taken += expected
        assert is_value(data) == expected, data.hex()
        if COMPILED:
            assert compiled_is_value(data) == expected, data.hex()
    assert taken > 500


@pytest.mark.parametrize("lead", [b"\x91", b"\x81\x01", b"\xdd\0\0\0\1", b"\xdf\0\0\0\1\xc0"])
def test_values_nested_deeper_than_any_stack_are_passed_over(lead: bytes) -> None:
    for skip in (is_value, compiled_is_value) if COMPILED else (is_value,):
        assert skip(lead * DEEP + b"\1")
        assert not skip(lead * DEEP)
        assert not skip(lead * DEEP + b"\1\1")


def test_a_map_is_told_from_other_values() -> None:
    for value in ({}, {"a": 1}, {str(n): n for n in range(20)}, {str(n): n for n in range(70_000)}):
        assert is_map(msgspec.msgpack.encode(value))
    for value in (None, 1, [], "a", b"a", [{}]):
        assert not is_map(msgspec.msgpack.encode(value))
    assert not is_map(b"")
    assert not is_map(b"\x80\x80")


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_compiled_skipper_never_reads_outside_of_the_data() -> None:
    offsets, blob = struct.pack("<III", 0, 1, 2), b"\1\2"
    assert _speed.is_value_each(offsets, 0, blob, 0, 2)
    assert _speed.is_value_each(memoryview(offsets), 4, memoryview(blob), 0, 1)
    assert _speed.is_value_each(offsets, 0, blob, 0, 0)
    assert not _speed.is_value_each(offsets, 0, blob, 1, 2), "the last one ends behind the blob"
    assert not _speed.is_value_each(struct.pack("<II", 2, 1), 0, blob, 0, 1)
    assert not _speed.is_value_each(struct.pack("<II", 0, 0xFFFFFFFF), 0, blob, 0, 1)
    far = (1 << 63) - 1
    for places in [(-1, 0, 1), (5, 0, 2), (0, -1, 1), (0, 3, 1), (0, 0, 3), (0, 0, -1)]:
        with pytest.raises(ValueError, match="inside"):
            _speed.is_value_each(offsets, places[0], blob, *places[1:])
    for places in [(far, 0, 1), (0, far, 1), (0, 0, far), (far, far, far)]:
        with pytest.raises(ValueError, match="inside"):
            _speed.is_value_each(offsets, places[0], blob, *places[1:])
    with pytest.raises(TypeError):
        _speed.is_value_each("text", 0, blob, 0, 1)  # type: ignore[arg-type]
