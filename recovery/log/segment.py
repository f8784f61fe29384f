"""One segment of a durable log, as it is read: records in order, and where to go on after damage.

Belongs here: finding records in a file that may be damaged, cut, or still being written.  Does not
belong here: which segment comes next, and what a gap means (`reader`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from meshmsg.recovery.log.files import File, Files, read_small
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    FRAME_RECORD,
    NOTE_BYTES_MAX,
    RECORD_HEAD_BYTES,
    RECORD_MAGIC,
    TIME_MIN,
    RecordHead,
    SegmentHead,
    SegmentName,
    frame_is_good,
    read_head,
    read_record_head,
    salt_of,
)
from meshmsg.recovery.log.index import INDEX_BYTES_MAX, IndexEntry, decode_index
from meshmsg.recovery.log.join import join_records, topics_are_good

#: Read at once: little where little is expected, more while there is more.
CHUNK_MIN = 64 * 1024
CHUNK_MAX = 1024 * 1024
#: A head, and the content of a record that is not a frame.
_LOOK_BYTES = RECORD_HEAD_BYTES + NOTE_BYTES_MAX


class Record(NamedTuple):
    """One record; `content` is `None` where it is damaged."""

    kind: int
    first: int
    stop: int
    time_ns: int
    content: bytes | None
    offset: int
    end: int


class Segment:
    """A segment that is open for reading."""

    def __init__(self, file: File, name: SegmentName, *, strict: bool = False) -> None:
        self.name = name
        self.strict = strict  #: raise `OSError` for what cannot be read, instead of passing over it
        self._file = file
        self._chunk = b""
        self._chunk_at = 0
        self._chunk_bytes = CHUNK_MIN
        self.head: SegmentHead | None = None
        self.damaged_heads = 0
        self._salt = 0
        self._apart_until = 0  # before this offset, records are read one by one
        self.read_head()

    @classmethod
    def open(cls, files: Files, folder: str, name: SegmentName) -> Segment:
        """Open one; raises `OSError`."""
        return cls(files.open(f"{folder}/{name.file}"), name)

    def read_head(self) -> SegmentHead | None:
        """Read the head again: it may not have been written yet."""
        try:
            block = self._file.read_at(DATA_START, 0)
        except OSError:
            if self.strict:
                raise
            block = b""
        self.head, self.damaged_heads = read_head(block, self.name)
        if self.head is not None:
            self._salt = salt_of(self.head)
        return self.head

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def size(self) -> int:
        """Bytes in the file, those that are only reserved included."""
        return self._file.size()

    # --- records ---

    def record(self, offset: int, *, check: bool = True) -> Record | None:
        """The record at an offset; `None` if no whole and valid head is there.

        Without `check` a frame is not looked at: whoever takes it apart checks it anyhow.
        """
        if self.head is None:
            return None
        head = self._head_at(offset)
        if head is None:
            return None
        start = offset + RECORD_HEAD_BYTES
        content: bytes | None = self._bytes(start, head.length)
        if content is None or len(content) != head.length:
            content = None
        elif head.kind == FRAME_RECORD and check:
            wire_id, epoch = self.head.wire_id, self.head.epoch
            content = content if frame_is_good(content, wire_id, epoch, head) else None
        return Record(
            head.kind, head.first, head.stop, head.time_ns, content, offset, offset + head.size
        )

    def joined(self, offset: int, first: int, limit: int) -> Record | None:
        """Small frames from an offset on as one record; `None` where there are not two.

        The first of them holds the event `first`; each of them begins before `limit`.
        """
        if self.head is None or offset < self._apart_until or not 0 <= first < limit:
            return None
        at = self._reach(offset)
        found = join_records(
            self._chunk, at, offset, segment=self.head, salt=self._salt, first=first, limit=limit
        )
        if found is None:
            return None
        end = offset + found.size
        if not topics_are_good(found.frame):
            self._apart_until = end  # which of them is to blame, each says for itself
            return None
        return Record(
            FRAME_RECORD, found.first, found.stop, found.time_ns, found.frame, offset, end
        )

    def head_at(self, offset: int) -> RecordHead | None:
        """The head of the record at an offset, without its content."""
        return None if self.head is None else self._head_at(offset)

    def _head_at(self, offset: int) -> RecordHead | None:
        at = self._reach(offset)
        return read_record_head(self._salt, offset, self._chunk, at)

    def _reach(self, offset: int) -> int:
        """Have a record's head read; returns where it is in the chunk."""
        at = offset - self._chunk_at
        if not 0 <= at <= len(self._chunk) - _LOOK_BYTES:
            self._load(offset)
            return 0
        return at

    def _bytes(self, start: int, length: int) -> bytes | None:
        at = start - self._chunk_at
        if at + length <= len(self._chunk):
            return self._chunk[at : at + length]
        if length > CHUNK_MAX - RECORD_HEAD_BYTES:
            try:
                return self._file.read_at(length, start)
            except OSError:
                if self.strict:
                    raise
                return None
        self._load(start - RECORD_HEAD_BYTES, length + RECORD_HEAD_BYTES)
        return self._chunk[RECORD_HEAD_BYTES : RECORD_HEAD_BYTES + length]

    def _load(self, offset: int, least: int = 0) -> None:
        """Read a piece of the file; an unreadable place counts as nothing there."""
        follows = self._chunk_at < offset <= self._chunk_at + len(self._chunk)
        size = min(CHUNK_MAX, self._chunk_bytes * 2) if follows else CHUNK_MIN
        self._chunk_bytes = size
        self._chunk_at = offset
        try:
            self._chunk = self._file.read_at(max(size, least), offset)
        except OSError:
            self._chunk = b""
            if self.strict:
                raise
            try:
                self._chunk = self._file.read_at(max(_LOOK_BYTES, least), offset)
            except OSError:
                self._chunk = b""

    def refresh(self) -> None:
        """Forget what was read: the file may have grown."""
        self._chunk = b""

    def resync(self, offset: int) -> int | None:
        """Where the next valid head stands behind an offset; `None` if there is none."""
        if self.head is None:
            return None
        at = offset + 8
        size = self._file.size()
        while at < size:
            data = self._readable(at)
            found = data.find(RECORD_MAGIC)
            while 0 <= found < CHUNK_MAX:
                aligned = (at + found) % 8 == 0
                if aligned and read_record_head(self._salt, at + found, data, found) is not None:
                    return at + found
                found = data.find(RECORD_MAGIC, found + 1)
            at += min(len(data), CHUNK_MAX) or CHUNK_MIN  # nothing: look behind it
        return None

    def _readable(self, at: int) -> bytes:
        """Return what can be read from a place on: less before a bad sector, nothing at one."""
        for size in (CHUNK_MAX, CHUNK_MIN):
            try:
                return self._file.read_at(size + _LOOK_BYTES, at)
            except OSError:
                if self.strict:
                    raise
        return b""

    def content_bytes(self, offset: int) -> int:
        """Bytes behind an offset up to the last one that is not zero."""
        at = last = offset
        size = self._file.size()
        while at < size:
            data = self._file.read_at(CHUNK_MAX, at)
            if not data:
                break
            used = len(data.rstrip(b"\0"))
            last = at + used if used else last
            at += len(data)
        return last - offset

    # --- finding a place ---

    def seek(self, entries: list[IndexEntry], first: int) -> int:
        """A record's offset from which on `first` is found by walking; the index may be wrong."""
        at = bisect_right(entries, first, key=lambda entry: entry.first)
        return self._proved(entries[:at])

    def seek_time(self, entries: list[IndexEntry], time_ns: int) -> int:
        """As `seek`, for the first record that is as late as `time_ns`."""
        at = bisect_right(entries, time_ns - 1, key=lambda entry: entry.latest_ns)
        return self._proved(entries[:at])

    def _proved(self, entries: list[IndexEntry]) -> int:
        """The offset of the last entry that the data confirms."""
        for entry in reversed(entries):
            head = self.head_at(entry.offset)
            if head is not None and head.first == entry.first:
                return entry.offset
        return DATA_START

    def ending(self) -> Record | None:
        """The record that ends the segment, if it stands where it should: at the very end."""
        try:
            size = self._file.size()
        except OSError:
            return None
        if size < DATA_START + RECORD_HEAD_BYTES or size % 8:
            return None
        record = self.record(size - RECORD_HEAD_BYTES)
        return record if record is not None and record.kind == END_RECORD else None


