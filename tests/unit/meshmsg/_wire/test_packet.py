"""Multicast packets: round trips, the bytes as specified, and every kind of harm to them."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg import Multicast
from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, Frame, encode_frame
from meshmsg._wire.packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    DATA_HEAD,
    ENDS,
    HEAD,
    HEARTBEAT,
    LEAVES,
    NACK,
    NUMBER_MAX,
    PACKET_MAGIC,
    PARITY,
    PARITY_DATA_MAX,
    PARITY_EXTRA_MAX,
    RANGE_PACKETS_MAX,
    RANGES_MAX,
    REPAIR,
    STATUS,
    STREAM_AT,
    DataHead,
    Packet,
    PacketBeat,
    PacketParity,
    PacketRequest,
    PacketStatus,
    check_data_head,
    decode_packet,
    packet_kind,
)
from tests.support.packets import blocks_of, code_blocks, cut_frame, parity_of, some_packet

STREAM = 0x0102030405060708
EPOCH = 1_700_000_000_000
EPOCH_MAX = (1 << 63) - 1
U16_MAX = 0xFFFF
U32_MAX = 0xFFFFFFFF
U64_MAX = (1 << 64) - 1

BEAT = PacketBeat(STREAM, EPOCH, 121, 7, 41, 5001, 3, ANSWERS)
NACKED = PacketRequest(NACK, STREAM, EPOCH, 0x0A0B, [(17, 20), (40, 42)])
CONFIRMED = PacketRequest(CONFIRM, STREAM, EPOCH, 0, [(17, 20)])
REPORT = PacketStatus(STREAM, EPOCH, 120, 0x0A0B, 1 << 20)
PROTECTION = PacketParity(STREAM, EPOCH, 16, 1, 16, 2, b"abcdef")
SAMPLES: list[Packet] = [BEAT, NACKED, CONFIRMED, REPORT, PROTECTION]
CHECKED = SAMPLES[:4]
KINDS = [HEARTBEAT, NACK, CONFIRM, STATUS, PARITY]


def name_of(packet: Any) -> str:
    kind = packet_kind(packet.encode())
    return ["heartbeat", "nack", "confirm", "status", "parity"][kind - HEARTBEAT]


def checked(data: bytes) -> bytes:
    """The same bytes under a checksum that holds, so that what lies deeper is reached."""
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


# Round trips -----------------------------------------------------------------------------------

STREAMS = st.sampled_from([0, 1, U64_MAX]) | st.integers(0, U64_MAX)
EPOCHS = st.sampled_from([0, EPOCH_MAX]) | st.integers(0, EPOCH_MAX)
NUMBERS = st.sampled_from([0, NUMBER_MAX - 1]) | st.integers(0, NUMBER_MAX - 1)


@st.composite
def beats(draw: st.DrawFn) -> PacketBeat:
    first, next_ = sorted((draw(NUMBERS), draw(NUMBERS)))
    first_event, next_event = sorted((draw(NUMBERS), draw(NUMBERS)))
    receivers, flags = draw(st.integers(0, U16_MAX)), draw(st.integers(0, ENDS | ANSWERS))
    head = (draw(STREAMS), draw(EPOCHS))
    return PacketBeat(*head, next_, first, first_event, next_event, receivers, flags)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    first = draw(st.integers(0, NUMBER_MAX - 2))
    length = draw(st.sampled_from([1, U32_MAX]) | st.integers(1, U32_MAX))
    return first, min(first + length, NUMBER_MAX - 1)


@st.composite
def requests(draw: st.DrawFn) -> PacketRequest:
    kind, asker = draw(st.sampled_from([(NACK, draw(STREAMS)), (CONFIRM, 0)]))
    wanted = draw(st.lists(ranges(), min_size=1, max_size=RANGES_MAX))
    return PacketRequest(kind, draw(STREAMS), draw(EPOCHS), asker, wanted)


STATUSES = st.builds(
    PacketStatus, STREAMS, EPOCHS, NUMBERS, STREAMS, st.integers(0, U32_MAX), st.integers(0, 1)
)


@st.composite
def parities(draw: st.DrawFn) -> PacketParity:
    count = draw(st.integers(1, PARITY_DATA_MAX))
    extra = draw(st.integers(1, PARITY_EXTRA_MAX))
    place = draw(st.integers(0, extra - 1))
    first = draw(st.integers(0, NUMBER_MAX - count - 1))
    block = draw(st.binary(min_size=3, max_size=200))
    return PacketParity(draw(STREAMS), draw(EPOCHS), first, place, count, extra, block)


PACKETS = beats() | requests() | STATUSES | parities()


@settings(max_examples=300, deadline=None)
@given(PACKETS)
def test_packet_gives_back_what_went_in(packet: Packet) -> None:
    data = packet.encode()
    assert decode_packet(data) == packet
    assert packet_kind(data) in KINDS
    assert data[STREAM_AT : STREAM_AT + 8] == packet.stream.to_bytes(8, "little")


@pytest.mark.parametrize("seed", range(50))
def test_packets_at_the_ends_of_their_ranges_come_back(seed: int) -> None:
    packet = some_packet(random.Random(seed))
    assert decode_packet(packet.encode()) == packet


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 30),
    size=st.integers(0, 300),
    payload_bytes=st.integers(1, 500),
    number=st.sampled_from([0, 1 << 40]),
    kind=st.sampled_from([DATA, REPAIR]),
)
def test_packets_of_a_frame_join_to_the_frame(
    count: int, size: int, payload_bytes: int, number: int, kind: int
) -> None:
    frame = encode_frame(STREAM, EPOCH, 41, "a.b", [b"x" * size] * count, 5)
    packets = cut_frame(
        frame,
        stream=STREAM,
        epoch=EPOCH,
        number=number,
        first=41,
        events=count,
        payload_bytes=payload_bytes,
        kind=kind,
    )
    heads = [DataHead._make(DATA_HEAD.unpack_from(data)) for data in packets]
    payloads = [data[DATA_HEAD.size :] for data in packets]
    for index, (head, payload) in enumerate(zip(heads, payloads, strict=True)):
        check_data_head(head, len(payload))
        assert packet_kind(packets[index]) == head.kind == kind
        assert (head.place, head.number) == (index, number + index)
        assert (head.stream, head.epoch, head.first) == (STREAM, EPOCH, 41)
        assert (head.frame_bytes, head.packets) == (len(frame), len(packets))
    assert {len(payload) for payload in payloads[:-1]} <= {payload_bytes}
    joined = Frame(b"".join(payloads))
    assert (joined.first, joined.count) == (heads[0].first, heads[0].events)


def test_a_repair_differs_from_the_data_in_its_kind_only() -> None:
    cut = {"stream": STREAM, "epoch": EPOCH, "number": 9, "first": 0, "events": 1}
    frame = encode_frame(STREAM, EPOCH, 0, "a", [b"x" * 99], 0)
    (data,) = cut_frame(frame, payload_bytes=1400, **cut)
    (again,) = cut_frame(frame, payload_bytes=1400, kind=REPAIR, **cut)
    assert [at for at, pair in enumerate(zip(data, again, strict=True)) if len(set(pair)) > 1] == [
        4
    ]


def test_what_a_field_cannot_hold_is_sent_as_the_most_it_can() -> None:
    report = REPORT._replace(window_bytes=1 << 40)
    assert decode_packet(report.encode()) == REPORT._replace(window_bytes=U32_MAX)
    crowd = BEAT._replace(receivers=1 << 20)
    assert decode_packet(crowd.encode()) == BEAT._replace(receivers=U16_MAX)
    wide = NACKED._replace(ranges=[(5, 5 + (1 << 40))])
    assert decode_packet(wide.encode()) == NACKED._replace(ranges=[(5, 5 + RANGE_PACKETS_MAX)])


# The bytes, as docs/wire-format.md gives them --------------------------------------------------


def test_heads_have_their_sizes() -> None:
    assert (HEAD.size, DATA_HEAD.size) == (32, 48)
    sizes = [60, 32 + 2 * 12 + 4, 32 + 12 + 4, 50, 40 + 6]
    assert [len(packet.encode()) for packet in SAMPLES] == sizes


def golden(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


GOLDEN_HEAD = """
    4d 4d 50 31 {kind} {flags} {extra}   08 07 06 05 04 03 02 01
    00 68 e5 cf 8b 01 00 00              {number} 00 00 00 00 00 00
