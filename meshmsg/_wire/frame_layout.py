"""How a frame lies in its bytes: the numbers of docs/wire-format.md, and columns of integers.

What builds a frame (`frame_encoder`) and what reads one (`frame`, `frame_columns`) share it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

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
#: An event's headers are published up to this size: decoded, they take 70 times as much.
HEADERS_BYTES_MAX = 64 * 1024
#: A frame with larger headers is refused.  Logs of version 0.1 may hold headers of any size.
HEADERS_READ_BYTES_MAX = 1024 * 1024

TOPIC_INDEX = 1
TIMES = 2
ENCODINGS = 4
RAW = 8
KEYS = 16
HEADERS = 32
KNOWN_FLAGS = TOPIC_INDEX | TIMES | ENCODINGS | RAW | KEYS | HEADERS

_SWAP = sys.byteorder != "little"
PAD = tuple(b"\0" * n for n in (0, 7, 6, 5, 4, 3, 2, 1))


def check_of(data: bytes) -> int:
    """The checksum that belongs into a frame or heartbeat."""
    return crc32c(memoryview(data)[CHECK_AT + 4 :], crc32c(data[:CHECK_AT]))


def column(code: str, values: Iterable[int]) -> bytes:
    """Integers as an array of the type `code`."""
    packed = array(code, values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def read_column(code: str, data: memoryview) -> array[int]:
    """The integers of such an array."""
    values = array(code)
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values


class UniformOffsets:
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
        """As many items of that length."""
        if not length:
            return bytes(4 * (count + 1))
        if not self.EVENTS_MIN <= count <= self.EVENTS_MAX or length > self.LENGTH_MAX:
            return column("I", range(0, length * count + 1, length))
        table = self._tables.get(length)
        if table is None:
            if len(self._tables) >= self.LENGTHS_MAX:
                self._tables.clear()
            table = column("I", range(0, length * self.EVENTS_MAX + 1, length))
            self._tables[length] = table
        return table[: 4 * (count + 1)]


uniform = UniformOffsets()
