"""One epoch of a log as it is written: the tail, records, segments, and making them safe together.

Any thread may write.  A record is in the kernel when `write` returns; `sync` returns when it is on
the disk.  Threads that wait for the disk at the same time share one fsync: the first of them does
it, for all that was written by then (group commit).

Small events go into the tail (`tail`), from any thread and without this lock; when it is full,
or something else has to follow its events, they are stored: written to the segment as one frame.

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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshmsg import _platform
from meshmsg._model.errors import ClosedError, LogError, LogFull, WaitTimeout
from meshmsg._model.log_policy import Retention
from meshmsg._wire.frame import Frame
from meshmsg._wire.tail_frame import ENTRY, TAIL_ROWS_MAX, padded
from meshmsg.recovery.log.active_segment import ActiveSegment
from meshmsg.recovery.log.files import Files
from meshmsg.recovery.log.format import (
    DATA_START,
    FRAME_RECORD,
    SegmentHead,
    SegmentName,
    latest_time,
    record_size,
)
from meshmsg.recovery.log.tail import Tail
from meshmsg.recovery.stream.histogram import Histogram

log = logging.getLogger("meshmsg.recovery")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A segment is ended at an eighth of the age at which it may go, so that quiet streams expire too.
AGE_PARTS = 8
KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a log is written."""

    fsync: str = "batch"
    """`always`, `batch`, `interval:50ms` or `never`: see `commit`."""
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
    tail_bytes: int = 128 * 1024
    """Small events gather in the tail until they fill so many bytes; 0: there is no tail."""
    tail_growth: int = 8
    """Where they come quickly, until they fill so many times as many."""

    @property
    def area_bytes(self) -> int:
        """What the tail holds: a part of a segment, or retention would have nothing to choose."""
        return min(self.tail_bytes, max(1024, self.segment_bytes // 4)) & ~7

    @property
    def area_bytes_max(self) -> int:
        """What the tail holds where that fills quickly."""
        return min(self.tail_bytes * self.tail_growth, max(1024, self.segment_bytes // 4)) & ~7


TailEvent = tuple[str, bytes, int, bool, str | None, bytes | None]
"""Topic, payload, time, whether the payload is raw, key, packed headers."""


def entry_bytes(event: TailEvent) -> int:
    """Bytes that an event takes in the tail."""
    topic, payload, _, _, key, headers = event
    texts = len(topic.encode()) + len((key or "").encode())
    return padded(ENTRY.size + texts + len(headers or b"") + len(payload))


def events_of(frame: Frame) -> list[TailEvent]:
    """The events of a frame as they are added to the tail."""
    packed: list[bytes | None] = [None] * frame.count
    if frame.header_column is not None:
        bits, column = frame.header_column
        for n, item in enumerate(column.split(0, frame.count)):
            packed[n] = item if bits[n >> 3] >> (n & 7) & 1 else None
    return [
        (frame.topic_at(n), payload, frame.time_at(n), frame.is_raw(n), frame.key_at(n), packed[n])
        for n, payload in enumerate(frame.payloads.split(0, frame.count))
    ]


class _Unsynced(NamedTuple):
    """A record that is not safe yet, and where it was written."""

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
    """Writes one epoch; `writer` says which, and keeps the rest of the log."""

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
        tracks: bool,
        clock: Callable[[], int],
        on_roll: Callable[[], None],
        sync_times: Histogram,
    ) -> None:
        self.epoch = epoch
        self.durable = first  #: events before this number are safe
        self.stored = first  #: events before this number are in segments
        self.stored_bytes = 0  #: bytes of all records
        self.turns = 0  #: how often the tail was full
        self.unsynced_bytes = 0  #: bytes of records that are not safe
        self._files = files
        self._path = path
        self._wire_id = wire_id
        self._settings = settings
        self._counters = counters
        self._tracks = tracks
        self._clock = clock
        self._on_roll = on_roll
        self._sync_times = sync_times
        # The last lock: who has it takes no other, and it may wait for the disk.  Publishers that
        # have a lock of their own take that first, or only this one.  It guards the segment, areas,
        # and sealing the tail's frame, in this order: an area is left, the segment gets its events,
        # the area is used again.  Entered as it is: the condition does so in Python, where Ctrl-C
        # would leave it locked.
        self._lock = _platform.new_rlock()
        self._changed = _platform.new_condition(self._lock)
        self._sealed: list[ActiveSegment] = []
        self._unsynced: deque[_Unsynced] = deque()
        self._names_changed = False
        self._syncing = False
        self._failed: OSError | None = None
        self._closed = False
        self._stored_safe = first  # events before this number are safe in segments
        self._unstored = False  # an area was left, and what is in it is not in the segment yet
        self._turned_ns = 0  # when the tail went on in another area
        self._tail = Tail(
            files,
            path,
            wire_id,
            epoch,
            first,
            area_bytes=settings.area_bytes,
            area_bytes_max=settings.area_bytes_max,
        )
        self.frame = self._tail.frame  #: small events are added here
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

    @property
    def next(self) -> int:
        """The number that the next event has to have."""
        return self.frame.next

    def close(self) -> None:
        """End the segment and make everything safe; raises `LogError`, and lets go all the same."""
        with self._lock:
            while self._syncing:
                self._changed.wait()
            if self._closed:
                return
            try:
                self._store()
                self._closed = True
                if self._failed is None:
                    self._active.finish(self.next)
                self._active.write_index(self._active.take_index())
                if self._tracks:
                    self._sync_all(with_tail=False)
                self._tail.drop()
            finally:
                self._closed = True
                self._tail.close()
                for segment in [*self._sealed, self._active]:
                    segment.close()
                self._changed.notify_all()

    # --- the tail ---

    def make_room(self, needed: int) -> bool:
        """Have room for an event of so many bytes; whether it had to be made.  Raises `LogError`.

        Who waited for the lock mostly finds room that another thread made meanwhile.
        """
        if self.frame.has_room(needed):
            return False
        with self._lock:
            if self.frame.has_room(needed):
                return False
            self._turn()
            return True

    def _turn(self) -> None:
        """Go on in the tail's other area, and store what is in this one; raises `LogError`.

        In this order: others add events while these are written to the segment.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the log is closed")
            now_ns = self._clock()
            large = self._tail.in_use and self._tail.fills_within(now_ns - self._turned_ns)
            if large and self._tail.may_grow() and not self._syncing:
                self._grow()
            while True:  # who waits for the disk lets others do this meanwhile, who may fail
                if self._failed is not None or self._unstored:
                    self._store()
                wanted = self._tail.wants_safe()
                if wanted <= self._stored_safe:
                    break
                self._counters["tail_waits"] += 1
                self.sync(wanted, in_segments=True)
            self.frame.shut = self._unstored = True  # also if this is interrupted (Ctrl-C)
            self.frame.begin()
            try:
                # What was refused may be whole there, and would count after a crash instead of the
                # events that get its numbers now.
                self._active.mend()
                self._tail.turn(large=large)
            except OSError as error:
                raise failure(self._path, error, "the tail could not be made") from error
            self._names_changed = True
            self.turns += 1
            self._turned_ns = now_ns
            self.frame.shut = False
            self._put_taken()

    def _grow(self) -> None:
        """Put a larger file in the tail's place; raises `LogError`.

        Segments have all of its events first, and have them as safe as they were called.
        """
        self._store()
        if self.durable > self._stored_safe:
            self.sync(self.durable, in_segments=True)
        self._tail.grow()

    def store_aged(self) -> None:
        """Store what is in the tail if its oldest event is; raises `LogError`.

        Else it would not expire before the tail is full, which takes a slow stream long.
        """
        with self._lock:
            if self._segment_age_ns is not None and self.frame.count:
                since = self._clock() - self._segment_age_ns
                if self.frame.first_at(since) and not self._closed:
                    self._turn()

    def store(self) -> None:
        """Write all that is in the tail to the segment; raises `LogError`, and nothing is lost."""
        with self._lock:
            self._store()

    def _store(self) -> None:
        """With the lock: write all that is in the tail to the segment; raises `LogError`."""
        if self._closed:
            raise ClosedError("the log is closed")
        self._tail.leave()
        if self._failed is not None:
            self._rewrite()
        while self.frame.is_open():
            self._put_taken()

    def _put_taken(self) -> None:
        """Write what the tail's frame has `begun` to seal as a record; raises `LogError`."""
        record = self._taken()
        if record is not None:
            self._unstored = True
            try:
                self._put(*record)
            except LogError:
                self.frame.shut = True
                raise
        self.frame.finish()
        self._unstored = False

    def _taken(self) -> tuple[int, bytes, int, int, int] | None:
        """What is in the tail as a record, until `finish`; `None` if that is stored already."""
        first, count = self.frame.begin()
        if not count or first + count <= self.stored:
            return None
        content = self.frame.encode(self._wire_id, self.epoch)
        return FRAME_RECORD, content, first, first + count, latest_time(content)

    # --- writing ---

    def add(self, events: Sequence[TailEvent]) -> None:
        """Add small events to the tail; raises `LogError`, and then none was added."""
        needed = sum(map(entry_bytes, events))
        with self._lock, self.frame:
            if self._closed:
                raise ClosedError("the log is closed")
            usable = self._tail.in_use and self._failed is None and not self._unstored
            rows = self.frame.count + len(events)
            if not usable or not self.frame.has_room(needed) or rows > TAIL_ROWS_MAX:
                self._turn()
            for topic, payload, time_ns, raw, key, headers in events:
                added = self.frame.add(topic, payload, time_ns, raw=raw, key=key, headers=headers)
                assert added, "the caller adds no more than fits"

    def write(self, kind: int, content: bytes, first: int, stop: int, time_ns: int) -> None:
        """Write a record behind all events; raises `LogError`, and then it was not written."""
        with self._lock, self.frame:
            if first < self.next or stop <= first:
                raise ValueError(f"[{first}, {stop}) does not follow {self.next}")
            self._store()
            try:
                self._put(kind, content, first, stop, time_ns)
            finally:
                if self.stored > self.frame.first:
                    self.frame.first = self.stored

    def _put(self, kind: int, content: bytes, first: int, stop: int, time_ns: int) -> None:
        size = record_size(len(content))
        segment = self._ready(size)
        try:
            offset = segment.put(kind, content, first, stop, time_ns)
        except OSError as error:
            self._counters["write_failures"] += 1
            raise failure(self._path, error, "could not be written") from error
        finally:  # no call: also if it was interrupted (Ctrl-C) when the record was there
            if segment.next > self.stored:
                self.stored = segment.next
        self.stored_bytes += size
        if self._tracks:
            self._unsynced.append(_Unsynced(kind, content, first, stop, time_ns, segment, offset))
            self.unsynced_bytes += size

    def _ready(self, size: int) -> ActiveSegment:
        if self._closed:
            raise ClosedError("the log is closed")
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
            if self.durable > self._stored_safe:
                # Events that only the tail makes durable must not lie before a later segment: the
                # tail is looked for behind the last one only.
                self._sync_old(old)
            fresh = self._create(self.stored)
            try:
                fresh.publish()
            except BaseException:
                fresh.discard()
                self._files.remove(f"{self._path}/{fresh.name.file}")  # interrupted, it may have it
                raise
        except OSError as error:
            self._counters["write_failures"] += 1
            raise failure(self._path, error, "a new segment could not be begun") from error
        # No call before this is done: interrupted (Ctrl-C), the old one would be written to.
        sealed = [*self._sealed, old] if self._tracks else []
        self._sealed, self._active, self._names_changed = sealed, fresh, True
        old.finish(self.stored)
        old.write_index(old.take_index())
        if not self._tracks:
            old.close()
        self._counters["segments"] += 1
        self._on_roll()
        return fresh

    def _sync_old(self, old: ActiveSegment) -> None:
        try:
            self._sync_files([*self._sealed, old], names_changed=self._names_changed)
        except OSError as error:
            self._failed = error
            raise

    def _sync_files(self, segments: list[ActiveSegment], *, names_changed: bool) -> None:
        for segment in segments:
            segment.sync()
        if names_changed:
            self._files.sync_folder(self._path)

    # --- making safe ---

    def sync(self, stop: int, timeout: float | None = None, *, in_segments: bool = False) -> None:
        """Return when all events before `stop` are safe; raises `LogError`, `WaitTimeout`.

        With `in_segments` those of them that are stored are safe by their segments alone, and what
        is in the tail is left alone.
        """
        leads = False
        try:  # around all of it: Ctrl-C may come anywhere
            with self._lock:
                while True:
                    if (self._stored_safe if in_segments else self.durable) >= stop:
                        return
                    if self._closed:
                        raise ClosedError("the log was closed, and this did not become safe")
                    if not self._syncing:
                        break
                    if not self._changed.wait_for(lambda: not self._syncing, timeout):
                        raise WaitTimeout(f"{self._path}: the disk did not answer in time")
                leads = self._syncing = True
            self._sync_all(with_tail=not in_segments)
        finally:
            if leads:
                with self._lock:
                    self._syncing = False
                    self._changed.notify_all()

    def _sync_all(self, *, with_tail: bool) -> None:
        """As the only one who does: outside of the lock, appending goes on meanwhile."""
        with self._lock:
            if self._failed is not None:
                self._rewrite()
                return
            if self._unstored:
                self._store()
            stored = self.stored
            target = self.next if with_tail else stored
            if target > stored:
                self._tail.claim()
            segments = [*self._sealed, self._active]
            names_changed, self._names_changed = self._names_changed, False
        began_ns = self._clock()
        try:
            if target > stored:
                self._tail.sync()
            self._sync_files(segments, names_changed=names_changed)
        except OSError as error:
            with self._lock:
                self._counters["sync_failures"] += 1
                log.error("%s: a sync failed: %s", self._path, error)
                self._failed = error
                self._rewrite()
            return
        with self._lock:
            self._counters["syncs"] += 1
            self._sync_times.add((self._clock() - began_ns) / 1e9)
            self._mark_safe(stored, target)
            # The last one may have been written to since, and have been ended.
            done = segments[:-1]
            self._sealed = [segment for segment in self._sealed if segment not in done]
            active = self._active
            entries = active.take_index()
        for segment in done:
            segment.close()
        active.write_index(entries)

    def _mark_safe(self, stored: int, durable: int) -> None:
        unsynced = self._unsynced
        while unsynced and unsynced[0].stop <= stored:
            self.unsynced_bytes -= record_size(len(unsynced.popleft().content))
        self._stored_safe = max(self._stored_safe, stored)
        self.durable = max(self.durable, durable)

    def _rewrite(self) -> None:
        """With the lock: put what is not safe into a new segment; raises `LogError`."""
        self._tail.leave()
        records = [(r.kind, r.content, r.first, r.stop, r.time_ns) for r in self._unsynced]
        from_tail = self._taken()
        if from_tail is not None:
            records.append(from_tail)
        path = self._path
        fresh = None
        try:
            self._term += 1  # each attempt anew: a reader may have the last one open already
            fresh = self._create(self._stored_safe)
            for record in records:
                fresh.put(*record)
            fresh.sync()
            fresh.publish()
            self._files.sync_folder(path)
        except OSError as error:
            if fresh is not None:
                fresh.discard()
            raise failure(path, error, "what is not safe could not be written anew") from error
        old, unsafe = [*self._sealed, self._active], list(self._unsynced)
        self._active, self._sealed, self._failed = fresh, [], None
        self._names_changed = False
        self._counters["rewrites"] += 1
        log.warning("%s: %d records were written anew", path, len(records))
        self.stored = self.frame.first
        self._mark_safe(self.stored, self.stored)
        self.frame.finish()
        self._drop(old, unsafe)
        while self.frame.is_open():  # what was added while an area was waiting to be stored
            self._put_taken()
        self._unstored = False
        with contextlib.suppress(OSError):  # what is left of it is in the new segment
            self._tail.drop()

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