class Tail(NamedTuple):
    """Where the records of a segment end, and what comes next there."""

    end: int
    next: int
    latest_ns: int
    finished: bool


def find_tail(segment: Segment, entries: list[IndexEntry]) -> Tail:
    """Walk from the last index entry that the data confirms to the last valid record."""
    offset = segment.seek(entries, 1 << 63)
    known = next((entry for entry in entries if entry.offset == offset), None)
    latest = TIME_MIN if known is None else known.latest_ns
    stop = segment.name.first if known is None else known.first
    while True:
        record = segment.record(offset)
        if record is None:
            # Damage with a valid record behind it does not end the log: what is there stays.
            further = segment.resync(offset)
            if further is None:
                return Tail(offset, stop, latest, False)
            offset = further
            continue
        if record.content is None and segment.resync(record.offset) is None:
            return Tail(offset, stop, latest, False)
        latest = max(latest, record.time_ns)
        stop = max(stop, record.stop)
        if record.kind == END_RECORD:
            return Tail(record.offset, stop, latest, True)
        offset = record.end


def read_index(files: Files, folder: str, segment: Segment) -> list[IndexEntry]:
    """The index of a segment as far as it makes sense; empty where there is none."""
    if segment.head is None:
        return []
    try:
        data = read_small(files, f"{folder}/{segment.name.index_file}", INDEX_BYTES_MAX)
    except OSError:
        data = None
    return decode_index(data or b"", segment.head.salt)
