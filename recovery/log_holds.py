"""Whom a log waits for: the cursors of consumers elsewhere that retention does not pass.

A consumer commits often, and a cursor costs a sync: what moves is noted here and written now and
then.  After a crash the file may be behind, never ahead, so that more is held than need be and
nothing is lost.  A cursor whose file somebody removed is dropped: the file is the truth.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from meshmsg._errors import LogError, LogFull
from meshmsg.recovery.log_cursors import Cursor, Cursors

log = logging.getLogger("meshmsg.recovery")

#: What is held beyond retention is told at first, and each time that it has doubled.
TOLD_BYTES_MIN = 1024 * 1024
#: Of one log.  One more would be a mistake, or an attack on the disk.
HOLDS_MAX = 1000


class Holds:
    """The holding cursors of one log; any thread."""

    def __init__(self, cursors: Cursors, stream: str, clock: Callable[[], int]) -> None:
        self._cursors = cursors
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Cursor] = {}
        self._moved: set[str] = set()
        self.held_bytes = 0  #: what would be gone but for the cursors, when it was looked at last
        self._told_bytes = 0

    def load(self) -> None:
        """Take up those that are there."""
        with self._lock:
            found = self._cursors.all()
            self._known = {c.name: c for c in found if c.hold and c.stream == self._stream}

    def begin(self, name: str, epoch: int, seq: int) -> bool:
        """Hold from here on, unless the name holds already; whether it is new.

        It survives a crash when this returns.  Raises `LogError`.
        """
        with self._lock:
            known = self._known.get(name)
            if known is not None and self._cursors.get(name, self._stream) is not None:
                return False
            self._check_room(name)
            cursor = Cursor(name, self._stream, epoch, seq, hold=True, time_ns=self._clock())
            self._cursors.set(cursor)
            self._known[name] = cursor
            self._moved.discard(name)
            return True

    def _check_room(self, name: str) -> None:
        if name not in self._known and len(self._known) >= HOLDS_MAX:
            problem = f"{HOLDS_MAX:,} consumers hold this log already: drop the cursors of those "
            raise LogError(self._cursors.path, problem + "that are gone (meshmsg log cursors)")

    def move(self, name: str, epoch: int, seq: int) -> bool:
        """A consumer is done with all before this; `False` if it does not hold the log."""
        with self._lock:
            known = self._known.get(name)
            if known is None:
                return False
            if (known.epoch, known.seq) != (epoch, seq):
                self._known[name] = replace(known, epoch=epoch, seq=seq, time_ns=self._clock())
                self._moved.add(name)
            return True

    def save(self) -> list[str]:
        """Write what has moved; returns the names that were dropped.  Raises `LogError`."""
        dropped = []
        with self._lock:
            for name in list(self._known):
                if self._is_dropped(name):
                    dropped.append(name)
                    del self._known[name]
                    self._moved.discard(name)
                elif name in self._moved:
                    self._cursors.set(self._known[name])
                    self._moved.discard(name)
        return dropped

    def _is_dropped(self, name: str) -> bool:
        if self._cursors.get(name, self._stream) is not None:
            return False
        return not self._cursors.problems  # one that is damaged is written anew

    def blockers(self) -> list[Cursor]:
        """Those that hold, the one that holds most first."""
        with self._lock:
            return sorted(self._known.values(), key=lambda cursor: (cursor.epoch, cursor.seq))

    @property
    def has_moved(self) -> bool:
        """Whether there is something to save."""
        return bool(self._moved)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._known)

    def account(self, held_bytes: int) -> None:
        """So many bytes are kept for cursors only: say so, before the disk is full of them."""
        self.held_bytes = held_bytes
        if held_bytes * 2 < self._told_bytes:
            self._told_bytes = 0
        if held_bytes >= max(TOLD_BYTES_MIN, self._told_bytes * 2):
            self._told_bytes = held_bytes
            log.warning("%s: %s", self._stream, self.words())

    def words(self) -> str:
        """What is held, by whom, and what can be done."""
        folder = self._cursors.path.rpartition("/")[0]
        blockers = self.blockers()
        who, since = "a damaged cursor", ""
        if blockers:
            who = f"the cursor {blockers[0].name!r}"
            since = f", last moved {max(0, self._clock() - blockers[0].time_ns) // 10**9:,} s ago"
        return (
            f"{who}{since} holds back {self.held_bytes:,} bytes that have expired: start its "
            f"consumer, or drop it: meshmsg log cursors {folder} --drop NAME"
        )

    def explain(self, error: LogFull) -> LogFull:
        """A full disk, and what of it is held."""
        if not self.held_bytes:
            return error
        return LogFull(error.path, f"{error.problem}. {self.words()}")
