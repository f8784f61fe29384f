"""Frames and heartbeats: round trips, the bytes as specified, and every kind of harm to them."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshmsg._model.errors import ProtocolError
from meshmsg._wire import frame_columns as _frame_columns
from meshmsg._wire import frame_layout as _frame_layout
from meshmsg._wire.frame import (
    CHECK_AT,
    ENCODINGS,
    FRAME_BYTES_MAX,
    FRAME_EVENTS_MAX,
    HEADER,
    HEADERS,
    HEADERS_READ_BYTES_MAX,
    KEYS,
    RAW,
    TIMES,
    TOPIC_INDEX,
    Frame,
    FrameBuilder,
    Heartbeat,
    encode_frame,
    encode_headers,
)

STREAM = 0x0102030405060708
EPOCH = 1_700_000_000_000
I64_MAX = (1 << 63) - 1


@dataclass
class Events:
    """What goes into a frame, column by column."""

    topics: str | list[str]
    payloads: list[bytes]
    times: int | list[int] = 0
    raw: bool | bytes = True
    keys: dict[int, str] = field(default_factory=dict)
    headers: dict[int, dict[str, Any]] = field(default_factory=dict)
    first: int = 0

    def encode(self) -> bytes:
        packed = {index: encode_headers(value) for index, value in self.headers.items()}
        return encode_frame(
            STREAM,
            EPOCH,
            self.first,
            self.topics,
            self.payloads,
            self.times,
            raw=self.raw,
            keys=self.keys,
            headers=packed,
        )


def check_same(frame: Frame, events: Events) -> None:
    count = len(events.payloads)
    assert (frame.stream, frame.epoch, frame.count) == (STREAM, EPOCH, count)
    assert (frame.first, frame.stop) == (events.first, events.first + count)
    places = range(count)
    topics = [events.topics] * count if isinstance(events.topics, str) else events.topics
    times = [events.times] * count if isinstance(events.times, int) else events.times
    raw = [events.raw] * count if isinstance(events.raw, bool) else [bool(b) for b in events.raw]
    assert [frame.topic_at(i) for i in places] == topics
    assert [frame.time_at(i) for i in places] == times
    assert [frame.is_raw(i) for i in places] == raw
    assert [frame.key_at(i) for i in places] == [events.keys.get(i) for i in places]
    assert [frame.headers_at(i) for i in places] == [events.headers.get(i, {}) for i in places]
    assert [frame.payload_at(i) for i in places] == events.payloads
    assert frame.payloads.split(0, count) == events.payloads


def read_everything(frame: Frame) -> None:
    """Whatever a consumer may look at, of each event and by column."""
    for index in {0, frame.count // 2, frame.count - 1}:
        assert isinstance(frame.topic_at(index), str)
        assert isinstance(frame.payload_at(index), bytes)
        assert isinstance(frame.time_at(index), int)
        assert isinstance(frame.is_raw(index), bool)
        assert isinstance(frame.key_at(index), str | None)
        assert isinstance(dict(frame.headers_at(index)), dict)
    assert len(frame.payloads.split(0, frame.count)) == frame.count
    assert sum(map(len, frame.payloads.split(0, frame.count))) == len(frame.payloads.blob)
    assert len(frame.times_bytes) in (0, 8 * frame.count)
    assert 0 <= frame.first_at(0) <= frame.count
    for column in (frame.key_column, frame.header_column):
        if column is not None:
            bits, values = column
            assert len(bits) * 8 >= frame.count
            assert len(values.split(0, frame.count)) == frame.count
    assert repr(frame).startswith("<Frame ")


def with_checksum(data: bytes) -> bytes:
    """The same bytes under a checksum that holds, so that what lies deeper is reached."""
    if len(data) < CHECK_AT + 4:
        return data
    start, rest = data[:CHECK_AT], data[CHECK_AT + 4 :]
    return start + crc32c(rest, crc32c(start)).to_bytes(4, "little") + rest


def with_length(data: bytes) -> bytes:
    """The same bytes with a header that says how many they are."""
    if len(data) < 20:
        return data
    return data[:16] + struct.pack("<I", len(data)) + data[20:]


# Round trips -----------------------------------------------------------------------------------

TOPICS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=9)
HEADER_VALUES = st.none() | st.booleans() | st.integers(-(1 << 63), I64_MAX) | st.text(max_size=5)


@st.composite
def batches(draw: st.DrawFn) -> Events:
    """Every section present or not, columns short or long, sparse or dense."""
    count = draw(st.integers(1, 40) | st.sampled_from([63, 64, 65, 600]))
    size = draw(st.integers(0, 20))
    payload = draw(st.sampled_from(["uniform", "varied", "empty"]))
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    lengths = {
        "uniform": [size] * count,
        "varied": [rng.randrange(size + 1) for _ in range(count)],
        "empty": [0] * count,
    }[payload]
    table = draw(st.lists(TOPICS, min_size=1, max_size=5, unique=True))
    times = draw(st.integers(-(1 << 63), I64_MAX - 10))
    share = draw(st.sampled_from([0, 0.1, 0.9, 1]))
    noted = [i for i in range(count) if rng.random() < share]
    raw = draw(st.sampled_from([True, False, None]))
    headers = st.dictionaries(st.text(max_size=3), HEADER_VALUES, max_size=2)
    chosen = draw(st.lists(headers, min_size=1, max_size=3))
    return Events(
        topics=table[0] if len(table) == 1 else [rng.choice(table) for _ in range(count)],
        payloads=[rng.randbytes(length) for length in lengths],
        times=times if draw(st.booleans()) else [times + rng.randrange(9) for _ in range(count)],
        raw=bytes(rng.randrange(2) for _ in range(count)) if raw is None else raw,
        keys={i: rng.choice(["", "k", "schlüssel", "鍵"]) for i in noted},
        headers={i: rng.choice(chosen) for i in noted} if draw(st.booleans()) else {},
        first=draw(st.sampled_from([0, 1, 1 << 32, I64_MAX - count]) | st.integers(0, 1 << 60)),
    )


@settings(max_examples=150, deadline=None)
@given(batches())
def test_frame_gives_back_what_went_in(events: Events) -> None:
    frame = Frame(events.encode())
    check_same(frame, events)
    read_everything(frame)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 511, 512, 513, 4096, 4097, 5000, 65_535])
@pytest.mark.parametrize("size", [0, 1, 13])
def test_uniform_payloads_of_any_count_come_back(count: int, size: int) -> None:
    payloads = [index.to_bytes(3, "big") * 5 for index in range(count)]
    payloads = [payload[:size] for payload in payloads]
    frame = Frame(encode_frame(STREAM, EPOCH, 0, "a", payloads, 0))
    assert frame.payloads.split(0, count) == payloads
    assert frame.payload_at(count - 1) == payloads[-1]


@pytest.mark.parametrize("varied", [False, True])
def test_any_slice_of_payloads_is_cut_right(varied: bool) -> None:
    payloads = [bytes([index]) * (index % 5 if varied else 3) for index in range(40)]
    column = Frame(encode_frame(STREAM, EPOCH, 0, "a", payloads, 0)).payloads
    for low in range(40):
        for high in range(low, 41):
            assert column.split(low, high) == payloads[low:high]
            assert column.slice_blob(low, high) == b"".join(payloads[low:high])


def test_large_events_make_no_tables() -> None:
    size = 1 << 20
    frame = Frame(encode_frame(STREAM, EPOCH, 0, "a", [b"x" * size, b"y" * size], 0))
    assert [payload[:1] for payload in frame.payloads.split(0, 2)] == [b"x", b"y"]
    assert size not in _frame_layout.uniform._tables


def test_small_frames_of_many_lengths_make_no_tables() -> None:
    """A table costs as much as hundreds of small frames, and each of these has its own length."""
    before = set(_frame_layout.uniform._tables)
    for length in range(5000, 5200):
        Frame(encode_frame(STREAM, EPOCH, 0, "a", [b"x" * length], 0)).payloads.split(0, 1)
    assert set(_frame_layout.uniform._tables) == before


def test_ready_made_tables_are_bounded() -> None:
    for length in range(1, 200):
        payloads = [b"x" * length] * 64
        frame = Frame(encode_frame(STREAM, EPOCH, 0, "a", payloads, 0))
        assert frame.payloads.split(0, 64) == payloads
    assert len(_frame_layout.uniform._tables) <= _frame_layout.uniform.LENGTHS_MAX
    assert len(_frame_columns.splitter._blocks) <= _frame_columns.splitter.LENGTHS_MAX


def test_keys_and_headers_are_placed_by_index_in_whatever_order_they_are_given() -> None:
    events = Events("a", [b""] * 3, keys={2: "c", 0: "a", 1: "b"}, headers={1: {"n": 1}, 0: {}})
    check_same(Frame(events.encode()), events)


def test_many_topics_share_one_table() -> None:
    topics = [f"quotes.{index % 300}" for index in range(3000)]
    frame = Frame(encode_frame(STREAM, EPOCH, 0, topics, [b"x"] * 3000, 0))
    assert len(frame.topics) == 300
    assert [frame.topic_at(index) for index in range(3000)] == topics


def test_a_list_of_one_topic_needs_no_index() -> None:
    one = encode_frame(STREAM, EPOCH, 0, ["a.b"] * 50, [b"x"] * 50, 0)
    assert one == encode_frame(STREAM, EPOCH, 0, "a.b", [b"x"] * 50, 0)
    assert not Frame(one).flags & TOPIC_INDEX


def test_equal_times_are_stored_once() -> None:
    assert not Frame(encode_frame(STREAM, EPOCH, 0, "a", [b"x"] * 9, [5] * 9)).flags & TIMES
    assert Frame(encode_frame(STREAM, EPOCH, 0, "a", [b"x"] * 2, [5, 6])).flags & TIMES


@pytest.mark.parametrize("times", [7, [7, 9, 8]])
def test_first_event_at_a_time_is_found(times: int | list[int]) -> None:
    frame = Frame(encode_frame(STREAM, EPOCH, 0, "a", [b"x"] * 3, times))
    listed = [times] * 3 if isinstance(times, int) else times
    for time in range(6, 11):
        wanted = next((i for i, t in enumerate(listed) if t >= time), 3)
        assert frame.first_at(time) == wanted


def test_a_frame_without_events_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        encode_frame(STREAM, EPOCH, 0, "a", [], 0)


def test_a_frame_of_too_many_events_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        encode_frame(STREAM, EPOCH, 0, "a", [b""] * (FRAME_EVENTS_MAX + 1), 0)


# The open frame --------------------------------------------------------------------------------


def test_builder_seals_what_was_added_and_is_empty_again() -> None:
    builder = FrameBuilder()
    builder.add("a", b"one", 10, raw=True)
    builder.add("b", b"three", 20, raw=False)
    builder.annotate("key", encode_headers({"h": 1}))
    assert len(builder) == 2
    frame = Frame(builder.seal(STREAM, EPOCH, 5))
    wanted = Events(
        ["a", "b"], [b"one", b"three"], [10, 20], b"\1\0", {1: "key"}, {1: {"h": 1}}, first=5
    )
    check_same(frame, wanted)
    assert len(builder) == 0
    builder.add("a", b"next", 30, raw=False)
    check_same(Frame(builder.seal(STREAM, EPOCH, 7)), Events("a", [b"next"], 30, False, first=7))


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.lists(st.booleans(), max_size=10))
def test_builder_keeps_each_event_raw_or_encoded(kinds: list[bool], before: list[bool]) -> None:
    builder = FrameBuilder()
    for raw in before:
        builder.add("a", b"", 0, raw=raw)
    if before:
        builder.seal(STREAM, EPOCH, 0)
    for raw in kinds:
        builder.add("a", b"", 0, raw=raw)
    frame = Frame(builder.seal(STREAM, EPOCH, 0))
    assert [frame.is_raw(index) for index in range(len(kinds))] == kinds
    assert bool(frame.flags & ENCODINGS) == (len(set(kinds)) == 2)


def test_builder_finds_the_first_event_at_a_time() -> None:
    builder = FrameBuilder()
    assert builder.first_at(0) == 0
    for time in (10, 20, 15):
        builder.add("a", b"", time, raw=True)
    assert [builder.first_at(time) for time in (0, 10, 11, 20, 21)] == [0, 0, 1, 1, 3]


# The bytes, as docs/wire-format.md gives them --------------------------------------------------

GOLDEN_FULL = """
    08 07 06 05 04 03 02 01   4d 4d 46 31 c5 5a 80 0f
    d4 00 00 00 03 00 00 00   00 68 e5 cf 8b 01 00 00
    29 00 00 00 00 00 00 00   e8 03 00 00 00 00 00 00
    37 00 02 00 13 00 00 00   02 00 00 00 04 00 00 00
    6f 72 64 65 72 73 2e 65   75 0a 6f 72 64 65 72 73
    2e 75 73 00 00 00 00 00   00 00 01 00 00 00 00 00
    e8 03 00 00 00 00 00 00   d0 07 00 00 00 00 00 00
    b8 0b 00 00 00 00 00 00   00 01 01 00 00 00 00 00
    02 00 00 00 00 00 00 00   00 00 00 00 00 00 00 00
    02 00 00 00 02 00 00 00   6b 37 00 00 00 00 00 00
    01 00 00 00 00 00 00 00   00 00 00 00 04 00 00 00
    04 00 00 00 04 00 00 00   81 a1 68 01 00 00 00 00
    00 00 00 00 01 00 00 00   04 00 00 00 04 00 00 00
    01 78 79 7a
