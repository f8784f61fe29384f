"""The frame codec: a batch of consecutive events of one stream, as one run of bytes.

A frame is columnar: every section is one array or one blob, so that building and splitting are a
handful of C calls whatever the number of events, and the columns become Arrow arrays as they are.
The same bytes go on the wire, into the retransmit buffer and into a log.  docs/wire-format.md is
the specification; the names here are the names there.

All integers are little-endian.  Sections are padded to 8 bytes, the payloads at the end are not.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any

import msgspec
from crc32c import crc32c

from meshmsg._compiled import COMPILED
from meshmsg._errors import MeshError, ProtocolError
from meshmsg._topics import check_topic

if COMPILED:
    from meshmsg import _speed

FRAME_MAGIC = b"MMF1"
HEARTBEAT_MAGIC = b"MMH1"
HEADER = Struct("<Q4sIIIQQqHHIII")
HEARTBEAT = Struct("<Q4sIQQQ")
PREFIX_BYTES = 8
#: Where the checksum stands: it covers all that is before and behind it.
CHECK_AT = 12

#: A frame on the wire is never larger: anything that claims more is refused unread.
FRAME_BYTES_MAX = 32 * 1024 * 1024
#: Nor does it hold more events than this.
FRAME_EVENTS_MAX = 65_535
FRAME_TOPICS_MAX = 65_535

TOPIC_INDEX = 1
TIMES = 2
ENCODINGS = 4
RAW = 8
KEYS = 16
HEADERS = 32
_KNOWN_FLAGS = TOPIC_INDEX | TIMES | ENCODINGS | RAW | KEYS | HEADERS

_SWAP = sys.byteorder != "little"
_PAD = tuple(b"\0" * n for n in (0, 7, 6, 5, 4, 3, 2, 1))
_NO_HEADERS: Mapping[str, Any] = {}
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


def _check_of(data: bytes) -> int:
    return crc32c(memoryview(data)[CHECK_AT + 4 :], crc32c(data[:CHECK_AT]))


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Headers as a msgpack map."""
    return _encode_headers(dict(headers))


# --- columns ---------------------------------------------------------------------------------


def _column(code: str, values: Iterable[int]) -> bytes:
    column = array(code, values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def _read_column(code: str, data: memoryview) -> array[int]:
    column = array(code)
    column.frombytes(data)
    if _SWAP:
        column.byteswap()
    return column


class _UniformOffsets:
    """Offsets of equally long items, ready made: a full frame costs one slice and one compare."""

    LENGTHS_MAX = 64
    #: A table costs as much as 60 small columns, and a frame of one event is always uniform.
    EVENTS_MIN = 64
    EVENTS_MAX = 4096
    #: Offsets are 32 bits: no table reaches over that.
    LENGTH_MAX = 0xFFFFFFFF // EVENTS_MAX

    def __init__(self) -> None:
        self._tables: dict[int, bytes] = {}

    def offsets(self, length: int, count: int) -> bytes:
        if not length:
            return bytes(4 * (count + 1))
        if not self.EVENTS_MIN <= count <= self.EVENTS_MAX or length > self.LENGTH_MAX:
            return _column("I", range(0, length * count + 1, length))
        table = self._tables.get(length)
        if table is None:
            if len(self._tables) >= self.LENGTHS_MAX:
                self._tables.clear()
            table = _column("I", range(0, length * self.EVENTS_MAX + 1, length))
            self._tables[length] = table
        return table[: 4 * (count + 1)]


_uniform = _UniformOffsets()


class _UniformSplitter:
    """Splits a blob of equally long items in blocks, each block one C call."""

    LENGTHS_MAX = 64
    BLOCKS = (512, 64, 8, 1)

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[tuple[int, int, Struct], ...]] = {}

    def split(self, data: bytes, at: int, length: int, count: int) -> list[bytes]:
        if count < self.BLOCKS[-2]:  # too few to be worth a new length's blocks
            return [data[i : i + length] for i in range(at, at + count * length, length)]
        blocks = self._blocks.get(length)
        if blocks is None:
            if len(self._blocks) >= self.LENGTHS_MAX:
                self._blocks.clear()
            # Measured: 17 ns an item against 90 for slicing in a loop.
            blocks = tuple((n, n * length, Struct(f"{length}s" * n)) for n in self.BLOCKS)
            self._blocks[length] = blocks
        items: list[bytes] = []
        for n, size, struct in blocks:
            while count >= n:
                items += struct.unpack_from(data, at)
                at += size
                count -= n
        return items


