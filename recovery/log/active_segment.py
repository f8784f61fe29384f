"""The segment that is being written: records at its end, room ahead of them, its index.

Belongs here: where the next record goes, and that a torn write leaves no trace.  Does not belong
here: when to make it safe, and when to go on in another segment (`writer`).
"""

from __future__ import annotations

import contextlib

from meshmsg.recovery.log.files import File, Files, write_all
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    RECORD_HEAD_BYTES,
    TIME_MIN,
    SegmentHead,
    SegmentName,
    encode_record,
    record_size,
    salt_of,
)
from meshmsg.recovery.log.index import EVERY_BYTES, IndexEntry, encode_index

FRESH = ".new"


class ActiveSegment:
    """A segment with room at its end."""

    def __init__(
        self, files: Files, folder: str, file: File, head: SegmentHead, allocate_bytes: int
    ) -> None:
        self.name = SegmentName(head.epoch, head.term, head.first)
        self.head = head
        self.offset = DATA_START  #: where the next record goes
        self.next = head.first  #: one past its last event
        self.latest_ns = TIME_MIN  #: the latest time of any record
        self.finished = False
        self.dirty = False  #: written to since it was synced
        self._files = files
        self._folder = folder
        self._file = file
        self._salt = salt_of(head)
        self._allocate_bytes = allocate_bytes
        self._allocated = DATA_START
        self.torn = False  #: what stands behind `offset` has to be cut off
        self._indexed_at = 0
        self._index: list[IndexEntry] = []
        self._index_file: File | None = None
        self._index_bytes = 0

    @classmethod
    def create(
        cls, files: Files, folder: str, head: SegmentHead, allocate_bytes: int
    ) -> ActiveSegment:
        """A new segment, not safe and not `publish`ed yet; raises `OSError`, leaves nothing."""
        name = SegmentName(head.epoch, head.term, head.first)
        path = f"{folder}/{name.file}{FRESH}"
        files.remove(path)
        segment = cls(files, folder, files.open(path, create=True), head, allocate_bytes)
        try:
            segment._allocate(DATA_START)
            write_all(segment._file, [head.encode()], 0)
            segment.dirty = True
        except OSError:
            segment.discard()
            raise
        return segment

    def publish(self) -> None:
        """Give it its name, and its place in the log; raises `OSError`.

        Not sooner: a segment that could not be begun must not be found after a crash, where the
        one before it went on.
        """
        path = f"{self._folder}/{self.name.file}"
        self._files.replace(path + FRESH, path)

    def discard(self) -> None:
        """Let go of one that has no name yet."""
        self.close()
        with contextlib.suppress(OSError):
            self._files.remove(f"{self._folder}/{self.name.file}{FRESH}")

    @property
    def is_empty(self) -> bool:
        """Whether it has no record yet."""
        return self.offset == DATA_START

    def put(self, kind: int, content: bytes, first: int, stop: int, time_ns: int) -> int:
        """Write a record; returns its offset.  Raises `OSError`, and then nothing was written."""
        self.mend()
        offset = self.offset
        size = record_size(len(content))
        if offset + size > self._allocated:
            self._allocate(offset + size)
        parts = encode_record(self._salt, offset, kind, first, stop, time_ns, content)
        self.dirty = True
        try:
            write_all(self._file, parts, offset)
        except OSError:
            self.torn = True
            with contextlib.suppress(OSError):
                self.mend()
            raise
        if offset - self._indexed_at >= EVERY_BYTES:
            self._indexed_at = offset
            self._index.append(IndexEntry(offset, first, self.latest_ns))
        self.offset, self.next = offset + size, stop
        if time_ns > self.latest_ns:
            self.latest_ns = time_ns
        return offset

    def mend(self) -> None:
        """Cut off what a refused record left, if that is still there; raises `OSError`."""
        if self.torn:
            self._file.truncate(self.offset)
            self._allocated = self.offset
            self.torn = False

    def _allocate(self, least: int) -> None:
        """Room ahead: a sync that does not change the file's size takes half the time."""
        if self._allocate_bytes:
            until = max(least, self._allocated + self._allocate_bytes)
            self._file.allocate(self._allocated, until - self._allocated)
            self._allocated = until

    def finish(self, next_: int) -> None:
        """End it: nothing comes after.  That it may fail does no harm, the next one tells too."""
        if self.finished:
            return
        try:
            self.put(END_RECORD, b"", next_, next_, self.latest_ns)
            self._file.truncate(self.offset)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self.offset)
        self.finished = True

    def sync(self) -> None:
        """Return when all of it is on the disk; raises `OSError`: it may not be trusted then."""
        if self.dirty:
            self.dirty = False  # before: others may write meanwhile
            self._file.sync()

    def cut_back(self, offset: int) -> None:
        """Take off what could not be made safe; raises `OSError`."""
        self._file.truncate(offset)

    def take_index(self) -> list[IndexEntry]:
        """The entries that are not in the file yet."""
        entries, self._index = self._index, []
        return entries

    def write_index(self, entries: list[IndexEntry]) -> bool:
        """Add entries to the index file; `False` if that failed, which only costs time later."""
        if not entries:
            return True
        data = encode_index(entries, self.head.salt)
        try:
            if self._index_file is None:
                path = f"{self._folder}/{self.name.index_file}"
                self._files.remove(path)
                self._index_file = self._files.open(path, create=True)
            write_all(self._index_file, [data], self._index_bytes)
        except OSError:
            return False
        self._index_bytes += len(data)
        return True

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._file, self._index_file):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def end_parts(salt: int, offset: int, next_: int, latest_ns: int) -> list[bytes]:
    """The record that ends a segment, for one that somebody else began."""
    return encode_record(salt, offset, END_RECORD, next_, next_, latest_ns, b"")


END_BYTES = RECORD_HEAD_BYTES
