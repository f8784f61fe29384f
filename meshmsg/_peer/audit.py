"""The audit stream of a peer: who connected, was refused, was cut off, and changed what.

Off unless it is asked for.  Entries are noted by any thread and published by the I/O thread, as
events of the topics `mesh.audit.WHAT`.  Nothing here waits: there is room for so many entries, and
for so many a second; of others the next entry says how many they were.  What happens to the audit
stream itself is not noted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from meshmsg import _platform
from meshmsg._model.config import Stream
from meshmsg._model.errors import MeshError
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.publisher import PublisherSide

TOPICS = "mesh.audit.**"
#: Entries that wait to be published.
ENTRIES_MAX = 1000
#: Of what strangers can cause, an entry more is noted for each period of this length ...
REST_S = 0.05
#: ... and so many at once.
BURST = 100
TEXT_MAX = 500
NEVER = float("inf")


def audit_stream(*, durable: bool) -> Stream:
    """The stream that a peer with `audit` declares."""
    kept = "log" if durable else "none"
    return Stream(TOPICS, name="audit", overflow="drop_oldest", durability=kept)


class Audit:
    """Entries of one peer on their way into its audit stream."""

    def __init__(
        self,
        publisher: PublisherSide,
        wake: Callable[[], None],
        counters: Counter[str],
    ) -> None:
        self._publisher = publisher
        self._outlet: Outlet | None = None
        self._wake = wake
        self._counters = counters
        self._entries: deque[tuple[str, dict[str, Any]]] = deque()
        self._dropped = 0
        self._room, self._filled_at = float(BURST), _platform.monotonic()

    def open(self, wanted: bool | str) -> None:
        """Declare the stream, if entries are wanted.  Raises `LogError`."""
        if wanted:
            self._outlet = self._publisher.declare_aside(audit_stream(durable=wanted == "log"))

    def note(self, what: str, **fields: Any) -> None:
        """Something has happened that strangers can cause; any thread."""
        if self._outlet is not None:
            self._keep(what, fields, has_room=self._take_room())

    def note_done(self, what: str, **fields: Any) -> None:
        """Somebody who may has changed something: no flood of strangers hides it; any thread."""
        if self._outlet is not None:
            self._keep(what, fields, has_room=True)

    def _keep(self, what: str, fields: dict[str, Any], *, has_room: bool) -> None:
        if len(self._entries) >= ENTRIES_MAX or not has_room:
            self._dropped += 1
            self._counters["audit_dropped"] += 1
            return
        entry = {"what": what, "time": _platform.time_ns() / 1e9}
        entry |= {
            key: value[:TEXT_MAX] if isinstance(value, str) else value
            for key, value in fields.items()
            if value not in ("", None)
        }
        self._entries.append((what, entry))
        self._wake()

    def _take_room(self) -> bool:
        now = _platform.monotonic()
        self._room = min(float(BURST), self._room + (now - self._filled_at) / REST_S)
        self._filled_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def on_tick(self, now: float) -> float:
        """Publish what was noted; returns when to come again."""
        while self._entries and self._outlet is not None:
            what, entry = self._entries.popleft()
            if self._dropped:
                entry["dropped_before"], self._dropped = self._dropped, 0
            try:
                self._publisher.publish_aside(self._outlet, f"mesh.audit.{what}", entry)
                self._counters["audited"] += 1
            except MeshError:  # a full disk, or another peer of our name: counted, and gone
                self._counters["audit_dropped"] += 1
        return NEVER