_splitter = _UniformSplitter()


def _offsets_of(items: Sequence[bytes]) -> bytes:
    """The offsets column of a list of items."""
    lengths = list(map(len, items))
    length = lengths[0]
    if lengths.count(length) == len(lengths):
        return _uniform.offsets(length, len(lengths))
    return _column("I", accumulate(lengths, initial=0))


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
    parts = [bits, _PAD[len(bits) & 7], offsets, _PAD[len(offsets) & 7], *items, _PAD[size & 7]]
    return parts, size


# --- encoding --------------------------------------------------------------------------------


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
        put(_PAD[len(table) & 7])
    else:
        distinct = dict.fromkeys(topics, 0)
        topic_count = len(distinct)
        table = "\n".join(distinct).encode()
        put(table)
        put(_PAD[len(table) & 7])
        if topic_count > 1:
            flags |= TOPIC_INDEX
            for index, topic in enumerate(distinct):
                distinct[topic] = index
            put(_column("H", map(distinct.__getitem__, topics)))
            put(_PAD[2 * count & 7])

    if isinstance(times, int):
        time = times
    else:
        time = times[0]
        if times.count(time) != count:
            flags |= TIMES
            put(_column("q", times))

    if raw is True:
        flags |= RAW
    elif raw is not False:
        flags |= ENCODINGS
        put(raw)
        put(_PAD[count & 7])

    key_bytes = header_bytes = 0
    if keys:
        flags |= KEYS
        parts, key_bytes = _sparse_section({i: k.encode() for i, k in keys.items()}, count)
        body += parts
    if headers:
        flags |= HEADERS
        parts, header_bytes = _sparse_section(headers, count)
        body += parts

    offsets = _offsets_of(payloads) if length < 0 else _uniform.offsets(length, count)
    put(offsets)
    put(_PAD[len(offsets) & 7])
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


Note = tuple[str | None, bytes | None]
Columns = tuple[list[str], list[bytes], list[int], list[bool]]


