"""Whom a log waits for: the cursors of consumers elsewhere that retention does not pass.

A consumer commits often, and a cursor costs a sync: what moves is noted here and written now and
then.  After a crash the file may be behind, never ahead, so that more is held than need be and
nothing is lost.  A cursor whose file somebody removed is dropped: the file is the truth.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from meshmsg import _platform
from meshmsg._model.errors import LogError, LogFull
from meshmsg.recovery.log.cursors import Cursor, Cursors

log = logging.getLogger("meshmsg.recovery")

#: What is held beyond retention is told at first, and each time that it has doubled.
TOLD_BYTES_MIN = 1024 * 1024
#: Of one log, and of one peer in it.  One more would be a mistake, or an attack on the disk.
HOLDS_MAX = 1000
HOLDS_EACH_MAX = 16
#: A cursor's file says when its consumer was seen last, so exactly.
SEEN_NS = 3600 * 10**9


class Holds:
    """The holding cursors of one log; any thread."""

    def __init__(
        self,
        cursors: Cursors,
        stream: str,
        clock: Callable[[], int],
        timeout_s: float = math.inf,
    ) -> None:
        self._cursors = cursors
        self._timeout_ns = timeout_s * 1e9
        self._stream = stream
        self._clock = clock
        self._lock = _platform.new_lock()
        self._known: dict[str, Cursor] = {}
        self._moved: set[str] = set()
        self._seen_ns: dict[str, int] = {}  # when consumers of other peers were heard of
        self.held_bytes = 0  #: what would be gone but for the cursors, when it was looked at last
        self._told_bytes = 0

    def load(self) -> None:
        """Take up those that are there."""
        with self._lock:
            found = self._cursors.all()
            self._known = {c.name: c for c in found if c.hold and c.stream == self._stream}
            # We were away ourselves: whoever is still there has a while to come back.
            grace_ns = min(self._timeout_ns / 2, SEEN_NS)
            oldest = self._clock() - max(0.0, self._timeout_ns - grace_ns)
            for name, cursor in self._known.items():
                self._seen_ns[name] = int(max(cursor.time_ns, oldest))

    def begin(self, name: str, epoch: int, seq: int) -> bool:
        """Hold from here on, unless the name holds already; whether it is new.

        It survives a crash when this returns.  Raises `LogError`.
        """
        with self._lock:
            known = self._known.get(name)
            self._seen_ns[name] = self._clock()
            if known is not None and self._cursors.get(name, self._stream) is not None:
                return False
            self._check_room(name)
            cursor = Cursor(name, self._stream, epoch, seq, hold=True, time_ns=self._clock())
            self._cursors.set(cursor)
            self._known[name] = cursor
            self._moved.discard(name)
            return True

    def _check_room(self, name: str) -> None:
        if name in self._known:
            return
        peer = _peer_of(name)
        if peer and sum(_peer_of(known) == peer for known in self._known) >= HOLDS_EACH_MAX:
            problem = f"{peer!r} holds this log {HOLDS_EACH_MAX} times already: drop a cursor of it"
            raise LogError(self._cursors.path, f"{problem} (meshmsg cursor)")
        if len(self._known) >= HOLDS_MAX and not self._displace():
            problem = f"{HOLDS_MAX:,} consumers hold this log already: drop the cursors of those "
            raise LogError(self._cursors.path, problem + "that are gone (meshmsg cursor)")

    def _displace(self) -> bool:
        """Drop the cursor of the peer that was not heard of for longest, if it is not there."""
        peers = [name for name in self._known if _peer_of(name)]
        if not peers:
            return False
        name = min(peers, key=lambda one: self._seen_ns.get(one, 0))
        if self._clock() - self._seen_ns.get(name, 0) < SEEN_NS:
            return False
        log.warning("%s: %r is not there, and gives its place to others", self._stream, name)
        self._drop(name)
        return True

    def _drop(self, name: str) -> None:
        self._cursors.remove(name, self._stream)
        del self._known[name]
        self._seen_ns.pop(name, None)
        self._moved.discard(name)

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

    def heard(self, name: str) -> None:
        """The consumer that holds by this name is there."""
        if name in self._known:
            self._seen_ns[name] = self._clock()

    def save(self) -> list[str]:
        """Write what has moved; returns the names that were dropped.  Raises `LogError`."""
        dropped = []
        with self._lock:
            self._expire()
            for name in list(self._known):
                if self._is_dropped(name):
                    dropped.append(name)
                    del self._known[name]
                    self._seen_ns.pop(name, None)
                    self._moved.discard(name)
                elif name in self._moved:
                    self._cursors.set(self._known[name])
                    self._moved.discard(name)
        return dropped

    def _expire(self) -> None:
        """Drop the cursors of peers that did not come back in time; keep those of others."""
        now = self._clock()
        for name, cursor in list(self._known.items()):
            seen = self._seen_ns.get(name, now)
            if not _peer_of(name):
                continue
            if now - seen > self._timeout_ns:
                days = self._timeout_ns / 86_400e9
                text = "%s: %r was not heard of for %.3g days, and holds nothing more"
                log.warning(text, self._stream, name, days)
                self._drop(name)
            elif seen - cursor.time_ns > SEEN_NS:
                self._known[name] = replace(cursor, time_ns=seen)
                self._moved.add(name)

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
            f"consumer, or drop it: meshmsg cursor drop NAME --data-dir {folder}"
        )

    def explain(self, error: LogFull) -> LogFull:
        """A full disk, and what of it is held."""
        if not self.held_bytes:
            return error
        return LogFull(error.path, f"{error.problem}. {self.words()}")


def _peer_of(name: str) -> str:
    """The peer that a cursor is of; empty for one that was set on this machine."""
    peer, slash, _ = name.partition("/")
    return peer if slash else ""
