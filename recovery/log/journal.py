"""The journal of a log's epochs: where each began and ended, and what retention has removed.

The epochs themselves are sturdier than this file: each has a segment with its name before its first
event counts.  The journal says what segments that are gone cannot: exact ranges.  It is written as
a whole, twice, so that damage to one file loses nothing; `segments` that it does not know are put
in.  An epoch once used is never used again, whatever the clock says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from meshmsg.recovery.log.files import Files, read_small, replace_small
from meshmsg.recovery.log.folder import VERSION, decode_checked, encode_checked
from meshmsg.recovery.log.format import NUMBER_MAX, SegmentName

FILES = ("epochs.json", "epochs.copy.json")
#: The oldest are forgotten beyond this.
EPOCHS_MAX = 10_000
JOURNAL_BYTES_MAX = 4 * 1024 * 1024


class Epoch(NamedTuple):
    """One epoch: events `first` to `stop`; `None` while it is not known where it ends."""

    epoch: int
    first: int
    stop: int | None


class Journal(NamedTuple):
    """All epochs in order.  Everything before `floor`, an epoch and a number, has expired."""

    epochs: tuple[Epoch, ...] = ()
    floor: tuple[int, int] = (0, 0)
    generation: int = 0

    def find(self, epoch: int) -> Epoch | None:
        """One epoch, if it is known."""
        return next((known for known in reversed(self.epochs) if known.epoch == epoch), None)

    def kept(self) -> list[Epoch]:
        """The epochs without what has expired: what has to be there, whatever files are.

        One without events is not among them, unless it is the newest.
        """
        floor_epoch, floor = self.floor
        found = []
        for known in self.epochs:
            first = max(known.first, floor) if known.epoch == floor_epoch else known.first
            empty = known.stop is not None and known.stop <= first and known != self.epochs[-1]
            if known.epoch >= floor_epoch and not empty:
                found.append(known._replace(first=first))
        return found

    def first_missing(self, after: tuple[int, int], before: tuple[int, int]) -> Epoch | None:
        """The first events that have to be there behind one place and before another."""
        for known in self.kept():
            first = max(known.first, after[1]) if known.epoch == after[0] else known.first
            stop = known.stop
            if known.epoch == before[0]:
                stop = before[1] if stop is None else min(stop, before[1])
            if after[0] <= known.epoch <= before[0] and stop is not None and first < stop:
                return Epoch(known.epoch, first, stop)
        return None

    def with_epoch(self, epoch: int, first: int, stop: int | None) -> Journal:
        """With this epoch as it is now."""
        kept = [known for known in self.epochs if known.epoch != epoch]
        ordered = sorted([*kept, Epoch(epoch, first, stop)])
        return self._replace(epochs=tuple(ordered[-EPOCHS_MAX:]))

    def with_segments(self, segments: Iterable[SegmentName]) -> Journal:
        """With epochs that only their segments tell of; they began where the first one does."""
        journal = self
        known = {epoch.epoch for epoch in self.epochs}
        for name in segments:
            if name.epoch not in known:
                known.add(name.epoch)
                journal = journal.with_epoch(name.epoch, name.first, None)
        return journal

    def encode(self) -> bytes:
        """As JSON, with a check."""
        return encode_checked(
            {
                "version": VERSION,
                "generation": self.generation,
                "floor": self.floor,
                "epochs": self.epochs,
            }
        )


def decode_journal(data: bytes) -> Journal | None:
    """A journal, if it is whole and makes sense."""
    fields = decode_checked(data)
    if fields is None:
        return None
    generation, floor, rows = (fields.get(name) for name in ("generation", "floor", "epochs"))
    if not (isinstance(generation, int) and isinstance(floor, list) and isinstance(rows, list)):
        return None
    if len(floor) != 2 or not all(map(_is_number, [generation, *floor])) or len(rows) > EPOCHS_MAX:
        return None
    epochs = [epoch for epoch in map(_epoch, rows) if epoch is not None]
    numbers = [epoch.epoch for epoch in epochs]
    if len(epochs) != len(rows) or numbers != sorted(set(numbers)):
        return None
    return Journal(tuple(epochs), (floor[0], floor[1]), generation)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _epoch(row: Any) -> Epoch | None:
    if not isinstance(row, list) or len(row) != 3:
        return None
    epoch, first, stop = row
    if not (_is_number(epoch) and _is_number(first)):
        return None
    if stop is not None and not (_is_number(stop) and stop >= first):
        return None
    return Epoch(epoch, first, stop)


def read_journal(files: Files, folder: str) -> tuple[Journal, list[str]]:
    """The newer of the two copies, and what was found damaged, in words."""
    best, problems = Journal(), []
    for name in FILES:
        try:
            data = read_small(files, f"{folder}/{name}", JOURNAL_BYTES_MAX)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
            continue
        if data is None:
            continue
        found = decode_journal(data)
        if found is None:
            problems.append(f"{name} is damaged")
        elif found.generation >= best.generation:
            best = found
    return best, problems


def write_journal(files: Files, folder: str, journal: Journal) -> Journal:
    """Write both copies; raises `OSError`."""
    newer = journal._replace(generation=journal.generation + 1)
    data = newer.encode()
    for name in FILES:
        replace_small(files, folder, name, data)
    return newer
