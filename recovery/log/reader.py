"""The reading end of a durable log: every event once, in order, or a `Loss` that says which not.

Any number of readers, in any process, while the log is written.  A reader stands at a position and
steps: a frame, a loss, or nothing more yet.  What is damaged is passed over and reported with its
exact range; so is what retention has removed.  Nothing that a reader finds makes it fail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from meshmsg._model.batch import Batch
from meshmsg._model.codecs import received_codec
from meshmsg._model.errors import LogError, ProtocolError
from meshmsg._model.event import LOSS_REASONS, Loss, Position
from meshmsg._wire.frame import Frame
from meshmsg.recovery.log import seek as log_places
from meshmsg.recovery.log.files import Files
from meshmsg.recovery.log.folder import UNKNOWN, LogFolder
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    LOSS_RECORD,
    NUMBER_MAX,
    SegmentName,
)
from meshmsg.recovery.log.journal import Epoch, Journal, read_journal
from meshmsg.recovery.log.segment import Record, Segment, read_index
from meshmsg.recovery.log.tail import TailReader
from meshmsg.recovery.stream.receiver import Run


class Entry(NamedTuple):
    """A frame as it stands in the log."""

    epoch: int
    first: int
    stop: int
    time_ns: int
    data: bytes


class LogReader:
    """Reads one stream's log.

    >>> with LogReader("data/pricing%2Forders.%2A%2A") as log:                 # doctest: +SKIP
    ...     log.seek_earliest()
    ...     for item in log.batches():
    ...         print(item)
    """

    def __init__(
        self, folder: str | LogFolder, *, files: Files | None = None, joins: bool = True
    ) -> None:
        self.folder = LogFolder(folder, files=files) if isinstance(folder, str) else folder
        self.counters: Counter[str] = Counter()
        self._files = self.folder.files
        self._joins = joins  # small frames: else each is read as it was written
        self.stream = ""
        self.wire_id = UNKNOWN
        self.codec = "msgpack"
        self.epoch = 0  #: of the next event
        self.next = 0  #: the number of the next event
        self._segments: list[SegmentName] = []
        self._journal = Journal()
        self._known = Journal()  # as it was before the segments were listed
        self._missing: Epoch | None = None  # behind the last segment, by that
        self._segment: Segment | None = None
        self._offset = DATA_START
        self._limit = NUMBER_MAX + 1  # where the next segment takes over
        self._damage = False  # since the last record something was passed over
        self._done: SegmentName | None = None  # read to its end
        self._doubted: tuple[int, int] | None = None  # where a segment seemed to be missing
        self._tail = TailReader(self._files, self.folder.path)

    # --- life ---

    def __enter__(self) -> LogReader:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Look what there is; raises `LogError` if it is no log."""
        about = self.folder.about()
        if about is None:
            raise LogError(self.folder.path, "there is no log here")
        self.stream, self.codec, self.wire_id = about.stream, about.codec, about.wire_id
        self.refresh()

    def close(self) -> None:
        """Let go of the files."""
        self._leave()

    def refresh(self) -> bool:
        """Look again what there is and has to be; returns whether that has changed."""
        self._known = self._journal
        segments = self.folder.segments()
        # After the names: what is gone from them has been written into the journal before.
        self._journal, _ = read_journal(self._files, self.folder.path)
        self._journal = self._journal.with_segments(segments)
        behind = (segments[-1].epoch + 1, 0) if segments else (0, 0)
        missing = self._known.first_missing(behind, (NUMBER_MAX, 0))
        changed = segments != self._segments or missing != self._missing
        self._segments, self._missing = segments, missing
        return changed

    @property
    def journal(self) -> Journal:
        """Where epochs began and ended."""
        return self._journal

    @property
    def segments(self) -> list[SegmentName]:
        """The segments that count, in order."""
        return self._segments

    @property
    def position(self) -> Position:
        """Where the next event is."""
        return Position(self.stream, self.epoch, self.next)

    # --- where to start ---

    def seek(self, epoch: int, seq: int) -> None:
        """Stand before this event.  What is not there any more is reported as lost when read."""
        self._leave()
        self.epoch, self.next = epoch, seq
        self._done = None

    def seek_earliest(self) -> None:
        """Stand before the oldest event that has not expired."""
        self.refresh()
        self.seek(*log_places.earliest(self._segments, self._journal))

    def seek_latest(self) -> None:
        """Stand behind the newest event that is there."""
        self.seek_last(0)

    def seek_last(self, count: int) -> None:
        """Stand before the newest `count` events, or before the oldest if there are fewer."""
        self.refresh()
        self.seek(*log_places.last(self.folder, self._segments, self._journal, count))

    def seek_time(self, time_ns: int) -> None:
        """Stand before the first event that is as late; behind the newest if none is."""
        self.refresh()
        found = log_places.at_time(self.folder, self._segments, self._journal, time_ns)
        if found is None:
            self.seek_latest()
        else:
            self.seek(*found)

    # --- reading ---

    def runs(self) -> Iterator[Run | Loss]:
        """Frames and losses up to the newest; to be called again when there may be more."""
        while True:
            item = self.step(check=False)
            if item is None:
                return
            if isinstance(item, Loss):
                yield item
                continue
            epoch, first, stop, _, data = item
            try:
                frame = Frame(data)
                good = (frame.epoch, frame.stop) == (epoch, stop) and frame.first <= first
                good = good and self.wire_id in (UNKNOWN, frame.stream)
            except ProtocolError:
                good = False
            if good:
                yield Run(frame, first - frame.first, frame.count)
            else:
                self.counters["damaged_frames"] += 1
                yield Loss(self.stream, epoch, first, stop, "corrupt")

    def batches(self) -> Iterator[Batch | Loss]:
        """As `runs`, with the batches that a subscription has: topics, keys, data, positions."""
        codec = received_codec(self.codec, None, Any)
        for item in self.runs():
            if isinstance(item, Loss):
                yield item
            else:
                yield Batch(item.frame, self.stream, codec, item.lo, item.hi)

    def entries(self) -> Iterator[Entry | Loss]:
        """As `runs`, with frames as bytes: whole frames, the first may begin before the start."""
        while True:
            item = self.step()
            if item is None:
                return
            yield item

    def step(self, stop: int = NUMBER_MAX + 1, *, check: bool = True) -> Entry | Loss | None:
        """The next frame or loss; `None` if there is nothing more yet.

        Frames that begin at `stop` or later are not joined to it.  With `check` false a frame may
        be damaged; its range is right all the same.
        """
        while True:
            segment = self._segment
            if segment is None:
                item = self._enter()
                if item is not None:
                    return item
                if self._segment is None:
                    return None
                continue
            last = self._is_last(segment)
            limit = min(stop, self._limit) if self._joins else 0
            record = segment.joined(self._offset, self.next, limit)
            record = record or segment.record(self._offset, check=check or last)
            if last and record is not None and record.content is None:
                record = self._settled(segment, record)
            if record is None:
                if not self._pass_over(segment):
                    found = self._from_tail()
                    if found is None and self._tail.is_ahead and self._has_more(segment):
                        continue  # what was in the tail when we looked is in the segment now
                    return found or self._missing_end(segment)
            elif record.kind == END_RECORD or record.first >= self._limit:
                if record.kind == END_RECORD and self.next < record.first <= self._limit:
                    return self._passed_over(record.first)
                if not self._finish(segment):
                    # A crash may have taken the next segment, and not the tail.
                    return self._from_tail() or self._missing_next()
            elif record.stop <= self.next:
                self._offset, self._damage = record.end, False
            elif record.first > self.next:
                return self._passed_over(record.first)
            else:
                self._offset = record.end
                return self._take(record)

    def _settled(self, segment: Segment, record: Record) -> Record | None:
        """A head without its content at the live edge: damaged only if something stands behind."""
        behind = segment.resync(record.offset)
        segment.refresh()
        again = segment.record(record.offset)
        return None if behind is None and again is not None and again.content is None else again

    def _take(self, record: Record) -> Entry | Loss:
        content = record.content
        if content is None:
            self.counters["damaged_frames"] += 1
            found = self._from_tail()  # a crash tore the segment, and came before the tail went
            if found is not None:
                self._offset = record.offset  # the tail may have a part of it only
                return found
            return self._lose(record.stop, "corrupt")
        if record.kind == LOSS_RECORD:
            reason = content.decode(errors="replace")
            return self._lose(record.stop, reason if reason in LOSS_REASONS else "gone")
        first = max(self.next, record.first)
        self.next = record.stop
        self._damage = False
        return Entry(self.epoch, first, record.stop, record.time_ns, content)

    def _lose(self, stop: int, reason: str) -> Loss:
        """Everything up to `stop` is lost; what lies before the floor has expired."""
        floor_epoch, floor = self._journal.floor
        first = self.next
        if (self.epoch, first) < (floor_epoch, floor):
            reason = "expired"
            if self.epoch == floor_epoch:
                stop = min(stop, floor)
        self.next = stop
        self._damage = False
        self.counters["lost"] += stop - first
        return Loss(self.stream, self.epoch, first, stop, reason)

    def _pass_over(self, segment: Segment) -> bool:
        """There is no record where one should be; `False` if there may be one later."""
        last = self._is_last(segment)
        if last and segment.head is None:
            segment.read_head()
        further = segment.resync(self._offset)
        if last:
            # Whoever writes may have gone on while we looked.
            segment.refresh()
            again = segment.record(self._offset)
            if again is not None and (again.content is not None or further is not None):
                return True
        if further is not None:
            self._offset, self._damage = further, True
            return True
        if last:
            return self._look_again(segment)
        self._damage = True
        return self._finish(segment)

    def _finish(self, segment: Segment) -> bool:
        """A segment has no more; `False` if it is the last."""
        if self._is_last(segment):
            return self._look_again(segment)
        self._done = segment.name
        damage = self._damage
        self._leave()
        self._damage = damage
        return True

    def _look_again(self, segment: Segment) -> bool:
        """At the live edge: whether other segments are there than before."""
        segment.refresh()
        if not self.refresh():
            return False
        if segment.name in self._segments:
            self._limit = self._limit_of(segment.name)
        else:
            self._leave()  # replaced, or removed: the place is found again by its number
        return True

    def _passed_over(self, stop: int) -> Entry | Loss:
        """What lies before a record: in the tail still, where a crash tore the segment, or lost."""
        if self._damage and (found := self._from_tail()) is not None:
            return found
        return self._lose(stop, "corrupt" if self._damage else "gone")

    def _from_tail(self) -> Entry | None:
        """At the live edge: what is not in a segment yet."""
        piece = self._tail.read(self.wire_id, self.epoch, self.next)
        if piece is None:
            return None
        self.next = piece.stop
        self._damage = False
        return Entry(self.epoch, *piece)

    def _has_more(self, segment: Segment) -> bool:
        """At the live edge: whether a record or a segment has come since."""
        segment.refresh()
        record = segment.record(self._offset)
        return (record is not None and record.content is not None) or self._look_again(segment)

    def _missing_end(self, segment: Segment) -> Loss | None:
        """At the live edge: the loss, if the writer has ended the epoch further on than this."""
        known = self._journal.find(self.epoch)
        if known is None or known.stop is None or self.next >= known.stop:
            return None
        # The journal was read after the segment, which may have been written to in between.
        segment.refresh()
        record = segment.record(self._offset)
        if record is not None and record.content is not None:
            return None
        return self._lose(known.stop, "corrupt")

    def _missing_next(self) -> Loss | None:
        """Behind the last segment: the loss, if another one has to be there."""
        known = self._known.find(self.epoch)  # from before the segments were listed
        if known is None or known.stop is None or self.next >= known.stop:
            return None
        return self._lose(known.stop, "corrupt")

    def _is_last(self, segment: Segment) -> bool:
        last = bool(self._segments) and self._segments[-1] == segment.name
        return last and self._missing is None

    def _limit_of(self, name: SegmentName) -> int:
        """Where the next segment of the epoch takes over."""
        at = self._segments.index(name) + 1
        if at < len(self._segments) and self._segments[at].epoch == name.epoch:
            return self._segments[at].first
        return NUMBER_MAX + 1

    def _leave(self) -> None:
        segment, self._segment = self._segment, None
        self._damage = False
        if segment is not None:
            segment.close()

    def _enter(self) -> Loss | None:
        """Open the segment of the next event, or say what is missing before it."""
        while True:
            place = (self.epoch, self.next)
            at = bisect_right(self._segments, place, key=lambda name: (name.epoch, name.first)) - 1
            here = self._segments[at] if at >= 0 else None
            if here is not None and here.epoch == self.epoch and here != self._done:
                if self._open(here):
                    return None
                continue
            if at + 1 < len(self._segments):
                if self._doubted != place:
                    # A name that is given while the folder is listed may be left out, and a later
                    # one be there: who looks again finds both.
                    self._doubted = place
                    self.refresh()
                    continue
                loss = self._cross(self._segments[at + 1])
            elif place < self._journal.floor:
                loss = self._cross(SegmentName(self._journal.floor[0], 0, self._journal.floor[1]))
            elif (missing := self._first_missing(place)) is not None:
                loss = self._cross(SegmentName(missing.epoch, 0, missing.stop or 0))
            elif self.refresh():
                continue
            else:
                return None
            if loss is not None:
                return loss

    def _first_missing(self, place: tuple[int, int]) -> Epoch | None:
        """What has to be behind a place, where there are no more segments."""
        if self._missing is None:
            return None
        return self._known.first_missing(place, (NUMBER_MAX, 0))

    def _cross(self, name: SegmentName) -> Loss | None:
        """Go on to a segment that begins later; the loss in between, if there is one."""
        self._done = None
        if name.epoch == self.epoch:
            # A whole segment is missing, or the end of one; or the recorder was not there yet.
            known = self._journal.find(self.epoch)
            if known is not None and self.next < known.first:
                return self._lose(min(known.first, name.first), "gone")
            return self._lose(name.first, "corrupt")
        known = self._journal.find(self.epoch)
        if known is not None and self.next < known.first:
            return self._lose(known.first, "gone")
        if known is not None and known.stop is not None and self.next < known.stop:
            return self._lose(known.stop, "corrupt")
        self._damage = False
        following = [e for e in self._journal.epochs if self.epoch < e.epoch <= name.epoch]
        if following:
            self.epoch, self.next = following[0].epoch, following[0].first
        else:
            self.epoch, self.next = name.epoch, name.first
        return None

    def _open(self, name: SegmentName) -> bool:
        try:
            segment = Segment.open(self._files, self.folder.path, name)
        except FileNotFoundError:
            # Removed since we looked; where it is still listed, it cannot be read at all.
            if not self.refresh():
                self._done = name
            return False
        except PermissionError as error:
            raise LogError(f"{self.folder.path}/{name.file}", "may not be read") from error
        except OSError:
            self._done = name
            return False
        if segment.head is not None and self.wire_id not in (UNKNOWN, segment.head.wire_id):
            self.counters["strange_segments"] += 1
            segment.close()
            self._done = name
            return False
        entries = read_index(self._files, self.folder.path, segment)
        self._offset = segment.seek(entries, self.next)
        self._limit = self._limit_of(name)
        self._segment = segment
        return True
