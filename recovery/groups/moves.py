"""Work groups of a log that nobody writes: paused, let go on, and reset by operators on disk.

A peer that is running has its groups in memory and writes them over what is here: so the log is
locked meanwhile, as its writer would lock it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshmsg import _platform
from meshmsg._model.config import DEAD_PREFIX
from meshmsg._model.errors import LogError
from meshmsg.recovery.groups.store import GroupRecord, GroupStore, Place
from meshmsg.recovery.log.files import Held
from meshmsg.recovery.log.folder import LOCK_FILE, LogFolder, find_logs
from meshmsg.recovery.log.reader import LogReader

Rows = list[dict[str, Any]]


class GroupMoves:
    """The groups of one log.

    >>> GroupMoves(LogFolder("data/shop%2Fjobs.%2A%2A")).pause("g", True)     # doctest: +SKIP
    """

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        about = folder.about()
        self._stream = "?" if about is None else about.stream
        self._store = GroupStore(folder, self._stream)

    def pause(self, name: str, paused: bool, *, dry_run: bool = False) -> Rows:
        """Have the next start deal out nothing, or go on.  Raises `LogError`."""

        def change(record: GroupRecord) -> tuple[GroupRecord, dict[str, Any]]:
            row = {"paused": paused, "changes": record.paused != paused}
            return replace(record, paused=paused), row

        return self._change(name, change, dry_run=dry_run)

    def reset(self, name: str, seek: Callable[[LogReader], None], *, dry_run: bool = False) -> Rows:
        """Have the next start begin anew where a reader is after `seek`.  Raises `LogError`."""

        def change(record: GroupRecord) -> tuple[GroupRecord, dict[str, Any]]:
            with LogReader(self._folder) as reader:
                seek(reader)
                place = reader.epoch, reader.next
            redriven = record.redriven
            if place < record.floor:  # what was given up comes again by this, and not by its letter
                redriven = max(redriven, self._end_of_letters(name))
            # Members of before are unknown: what they say they had is of another generation.
            fresh = GroupRecord(
                name,
                place,
                order=record.order,
                max_attempts=record.max_attempts,
                patterns=record.patterns,
                generation=record.generation + 1,
                paused=record.paused,
                redriven=redriven,
            )
            row = {"from": _text(record.floor), "to": _text(place), "generation": fresh.generation}
            return fresh, row

        return self._change(name, change, dry_run=dry_run)

    def _end_of_letters(self, name: str) -> Place:
        """Where the dead letters of a group end that are on disk.  Raises `LogError`."""
        letters = f"{self._stream.partition('/')[0]}/{DEAD_PREFIX}{name}"
        ends = [(0, 0)]
        data_dir = self._folder.path.rpartition("/")[0] or "."
        for log in find_logs(data_dir, files=self._folder.files):
            about = log.about()
            # Payloads that are encoded in another way have a stream of their own.
            if about is not None and f"{about.stream}+".startswith(f"{letters}+"):
                with LogReader(log) as reader:
                    reader.seek_latest()
                    ends.append((reader.epoch, reader.next))
        return max(ends)

    def _change(
        self,
        name: str,
        change: Callable[[GroupRecord], tuple[GroupRecord, dict[str, Any]]],
        *,
        dry_run: bool,
    ) -> Rows:
        """Write a group anew while nobody else does; nothing if there is none of this name."""
        path = self._folder.path
        try:
            held = self._folder.files.lock(f"{path}/{LOCK_FILE}")
        except Held as other:
            who = f"process {other.pid}" if other.pid else "a process"
            problem = f"{who} writes this log: ask that peer, with --connect"
            raise LogError(path, problem) from None
        except OSError as error:
            raise LogError(path, f"cannot be used: {error.strerror or error}") from error
        try:
            found = [record for record in self._store.load() if record.name == name]
            rows = []
            for record in found:
                changed, row = change(record)
                if not dry_run:
                    # First what holds the log: cut off in between, no work is without its events.
                    floor = min(record.floor, changed.floor)
                    self._store.hold(name, floor, _platform.time_ns())
                    self._store.save(changed)
                    self._store.hold(name, changed.floor, _platform.time_ns())
                rows.append({"group": name, "stream": self._stream, **row})
            return rows
        finally:
            held.close()


def _text(place: tuple[int, int]) -> str:
    return f"{place[0]}:{place[1]}"
