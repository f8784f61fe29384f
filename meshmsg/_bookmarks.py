"""How far a named subscription has come in each stream, kept in its peer's `data_dir`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from meshmsg._event import Position
from meshmsg.recovery.log_cursors import Cursor, Cursors
from meshmsg.recovery.log_folder import CURSORS_FOLDER

log = logging.getLogger("meshmsg.peer")


class Bookmarks:
    """The cursors of one subscription name, one for each stream."""

    def __init__(self, data_dir: str, name: str) -> None:
        self.name = name
        self._cursors = Cursors(f"{data_dir}/{CURSORS_FOLDER}")
        self._lock = threading.Lock()
        self._kept: dict[str, Position] = {}

    def read(self) -> dict[str, Position]:
        """Where to go on in each stream; a cursor that is damaged counts as not there."""
        with self._lock:
            found = [cursor for cursor in self._cursors.all() if cursor.name == self.name]
            for problem in self._cursors.problems:
                log.warning("%s", problem)
            self._kept = {c.stream: Position(c.stream, c.epoch, c.seq) for c in found}
            return dict(self._kept)

    def kept(self) -> list[Position]:
        """What was read or kept last."""
        with self._lock:
            return list(self._kept.values())

    def keep(self, positions: Iterable[Position]) -> None:
        """Keep these; when this returns they survive a crash.  Raises `LogError`."""
        with self._lock:
            for position in positions:
                if self._kept.get(position.stream) == position:
                    continue
                stream, epoch, seq = position.stream, position.epoch, position.seq
                self._cursors.set(Cursor(self.name, stream, epoch, seq, time_ns=time.time_ns()))
                self._kept[stream] = position
