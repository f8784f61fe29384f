"""Presence, as users see it: who is here, and who came, changed, left or was lost."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from meshmsg import _platform
from meshmsg._model.errors import ClosedError
from meshmsg._peer.forks import is_forked
from meshmsg.recovery.discovery.presence import Card

log = logging.getLogger("meshmsg.presence")

#: Changes that a watch keeps for a reader who does not come; the oldest are dropped, and counted.
WATCH_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Another peer, as it describes itself."""

    name: str
    """Its name."""
    instance: int
    """A number drawn at its start: a peer that was restarted has another."""
    addresses: tuple[str, ...]
    """Where it listens."""
    roles: tuple[str, ...]
    """What it does: `publisher`, `subscriber`, `worker`, `recorder`."""
    streams: tuple[str, ...]
    """Full names of the streams that it publishes."""
    groups: tuple[str, ...]
    """Work groups that it is a member of."""
    software: str
    """Version of meshmsg that it runs."""
    protocol: int
    """Version of the protocol that it speaks."""

    @classmethod
    def of(cls, card: Card) -> PeerInfo:
        """From what the peer said."""
        return cls(
            card.peer,
            card.instance,
            card.addresses,
            card.roles,
            card.streams,
            card.groups,
            card.software,
            card.version,
        )

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "instance": f"{self.instance:016x}",
            "addresses": list(self.addresses),
            "roles": list(self.roles),
            "streams": list(self.streams),
            "groups": list(self.groups),
            "software": self.software,
            "protocol": self.protocol,
        }


@dataclass(frozen=True, slots=True)
class PeerChange:
    """A peer `joined`, `changed` (its streams, groups or roles), `left`, or was `lost`."""

    kind: str
    """The word: `left` is a good-bye, `lost` silence for `tuning.peer_timeout_s`."""
    peer: PeerInfo
    """Who."""
    time: float
    """When this side saw it, in seconds since 1970."""


class Watch:
    """A bounded queue of changes; the I/O thread adds, one reader takes."""

    def __init__(self, hub: PresenceHub, now: list[PeerChange]) -> None:
        self._hub = hub
        self._ready = _platform.new_condition()
        self._changes: deque[PeerChange] = deque(now)
        self.closed = False

    def add(self, change: PeerChange) -> bool:
        """`False` if the oldest had to go for it."""
        with self._ready:
            full = len(self._changes) >= WATCH_MAX
            if full:
                self._changes.popleft()
            self._changes.append(change)
            self._ready.notify_all()
        return not full

    def end(self) -> None:
        """No more changes will come."""
        with self._ready:
            self.closed = True
            self._ready.notify_all()

    def close(self) -> None:
        """Stop watching."""
        if not is_forked(self._hub):
            self._hub.drop(self)
            self.end()


class PeerWatch(Watch):
    """Changes of presence as they happen; first a `joined` for each peer that is here already.

    >>> with peer.watch_peers() as watch:                                     # doctest: +SKIP
    ...     for change in watch:
    ...         print(change.kind, change.peer.name)
    """

    def __enter__(self) -> PeerWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, timeout: float | None = None) -> PeerChange | None:
        """The next change; `None` when the time is up, or the watch or its peer is closed."""
        deadline = None if timeout is None else _platform.monotonic() + timeout
        with self._ready:
            while not self._changes:
                left = None if deadline is None else deadline - _platform.monotonic()
                if self.closed or (left is not None and left <= 0):
                    return None
                self._ready.wait(left)
            return self._changes.popleft()

    def __iter__(self) -> Iterator[PeerChange]:
        while (change := self.get()) is not None:
            yield change


class PresenceHub:
    """Hands changes to all watches; callbacks run on a thread of their own."""

    def __init__(self, name: str, counters: Counter[str]) -> None:
        self._name = name
        self._counters = counters
        self._lock = _platform.new_lock()
        self._watches: list[Watch] = []
        self._here: dict[int, PeerInfo] = {}
        self._closed = False

    def peers(self) -> list[PeerInfo]:
        """Who is here, by name."""
        with self._lock:
            return sorted(self._here.values(), key=lambda info: (info.name, info.instance))

    def conditions(self) -> list[threading.Condition]:
        """What readers of watches wait for."""
        return [watch._ready for watch in self._watches]

    def tell(self, kind: str, card: Card) -> None:
        """Something changed."""
        info = PeerInfo.of(card)
        change = PeerChange(kind, info, _platform.time_ns() / 1e9)
        with self._lock:
            if kind in ("joined", "changed"):
                self._here[info.instance] = info
            else:
                self._here.pop(info.instance, None)
            for watch in self._watches:
                if not watch.add(change):
                    self._counters["presence_full"] += 1

    def watch(self, kind: type[Watch]) -> Any:
        """A new watch; what is here comes first.  Raises `ClosedError`."""
        with self._lock:
            if self._closed:
                raise ClosedError("the peer is closed")
            now = _platform.time_ns() / 1e9
            first = [PeerChange("joined", info, now) for info in self._here.values()]
            watch = kind(self, first)
            self._watches.append(watch)
        return watch

    def call(self, callback: Callable[[PeerChange], Any]) -> Callable[[], None]:
        """Call back for each change, those here already first; returns what ends it."""
        watch: PeerWatch = self.watch(PeerWatch)

        def run() -> None:
            for change in watch:
                try:
                    callback(change)
                except Exception:
                    log.exception("a callback for changes of presence failed")
                    self._counters["callback_errors"] += 1

        thread = _platform.new_thread(run, f"meshmsg-presence-{self._name}")
        thread.start()
        return watch.close

    def drop(self, watch: Watch) -> None:
        """It is not read any more."""
        with self._lock, contextlib.suppress(ValueError):
            self._watches.remove(watch)

    def close(self) -> None:
        """The peer is closed: iterators end."""
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, []
            self._here.clear()
        for watch in watches:
            watch.end()