class FrameBuilder:
    """The open frame of a stream: events that have their numbers, and are not encoded yet.

    Adding is safe from any thread without a lock.  `add`, `reserve` and `take` move numbers and
    columns in runs of bytecode that call nothing and allocate no container, and CPython switches
    threads, collects garbage and runs signal handlers only at calls, backward jumps and such
    allocations.  So a number is never given twice, nor given and then lost to Ctrl-C.  (A lock
    would cost a third of what publishing an event costs.)  Where that does not hold, without a GIL
    or on another Python, the caller holds a lock: see `NEEDS_LOCK`.  A test reads the bytecode of
    the three, and of the publishing path that has `add` written out.
    """

    __slots__ = (
        "_capacity",
        "_spare",
        "_taken",
        "count",
        "first",
        "notes",
        "payloads",
        "raws",
        "size",
        "times",
        "topics",
    )

    #: Events that fit at first and at most; adding one more than fit raises `IndexError`.  A
    #: thousand quiet streams should not cost a thousand large frames.
    CAPACITY_MIN = 64
    CAPACITY_MAX = 4096
    #: Whether adding must be guarded by a lock on this interpreter.
    NEEDS_LOCK = (
        sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)()
    )

    topics: list[str]
    payloads: list[bytes]
    times: list[int]
    raws: list[bool]

    def __init__(self, first: int = 0) -> None:
        self.first = first  #: the number of the first event
        self.count = 0  #: events in the frame
        self.size = 0  #: about how many bytes the frame will have
        self.notes: dict[int, Note] = {}  #: keys and headers by number
        self._capacity = self.CAPACITY_MIN
        self.topics, self.payloads, self.times, self.raws = _blank_columns(self._capacity)
        self._spare = _blank_columns(self._capacity)
        self._taken: tuple[int, int, Columns] | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def next(self) -> int:
        """The number that the next event gets."""
        return self.first + self.count

    def add(self, topic: str, payload: bytes, time_ns: int, *, raw: bool = True) -> int:
        """Append an event; returns its number."""
        index = self.count
        self.topics[index] = topic
        self.payloads[index] = payload
        self.times[index] = time_ns
        self.raws[index] = raw
        self.count = index + 1
        return self.first + index

    def annotate(self, key: str | None, headers: bytes | None) -> None:
        """Give the event just added a key, headers or both."""
        self.notes[self.next - 1] = (key, headers)

    def reserve(self, count: int) -> bool:
        """Pass over numbers for events that are encoded elsewhere; `False` if there are events."""
        if self.count:
            return False
        self.first += count
        return True

    def is_open(self) -> bool:
        """Whether there are events to be sealed."""
        return self.count > 0 or self._taken is not None

    def take(self) -> tuple[int, int, Columns]:
        """First number, count and columns; the frame is empty afterwards.  One thread at a time.

        Only the first `count` items of the columns are of this frame.  `give_back` them.
        """
        topics, payloads, times, raws = self._spare
        first = self.first
        count = self.count
        old_topics = self.topics
        old_payloads = self.payloads
        old_times = self.times
        old_raws = self.raws
        self.topics = topics
        self.payloads = payloads
        self.times = times
        self.raws = raws
        self.first = first + count
        self.count = 0
        self.size = 0
        return first, count, (old_topics, old_payloads, old_times, old_raws)

    def give_back(self, columns: Columns, count: int) -> None:
        """The columns are free for the next `take`; what they hold is let go."""
        if count == self._capacity < self.CAPACITY_MAX:
            self._capacity *= 4  # it was full: the next ones are larger
        if len(columns[1]) < self._capacity:
            self._spare = _blank_columns(self._capacity)
        else:
            columns[1][:count] = _NOTHING[:count]
            self._spare = columns

    def first_at(self, time_ns: int) -> int:
        """Index of the first event at or after a time; the number of events if there is none."""
        times = self.times[: self.count]
        return next((i for i, t in enumerate(times) if t >= time_ns), len(times))

    def begin(self) -> tuple[int, int]:
        """Take what is to be sealed; first number and count.  One thread at a time.

        Until `finish`, it stays to be sealed: an interrupted attempt is made again.
        """
        if self._taken is None:
            self._taken = self.take()
        return self._taken[0], self._taken[1]

    def encode(self, stream: int, epoch: int, first: int | None = None) -> bytes:
        """The bytes of what `begin` took."""
        assert self._taken is not None
        base, count, columns = self._taken
        topics = columns[0][:count]
        payloads = columns[1][:count]
        times = columns[2][:count]
        raws = columns[3][:count]
        same = topics.count(topics[0]) == count
        mixed = raws.count(raws[0]) != count
        notes = {seq - base: note for seq, note in list(self.notes.items()) if seq < base + count}
        return encode_frame(
            stream,
            epoch,
            base if first is None else first,
            topics[0] if same else topics,
            payloads,
            times,
            raw=bytes(raws) if mixed else raws[0],
            keys={i: key for i, (key, _) in notes.items() if key is not None},
            headers={i: packed for i, (_, packed) in notes.items() if packed is not None},
        )

    def finish(self) -> None:
        """What `begin` took is sealed: let it go."""
        if self._taken is not None:
            base, count, columns = self._taken
            self._taken = None
            self.give_back(columns, count)
            for seq in [seq for seq in list(self.notes) if seq < base + count]:
                del self.notes[seq]

    def seal(self, stream: int, epoch: int, first: int | None = None) -> bytes:
        """All in one: the frame's bytes; the frame is empty afterwards."""
        self.begin()
        frame = self.encode(stream, epoch, first)
        self.finish()
        return frame


