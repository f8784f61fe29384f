"""The frame codec: a batch of consecutive events of one stream, as one run of bytes.

A frame is columnar: every section is one array or one blob, so that building and splitting are a
handful of C calls whatever the number of events, and the columns become Arrow arrays as they are.
The same bytes go on the wire, into the retransmit buffer and into a log.  docs/wire-format.md is
the specification; the names here are the names there.

All integers are little-endian.  Sections are padded to 8 bytes, the payloads at the end are not.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from meshmsg._model.errors import ProtocolError
from meshmsg._model.topics import TOPIC_BYTES_MAX
from meshmsg._native import COMPILED
from meshmsg._wire.frame_builder import FrameBuilder, Note
from meshmsg._wire.frame_columns import VarColumn, topic_tables
from meshmsg._wire.frame_encoder import encode_frame, encode_frame_in_python, encode_headers
from meshmsg._wire.frame_layout import (
    CHECK_AT,
    ENCODINGS,
    FRAME_BYTES_MAX,
    FRAME_EVENTS_MAX,
    FRAME_MAGIC,
    HEADER,
    HEADERS,
    HEADERS_BYTES_MAX,
    HEADERS_READ_BYTES_MAX,
    HEARTBEAT_MAGIC,
    KEYS,
    KNOWN_FLAGS,
    PREFIX_BYTES,
    RAW,
    TIMES,
    TOPIC_INDEX,
    check_of,
    read_column,
)
from meshmsg._wire.heartbeat import Heartbeat

if COMPILED:
    from meshmsg import _speed

#: The door to the codec: what builds frames is in `frame_encoder` and `frame_builder`.
__all__ = (
    "CHECK_AT",
    "ENCODINGS",
    "FRAME_BYTES_MAX",
    "FRAME_EVENTS_MAX",
    "FRAME_MAGIC",
    "Frame",
    "FrameBuilder",
    "HEADER",
    "HEADERS",
    "HEADERS_BYTES_MAX",
    "HEADERS_READ_BYTES_MAX",
    "HEARTBEAT_MAGIC",
    "Heartbeat",
    "KEYS",
    "Note",
    "PREFIX_BYTES",
    "RAW",
    "TIMES",
    "TOPIC_INDEX",
    "VarColumn",
    "encode_frame",
    "encode_frame_in_python",
    "encode_headers",
)

_NO_HEADERS: Mapping[str, Any] = {}
_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


def _headers_of(item: bytes) -> Mapping[str, Any]:
    """Decode headers.  Not before they are asked for: in memory they are up to 70 times as large.

    A frame with headers that are no map is refused.  Text that is not UTF-8, a name that is no
    text, nesting too deep for Python: such a map is read as empty.
    """
    try:
        return _decode_headers(item)
    except Exception:
        return _NO_HEADERS


class Frame:
    """A frame that was read and checked; columns that nobody asks for stay bytes."""

    __slots__ = (
        "_encodings",
        "_header_bits",
        "_headers",
        "_key_bits",
        "_keys",
        "_times_at",
        "_topic_ids",
        "count",
        "data",
        "epoch",
        "first",
        "flags",
        "payloads",
        "stop",
        "stream",
        "time",
        "topics",
    )

    data: bytes
    stream: int
    epoch: int
    first: int
    stop: int
    count: int
    time: int
    flags: int
    topics: tuple[str, ...]
    payloads: VarColumn
    _topic_ids: array[int] | None
    _keys: VarColumn | None
    _headers: VarColumn | None
    _encodings: bytes
    _key_bits: bytes
    _header_bits: bytes
    _times_at: int

    def __init__(self, data: bytes) -> None:
        """Read a frame; raises `ProtocolError` for bytes that are not one, whole and unharmed."""
        if COMPILED:
            rest = _speed.read_frame(self, data)
            if rest is None:
                return
            at = self._read_sections(*rest)
        else:
            at = self._read(data)
        stop = at + 4 * (self.count + 1)
        start = stop + (-stop & 7)
        if start > len(data):
            raise ProtocolError("sections do not fit the frame")
        self.payloads = VarColumn(data, at, start, len(data), self.count)

    def _read(self, data: bytes) -> int:
        """Header, checksum and the sections before the payloads; returns where those start."""
        size = len(data)
        if size < HEADER.size or size > FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame of {size} bytes")
        (
            self.stream,
            magic,
            check,
            length,
            self.count,
            self.epoch,
            self.first,
            self.time,
            self.flags,
            topic_count,
            table_bytes,
            key_bytes,
            header_bytes,
        ) = HEADER.unpack_from(data)
        if magic != FRAME_MAGIC:
            raise ProtocolError("not a frame")
        if length != size:
            raise ProtocolError(f"a frame of {size} bytes says it has {length}")
        if check_of(data) != check:
            raise ProtocolError("checksum differs")
        count = self.count
        if not 0 < count <= FRAME_EVENTS_MAX or not topic_count or self.flags & ~KNOWN_FLAGS:
            raise ProtocolError("header fields out of range")
        if topic_count > count or table_bytes > topic_count * (TOPIC_BYTES_MAX + 1):
            raise ProtocolError("a topic table larger than its topics can be")
        self.data = data
        self.stop = self.first + count
        if self.stop >= 1 << 63 or self.epoch >= 1 << 63:
            raise ProtocolError("sequence number or epoch out of range")
        if self.flags & ~RAW or topic_count != 1:
            return self._read_sections(topic_count, table_bytes, key_bytes, header_bytes)
        return self._read_topic(table_bytes)

    def _read_topic(self, table: int) -> int:
        """The sections of a frame that has no optional one; returns where the payloads start."""
        start = HEADER.size
        if start + table > len(self.data):
            raise ProtocolError("topic table does not fit the frame")
        self.topics = topic_tables.read(self.data[start : start + table], 1)
        self._topic_ids = self._keys = self._headers = None
        self._encodings = self._key_bits = self._header_bits = b""
        self._times_at = 0
        return start + table + (-table & 7)

    def _read_sections(self, topic_count: int, table: int, keys: int, headers: int) -> int:
        """Find and check the sections before the payloads; returns where those start."""
        data, count, flags = self.data, self.count, self.flags
        size = len(data)
        at = HEADER.size
        if at + table > size:
            raise ProtocolError("topic table does not fit the frame")
        self.topics = topic_tables.read(data[at : at + table], topic_count)
        at += table + (-table & 7)
        self._topic_ids = None
        if flags & TOPIC_INDEX:
            ids = data[at : at + 2 * count]
            if len(ids) != 2 * count:
                raise ProtocolError("topic index does not fit the frame")
            self._topic_ids = read_column("H", memoryview(ids))
            if max(self._topic_ids) >= topic_count:
                raise ProtocolError("topic index out of range")
            at += 2 * count + (-2 * count & 7)
        elif topic_count != 1:
            raise ProtocolError("several topics and no index")
        self._times_at = 0
        if flags & TIMES:
            self._times_at = at
            at += 8 * count
        self._encodings = b""
        if flags & ENCODINGS:
            self._encodings = data[at : at + count]
            if len(self._encodings) != count or max(self._encodings) > 1:
                raise ProtocolError("encodings out of range")
            at += count + (-count & 7)
        self._key_bits = self._header_bits = b""
        self._keys = self._headers = None
        if flags & KEYS:
            self._key_bits, self._keys, at = self._sparse(at, keys)
        if flags & HEADERS:
            self._header_bits, self._headers, at = self._sparse(at, headers)
            self._headers.check_headers(self._header_bits)
        if at > size:
            raise ProtocolError("sections do not fit the frame")
        return at

    def _sparse(self, at: int, blob_bytes: int) -> tuple[bytes, VarColumn, int]:
        count, data = self.count, self.data
        bits = data[at : at + (count + 7) // 8]
        at += len(bits) + (-len(bits) & 7)
        offsets_at = at
        at += 4 * (count + 1)
        blob_at = at = at + (-at & 7)
        at += blob_bytes + (-blob_bytes & 7)
        if at > len(data):
            raise ProtocolError("a nullable column does not fit the frame")
        return bits, VarColumn(data, offsets_at, blob_at, blob_at + blob_bytes, count), at

    # One value, for the properties of an event.

    def topic_at(self, index: int) -> str:
        """The topic of one event."""
        ids = self._topic_ids
        return self.topics[0] if ids is None else self.topics[ids[index]]

    def payload_at(self, index: int) -> bytes:
        """The payload of one event."""
        return self.payloads.at(index)

    def key_at(self, index: int) -> str | None:
        """The key of one event, or `None`."""
        if self._keys is None or not self._key_bits[index >> 3] >> (index & 7) & 1:
            return None
        return self._keys.at(index).decode(errors="replace")

    def headers_at(self, index: int) -> Mapping[str, Any]:
        """The headers of one event; empty if it has none, or such as do not decode."""
        if self._headers is None or not self._header_bits[index >> 3] >> (index & 7) & 1:
            return _NO_HEADERS
        return _headers_of(self._headers.at(index))

    def time_at(self, index: int) -> int:
        """The time of one event, ns."""
        if not self._times_at:
            return self.time
        start = self._times_at + 8 * index
        return int.from_bytes(self.data[start : start + 8], "little", signed=True)

    def first_at(self, time_ns: int) -> int:
        """Index of the first event at or after a time; the number of events if there is none."""
        if not self._times_at:
            return 0 if self.time >= time_ns else self.count
        times = read_column("q", memoryview(self.times_bytes))
        if max(times) < time_ns:
            return self.count
        return next(i for i, t in enumerate(times) if t >= time_ns)

    def is_raw(self, index: int) -> bool:
        """Whether one event's payload was given as bytes and passed by the codec."""
        return bool(self._encodings[index]) if self._encodings else bool(self.flags & RAW)

    # Whole columns, for batches and Arrow.

    @property
    def topic_ids(self) -> array[int] | None:
        """Index into `topics` for each event; `None` when there is one topic only."""
        return self._topic_ids

    @property
    def encodings(self) -> bytes:
        """One byte an event (1: raw) in a frame that mixes both, else empty."""
        return self._encodings

    @property
    def times_bytes(self) -> bytes:
        """The times column as bytes, empty when all events have the frame's time."""
        start = self._times_at
        return self.data[start : start + 8 * self.count] if start else b""

    @property
    def key_column(self) -> tuple[bytes, VarColumn] | None:
        """The bitmap and column of keys, where any event has one."""
        return None if self._keys is None else (self._key_bits, self._keys)

    def headers_between(self, lo: int, hi: int) -> list[Mapping[str, Any]]:
        """The headers of events `lo` to `hi`, as `headers_at` gives them."""
        if self._headers is None:
            return [_NO_HEADERS] * (hi - lo)
        bits = self._header_bits
        return [
            _headers_of(item) if bits[i >> 3] >> (i & 7) & 1 else _NO_HEADERS
            for i, item in enumerate(self._headers.split(lo, hi), lo)
        ]

    @property
    def header_column(self) -> tuple[bytes, VarColumn] | None:
        """The bitmap and column of headers (msgpack maps), where any event has some."""
        return None if self._headers is None else (self._header_bits, self._headers)

    def __repr__(self) -> str:
        where = f"{self.stream:016x}@{self.epoch}:{self.first}-{self.stop}"
        return f"<Frame {where} {len(self.data)} B>"


if COMPILED:
    _speed.set_up_decoder(Frame, VarColumn, topic_tables.known, topic_tables.read, ProtocolError)
