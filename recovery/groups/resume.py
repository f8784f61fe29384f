"""From a work group to what is remembered of it, and back after a restart."""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Past
from meshmsg.recovery.groups.store import GroupRecord, Piece
from meshmsg.recovery.log.journal import Epoch


def record_of(
    group: WorkGroup, members: Iterable[int] = (), mark: int | None = None
) -> GroupRecord:
    """What is to be remembered of a group as it is now, and of whom; `mark` is its own."""
    line, policy = group.shelf.line, group.policy
    floor, settled, attempts = group.state()
    return GroupRecord(
        group.name,
        line.place(floor),
        [
            (part.epoch, part.first, part.stop)
            for first, stop in settled
            for part in line.split(first, stop)
        ],
        [(*line.place(seq), attempt) for seq, attempt in sorted(attempts.items()) if attempt > 1],
        policy.order,
        policy.max_attempts,
        policy.patterns,
        tuple(sorted(members)),
        None if mark is None else line.place(mark),
        [(*line.place(seq), count) for seq, count in sorted(group.spared.items())],
        [
            (part.epoch, part.first, part.stop)
            for first, stop in group.doubtful
            for part in line.split(first, stop)
        ],
        group.generation,
        group.paused,
        group.redriven,
    )


def line_of(record: GroupRecord, epochs: Iterable[Epoch], epoch: int, origin: int) -> Line:
    """The line of a group that is remembered, in a log with these epochs; `epoch` is the new one.

    A floor that lies behind the end of its epoch is one of events that a power failure took.
    """
    at, seq = record.floor
    past = [
        Past(old.epoch, max(old.first, seq) if old.epoch == at else old.first, old.stop)
        for old in epochs
        if at <= old.epoch < epoch and old.stop is not None
    ]
    return Line(epoch, origin, [old for old in past if old.first < old.stop])


def resume(group: WorkGroup, record: GroupRecord) -> None:
    """Go on where an earlier start has left a group; it begins where its line does."""
    line = group.shelf.line
    group.restore(
        _on_line(line, record.settled),
        _by_number(line, record.attempts),
        _by_number(line, record.spared),
        _on_line(line, record.doubtful),
    )
    group.generation, group.paused = record.generation, record.paused
    group.redriven = record.redriven
    group.is_marked = record.dealt is not None
    group.dealt = line.end if record.dealt is None else line.locate(*record.dealt)


def _on_line(line: Line, pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    found = [line.clip(*piece) for piece in pieces]
    return [(first, stop) for first, stop in found if first < stop]


def _by_number(line: Line, rows: Iterable[Piece]) -> dict[int, int]:
    places = [(line.clip(epoch, seq, seq + 1), value) for epoch, seq, value in rows]
    return {first: value for (first, stop), value in places if first < stop}
