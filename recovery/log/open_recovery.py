"""What is done to a log when it is opened for writing: cut a torn write, store the tail.

Only the last segment is looked at, from the last index entry that proves right.  Everything else
was ended properly by an earlier start, and what is damaged there is found by whoever reads it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from meshmsg._model.errors import LogError
from meshmsg._wire.frame import Frame
from meshmsg._wire.subframe import cut
from meshmsg.recovery.log.active_segment import END_BYTES, FRESH, ActiveSegment, end_parts
from meshmsg.recovery.log.files import File, Files, write_all
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    FRAME_RECORD,
    LOSS_RECORD,
    TIME_MIN,
    SegmentHead,
    SegmentName,
    encode_record,
    in_effect,
    record_size,
    salt_of,
)
from meshmsg.recovery.log.index import IndexEntry
from meshmsg.recovery.log.journal import Journal, read_journal
from meshmsg.recovery.log.segment import CHUNK_MAX, Record, Segment, Tail, find_tail, read_index
from meshmsg.recovery.log.tail import TAIL_FILE, Piece, TailReader

Item = tuple[int, bytes, int, int, int]
"""What is written as a record: its kind and content, first number and stop, and time."""


@dataclass(slots=True)
class Recovery:
    """What was found and done."""

    journal: Journal = field(default_factory=Journal)
    """The epochs, with the end of the last one; not written yet."""
    last_epoch: int = 0
    """The greatest epoch ever used; 0 if none was."""
    last: SegmentName | None = None
    """The last segment."""
    next: int = 0
    """What comes after the last event of the last epoch."""
    tail_events: int = 0
    """Events that only the tail had, and that are in the last segment now."""
    cut_bytes: int = 0
    """Bytes of a torn write that were cut off."""
    problems: list[str] = field(default_factory=list)
    """What was found damaged, in words."""


def recover(folder: LogFolder) -> Recovery:
    """Make a log fit for writing; the caller holds its lock.  Raises `LogError`."""
    try:
        return _recover(folder)
    except OSError as error:
        if isinstance(error, LogError):
            raise
        raise LogError(folder.path, f"cannot be opened: {error.strerror or error}") from error


def _recover(folder: LogFolder) -> Recovery:
    files, path = folder.files, folder.path
    present = folder.sizes()
    segments = in_effect(present)
    journal, problems = read_journal(files, path)
    epochs = [*(name.epoch for name in present), *(known.epoch for known in journal.epochs)]
    found = Recovery(last_epoch=max([journal.floor[0], *epochs]), problems=problems)
    segments = _tidy(files, path, segments, journal)
    found.journal = journal.with_segments(segments)
    while segments:
        found.last = segments[-1]
        if _recover_last(files, path, segments[-1], found):
            break
        # The crash came before its head was safe.
        files.remove(f"{path}/{segments.pop().file}")
        found.last = None
    for known in found.journal.epochs:
        if known.stop is None:
            own = [name for name in segments if name.epoch == known.epoch]
            stop = max(_stop_of(files, path, own, found), known.first)
            if journal.floor[0] == known.epoch:
                stop = max(stop, journal.floor[1])
            found.journal = found.journal.with_epoch(known.epoch, known.first, stop)
    files.remove(f"{path}/{TAIL_FILE}")
    return found


def _tidy(
    files: Files, path: str, segments: list[SegmentName], journal: Journal
) -> list[SegmentName]:
    """Remove what a crash left behind: replaced and expired segments, files without one."""
    expired = sum((s.epoch, s.first) <= journal.floor for s in segments[1:])
    kept = segments[expired:]
    wanted = {file for name in kept for file in (name.file, name.index_file)}
    for file in files.names(path):
        if file.endswith((".seg", ".idx", FRESH)) and file not in wanted:
            with contextlib.suppress(OSError):
                files.remove(f"{path}/{file}")
    return kept


def _recover_last(files: Files, path: str, name: SegmentName, found: Recovery) -> bool:
    """Cut and end the last segment; `False` if it was never begun."""
    file = files.open(f"{path}/{name.file}", write=True)
    try:
        # What cannot be read now must not be cut off: it may be there.
        segment = Segment(file, name, strict=True)
        found.next = name.first
        if segment.head is None:
            begun = file.read_at(CHUNK_MAX, 0).strip(b"\0")
            if not begun or _is_in_tail(files, path, name, found.journal):
                return False
            found.problems.append(f"{name.file}: the head is damaged, both copies of it")
            return True
        entries = read_index(files, path, segment)
        tail = find_tail(segment, entries)
        keep = tail.end + (END_BYTES if tail.finished else 0)
        found.cut_bytes = segment.content_bytes(keep)
        reader = TailReader(files, path)
        pieces = list(reader.pieces(segment.head.wire_id, segment.head.epoch))
        anew: tuple[SegmentName, int] | None = None
        if pieces:
            start = segment.seek(entries, pieces[0].first)
            whole, behind = _around_damage(segment, entries, start, tail)
            if _fills(pieces, whole.next, behind):
                head = segment.head._replace(first=whole.next, term=segment.head.term + 1)
                anew = _write_anew(files, path, head, pieces, behind, found)
                tail, pieces = whole, []
            elif not behind and any(p.first <= whole.next < p.stop for p in pieces):
                tail = whole
            _write_again(file, start, tail.end)
        stored = _store_tail(file, salt_of(segment.head), tail, pieces, found)
        found.next = stored.next
        keep = stored.end + (END_BYTES if stored.finished else 0)
        if file.size() != keep:
            file.truncate(keep)
        if not stored.finished:
            _end(file, salt_of(segment.head), stored.end, stored.next, stored.latest_ns)
        file.sync()
        if anew is not None:
            found.last, found.next = anew
        return True
    finally:
        file.close()


def _is_in_tail(files: Files, path: str, name: SegmentName, journal: Journal) -> bool:
    """Whether a segment without a head was never safe, and the tail has what was called so.

    The first segment of an epoch is on the disk before an event is taken; a later one may be
    named there with some of its pages, and its head not among them.
    """
    known = journal.find(name.epoch)
    reader = TailReader(files, path)
    further = reader.stop(name.epoch, name.first) > name.first or reader.is_ahead
    return further and known is not None and known.first < name.first


def _around_damage(
    segment: Segment, entries: list[IndexEntry], offset: int, end: Tail
) -> tuple[Tail, list[Record]]:
    """Where the first torn record is, from an offset on, and the records that are whole behind it.

    Without one, that is where they end.
    """
    begun = segment.head_at(offset)
    first = segment.name.first if begun is None else begun.first
    latest_ns = max((e.latest_ns for e in entries if e.offset <= offset), default=TIME_MIN)
    whole: Tail | None = None
    at = Tail(offset, first, latest_ns, False)
    behind: list[Record] = []
    while offset < end.end:
        record = segment.record(offset)
        if record is None or record.content is None:
            whole = whole or at
            further = segment.resync(offset)
            if further is None:
                break
            offset = further
            continue
        at = Tail(record.end, record.stop, max(at.latest_ns, record.time_ns), False)
        if whole is not None and record.kind != END_RECORD:
            behind.append(record)
        offset = record.end
    return whole or end, behind


def _fills(pieces: list[Piece], next_: int, behind: list[Record]) -> bool:
    """Whether the tail has events that are missing before records or between them."""
    for record in behind:
        if next_ < record.first and any(p.first < record.first and next_ < p.stop for p in pieces):
            return True
        next_ = max(next_, record.stop)
    return False


def _write_anew(
    files: Files,
    path: str,
    head: SegmentHead,
    pieces: list[Piece],
    behind: list[Record],
    found: Recovery,
) -> tuple[SegmentName, int]:
    """Make a segment that takes the place of all from a number on; returns its name and its stop.

    A crash leaves all as it was, or the new one whole: in the old one nothing is written over.
    """
    kept = [(r.kind, r.content or b"", r.first, r.stop, r.time_ns) for r in behind]
    items = sorted([*map(_item, pieces), *kept], key=lambda item: item[2:4])
    fresh = ActiveSegment.create(files, path, head._replace(salt=files.random_bytes(8)), 0)
    try:
        for kind, content, first, stop, time_ns in _in_order(items, head.first, found):
            fresh.put(kind, content, first, stop, time_ns)
            if kind == FRAME_RECORD:
                found.tail_events += stop - first
        found.tail_events -= sum(r.stop - r.first for r in behind if r.kind == FRAME_RECORD)
        fresh.finish(fresh.next)
        fresh.sync()
        fresh.publish()
        files.sync_folder(path)
    except BaseException:
        fresh.discard()
        raise
    fresh.close()
    return fresh.name, fresh.next


def _write_again(file: File, start: int, stop: int) -> None:
    """Write what is there once more: the tail, which may be all that the disk has of it, will go.

    After a sync that failed the kernel shows records that it has not written and never will.
    """
    at = 0 if start == DATA_START else start
    while at < stop:
        data = file.read_at(min(CHUNK_MAX, stop - at), at)
        if not data:
            return
        write_all(file, [data], at)
        at += len(data)


def _store_tail(file: File, salt: int, end: Tail, pieces: list[Piece], found: Recovery) -> Tail:
    """Write behind the last record what only the log's tail has; returns where that ends."""
    for item in _in_order([_item(piece) for piece in pieces], end.next, found):
        kind, content, first, stop, time_ns = item
        write_all(file, encode_record(salt, end.end, kind, first, stop, time_ns, content), end.end)
        latest_ns = end.latest_ns
        if kind == FRAME_RECORD:
            found.tail_events += stop - first
            latest_ns = max(latest_ns, time_ns)
        end = Tail(end.end + record_size(len(content)), stop, latest_ns, False)
    return end


