"""What there is in a log, and whether it is whole: for the command and for operators.

`summarize` looks at names and ends only, `verify` reads every byte.  Neither changes anything, and
both may run while the log is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmsg._model.event import Loss
from meshmsg.recovery.groups.store import GroupRecord, GroupStore
from meshmsg.recovery.log import seek as log_places
from meshmsg.recovery.log.active_segment import END_BYTES
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LogFolder
from meshmsg.recovery.log.format import SegmentName
from meshmsg.recovery.log.journal import read_journal
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.segment import Segment, find_tail, read_index
from meshmsg.recovery.log.tail import TAIL_FILE, TailReader


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """Events `first` to `stop` of an epoch that are there; those from `origin` on once were."""

    epoch: int
    origin: int
    first: int
    stop: int


@dataclass(slots=True)
class Summary:
    """What there is."""

    path: str
    stream: str
    mesh: str
    segments: int
    bytes: int
    epochs: list[EpochSummary]
    cursors: list[Cursor]
    problems: list[str]
    sizes: list[tuple[SegmentName, int]] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
    """Work groups that are remembered."""

    @property
    def events(self) -> int:
        """How many events are there, gaps included."""
        return sum(epoch.stop - epoch.first for epoch in self.epochs)

    def backlog(self, group: GroupRecord) -> tuple[int, int]:
        """Events that a group has yet to settle, and the bytes that it holds."""
        events, size = self.behind_place(*group.floor)
        ends = {e.epoch: (e.first, e.stop) for e in self.epochs}
        for epoch, first, stop in group.settled:
            low, high = ends.get(epoch, (0, 0))
            events -= max(0, min(stop, high) - max(first, low))
        return events, size

    def behind(self, cursor: Cursor) -> tuple[int, int]:
        """Events from a cursor on, and the bytes of the segments that they are in."""
        return self.behind_place(cursor.epoch, cursor.seq)

    def behind_place(self, epoch: int, seq: int) -> tuple[int, int]:
        """Events from a place on, and the bytes of the segments that they are in."""
        place = (epoch, seq)
        events = 0
        for e in self.epochs:
            first = max(e.first, seq) if e.epoch == epoch else e.first
            events += max(0, e.stop - first) if e.epoch >= epoch else 0
        following = [(name.epoch, name.first) for name, _ in self.sizes[1:]]
        done = sum(after <= place for after in following)
        return events, sum(size for _, size in self.sizes[done:])


@dataclass(slots=True)
class Report:
    """What was found when every byte was read."""

    path: str
    stream: str = ""
    frames: int = 0
    events: int = 0
    bytes: int = 0
    losses: list[Loss] = field(default_factory=list)
    """Everything that is missing between the oldest and the newest event."""
    problems: list[str] = field(default_factory=list)
    """Damage that costs no event, or has not been counted above, in words."""
    tail_bytes: int = 0
    """Bytes at the end that are no record: a write under way, or torn by a crash."""

    @property
    def corrupt(self) -> list[Loss]:
        """Losses that the disk is to blame for."""
        return [loss for loss in self.losses if loss.reason == "corrupt"]

    @property
    def is_good(self) -> bool:
        """Whether nothing is damaged."""
        return not self.corrupt and not self.problems


def summarize(folder: LogFolder) -> Summary:
    """Look at a log without reading its events; raises `LogError` if it is none."""
    with LogReader(folder) as reader:
        store = GroupStore(folder, reader.stream)
        groups = store.load()  # before the log, which may be written: none is ahead of it
        reader.refresh()
        sizes = folder.sizes()
        epochs: list[EpochSummary] = []
        for known in reader.journal.epochs:
            own = [name for name in reader.segments if name.epoch == known.epoch]
            if own:
                stop = log_places.stop_of(folder, own[-1], reader.journal)
                epochs.append(EpochSummary(known.epoch, known.first, own[0].first, stop))
        about = folder.about()
        cursors = Cursors(f"{folder.path}/{CURSORS_FOLDER}", files=folder.files)
        found = cursors.all()
        problems = [*folder.problems, *read_journal(folder.files, folder.path)[1]]
        return Summary(
            folder.path,
            reader.stream,
            "?" if about is None else about.mesh,
            len(reader.segments),
            sum(sizes.get(name, 0) for name in reader.segments),
            epochs,
            found,
            [*problems, *cursors.problems, *store.problems, *_beyond(epochs, groups)],
            [(name, sizes.get(name, 0)) for name in reader.segments],
            groups,
        )


def _beyond(epochs: list[EpochSummary], groups: list[GroupRecord]) -> list[str]:
    """Groups that are further than their log: it has lost its end, or they are of another one."""
    stops = {e.epoch: e.stop for e in epochs}
    return [
        f"group {group.name} stands at {group.floor[0]}:{group.floor[1]}, beyond the log's end"
        for group in groups
        if group.floor[1] > stops.get(group.floor[0], group.floor[1])
    ]


def verify(folder: LogFolder) -> Report:
    """Read every byte of a log; raises `LogError` if it is none."""
    summary = summarize(folder)
    report = Report(folder.path, summary.stream, bytes=summary.bytes, problems=summary.problems)
    with LogReader(folder, joins=False) as reader:
        reader.seek_earliest()
        _read_on(reader, report)
        _check_tail(folder, reader, report)
        for name in reader.segments:
            _check_segment(folder, name, report, last=name == reader.segments[-1])
    return report


def _read_on(reader: LogReader, report: Report) -> None:
    for item in reader.runs():
        if isinstance(item, Loss):
            report.losses.append(item)
        else:
            report.frames += 1
            report.events += item.hi - item.lo


def _check_tail(folder: LogFolder, reader: LogReader, report: Report) -> None:
    """Find damage in the tail: entries behind it that nobody reads before the next start."""
    while True:
        place = (reader.epoch, reader.next)
        tail = TailReader(folder.files, folder.path)
        pieces = [p for p in tail.pieces(reader.wire_id, reader.epoch) if p.stop > reader.next]
        if not pieces or any(piece.first <= reader.next for piece in pieces):
            return
        _read_on(reader, report)  # a writer may have gone on while we looked
        if place == (reader.epoch, reader.next):
            first = min(piece.first for piece in pieces)
            problem = f"event {reader.next} is damaged, and {first} stands behind it"
            report.problems.append(f"{TAIL_FILE}: {problem} until the next start")
            return


def _check_segment(folder: LogFolder, name: SegmentName, report: Report, *, last: bool) -> None:
    """The head, and the index against the data."""
    try:
        segment = Segment.open(folder.files, folder.path, name)
    except FileNotFoundError:
        return  # expired meanwhile
    except OSError as error:
        report.problems.append(f"{name.file} cannot be read: {error.strerror}")
        return
    try:
        if segment.damaged_heads and not (last and segment.head is None):
            report.problems.append(f"{name.file}: {segment.damaged_heads} of 2 heads are damaged")
        for entry in read_index(folder.files, folder.path, segment):
            head = segment.head_at(entry.offset)
            if head is None or head.first != entry.first:
                problem = f"the index points to offset {entry.offset}, where its record is not"
                report.problems.append(f"{name.index_file}: {problem}")
                break
        if last and segment.head is not None:
            report.tail_bytes = _tail_bytes(segment)
    finally:
        segment.close()


def _tail_bytes(segment: Segment) -> int:
    """Bytes behind the last whole record, without the zeros of reserved space."""
    tail = find_tail(segment, [])
    return segment.content_bytes(tail.end + (END_BYTES if tail.finished else 0))
