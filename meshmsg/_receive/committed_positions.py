"""How far a named subscription has come in each stream, kept in its peer's `data_dir`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable

from meshmsg import _platform
from meshmsg._model.errors import ConfigError, LogError
from meshmsg._model.event import Position
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.files import Held
from meshmsg.recovery.log.folder import CURSORS_FOLDER, escape

log = logging.getLogger("meshmsg.peer")


class Bookmarks:
    """The cursors of one subscription name, one for each stream."""

    def __init__(self, data_dir: str, name: str) -> None:
        self.name = name
        self._cursors = Cursors(f"{data_dir}/{CURSORS_FOLDER}")
        self._lock = _platform.new_lock()
        self._kept: dict[str, Position] = {}
        self._release: weakref.finalize[..., Bookmarks] | None = None

    def claim(self) -> None:
        """Have the name for ourselves: of two who commit by it, each would skip what the other did.

        Raises `ConfigError` if somebody has it, `LogError`.
        """
        folder = self._cursors.path
        try:
            self._cursors.files.make_folder(folder)
            held = self._cursors.files.lock(f"{folder}/{escape(self.name)}.lock")
        except Held as other:
            who = f"process {other.pid}" if other.pid else "another process"
            raise ConfigError(
                "name",
                f"{self.name!r} is in use, by a subscription of {who} with the same data_dir: "
                "close that one, or give this one another name; to share the work, use group=",
            ) from None
        except OSError as error:
            raise LogError(folder, f"cannot be used: {error.strerror or error}") from error
        self._release = weakref.finalize(self, held.close)

    def close(self) -> None:
        """Let go of the name."""
        if self._release is not None:
            self._release()

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
                self._cursors.set(
                    Cursor(self.name, stream, epoch, seq, time_ns=_platform.time_ns())
                )
                self._kept[stream] = position


def release(bookmarks: Bookmarks | None) -> None:
    """Let go of a subscription's name, if it has one."""
    if bookmarks is not None:
        bookmarks.close()