_NOTHING: list[Any] = [None] * FrameBuilder.CAPACITY_MAX


def _blank_columns(capacity: int) -> Columns:
    return [""] * capacity, [b""] * capacity, [0] * capacity, [True] * capacity


# --- decoding --------------------------------------------------------------------------------


class _TopicTables:
    """Decoded topic tables by their bytes: a stream repeats the same few over and over."""

    ENTRIES_MAX = 4096
    TABLE_BYTES_MAX = 4096

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, ...]] = {}

    def read(self, table: bytes, count: int) -> tuple[str, ...]:
        topics = self._known.get(table)
        if topics is None:
            # Counted before it is split: a table of newlines would cost 8 times its size.
            if table.count(b"\n") + 1 != count:
                raise ProtocolError(f"the topic table does not have the {count} topics it should")
            try:
                topics = tuple(map(check_topic, table.decode().split("\n")))
            except (UnicodeDecodeError, MeshError) as error:
                raise ProtocolError(f"topic table: {error}") from None
            if len(table) <= self.TABLE_BYTES_MAX:
                if len(self._known) >= self.ENTRIES_MAX:
                    self._known.clear()
                self._known[table] = topics
        if len(topics) != count:
            raise ProtocolError(f"topic table has {len(topics)} topics, the header says {count}")
        return topics


_topic_tables = _TopicTables()


class VarColumn:
    """A column of byte strings of different lengths: offsets and one blob of a frame, checked."""

    __slots__ = (
        "_blob_at",
        "_blob_stop",
        "_data",
        "_length",
        "_offsets",
        "_offsets_at",
        "count",
    )

    _offsets: list[int] | None

    def __init__(
        self, data: bytes, offsets_at: int, blob_at: int, blob_stop: int, count: int
    ) -> None:
        self._data = data
        self._offsets_at = offsets_at
        self._blob_at = blob_at
        self._blob_stop = blob_stop
        self.count = count
        self._offsets = None
        if COMPILED:
            self._length = _speed.column_length(data, offsets_at, blob_at, blob_stop, count)
            return
        size = blob_stop - blob_at
        self._length = length = size // count
        if length * count == size and self.offset_bytes == _uniform.offsets(length, count):
            return
        self._length = -1  # they differ
        offsets = self._read_offsets()
        # Sorting a sorted list is one pass in C: the cheapest proof that offsets only grow.
        if offsets[0] != 0 or offsets[-1] != size or offsets != sorted(offsets):
            raise ProtocolError("offsets do not fit their blob")

    @property
    def offset_bytes(self) -> bytes:
        """The offsets column as bytes."""
        return self._data[self._offsets_at : self._offsets_at + 4 * (self.count + 1)]

    @property
    def blob(self) -> bytes:
        """The joined items."""
        return self._data[self._blob_at : self._blob_stop]

    def views(self) -> tuple[memoryview, memoryview]:
        """Offsets and blob where they lie in the frame."""
        view = memoryview(self._data)
        stop = self._offsets_at + 4 * (self.count + 1)
        return view[self._offsets_at : stop], view[self._blob_at : self._blob_stop]

    def _read_offsets(self) -> list[int]:
        if self._offsets is None:
            self._offsets = _read_column("I", memoryview(self.offset_bytes)).tolist()
        return self._offsets

    def _place(self, index: int) -> int:
        """Where an item starts in the data."""
        if self._length >= 0:
            return self._blob_at + index * self._length
        at = self._offsets_at + 4 * index
        return self._blob_at + int.from_bytes(self._data[at : at + 4], "little")

    def at(self, index: int) -> bytes:
        """One item."""
        return self._data[self._place(index) : self._place(index + 1)]

    def slice_blob(self, lo: int, hi: int) -> bytes:
        """The joined items `lo` to `hi`."""
        return self._data[self._place(lo) : self._place(hi)]

    def split(self, lo: int, hi: int) -> list[bytes]:
        """Items `lo` to `hi` as a list."""
        data, base = self._data, self._blob_at
        if COMPILED:
            return _speed.split(data, self._offsets_at, base, self._blob_stop, self.count, lo, hi)
        if self._length > 0:
            return _splitter.split(data, self._place(lo), self._length, hi - lo)
        if not self._length:
            return [b""] * (hi - lo)
        offsets = self._read_offsets()[lo : hi + 1]
        return [data[base + a : base + b] for a, b in pairwise(offsets)]


