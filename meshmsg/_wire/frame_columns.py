"""Columns of a frame that was received: byte strings and topic tables, checked as they are read."""

from __future__ import annotations

from itertools import pairwise
from struct import Struct

from meshmsg._model.errors import MeshError, ProtocolError
from meshmsg._model.topics import check_topic
from meshmsg._native import COMPILED
from meshmsg._wire.frame_layout import HEADERS_READ_BYTES_MAX, read_column, uniform
from meshmsg._wire.msgpack import is_map

if COMPILED:
    from meshmsg import _speed


class UniformSplitter:
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


splitter = UniformSplitter()


class TopicTables:
    """Decoded topic tables by their bytes: a stream repeats the same few over and over."""

    #: What the tables weigh that are remembered, about, and the largest of them.
    KNOWN_BYTES_MAX = 8 * 1024 * 1024
    TABLE_BYTES_MAX = 4096
    TOPICS_MAX = 200_000
    #: A table and a topic in memory, beside their bytes.
    ENTRY_COST = 256
    TOPIC_COST = 64

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[str, ...]] = {}
        self._known_bytes = 0
        self._checked: dict[str, str] = {}

    def read(self, table: bytes, count: int) -> tuple[str, ...]:
        topics = self.known.get(table)
        if topics is None:
            # Counted before it is split: a table of newlines would cost 8 times its size.
            if table.count(b"\n") + 1 != count:
                raise ProtocolError(f"the topic table does not have the {count} topics it should")
            try:
                topics = self._check(table.decode().split("\n"))
            except (UnicodeDecodeError, MeshError) as error:
                raise ProtocolError(f"topic table: {error}") from None
            if len(table) <= self.TABLE_BYTES_MAX:
                self._remember(table, topics)
        if len(topics) != count:
            raise ProtocolError(f"topic table has {len(topics)} topics, the header says {count}")
        return topics

    def _remember(self, table: bytes, topics: tuple[str, ...]) -> None:
        weight = self.ENTRY_COST + 2 * len(table) + self.TOPIC_COST * len(topics)
        if self._known_bytes + weight > self.KNOWN_BYTES_MAX:
            self.known.clear()
            self._known_bytes = 0
        self.known[table] = topics
        self._known_bytes += weight

    def _check(self, topics: list[str]) -> tuple[str, ...]:
        """The same, checked: tables differ from frame to frame, their topics seldom are new."""
        checked = self._checked
        try:
            return tuple([checked[topic] for topic in topics])
        except KeyError:
            if len(checked) + len(topics) > self.TOPICS_MAX:
                checked.clear()
            for topic in topics:
                if topic not in checked:
                    checked[topic] = check_topic(topic)
            return tuple(topics)


topic_tables = TopicTables()


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
        if length * count == size and self.offset_bytes == uniform.offsets(length, count):
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
            self._offsets = read_column("I", memoryview(self.offset_bytes)).tolist()
        return self._offsets

    def _place(self, index: int) -> int:
        """Where an item starts in the data."""
        if self._length >= 0:
            return self._blob_at + index * self._length
        at = self._offsets_at + 4 * index
        return self._blob_at + int.from_bytes(self._data[at : at + 4], "little")

    def at(self, index: int) -> bytes:
        """One item."""
        if COMPILED:
            return self.split(index, index + 1)[0]
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
            return splitter.split(data, self._place(lo), self._length, hi - lo)
        if not self._length:
            return [b""] * (hi - lo)
        offsets = self._read_offsets()[lo : hi + 1]
        return [data[base + a : base + b] for a, b in pairwise(offsets)]

    def is_value_each(self, lo: int, hi: int) -> bool:
        """Prove that each of the items `lo` to `hi` is one msgpack value: it takes compiled code.

        `False` where it is not proved: then each is to be decoded for itself.
        """
        if not COMPILED:
            return False
        offsets_at = self._offsets_at + 4 * lo
        return _speed.is_value_each(self._data, offsets_at, self._data, self._blob_at, hi - lo)

    def check_headers(self, bits: bytes) -> None:
        """Raise `ProtocolError` unless items with a bit are msgpack maps, and not too large."""
        if COMPILED:
            places = (self._offsets_at, self._blob_at, self._blob_stop, self.count)
            _speed.check_headers(self._data, *places, bits)
            return
        for index, item in enumerate(self.split(0, self.count)):
            if not bits[index >> 3] >> (index & 7) & 1:
                continue
            if len(item) > HEADERS_READ_BYTES_MAX:
                raise ProtocolError(f"headers of {len(item)} bytes")
            if not is_map(item):
                raise ProtocolError("headers that are no msgpack map")
