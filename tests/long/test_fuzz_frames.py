"""Bytes from the network, harmed in every way we know, through every decoder.

A decoder gives a readable value or raises `ProtocolError`: no other exception, however deep the
harm.  `FUZZ_FRAMES` says how many; the short run is part of the normal suite, `make fuzz` runs the
long one.  The seed is fixed, so a failure comes back: it prints the case's number and bytes.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from meshmsg._model.batch import Batch
from meshmsg._model.codecs import MsgpackCodec, decode_payloads
from meshmsg._model.errors import ProtocolError
from meshmsg._native import COMPILED
from meshmsg._wire.control import decode_message, encode_message
from meshmsg._wire.frame import Frame, Heartbeat, encode_frame, encode_headers
from meshmsg._wire.msgpack import is_value
from tests.support.both_ways import written
from tests.support.samples import KINDS, sample_of

SEED = 20_260_101
SHORT = 2_000
CODEC = MsgpackCodec()

EDGES = (
    b"\0",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff" * 2,
    b"\xff" * 4,
    b"\0" * 4,
    b"\xff" * 8,
)
EDGES += (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1")


# Well-formed bytes to start from ---------------------------------------------------------------


def some_frame(rng: random.Random) -> bytes:
    """A frame with any of its sections, of one to a few hundred events."""
    count = rng.choice((1, 1, 2, 3, 8, 9, 64, 65, 300))
    size = rng.choice((0, 1, 7, 30))
    uniform = rng.random() < 0.5
    lengths = [size if uniform else rng.randrange(size + 1) for _ in range(count)]
    noted = [i for i in range(count) if rng.random() < rng.choice((0.1, 1.0))]
    names = [f"t.{n}" for n in range(rng.choice((1, 1, 2, 5)))]
    raw: bool | bytes = rng.random() < 0.5
    if rng.random() < 0.3:
        raw = bytes(rng.randrange(2) for _ in range(count))
    return encode_frame(
        rng.getrandbits(64),
        rng.getrandbits(62),
        rng.getrandbits(62),
        [rng.choice(names) for _ in range(count)],
        [rng.randbytes(length) for length in lengths]
        if rng.random() < 0.5
        else some_values(rng, count),
        [rng.getrandbits(40) for _ in range(count)] if rng.random() < 0.5 else 5,
        raw=raw,
        keys={i: f"k{i}" for i in noted} if rng.random() < 0.5 else None,
        headers={i: some_headers(rng) for i in noted} if rng.random() < 0.5 else None,
    )


def some_headers(rng: random.Random) -> bytes:
    return encode_headers({"a": rng.choice((1, None, "x", [1, {"b": 2.5}], b"raw"))})


VALUES: tuple[Any, ...] = (
    1,
    -9,
    1 << 40,
    2.5,
    None,
    "x",
    "y" * 40,
    b"z",
    [1, [2]],
    {"a": {"b": []}},
)


def some_values(rng: random.Random, count: int) -> list[bytes]:
    """Payloads of msgpack, some of them cut in two where they should not be."""
    payloads = [CODEC.encode(rng.choice(VALUES)) for _ in range(count)]
    for index in range(count - 1):
        if rng.random() < rng.choice((0, 0.3)):
            both = payloads[index] + payloads[index + 1]
            at = rng.randrange(len(both) + 1)
            payloads[index : index + 2] = [both[:at], both[at:]]
    return payloads


def some_heartbeat(rng: random.Random) -> bytes:
    first = rng.getrandbits(40)
    beat = Heartbeat(rng.getrandbits(64), rng.getrandbits(60), first, first + rng.getrandbits(20))
    return beat.encode()


def some_message(rng: random.Random) -> bytes:
    return encode_message(sample_of(rng.choice(KINDS), rng.getrandbits(32)))


# Harm ------------------------------------------------------------------------------------------


def harm(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(7):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at] = rng.randrange(256)
            case 2:
                edge = rng.choice(EDGES)
                changed[at : at + len(edge)] = edge
            case 3:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
            case 4:
                del changed[at : at + rng.choice((1, 4, 8, 64))]
            case 5:
                del changed[at:]
            case 6:
                other = rng.randrange(len(changed)) if changed else 0
                changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


def harm_header(data: bytes, rng: random.Random) -> bytes:
    """One field of a frame's header replaced by a number at the edge of something."""
    at, size = rng.choice(((16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 2), (50, 2), (52, 4)))
    if rng.random() < 0.3:
        at, size = rng.choice(((56, 4), (60, 4)))
    top = 1 << 8 * size
    value = rng.choice((0, 1, 2, 7, 8, 255, 65_535, 65_536, top // 2, top - 8, top - 1)) % top
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def mend(data: bytes, rng: random.Random) -> bytes:
    """Now and then make length and checksum true again, so that what lies behind is reached."""
    if len(data) < 20 or rng.random() < 0.3:
        return data
    if data[8:12] == b"MMF1" and rng.random() < 0.7:
        data = data[:16] + struct.pack("<I", len(data)) + data[20:]
    return data[:12] + crc32c(data[16:], crc32c(data[:12])).to_bytes(4, "little") + data[16:]


# Decoders --------------------------------------------------------------------------------------


def read_frame(data: bytes) -> None:
    frame = Frame(data)
    batch = Batch(frame, "p/a", CODEC)
    for index in {0, frame.count - 1}:
        frame.topic_at(index), frame.key_at(index), frame.headers_at(index)
        frame.time_at(index), frame.is_raw(index), frame.payload_at(index)
    assert len(batch.payloads) == len(batch.data) == len(batch.topics) == frame.count
    check_values(batch)
    assert len(batch.keys) == len(batch.headers) == len(batch.times_ns) == frame.count
    frame.first_at(5)
    if frame.count < 20:
        assert batch.to_arrow().num_rows == frame.count


def check_values(batch: Batch) -> None:
    """Each value is that of its own payload, and what proves it is right about each."""
    frame, payloads = batch.frame, batch.payloads
    for index, (payload, value) in enumerate(zip(payloads, batch.data, strict=True)):
        alone = payload if frame.is_raw(index) else decode_payloads(CODEC, [payload])[0]
        assert written(value) == written(alone)
    column = frame.payloads
    proved = all(map(is_value, payloads))
    assert column.is_value_each(0, frame.count) == (proved and COMPILED)


DECODERS: list[tuple[str, Callable[[random.Random], bytes], Callable[[bytes], Any]]] = [
    ("frames", some_frame, read_frame),
    ("heartbeats", some_heartbeat, Heartbeat.decode),
    ("messages", some_message, decode_message),
]


def fuzz(number: int) -> Counter[str]:
    rng = random.Random(SEED)
    outcome: Counter[str] = Counter()
    for case in range(number):
        kind, make, read = DECODERS[0 if case % 4 < 2 else case % 4 - 1]
        data = make(rng)
        read(data)  # unharmed, it is fine
        data = (
            harm_header(data, rng) if kind == "frames" and rng.random() < 0.3 else harm(data, rng)
        )
        if kind != "messages":
            data = mend(data, rng)
        try:
            read(data)
        except ProtocolError:
            outcome[f"{kind} refused"] += 1
        except BaseException as error:
            raise AssertionError(f"case {case}: {error!r} from {kind}: {data.hex()}") from error
        else:
            outcome[f"{kind} readable"] += 1
    return outcome


def check(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = fuzz(number)
    assert outcome.total() == number
    for kind, _, _ in DECODERS:  # both ways out are really taken
        assert outcome[f"{kind} refused"] > number // 50
    assert outcome["frames readable"] > number // 100
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(outcome.items()))
    with capsys.disabled():
        sys.stdout.write(f"\n{number:,} harmed: {counts}\n")


def test_harmed_bytes_are_readable_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    check(SHORT, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_harmed_bytes_are_readable_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    check(int(os.environ.get("FUZZ_FRAMES", SHORT)), capsys)