class Frame:
    """A frame that was read and checked; columns that nobody asks for stay bytes."""

    __slots__ = (
        "_encodings",
        "_header_bits",
        "_header_column",
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
    _header_column: VarColumn | None
    _headers: list[Mapping[str, Any]] | None
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
        if _check_of(data) != check:
            raise ProtocolError("checksum differs")
        count = self.count
        if not 0 < count <= FRAME_EVENTS_MAX or not topic_count or self.flags & ~_KNOWN_FLAGS:
            raise ProtocolError("header fields out of range")
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
        self.topics = _topic_tables.read(self.data[start : start + table], 1)
        self._topic_ids = self._keys = self._header_column = self._headers = None
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
        self.topics = _topic_tables.read(data[at : at + table], topic_count)
        at += table + (-table & 7)
        self._topic_ids = None
        if flags & TOPIC_INDEX:
            ids = data[at : at + 2 * count]
            if len(ids) != 2 * count:
                raise ProtocolError("topic index does not fit the frame")
            self._topic_ids = _read_column("H", memoryview(ids))
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
        self._keys = None
        self._header_column = None
        self._headers = None
        if flags & KEYS:
            self._key_bits, self._keys, at = self._sparse(at, keys)
        if flags & HEADERS:
            self._header_bits, self._header_column, at = self._sparse(at, headers)
            self._headers = self._read_headers(self._header_column)
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

    def _read_headers(self, column: VarColumn) -> list[Mapping[str, Any]]:
        bits = self._header_bits
        try:
            return [
                _decode_headers(item) if bits[i >> 3] >> (i & 7) & 1 else _NO_HEADERS
                for i, item in enumerate(column.split(0, self.count))
            ]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"headers: {error}") from None

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
        """The headers of one event."""
        return _NO_HEADERS if self._headers is None else self._headers[index]

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
        times = _read_column("q", memoryview(self.times_bytes))
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

    @property
    def header_column(self) -> tuple[bytes, VarColumn] | None:
        """The bitmap and column of headers (msgpack maps), where any event has some."""
        return None if self._header_column is None else (self._header_bits, self._header_column)

    def __repr__(self) -> str:
        where = f"{self.stream:016x}@{self.epoch}:{self.first}-{self.stop}"
        return f"<Frame {where} {len(self.data)} B>"


if COMPILED:
    _speed.set_up_decoder(Frame, VarColumn, _topic_tables._known, _topic_tables.read, ProtocolError)


# --- heartbeats ------------------------------------------------------------------------------


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """What a stream has: events `first` to `next` (half-open) can still be asked for."""

    stream: int
    epoch: int
    first: int
    next: int

    def encode(self) -> bytes:
        """The 40 bytes on the wire."""
        body = HEARTBEAT.pack(self.stream, HEARTBEAT_MAGIC, 0, self.epoch, self.first, self.next)
        check = _check_of(body).to_bytes(4, "little")
        return b"".join((body[:CHECK_AT], check, body[CHECK_AT + 4 :]))

    @classmethod
    def decode(cls, data: bytes) -> Heartbeat:
        """Read one; raises `ProtocolError`."""
        if len(data) != HEARTBEAT.size:
            raise ProtocolError(f"a heartbeat of {len(data)} bytes")
        stream, magic, check, epoch, first, next_ = HEARTBEAT.unpack(data)
        if magic != HEARTBEAT_MAGIC or _check_of(data) != check:
            raise ProtocolError("not a heartbeat")
        if first > next_ or next_ >= 1 << 63 or epoch >= 1 << 63:
            raise ProtocolError("heartbeat out of range")
        return cls(stream, epoch, first, next_)