"""
"""Three events, with every section there is."""

GOLDEN_PLAIN = """
    08 07 06 05 04 03 02 01   4d 4d 46 31 92 2b 7f 7f
    64 00 00 00 02 00 00 00   00 68 e5 cf 8b 01 00 00
    29 00 00 00 00 00 00 00   e8 03 00 00 00 00 00 00
    08 00 01 00 09 00 00 00   00 00 00 00 00 00 00 00
    6f 72 64 65 72 73 2e 65   75 00 00 00 00 00 00 00
    00 00 00 00 02 00 00 00   04 00 00 00 00 00 00 00
    61 62 63 64
"""
"""Two raw events of one topic and time."""

GOLDEN_HEARTBEAT = """
    08 07 06 05 04 03 02 01   4d 4d 48 31 46 9c 62 52
    00 68 e5 cf 8b 01 00 00   29 00 00 00 00 00 00 00
    2c 00 00 00 00 00 00 00
"""

FULL = Events(
    topics=["orders.eu", "orders.us", "orders.eu"],
    payloads=[b"\x01", b"xyz", b""],
    times=[1000, 2000, 3000],
    raw=b"\x00\x01\x01",
    keys={1: "k7"},
    headers={0: {"h": 1}},
    first=41,
)


def test_full_frame_has_the_specified_bytes() -> None:
    assert FULL.encode() == bytes.fromhex(GOLDEN_FULL)
    check_same(Frame(bytes.fromhex(GOLDEN_FULL)), FULL)


def test_full_frame_can_be_read_with_nothing_but_the_specification() -> None:
    """What a reader in another language does: offsets and literal numbers only."""
    data = bytes.fromhex(GOLDEN_FULL)
    assert struct.unpack_from("<Q", data, 0) == (0x0102030405060708,)  # stream
    assert data[8:12] == b"MMF1"
    assert struct.unpack_from("<I", data, 12) == (crc32c(data[16:], crc32c(data[:12])),)
    assert struct.unpack_from("<I", data, 16) == (len(data),) == (212,)
    assert struct.unpack_from("<I", data, 20) == (3,)  # events
    assert struct.unpack_from("<Q", data, 24) == (1_700_000_000_000,)  # epoch
    assert struct.unpack_from("<Q", data, 32) == (41,)  # number of the first event
    assert struct.unpack_from("<q", data, 40) == (1000,)  # time of the first event, ns
    assert struct.unpack_from("<H", data, 48) == (1 | 2 | 4 | 16 | 32,)  # all flags but raw
    assert struct.unpack_from("<H", data, 50) == (2,)  # topics
    assert struct.unpack_from("<III", data, 52) == (19, 2, 4)  # bytes: topics, keys, headers
    assert data[64:83] == b"orders.eu\norders.us"
    assert struct.unpack_from("<3H", data, 88) == (0, 1, 0)  # topic of each event
    assert struct.unpack_from("<3q", data, 96) == (1000, 2000, 3000)  # time of each event
    assert data[120:123] == b"\x00\x01\x01"  # raw or through the codec
    assert data[128] == 0b010  # who has a key
    assert struct.unpack_from("<4I", data, 136) == (0, 0, 2, 2)
    assert data[152:154] == b"k7"
    assert data[160] == 0b001  # who has headers
    assert struct.unpack_from("<4I", data, 168) == (0, 4, 4, 4)
    assert msgpack.unpackb(data[184:188]) == {"h": 1}
    assert struct.unpack_from("<4I", data, 192) == (0, 1, 4, 4)
    assert data[208:] == b"\x01xyz"


def test_plain_frame_has_the_specified_bytes() -> None:
    events = Events("orders.eu", [b"ab", b"cd"], 1000, first=41)
    assert events.encode() == bytes.fromhex(GOLDEN_PLAIN)
    check_same(Frame(bytes.fromhex(GOLDEN_PLAIN)), events)


def test_heartbeat_has_the_specified_bytes() -> None:
    beat = Heartbeat(STREAM, EPOCH, 41, 44)
    assert beat.encode() == bytes.fromhex(GOLDEN_HEARTBEAT)
    assert Heartbeat.decode(bytes.fromhex(GOLDEN_HEARTBEAT)) == beat


def test_header_is_64_bytes_and_flags_are_pinned() -> None:
    assert HEADER.size == 64
    assert (TOPIC_INDEX, TIMES, ENCODINGS, RAW, KEYS, HEADERS) == (1, 2, 4, 8, 16, 32)


# Harm ------------------------------------------------------------------------------------------

SAMPLES = [
    FULL.encode(),
    bytes.fromhex(GOLDEN_PLAIN),
    Events("a", [b""] * 5).encode(),
    Events("a", [b"xy"] * 80, list(range(80)), keys=dict.fromkeys(range(80), "k")).encode(),
    Events(["a", "b"], [b"1", b"22"], headers={0: {"a": [1, {"b": None}]}, 1: {}}).encode(),
]


def harm(data: bytes, rng: random.Random) -> bytes:
    """One to three wounds: flipped bits, other bytes, bytes taken out or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del changed[at : at + rng.choice((1, 2, 8, 1000))]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))
        else:
            changed[at : at + 4] = rng.choice((b"\xff" * 4, b"\0" * 4, rng.randbytes(4)))
        if not changed:
            break
    return bytes(changed)


