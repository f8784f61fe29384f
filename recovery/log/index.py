"""The sparse index of a segment: where to start walking for a number or for a time.

Pure.  An index can be lost, cut or damaged without harm: an entry that does not prove itself is
left out, and whoever uses one looks at the data whether it is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from meshmsg.recovery.log.format import DATA_START

ENTRY = Struct("<QQqII")
#: An entry for about this many bytes of records.
EVERY_BYTES = 64 * 1024
#: More is not read: enough for a segment of 8 GiB.
INDEX_BYTES_MAX = 4 * 1024 * 1024


class IndexEntry(NamedTuple):
    """A record, by its offset: its first number, and the latest time before it."""

    offset: int
    first: int
    latest_ns: int


def encode_entry(entry: IndexEntry, salt: bytes) -> bytes:
    """The 32 bytes in the file."""
    body = ENTRY.pack(*entry, 0, 0)[:-8]
    return body + crc32c(body, crc32c(salt)).to_bytes(4, "little") + bytes(4)


def decode_index(data: bytes, salt: bytes) -> list[IndexEntry]:
    """The entries that are whole and stand in order."""
    start = crc32c(salt)
    entries: list[IndexEntry] = []
    last = (DATA_START - 1, -1, -(1 << 63))
    for offset, first, latest_ns, check, zero in ENTRY.iter_unpack(data[: len(data) // 32 * 32]):
        body = ENTRY.pack(offset, first, latest_ns, 0, 0)[:-8]
        grows = offset > last[0] and first >= last[1] and latest_ns >= last[2] and offset % 8 == 0
        if grows and not zero and crc32c(body, start) == check:
            last = (offset, first, latest_ns)
            entries.append(IndexEntry(*last))
    return entries


def encode_index(entries: Iterable[IndexEntry], salt: bytes) -> bytes:
    """All entries of a file."""
    return b"".join([encode_entry(entry, salt) for entry in entries])
