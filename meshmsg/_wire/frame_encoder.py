"""Encoding a frame from lists of events, one C call for a column.

The twin of `encode_frame` in `meshmsg/c/encode.c` makes the same bytes; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from crc32c import crc32c

from meshmsg._native import COMPILED
from meshmsg._wire.frame_layout import (
    CHECK_AT,
    ENCODINGS,
    FRAME_EVENTS_MAX,
    FRAME_MAGIC,
    HEADER,
    HEADERS,
    KEYS,
    PAD,
    RAW,
    TIMES,
    TOPIC_INDEX,
    column,
    uniform,
)

if COMPILED:
    from meshmsg import _speed

_encode_headers = msgspec.msgpack.Encoder().encode


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Headers as a msgpack map."""
    return _encode_headers(dict(headers))


def _offsets_of(items: Sequence[bytes]) -> bytes:
    """The offsets column of a list of items."""
    lengths = list(map(len, items))
    length = lengths[0]
    if lengths.count(length) == len(lengths):
        return uniform.offsets(length, len(lengths))
    return column("I", accumulate(lengths, initial=0))


def _bitmap(present: Iterable[int], count: int) -> bytes:
    bits = bytearray((count + 7) // 8)
    for index in present:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def _sparse_section(values: Mapping[int, bytes], count: int) -> tuple[list[bytes], int]:
    """A nullable column: bitmap, offsets, blob; and the blob's size."""
    items = (
        list(map(values.__getitem__, range(count)))
        if len(values) == count
        else [values.get(i, b"") for i in range(count)]
    )
    bits = _bitmap(values, count)
    offsets = _offsets_of(items)
    size = sum(map(len, items))
    parts = [bits, PAD[len(bits) & 7], offsets, PAD[len(offsets) & 7], *items, PAD[size & 7]]
    return parts, size


def encode_frame(
    stream: int,
    epoch: int,
    first: int,
    topics: str | Sequence[str],
    payloads: Sequence[bytes],
    times: int | Sequence[int],
    *,
    raw: bool | bytes = True,
    keys: Mapping[int, str] | None = None,
    headers: Mapping[int, bytes] | None = None,
    length: int = -1,
) -> bytes:
    """Encode events `first`, `first + 1`, ... of one stream; `keys` and `headers` are by index.

    Who knows that all payloads are of one `length` says so.
    """
    count = len(payloads)
    assert 0 < count <= FRAME_EVENTS_MAX, "a frame has 1 to FRAME_EVENTS_MAX events"
    flags = 0
    body: list[bytes] = []
    put = body.append

    if isinstance(topics, str):
        table = topics.encode()
        topic_count = 1
        put(table)
        put(PAD[len(table) & 7])
    else:
        distinct = dict.fromkeys(topics, 0)
        topic_count = len(distinct)
        table = "\n".join(distinct).encode()
        put(table)
        put(PAD[len(table) & 7])
        if topic_count > 1:
            flags |= TOPIC_INDEX
            for index, topic in enumerate(distinct):
                distinct[topic] = index
            put(column("H", map(distinct.__getitem__, topics)))
            put(PAD[2 * count & 7])

    if isinstance(times, int):
        time = times
    else:
        time = times[0]
        if times.count(time) != count:
            flags |= TIMES
            put(column("q", times))

    if raw is True:
        flags |= RAW
    elif raw is not False:
        flags |= ENCODINGS
        put(raw)
        put(PAD[count & 7])

    key_bytes = header_bytes = 0
    if keys:
        flags |= KEYS
        parts, key_bytes = _sparse_section({i: k.encode() for i, k in keys.items()}, count)
        body += parts
    if headers:
        flags |= HEADERS
        parts, header_bytes = _sparse_section(headers, count)
        body += parts

    offsets = _offsets_of(payloads) if length < 0 else uniform.offsets(length, count)
    put(offsets)
    put(PAD[len(offsets) & 7])
    body += payloads

    tail = b"".join(body)
    length = HEADER.size + len(tail)
    fields = (length, count, epoch, first, time, flags, topic_count, len(table))
    head = HEADER.pack(stream, FRAME_MAGIC, 0, *fields, key_bytes, header_bytes)
    start, rest = head[:CHECK_AT], head[CHECK_AT + 4 :]
    check = crc32c(tail, crc32c(rest, crc32c(start)))
    return b"".join((start, check.to_bytes(4, "little"), rest, tail))


encode_frame_in_python = encode_frame
if COMPILED:
    encode_frame = _speed.encode_frame  # type: ignore[assignment]
