"""One epoch of a log as it is written: records, segments, and making them safe together.

Any thread may write.  A record is in the kernel when `write` returns; `sync` returns when it is on
the disk.  Threads that wait for the disk at the same time share one fsync: the first of them does
it, for all that was written by then (group commit).

After a failed fsync the kernel may have dropped the pages and call them clean, and the next fsync
would say that all is well.  So such a file is never trusted again: every record that is not safe is
still in memory, and is written into a new segment of a later term, which takes the old one's
place.  Until that has succeeded, writing and waiting raise `LogError`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from meshmsg._errors import ClosedError, LogError, LogFull, WaitTimeout
from meshmsg._log_words import Retention
from meshmsg.recovery.log_active import ActiveSegment
from meshmsg.recovery.log_files import Files
from meshmsg.recovery.log_format import DATA_START, SegmentHead, SegmentName, record_size

log = logging.getLogger("meshmsg.recovery")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A segment is ended at an eighth of the age at which it may go, so that quiet streams expire too.
AGE_PARTS = 8
KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a log is written."""

    fsync: str = "batch"
    """`always`, `batch`, `interval:50ms` or `never`: see `log_commit`."""
    segment_bytes: int = 64 * 1024 * 1024
    """A segment that would get larger is ended, and the next one begun."""
    retention: Retention = KEEP_ALL
    """What is removed."""
    unsynced_bytes_max: int = 64 * 1024 * 1024
    """With more than this not yet safe, appending waits for the disk."""
    allocate_bytes: int = 1024 * 1024
    """Disk space is reserved in steps of this many bytes; 0: as it is written."""
    hold_timeout_s: float = math.inf
    """A consumer of another peer that was not heard of for so long holds nothing more."""


class _Unsynced(NamedTuple):
    """A record that is not safe yet, and where it was written."""

    number: int
    kind: int
    content: bytes
    first: int
    stop: int
    time_ns: int
    segment: ActiveSegment
    offset: int


def failure(path: str, error: OSError, what: str) -> LogError:
    """An error of the operating system as one of ours."""
    if isinstance(error, LogError):
        return error
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return LogFull(path, f"{what}: {reason}. It goes on when there is space again")
    return LogError(path, f"{what}: {reason}")