def read_or_refuse(data: bytes) -> None:
    try:
        frame = Frame(data)
    except ProtocolError:
        return
    read_everything(frame)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SAMPLES), st.integers(0, 1 << 32), st.sampled_from([0, 1, 2]))
def test_harmed_frame_is_refused_or_wholly_readable(data: bytes, seed: int, mend: int) -> None:
    """With the checksum (and the length) put right again, the checks behind it are reached."""
    harmed = harm(data, random.Random(seed))
    if mend == 2:
        harmed = with_length(harmed)
    read_or_refuse(with_checksum(harmed) if mend else harmed)


@given(st.sampled_from(SAMPLES), st.data())
def test_every_flipped_bit_under_the_checksum_is_found(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(CHECK_AT - 4, len(data) - 1))
    bit = draw.draw(st.integers(0, 7))
    flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    with pytest.raises(ProtocolError):
        Frame(flipped)


@pytest.mark.parametrize("data", SAMPLES)
def test_every_truncation_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            Frame(data[:size])
        read_or_refuse(with_checksum(with_length(data[:size])))


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\0" * 64)
@example(b"\xff" * 64)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        Frame(noise)
    with pytest.raises(ProtocolError):
        Heartbeat.decode(noise)


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 63), st.integers(0, 4))
def test_noise_behind_a_good_header_is_refused_or_readable(
    noise: bytes, flags: int, count: int
) -> None:
    fields = (64 + len(noise), count, EPOCH, 0, 0, flags, min(count, 2), 1, 4, 4)
    read_or_refuse(with_checksum(HEADER.pack(STREAM, b"MMF1", 0, *fields) + noise))


