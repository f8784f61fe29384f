"""The bytes of a durable log: names of files, the head of a segment, the head of a record.

Pure: bytes in, values out, nothing is believed that does not prove itself.  docs/log.md is the
specification; the names here are the names there.

A record's check covers its place in the file and a number that is drawn for each segment.  So a
record is valid at one offset of one file only: what looks like a record inside an event's payload,
or is left over from another file, is not taken for one when a reader looks for the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from meshmsg._wire.frame import CHECK_AT, FRAME_BYTES_MAX, FRAME_MAGIC, HEADER, TIMES, TOPIC_INDEX

SEGMENT_MAGIC = b"MMLOG\x00\x00\x01"
SEGMENT_HEAD = Struct("<8sQQQ8sqI8sI")
#: Both copies of the head stand here: one damaged sector leaves the other.
HEAD_PLACES = (0, 2048)
#: Where the first record is.
DATA_START = 4096

RECORD_MAGIC = b"MMR1"
RECORD_HEAD = Struct("<4sIIHHQQq")
RECORD_HEAD_BYTES = RECORD_HEAD.size
_RECORD_BODY = Struct("<IHHQQq")
_OFFSET = Struct("<Q")

FRAME_RECORD = 1
LOSS_RECORD = 2
END_RECORD = 3
#: The text in a record that is not a frame: a reason.
NOTE_BYTES_MAX = 64
NUMBER_MAX = (1 << 63) - 1
TIME_MIN = -(1 << 63)

_PAD = tuple(b"\0" * n for n in (0, 7, 6, 5, 4, 3, 2, 1))
_SEGMENT_NAME = re.compile(r"([0-9]{19})-([0-9]{4,9})-([0-9]{19})\.seg")
_TIME = Struct("<q")


class SegmentName(NamedTuple):
    """A segment by what its name says.  `term` counts the fresh starts within an epoch."""

    epoch: int
    term: int
    first: int

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return f"{self.epoch:019d}-{self.term:04d}-{self.first:019d}"

    @property
    def file(self) -> str:
        """The name of the file with the records."""
        return f"{self.stem}.seg"

    @property
    def index_file(self) -> str:
        """The name of the file with the index."""
        return f"{self.stem}.idx"


def parse_name(name: str) -> SegmentName | None:
    """What a file name says; `None` if it is not that of a segment."""
    found = _SEGMENT_NAME.fullmatch(name)
    if found is None:
        return None
    epoch, term, first = map(int, found.groups())
    parsed = SegmentName(epoch, term, first)
    good = 0 < epoch <= NUMBER_MAX and first <= NUMBER_MAX and parsed.file == name
    return parsed if good else None


def in_effect(names: Iterable[SegmentName]) -> list[SegmentName]:
    """The segments that count, in order.

    A segment of a later term takes the place of everything from its first number on: it was
    written because what was there before could not be made safe.
    """
    chosen: list[SegmentName] = []
    for name in sorted(names):
        while chosen and chosen[-1].epoch == name.epoch and chosen[-1].first >= name.first:
            chosen.pop()
        chosen.append(name)
    return chosen


class SegmentHead(NamedTuple):
    """What a segment says of itself."""

    wire_id: int
    epoch: int
    first: int
    salt: bytes
    created_ns: int
    term: int

    def encode(self) -> bytes:
        """All bytes before the first record."""
        fields = (self.wire_id, self.epoch, self.first, self.salt, self.created_ns, self.term)
        body = SEGMENT_HEAD.pack(SEGMENT_MAGIC, *fields, bytes(8), 0)[:-4]
        head = body + crc32c(body).to_bytes(4, "little")
        block = bytearray(DATA_START)
        for at in HEAD_PLACES:
            block[at : at + len(head)] = head
        return bytes(block)


def read_head(block: bytes, name: SegmentName) -> tuple[SegmentHead | None, int]:
    """The head from the first `DATA_START` bytes, and how many of its copies are damaged."""
    found = None
    damaged = 0
    for at in HEAD_PLACES:
        head = _read_head(block[at : at + SEGMENT_HEAD.size])
        if head is None or (head.epoch, head.term, head.first) != name:
            damaged += 1
        else:
            found = found or head
    return found, damaged


def _read_head(data: bytes) -> SegmentHead | None:
    if len(data) != SEGMENT_HEAD.size:
        return None
    magic, wire_id, epoch, first, salt, created_ns, term, _, check = SEGMENT_HEAD.unpack(data)
    if magic != SEGMENT_MAGIC or crc32c(data[:-4]) != check:
        return None
    return SegmentHead(wire_id, epoch, first, salt, created_ns, term)


class RecordHead(NamedTuple):
    """What a record says of its content."""

    length: int
    kind: int
    first: int
    stop: int
    time_ns: int

    @property
    def size(self) -> int:
        """Bytes in the file, head and padding included."""
        return record_size(self.length)


def record_size(length: int) -> int:
    """Bytes that a record with a content of this length takes."""
    return RECORD_HEAD_BYTES + length + (-length & 7)


def salt_of(head: SegmentHead) -> int:
    """Where the checks of a segment's records start from."""
    return crc32c(head.salt)


