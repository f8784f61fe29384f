"""Where a reader of a log starts: the oldest event, the newest few, the first at a time.

Belongs here: from what a user asks for to an epoch and a number.  Does not belong here: reading on
from there (`reader`).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import Frame
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import END_RECORD, LOSS_RECORD, NUMBER_MAX, SegmentName
from meshmsg.recovery.log.journal import Journal
from meshmsg.recovery.log.segment import Record, Segment, find_tail, read_index
from meshmsg.recovery.log.tail import TailReader

Place = tuple[int, int]


def earliest(segments: Sequence[SegmentName], journal: Journal) -> Place:
    """The epoch and number of the oldest event that has not expired; zeros in an empty log.

    By the journal: a segment that is missing is to be missed.
    """
    known = [(epoch.epoch, epoch.first) for epoch in journal.kept()]
    known += [(name.epoch, name.first) for name in segments[:1]]
    return min(known, default=(0, 0))


def last(folder: LogFolder, segments: Sequence[SegmentName], journal: Journal, count: int) -> Place:
    """That of the event `count` before the end, or of the oldest if there are fewer."""
    for known in reversed(journal.kept()):
        stop = known.stop
        if stop is None:
            own = [name for name in segments if name.epoch == known.epoch]
            stop = stop_of(folder, own[-1], journal) if own else known.first
        if stop - known.first >= count:
            return known.epoch, stop - count
        count -= max(0, stop - known.first)
    return earliest(segments, journal)


def stop_of(folder: LogFolder, name: SegmentName, journal: Journal) -> int:
    """Where an epoch ends, whose last segment this is."""
    known = journal.find(name.epoch)
    if known is not None and known.stop is not None:
        return known.stop
    return _tail_stop(folder, name)


def _tail_stop(folder: LogFolder, name: SegmentName) -> int:
    """What comes after the last event of an epoch that is written, whose last segment this is."""
    tail = TailReader(folder.files, folder.path)
    while True:
        stop = _end_of(folder, name)
        found = tail.stop(name.epoch, stop)
        # Stored between the two looks, its events are in the segment now, or in the next one.
        if not tail.is_ahead or stop == _end_of(folder, name):
            return found


def _end_of(folder: LogFolder, name: SegmentName) -> int:
    """What comes after the last event of a segment."""
    try:
        segment = Segment.open(folder.files, folder.path, name)
    except OSError:
        return name.first
    try:
        if segment.head is None:
            return name.first
        return find_tail(segment, read_index(folder.files, folder.path, segment)).next
    finally:
        segment.close()


def at_time(
    folder: LogFolder, segments: Sequence[SegmentName], journal: Journal, time_ns: int
) -> Place | None:
    """That of the first event that is as late; `None` if none is.

    What is missing just before it may have been as late, and comes first.
    """
    # Before the look: what is stored meanwhile lies behind it.
    end = _end_of(folder, segments[-1]) if segments else 0
    at, found = _segment_at(folder, segments, time_ns)
    newest = None
    if found is None and segments:
        newest, is_late = _behind(folder, segments[-1], end, time_ns)
        if is_late:
            return newest
    until = (NUMBER_MAX, 0) if found is None else (segments[at].epoch, found)
    if found is None or found == segments[at].first:
        before = segments[at - 1] if at else None
        after = (0, 0) if before is None else (before.epoch, _end_of(folder, before))
        missing = journal.first_missing(after, until)
        if missing is not None:
            return missing.epoch, missing.first
    return newest if found is None else until


def _behind(folder: LogFolder, last: SegmentName, end: int, time_ns: int) -> tuple[Place, bool]:
    """That of the first event from `end` on that is as late, or what comes next; whether it is."""
    tail = TailReader(folder.files, folder.path)
    while True:
        while (piece := tail.read(None, last.epoch, end)) is not None:
            frame = Frame(piece.data)
            index = frame.first_at(time_ns)
            if index < frame.count:
                return (last.epoch, frame.first + index), True
            end = piece.stop
        # What was in the tail may be in segments by now, and they may be later ones.
        names = [name for name in folder.segments() if name.epoch == last.epoch]
        newer = [name for name in names if name.first >= last.first]
        stop = _end_of(folder, newer[-1]) if newer else end
        if stop <= end:
            return (last.epoch, end), False
        _, found = _segment_at(folder, newer, time_ns)
        if found is not None:
            return (last.epoch, max(found, end)), True
        end = stop


def _segment_at(
    folder: LogFolder, segments: Sequence[SegmentName], time_ns: int
) -> tuple[int, int | None]:
    """The first segment with an event that is as late, by its index, and that event's number."""
    for at, name in enumerate(segments):
        try:
            segment = Segment.open(folder.files, folder.path, name)
        except OSError:
            continue
        try:
            found = _find_time(folder, segment, time_ns)
        finally:
            segment.close()
        if found is not None:
            return at, found
    return len(segments), None


def _find_time(folder: LogFolder, segment: Segment, time_ns: int) -> int | None:
    ending = segment.ending()
    if segment.head is None or (ending is not None and ending.time_ns < time_ns):
        return None
    entries = read_index(folder.files, folder.path, segment)
    at: int | None = segment.seek_time(entries, time_ns)
    while at is not None:
        record = segment.record(at)
        if record is None:
            at = segment.resync(at)
        elif record.kind == END_RECORD:
            return None
        elif record.time_ns >= time_ns and record.content is not None:
            return _first_at(record, time_ns)
        else:
            at = record.end
    return None


def _first_at(record: Record, time_ns: int) -> int:
    """The number of the first event of a frame that is as late."""
    if record.kind == LOSS_RECORD or record.content is None:
        return record.first
    try:
        frame = Frame(record.content)
    except ProtocolError:
        return record.first
    return min(frame.first + frame.first_at(time_ns), frame.stop - 1)