"""


def golden_head(kind: str, extra: str, number: str, flags: str = "00") -> bytes:
    return golden(GOLDEN_HEAD.format(kind=kind, flags=flags, extra=extra, number=number))


@pytest.mark.parametrize(
    ("packet", "head", "body"),
    [
        (
            BEAT,
            golden_head("03", "03 00", "79 00", "02"),
            "07 00 00 00 00 00 00 00  29 00 00 00 00 00 00 00  89 13 00 00 00 00 00 00",
        ),
        (
            NACKED,
            golden_head("04", "02 00", "0b 0a"),
            "11 00 00 00 00 00 00 00 03 00 00 00  28 00 00 00 00 00 00 00 02 00 00 00",
        ),
        (CONFIRMED, golden_head("05", "01 00", "00 00"), "11 00 00 00 00 00 00 00 03 00 00 00"),
        (
            REPORT,
            golden_head("06", "00 00", "78 00"),
            "0b 0a 00 00 00 00 00 00 00 00 10 00 00 00",
        ),
    ],
    ids=["heartbeat", "nack", "confirm", "status"],
)
def test_checked_packets_are_as_specified(packet: Packet, head: bytes, body: str) -> None:
    data = head + golden(body)
    assert packet.encode() == data + crc32c(data).to_bytes(4, "little")


def test_parity_is_as_specified() -> None:
    body = golden("10 00 02 00 06 00 00 00  61 62 63 64 65 66")
    assert PROTECTION.encode() == golden_head("07", "01 00", "10 00") + body


# Kinds -----------------------------------------------------------------------------------------


@given(st.binary(max_size=80))
def test_datagrams_of_others_have_no_kind(data: bytes) -> None:
    assert packet_kind(data) == 0 or data.startswith(PACKET_MAGIC)
    assert packet_kind(PACKET_MAGIC + data) in (0, *data[:1])


@pytest.mark.parametrize("length", range(HEAD.size))
def test_less_than_a_head_has_no_kind(length: int) -> None:
    assert packet_kind(BEAT.encode()[:length]) == 0
    with pytest.raises(ProtocolError):
        decode_packet(BEAT.encode()[:length])


@pytest.mark.parametrize("kind", [0, DATA, REPAIR, 8, 100, 255])
@pytest.mark.parametrize("packet", SAMPLES, ids=name_of)
def test_other_kinds_are_refused(packet: Packet, kind: int) -> None:
    data = bytearray(packet.encode())
    data[4] = kind
    with pytest.raises(ProtocolError, match="unknown kind"):
        decode_packet(checked(bytes(data)))


# Harm ------------------------------------------------------------------------------------------


def read_or_refuse(data: bytes) -> None:
    """What can be read says the same when it is written again; all else is a `ProtocolError`."""
    kind = packet_kind(data)
    try:
        packet = decode_packet(data)
    except ProtocolError:
        return
    assert kind in KINDS
    assert decode_packet(packet.encode()) == packet


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_packet(noise)
    read_or_refuse(PACKET_MAGIC + noise)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(KINDS), st.binary(max_size=120), st.booleans())
def test_random_fields_are_refused_or_readable(kind: int, noise: bytes, holds: bool) -> None:
    data = PACKET_MAGIC + bytes([kind]) + noise
    read_or_refuse(checked(data) if holds and len(data) > 4 else data)


@settings(max_examples=300, deadline=None)
@given(PACKETS, st.data())
def test_every_cut_is_refused(packet: Packet, data: st.DataObject) -> None:
    whole = packet.encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ProtocolError):
        decode_packet(cut)


@settings(max_examples=200, deadline=None)
@given(PACKETS, st.binary(min_size=1, max_size=20))
def test_bytes_too_many_are_refused(packet: Packet, more: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_packet(packet.encode() + more)


@pytest.mark.parametrize("packet", CHECKED, ids=name_of)
def test_every_flipped_bit_is_found(packet: Packet) -> None:
    whole = packet.encode()
    for at in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            with pytest.raises(ProtocolError):
                decode_packet(bytes(data))


@settings(max_examples=500, deadline=None)
@given(PACKETS, st.data())
def test_changed_bytes_under_a_good_checksum_are_refused_or_readable(
    packet: Packet, data: st.DataObject
) -> None:
    changed = bytearray(packet.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 0x3F, 0x40, 0x7F, 0x80, 0xFF]))
    read_or_refuse(checked(bytes(changed)))


# What cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize("packet", SAMPLES, ids=name_of)
def test_epoch_out_of_range_is_refused(packet: Packet) -> None:
    assert decode_packet(packet._replace(epoch=EPOCH_MAX).encode()).epoch == EPOCH_MAX
    with pytest.raises(ProtocolError):
        decode_packet(packet._replace(epoch=EPOCH_MAX + 1).encode())


@pytest.mark.parametrize(
    "packet",
    [
        BEAT._replace(first=122),
        BEAT._replace(first=U64_MAX),
        BEAT._replace(next=NUMBER_MAX),
        BEAT._replace(next=U64_MAX),
        BEAT._replace(first_event=5002),
        BEAT._replace(next_event=NUMBER_MAX),
        BEAT._replace(first_event=U64_MAX, next_event=U64_MAX),
        REPORT._replace(next=NUMBER_MAX),
        REPORT._replace(next=U64_MAX),
        NACKED._replace(ranges=[]),
        NACKED._replace(ranges=[(5, 6)] * (RANGES_MAX + 1)),
        NACKED._replace(ranges=[(5, 6)] * U16_MAX),
        NACKED._replace(ranges=[(5, 5)]),
        NACKED._replace(ranges=[(5, 6), (7, 7)]),
        NACKED._replace(ranges=[(NUMBER_MAX - 1, NUMBER_MAX)]),
        NACKED._replace(ranges=[(U64_MAX, U64_MAX + 1)]),
        CONFIRMED._replace(ranges=[]),
        PROTECTION._replace(packets=0),
        PROTECTION._replace(packets=PARITY_DATA_MAX + 1),
        PROTECTION._replace(extra=0, place=0),
        PROTECTION._replace(extra=PARITY_EXTRA_MAX + 1),
        PROTECTION._replace(place=2),
        PROTECTION._replace(place=U16_MAX),
        PROTECTION._replace(first=NUMBER_MAX - 16),
        PROTECTION._replace(first=U64_MAX),
        PROTECTION._replace(block=b""),
        PROTECTION._replace(block=b"ab"),
    ],
    ids=str,
)
def test_packet_out_of_range_is_refused(packet: Packet) -> None:
    with pytest.raises(ProtocolError):
        decode_packet(packet.encode())


@pytest.mark.parametrize(
    "packet",
    [
        BEAT._replace(first=121),
        BEAT._replace(first=NUMBER_MAX - 1, next=NUMBER_MAX - 1),
        BEAT._replace(first_event=5001),
        BEAT._replace(first_event=NUMBER_MAX - 1, next_event=NUMBER_MAX - 1),
        BEAT._replace(next=0, first=0, first_event=0, next_event=0, receivers=0, flags=0),
        BEAT._replace(receivers=U16_MAX, flags=ENDS | ANSWERS),
        REPORT._replace(next=NUMBER_MAX - 1, receiver=U64_MAX, window_bytes=U32_MAX),
        REPORT._replace(window_bytes=0, flags=LEAVES),
        NACKED._replace(asker=U64_MAX, ranges=[(5, 6)] * RANGES_MAX),
        NACKED._replace(ranges=[(NUMBER_MAX - 2, NUMBER_MAX - 1)]),
        NACKED._replace(ranges=[(7, 9), (5, 6), (5, 8)]),
        PROTECTION._replace(packets=1, extra=1, place=0, block=b"abc"),
        PROTECTION._replace(packets=128, extra=64, place=63, first=NUMBER_MAX - 129),
    ],
    ids=str,
)
def test_packet_at_the_end_of_its_range_is_read(packet: Packet) -> None:
    assert decode_packet(packet.encode()) == packet


def test_a_block_of_another_length_than_it_says_is_refused() -> None:
    data = bytearray(PROTECTION.encode())
    for length in (0, 5, 7, U16_MAX):
        struct.pack_into("<H", data, 36, length)
        with pytest.raises(ProtocolError, match="parity"):
            decode_packet(bytes(data))


# Data ------------------------------------------------------------------------------------------


def head_of(**changes: int) -> DataHead:
    fields: dict[str, Any] = {
        "magic": PACKET_MAGIC,
        "kind": DATA,
        "flags": 0,
        "place": 1,
        "stream": STREAM,
        "epoch": EPOCH,
        "number": 17,
        "first": 100,
        "frame_bytes": 3000,
        "packets": 3,
        "events": 18,
    }
    return DataHead(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "payload_bytes"),
    [
        ({}, 1400),
        ({"place": 0, "packets": 1, "frame_bytes": 1400}, 1400),
        ({"place": 2}, 1),
        ({"number": 1}, 1400),
        ({"number": 0, "place": 0}, 1400),
        ({"number": NUMBER_MAX - 4}, 1400),
        ({"first": NUMBER_MAX - 19}, 1400),
        ({"first": 0}, 1400),
        ({"events": 1}, 1400),
        ({"events": FRAME_EVENTS_MAX}, 1400),
        ({"epoch": EPOCH_MAX}, 1400),
        ({"stream": U64_MAX}, 1400),
        ({"frame_bytes": 3}, 1),
        ({"frame_bytes": 3 * 65536}, 65000),
        ({"frame_bytes": FRAME_BYTES_MAX, "packets": U16_MAX, "number": 1 << 40}, 513),
        ({"frame_bytes": FRAME_BYTES_MAX, "packets": 512}, 65536),
    ],
)
def test_data_that_can_be_is_accepted(changes: dict[str, int], payload_bytes: int) -> None:
    check_data_head(head_of(**changes), payload_bytes)


@pytest.mark.parametrize(
    ("changes", "payload_bytes"),
    [
        ({"place": 3}, 1400),
        ({"place": U16_MAX}, 1400),
        ({"packets": 0}, 1400),
        ({"packets": 0, "place": 0}, 1400),
        ({"events": 0}, 1400),
        ({}, 0),
        ({"number": 0}, 1400),
        ({"number": 1, "place": 2}, 1400),
        ({"number": NUMBER_MAX - 3}, 1400),
        ({"number": U64_MAX}, 1400),
        ({"first": NUMBER_MAX - 18}, 1400),
        ({"first": U64_MAX}, 1400),
        ({"epoch": EPOCH_MAX + 1}, 1400),
        ({"frame_bytes": 0}, 1400),
        ({"frame_bytes": 2}, 1),
        ({"frame_bytes": 3 * 65536 + 1}, 1400),
        ({"frame_bytes": FRAME_BYTES_MAX + 1, "packets": U16_MAX, "number": 1 << 40}, 1400),
        ({"frame_bytes": U32_MAX, "packets": U16_MAX, "number": 1 << 40}, 1400),
        ({"frame_bytes": 1399}, 1400),
    ],
)
def test_data_that_cannot_be_is_refused(changes: dict[str, int], payload_bytes: int) -> None:
    with pytest.raises(ProtocolError, match="data packet"):
        check_data_head(head_of(**changes), payload_bytes)


@given(st.binary(min_size=DATA_HEAD.size, max_size=DATA_HEAD.size), st.integers(0, 70_000))
def test_any_bytes_as_a_data_head_are_accepted_or_refused(noise: bytes, payload_bytes: int) -> None:
    head = DataHead._make(DATA_HEAD.unpack(noise))
    try:
        check_data_head(head, payload_bytes)
    except ProtocolError:
        return
    assert head.number - head.place >= 0
    assert head.number - head.place + head.packets < NUMBER_MAX
    assert head.first < head.first + head.events < NUMBER_MAX
    assert 0 < payload_bytes <= head.frame_bytes <= FRAME_BYTES_MAX


# Parity ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    extra=st.integers(1, 4),
    data=st.data(),
)
def test_lost_packets_come_back_from_any_blocks_that_are_enough(
    lengths: list[int], extra: int, data: st.DataObject
) -> None:
    rng = random.Random(len(lengths))
    packets = [rng.randbytes(length) for length in lengths]
    count = len(packets)
    parity = parity_of(packets, extra, stream=STREAM, epoch=EPOCH, first=16)
    assert [decode_packet(packet.encode()) for packet in parity] == parity
    blocks = blocks_of(packets) + [packet.block for packet in parity]
    numbers = st.permutations(range(count + extra))
    there = sorted(data.draw(numbers)[:count])
    for lost in set(range(count)) - set(there):
        block = code_blocks([blocks[number] for number in there], there, lost)
        (length,) = struct.unpack_from("<H", block)
        assert block[2 : 2 + length] == packets[lost]
        assert not any(block[2 + length :])


@pytest.mark.parametrize(("group", "head_bytes"), [("239.1.1.1:3000", 28), ("[ff12::1]:3000", 48)])
@pytest.mark.parametrize("mtu", [576, 1500, 9000])
def test_parity_packets_fit_the_mtu(group: str, head_bytes: int, mtu: int) -> None:
    config = Multicast(group, mtu=mtu, parity="2+1")
    data = [bytes(config.packet_bytes)] * 2
    (parity,) = parity_of(data, 1, stream=STREAM, epoch=EPOCH, first=0)
    assert len(parity.encode()) + head_bytes == mtu
    assert Multicast(group, mtu=mtu).packet_bytes + head_bytes == mtu


def test_one_packet_is_protected_by_its_copy() -> None:
    (parity,) = parity_of([b"packet"], 1, stream=STREAM, epoch=EPOCH, first=0)
    assert parity.block == b"\x06\x00packet"