def encode_record(
    salt: int, offset: int, kind: int, first: int, stop: int, time_ns: int, content: bytes
) -> list[bytes]:
    """A record at this offset of its segment, in parts."""
    length = len(content)
    body = _RECORD_BODY.pack(length, kind, 0, first, stop, time_ns)
    check = crc32c(body, crc32c(_OFFSET.pack(offset), salt))
    if kind != FRAME_RECORD:  # a frame has a check of its own
        check = crc32c(content, check)
    head = b"".join((RECORD_MAGIC, check.to_bytes(4, "little"), body))
    return [head, content, _PAD[length & 7]]


def read_record_head(salt: int, offset: int, data: bytes, at: int) -> RecordHead | None:
    """The head of the record at `offset`, which is `data[at:]`; `None` if none is there, whole.

    Where the content is not a frame, it has to be in `data` too.
    """
    if data[at : at + 4] != RECORD_MAGIC or len(data) - at < RECORD_HEAD_BYTES:
        return None
    _, check, length, kind, zero, first, stop, time_ns = RECORD_HEAD.unpack_from(data, at)
    body = data[at + 8 : at + RECORD_HEAD_BYTES]
    found = crc32c(body, crc32c(_OFFSET.pack(offset), salt))
    if kind != FRAME_RECORD and length <= NOTE_BYTES_MAX:
        found = crc32c(data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + length], found)
    if found != check or zero or stop > NUMBER_MAX:
        return None
    good = {
        FRAME_RECORD: first < stop and HEADER.size <= length <= FRAME_BYTES_MAX,
        LOSS_RECORD: first < stop and length <= NOTE_BYTES_MAX,
        END_RECORD: first == stop and not length,
    }
    return RecordHead(length, kind, first, stop, time_ns) if good.get(kind, False) else None


def frame_is_good(data: bytes, wire_id: int, epoch: int, head: RecordHead) -> bool:
    """Whether these bytes are the frame that the head speaks of, unharmed."""
    if len(data) != head.length or len(data) < HEADER.size:
        return False
    fields = HEADER.unpack_from(data)
    stream, magic, check, length, count, frame_epoch, first = fields[:7]
    return bool(
        magic == FRAME_MAGIC
        and (stream, frame_epoch, first) == (wire_id, epoch, head.first)
        and (length, first + count) == (len(data), head.stop)
        and crc32c(memoryview(data)[CHECK_AT + 4 :], crc32c(data[:CHECK_AT])) == check
    )


def latest_time(frame: bytes) -> int:
    """The later of the times of a frame's first and last event."""
    fields = HEADER.unpack_from(frame)
    count, time_ns, flags, table = fields[4], fields[7], fields[8], fields[10]
    if not flags & TIMES:
        return int(time_ns)
    at = HEADER.size + table + (-table & 7)
    if flags & TOPIC_INDEX:  # the topic index comes first
        at += 2 * count + (-2 * count & 7)
    last: int = _TIME.unpack_from(frame, at + 8 * (count - 1))[0]
    return max(int(time_ns), last)
