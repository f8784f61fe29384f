"""Cursors in a data directory, shown, moved and dropped by operators.

There are those of the peer's own named subscriptions, in `cursors/`, and beside each log those of
consumers elsewhere that hold its retention.  A cursor of a subscription that is open is not moved:
its next commit would move it back.  One that holds a log moves when its consumer says so; here it
can be dropped.  Work groups have verbs of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from meshmsg import _platform
from meshmsg._model.errors import LogError
from meshmsg._wire.control import Operate, Start
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.files import REAL, Files, Held
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LogFolder, escape, find_logs
from meshmsg.recovery.log.reader import LogReader


class Found(NamedTuple):
    """A cursor, and where it is kept."""

    cursors: Cursors
    cursor: Cursor
    log: LogFolder | None  #: the log that it lies beside


class CursorMoves:
    """The cursors under one data directory.

    >>> CursorMoves("./data").rows()                                          # doctest: +SKIP
    """

    def __init__(self, data_dir: str, *, files: Files = REAL) -> None:
        self._data_dir = data_dir
        self._files = files

    def do(self, order: Operate) -> tuple[list[dict[str, Any]], str]:
        """Do what an operator wants: what was done, and why nothing was.  Raises `LogError`."""
        if order.action == "cursor ls":
            return self.rows(), ""
        chosen = [
            found
            for found in self.all()
            if found.cursor.name == order.name and order.stream in ("", found.cursor.stream)
        ]
        if not chosen:
            known = sorted({found.cursor.name for found in self.all()}) or ["none"]
            return [], f"there is no cursor {order.name!r}: known are {', '.join(known[:10])}"
        if order.action == "cursor drop":
            return self._drop(chosen, dry_run=order.dry_run)
        return self._reset(chosen, order)

    def all(self) -> Iterator[Found]:
        """All of them but those of work groups."""
        own = Cursors(f"{self._data_dir}/{CURSORS_FOLDER}", files=self._files)
        for cursor in own.all():
            yield Found(own, cursor, None)
        for folder in find_logs(self._data_dir, files=self._files):
            beside = Cursors(f"{folder.path}/{CURSORS_FOLDER}", files=self._files)
            for cursor in beside.all():
                if " " not in cursor.name:  # else it is none that a user has set
                    yield Found(beside, cursor, folder)

    def rows(self) -> list[dict[str, Any]]:
        """What there is, as plain data."""
        return [_row(found) for found in self.all()]

    def _in_use(self, found: Found) -> bool:
        """Whether a subscription is open that commits by this name."""
        if found.log is not None:
            return False
        path = f"{found.cursors.path}/{escape(found.cursor.name)}.lock"
        try:
            self._files.lock(path).close()
        except Held:
            return True
        except OSError as error:
            raise LogError(path, f"cannot be used: {error.strerror or error}") from error
        return False

    def _drop(self, chosen: list[Found], *, dry_run: bool) -> tuple[list[dict[str, Any]], str]:
        for found in chosen:
            if self._in_use(found):
                return [], f"{found.cursor.name!r} is in use: close that subscription first"
        for found in [] if dry_run else chosen:
            found.cursors.remove(found.cursor.name, found.cursor.stream)
        return [_row(found) for found in chosen], ""

    def _reset(self, chosen: list[Found], order: Operate) -> tuple[list[dict[str, Any]], str]:
        moves = []
        for found in chosen:
            if found.log is not None:
                problem = "holds a log for a consumer elsewhere: reset it at that peer, or drop it"
                return [], f"{found.cursor.name!r} {problem}"
            if self._in_use(found):
                return [], f"{found.cursor.name!r} is in use: close that subscription first"
            place = self._place(found.cursor.stream, order.start)
            if place is None:
                problem = f"the log of {found.cursor.stream!r} is not here: give a position of it"
                return [], problem
            moves.append((found, place))
        rows = []
        for found, (epoch, seq) in moves:
            moved = replace(found.cursor, epoch=epoch, seq=seq, time_ns=_platform.time_ns())
            if not order.dry_run:
                found.cursors.set(moved)
            rows.append({**_row(found), "to": f"{epoch}:{seq}"})
        return rows, ""

    def _place(self, stream: str, start: Start | None) -> tuple[int, int] | None:
        """The epoch and number that a start means; `None` where only the log can tell."""
        if start is not None and start.kind == "resume":
            return start.epoch, start.value
        if start is not None and start.kind == "earliest":
            return 0, 0
        folder = LogFolder.of(self._data_dir, stream, files=self._files)
        if start is None or not folder.segments():
            return None
        with LogReader(folder) as reader:
            if start.kind == "last":
                reader.seek_last(start.value)
            elif start.kind == "time":
                reader.seek_time(start.value)
            else:
                reader.seek_latest()
            return reader.epoch, reader.next


def _row(found: Found) -> dict[str, Any]:
    cursor = found.cursor
    return {
        "name": cursor.name,
        "stream": cursor.stream,
        "at": f"{cursor.epoch}:{cursor.seq}",
        "hold": cursor.hold,
        "moved": cursor.time_ns / 1e9,
    }