def _item(piece: Piece) -> Item:
    return FRAME_RECORD, piece.data, piece.first, piece.stop, piece.time_ns


def _in_order(items: Iterable[Item], next_: int, found: Recovery) -> Iterator[Item]:
    """Records of which each begins where the one before ends, from a number on."""
    for kind, content, first, stop, time_ns in items:
        if stop <= next_:
            continue
        if first > next_:  # a record that should have come before is torn, or an entry damaged
            found.problems.append(f"events {next_} to {first - 1} are missing before the tail")
            yield LOSS_RECORD, b"corrupt", next_, first, 0
        if first < next_ and kind == FRAME_RECORD:
            frame = Frame(content)
            content = cut(frame, next_ - first, frame.count)
        yield kind, content, max(first, next_), stop, time_ns
        next_ = stop


def _end(file: File, salt: int, offset: int, next_: int, latest_ns: int) -> None:
    try:
        write_all(file, end_parts(salt, offset, next_, latest_ns), offset)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file.truncate(offset)  # the journal says the same


def _stop_of(files: Files, path: str, segments: list[SegmentName], found: Recovery) -> int:
    """Where an epoch ended that nothing else tells of."""
    if not segments:
        return 0
    last = segments[-1]
    if last == found.last:
        return found.next
    try:
        segment = Segment.open(files, path, last)
    except OSError:
        return last.first
    try:
        if segment.head is None:
            return last.first
        return find_tail(segment, read_index(files, path, segment)).next
    finally:
        segment.close()