class Appender:
    """Writes one epoch; `log_writer` says which, and keeps the rest of the log."""

    def __init__(
        self,
        files: Files,
        path: str,
        wire_id: int,
        settings: LogSettings,
        counters: Counter[str],
        *,
        epoch: int,
        term: int,
        first: int,
        number: int,
        tracks: bool,
        clock: Callable[[], int],
        on_roll: Callable[[], None],
    ) -> None:
        self.epoch = epoch
        self.next = first  #: the number that the next event has to have
        self.durable = first  #: events before this number are safe
        self.written = number  #: records written so far
        self.synced = number  #: of those, records that are safe
        self.unsynced_bytes = 0  #: bytes of records that are not
        self._files = files
        self._path = path
        self._wire_id = wire_id
        self._settings = settings
        self._counters = counters
        self._tracks = tracks
        self._clock = clock
        self._on_roll = on_roll
        self._changed = threading.Condition(threading.RLock())
        self._sealed: list[ActiveSegment] = []
        self._unsynced: deque[_Unsynced] = deque()
        self._names_changed = False
        self._syncing = False
        self._failed: OSError | None = None
        self._closed = False
        age_s = settings.retention.age_s
        self._segment_age_ns = None if age_s is None else int(age_s * 1e9 / AGE_PARTS)
        self._term = term
        self._active = self._create(first)
        try:
            self._active.sync()
            self._active.publish()
            files.sync_folder(path)
        except OSError:
            self._active.discard()
            raise

    def _create(self, first: int) -> ActiveSegment:
        salt = self._files.random_bytes(8)
        head = SegmentHead(self._wire_id, self.epoch, first, salt, self._clock(), self._term)
        reserve = self._settings.allocate_bytes
        return ActiveSegment.create(self._files, self._path, head, reserve)

    def used(self) -> dict[SegmentName, int]:
        """The segment that is written, and the bytes in it."""
        active = self._active
        return {active.name: active.offset}

    def close(self) -> None:
        """End the segment and make everything safe; raises `LogError`, and lets go all the same."""
        with self._changed:
            while self._syncing:
                self._changed.wait()
            if self._closed:
                return
            self._closed = True
            try:
                if self._failed is None:
                    self._active.finish(self.next)
                self._active.write_index(self._active.take_index())
                if self._tracks:
                    self._sync_to(self.written)
            finally:
                for segment in [*self._sealed, self._active]:
                    segment.close()
                self._changed.notify_all()

    # --- writing ---

    def write(self, kind: int, content: bytes, first: int, stop: int, time_ns: int) -> int:
        """Write a record; returns its number.  Raises `LogError`, and then nothing was written."""
        size = record_size(len(content))
        with self._changed:
            if first < self.next or stop <= first:
                raise ValueError(f"[{first}, {stop}) does not follow {self.next}")
            segment = self._ready(size)
            try:
                offset = segment.put(kind, content, first, stop, time_ns)
            except OSError as error:
                self._counters["write_failures"] += 1
                raise failure(self._path, error, "could not be written") from error
            self.next = stop
            self.written = number = self.written + 1
            if self._tracks:
                self._unsynced.append(
                    _Unsynced(number, kind, content, first, stop, time_ns, segment, offset)
                )
                self.unsynced_bytes += size
            return number

    def _ready(self, size: int) -> ActiveSegment:
        if self._closed:
            raise ClosedError("the log is closed")
        if self._failed is not None:
            self._rewrite()
        segment = self._active
        if segment.is_empty:
            return segment
        too_large = segment.offset + size > self._settings.segment_bytes
        return self._roll(segment) if too_large or self._is_aged(segment) else segment

    def _is_aged(self, segment: ActiveSegment) -> bool:
        if self._segment_age_ns is None:
            return False
        return self._clock() - segment.head.created_ns > self._segment_age_ns

    def _roll(self, old: ActiveSegment) -> ActiveSegment:
        # It begins where the old one ends, also if events are missing next: then a hole between
        # two segments can only be one that is missing.
        try:
            fresh = self._create(self.next)
            try:
                fresh.publish()
            except OSError:
                fresh.discard()
                raise
        except OSError as error:
            self._counters["write_failures"] += 1
            raise failure(self._path, error, "a new segment could not be begun") from error
        old.finish(self.next)
        old.write_index(old.take_index())
        if self._tracks:
            self._sealed.append(old)
        else:
            old.close()
        self._active = fresh
        self._names_changed = True
        self._counters["segments"] += 1
        self._on_roll()
        return fresh

    # --- making safe ---

    def sync(self, number: int, timeout: float | None = None) -> None:
        """Return when the record with this number is safe; raises `LogError`, `WaitTimeout`."""
        with self._changed:
            while True:
                if self.synced >= number:
                    return
                if self._closed:
                    raise ClosedError("the log was closed, and this did not become safe")
                if not self._syncing:
                    break
                if not self._changed.wait_for(lambda: not self._syncing, timeout):
                    raise WaitTimeout(f"{self._path}: the disk did not answer in time")
            self._syncing = True
            target = self.written
        try:
            self._sync_to(target)
        finally:
            with self._changed:
                self._syncing = False
                self._changed.notify_all()

    def _sync_to(self, target: int) -> None:
        """As the only one who does: outside of the lock, appending goes on meanwhile."""
        with self._changed:
            if self._failed is not None:
                self._rewrite()
                return
            chosen = self._take_files()
        try:
            self._sync_files(chosen)
        except OSError as error:
            with self._changed:
                self._counters["sync_failures"] += 1
                log.error("%s: a sync failed: %s", self._path, error)
                self._failed = error
                self._rewrite()
            return
        with self._changed:
            self._counters["syncs"] += 1
            self._mark_safe(target)
            # The last one may have been written to since, and have been ended.
            done = chosen[0][:-1]
            self._sealed = [segment for segment in self._sealed if segment not in done]
            active = self._active
            entries = active.take_index()
        for segment in done:
            segment.close()
        active.write_index(entries)

    def _take_files(self) -> tuple[list[ActiveSegment], bool]:
        names_changed, self._names_changed = self._names_changed, False
        return [*self._sealed, self._active], names_changed

    def _sync_files(self, chosen: tuple[list[ActiveSegment], bool]) -> None:
        segments, names_changed = chosen
        for segment in segments:
            segment.sync()
        if names_changed:
            self._files.sync_folder(self._path)

    def _mark_safe(self, target: int) -> None:
        unsynced = self._unsynced
        while unsynced and unsynced[0].number <= target:
            record = unsynced.popleft()
            self.unsynced_bytes -= record_size(len(record.content))
            self.durable = record.stop
        self.synced = max(self.synced, target)

    def _rewrite(self) -> None:
        """With the lock: put what is not safe into a new segment; raises `LogError`."""
        records = list(self._unsynced)
        first = self.durable if records else self.next
        path = self._path
        fresh = None
        try:
            self._term += 1  # each attempt anew: a reader may have the last one open already
            fresh = self._create(first)
            for r in records:
                fresh.put(r.kind, r.content, r.first, r.stop, r.time_ns)
            fresh.sync()
            fresh.publish()
            self._files.sync_folder(path)
        except OSError as error:
            if fresh is not None:
                fresh.discard()
            raise failure(path, error, "what is not safe could not be written anew") from error
        old = [*self._sealed, self._active]
        self._active, self._sealed, self._failed = fresh, [], None
        self._names_changed = False
        self._counters["rewrites"] += 1
        log.warning("%s: %d records were written anew", path, len(records))
        self._mark_safe(self.written)
        self._drop(old, records)

    def _drop(self, old: list[ActiveSegment], records: list[_Unsynced]) -> None:
        """Take away what the new segment has replaced.  If that fails, its term still says so."""
        stale = {id(record.segment) for record in records}
        broken = records[0].segment if records else None
        for segment in old:
            with contextlib.suppress(OSError):
                if segment is broken and records[0].offset > DATA_START:
                    segment.cut_back(records[0].offset)
                elif id(segment) in stale or segment.is_empty:
                    self._files.remove(f"{self._path}/{segment.name.file}")
                    self._files.remove(f"{self._path}/{segment.name.index_file}")
            segment.close()