def forged(body: bytes = b"", **changes: int) -> bytes:
    """A frame of one event and one topic, with some header fields replaced; the checksum holds."""
    body = body or b"a" + bytes(7) + struct.pack("<II", 0, 1) + b"x"
    fields = {
        "length": HEADER.size + len(body),
        "count": 1,
        "epoch": EPOCH,
        "first": 0,
        "time": 0,
        "flags": RAW,
        "topics": 1,
        "table": 1,
        "keys": 0,
        "headers": 0,
    } | changes
    return with_checksum(HEADER.pack(STREAM, b"MMF1", 0, *fields.values()) + body)


def test_the_forger_makes_a_frame_when_nothing_is_changed() -> None:
    check_same(Frame(forged()), Events("a", [b"x"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 0xFFFFFFFF},
        {"length": 0},
        {"count": 0},
        {"count": 2},
        {"count": FRAME_EVENTS_MAX},
        {"count": FRAME_EVENTS_MAX + 1},
        {"count": 0xFFFFFFFF},
        {"epoch": 1 << 63},
        {"first": I64_MAX},
        {"first": (1 << 64) - 1},
        {"flags": 64},
        {"flags": 0x8000},
        {"topics": 0},
        {"topics": 2},
        {"topics": 0xFFFF},
        {"table": 0},
        {"table": 2},
        {"table": 0xFFFFFFFF},
        {"flags": KEYS, "keys": 0xFFFFFFFF},
        {"flags": KEYS, "count": FRAME_EVENTS_MAX, "keys": 0xFFFFFFF8},
        {"flags": HEADERS, "headers": 0xFFFFFFFF},
        {"flags": TIMES, "count": FRAME_EVENTS_MAX},
        {"flags": TOPIC_INDEX, "count": FRAME_EVENTS_MAX},
        {"flags": ENCODINGS, "count": FRAME_EVENTS_MAX},
        {"flags": 63, "count": FRAME_EVENTS_MAX, "keys": 0xFFFFFFFF, "headers": 0xFFFFFFFF},
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(
    changes: dict[str, int],
) -> None:
    data = forged(**changes)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            Frame(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_table_of_newlines_is_refused_before_it_is_split() -> None:
    table = b"\n" * (1 << 20)
    data = forged(table + bytes(16), table=len(table))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="topic table"):
            Frame(data)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_headers_that_claim_4_gib_are_refused_before_anything_is_allocated() -> None:
    for claim in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"):
        packed = b"\x81\xa1a" + claim + b"\xff\xff\xff\xff"
        data = encode_frame(STREAM, EPOCH, 0, "a", [b""], 0, headers={0: packed})
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError):
                Frame(data)
            assert tracemalloc.get_traced_memory()[1] < 64 * 1024
        finally:
            tracemalloc.stop()


def framed(packed: bytes) -> bytes:
    """A frame of one event with these headers."""
    return encode_frame(STREAM, EPOCH, 0, "a", [b""], 0, headers={0: packed})


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "no msgpack map"),
        (b"\xc0", "no msgpack map"),
        (b"\x90", "no msgpack map"),
        (b"\x80\x80", "no msgpack map"),
        (b"\x81\xa1a", "no msgpack map"),
        (b"\x81\xa1a" + b"\x91" * 60_000, "no msgpack map"),
        (b"\x81\xa1a" + b"\x91" * 2_000_000, "headers of 2000003 bytes"),
    ],
)
def test_headers_that_are_no_map_are_refused(packed: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        Frame(framed(packed))


@pytest.mark.parametrize(
    "packed",
    [
        b"\x81\x01\x01",
        b"\x81\xa1\xff\x01",
        b"\x81\xa1a\xa1\xff",
        b"\x81\xa1a\x81\x80\x01",
        b"\x81\xa1a\xd7\xff" + b"\xff" * 8,
        b"\x81\xa1a" + b"\x91" * 60_000 + b"\x00",
    ],
)
def test_headers_that_do_not_decode_are_empty_and_raise_nothing(packed: bytes) -> None:
    good = encode_headers({"b": 1})
    data = encode_frame(STREAM, EPOCH, 0, "a", [b""] * 2, 0, headers={0: packed, 1: good})
    frame = Frame(data)
    assert (frame.headers_at(0), frame.headers_at(1)) == ({}, {"b": 1})
    assert frame.headers_between(0, 2) == [{}, {"b": 1}]
    assert frame.headers_between(1, 2) == [{"b": 1}]


def test_headers_of_1_mib_are_taken_and_larger_ones_refused() -> None:
    packed = encode_headers({"a": bytes(HEADERS_READ_BYTES_MAX - 8)})
    assert len(packed) == HEADERS_READ_BYTES_MAX
    assert len(Frame(framed(packed)).headers_at(0)["a"]) == HEADERS_READ_BYTES_MAX - 8
    with pytest.raises(ProtocolError, match="headers of 1048577 bytes"):
        Frame(framed(encode_headers({"a": bytes(HEADERS_READ_BYTES_MAX - 7)})))


def test_headers_take_no_memory_until_they_are_asked_for() -> None:
    packed = b"\x81\xa1a\xdd" + (60_000).to_bytes(4, "big") + b"\x80" * 60_000
    data = encode_frame(
        STREAM, EPOCH, 0, "a", [b""] * 100, 0, headers=dict.fromkeys(range(100), packed)
    )
    tracemalloc.start()
    try:
        frame = Frame(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
        assert frame.headers_at(7) == {"a": [{}] * 60_000}
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_a_topic_table_is_no_larger_than_its_topics_and_has_no_more_than_there_are_events() -> None:
    two = b"a\nb" + bytes(5) + struct.pack("<H", 1) + bytes(6) + struct.pack("<II", 0, 0)
    with pytest.raises(ProtocolError, match="larger than its topics can be"):
        Frame(forged(two, topics=2, table=3, flags=TOPIC_INDEX | RAW))
    long = b"a" * 264
    with pytest.raises(ProtocolError, match="larger than its topics can be"):
        Frame(forged(long + struct.pack("<II", 0, 0), table=len(long)))
    longest = b"a" * 255 + bytes(1) + struct.pack("<II", 0, 0)
    assert Frame(forged(longest, table=255)).topics == ("a" * 255,)


def test_topic_tables_that_are_remembered_are_bounded_by_what_they_weigh() -> None:
    tables = _frame_columns.TopicTables()
    for number in range(3000):
        table = "\n".join(f"{number}.{n}" for n in range(400)).encode()
        assert len(table) <= tables.TABLE_BYTES_MAX
        assert len(tables.read(table, 400)) == 400
    weight = sum(2 * len(table) + 64 * len(known) for table, known in tables.known.items())
    assert 0 < weight <= tables._known_bytes <= tables.KNOWN_BYTES_MAX


@pytest.mark.parametrize("table", [b"a.*", b"", b"a b", b"\xff", b".", b"a" * 256])
def test_malformed_topics_are_refused(table: bytes) -> None:
    padded = table + bytes(-len(table) & 7)
    with pytest.raises(ProtocolError, match="topic"):
        Frame(forged(padded + struct.pack("<II", 0, 0), table=len(table)))


def test_topic_index_out_of_range_is_refused() -> None:
    body = b"a\nb" + bytes(5) + struct.pack("<HH", 0, 2) + bytes(4) + struct.pack("<III", 0, 0, 0)
    with pytest.raises(ProtocolError, match="topic index"):
        Frame(forged(body + bytes(4), count=2, topics=2, table=3, flags=TOPIC_INDEX | RAW))


@pytest.mark.parametrize("offsets", [(1, 1), (0, 0), (0, 2), (0, 0xFFFFFFFF), (0xFFFFFFFF, 1)])
def test_offsets_that_do_not_fit_their_blob_are_refused(offsets: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError, match="offsets"):
        Frame(forged(b"a" + bytes(7) + struct.pack("<II", *offsets) + b"x"))


def test_offsets_that_go_back_are_refused() -> None:
    body = b"a" + bytes(7) + struct.pack("<4I", 0, 3, 2, 4) + b"wxyz"
    with pytest.raises(ProtocolError, match="offsets"):
        Frame(forged(body, count=3))


def test_a_key_that_is_not_utf8_is_readable_all_the_same() -> None:
    data = bytearray(Events("a", [b""], keys={0: "kk"}).encode())
    at = data.index(b"kk")
    data[at : at + 2] = b"\xff\xfe"
    assert Frame(with_checksum(bytes(data))).key_at(0) == "\ufffd\ufffd"


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(ProtocolError, match="a frame of"):
        Frame(bytes(FRAME_BYTES_MAX + 1))


# Heartbeats ------------------------------------------------------------------------------------

NUMBERS = st.integers(0, I64_MAX)


@given(st.integers(0, (1 << 64) - 1), NUMBERS, NUMBERS, NUMBERS)
def test_heartbeat_gives_back_what_went_in(stream: int, epoch: int, one: int, two: int) -> None:
    beat = Heartbeat(stream, epoch, min(one, two), max(one, two))
    assert Heartbeat.decode(beat.encode()) == beat


@given(st.integers(8, 39), st.integers(0, 7))
def test_every_flipped_bit_of_a_heartbeat_is_found(at: int, bit: int) -> None:
    data = bytearray(Heartbeat(STREAM, EPOCH, 41, 44).encode())
    data[at] ^= 1 << bit
    with pytest.raises(ProtocolError):
        Heartbeat.decode(bytes(data))


@pytest.mark.parametrize(
    ("epoch", "first", "next_"),
    [(EPOCH, 5, 4), (EPOCH, 0, 1 << 63), (1 << 63, 0, 1), (EPOCH, 1 << 63, 1 << 63)],
)
def test_heartbeat_out_of_range_is_refused(epoch: int, first: int, next_: int) -> None:
    with pytest.raises(ProtocolError, match="range"):
        Heartbeat.decode(Heartbeat(STREAM, epoch, first, next_).encode())
