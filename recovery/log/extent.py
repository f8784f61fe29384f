"""How much of the disk a log takes, and how far back it reaches, for its statistics.

Belongs here: what a look at the folder finds, remembered until the next one, so that statistics
cost no look.  Does not belong here: what has to go (`retention`), or who holds it
(`retention_holds`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import DATA_START, FRAME_RECORD, SegmentName, in_effect
from meshmsg.recovery.log.segment import Segment


class Extent:
    """One thread looks; any thread may read what was found last."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        self._sizes: dict[SegmentName, int] = {}
        self._first: SegmentName | None = None
        self.oldest_ns: int | None = None  #: of the oldest event; `None` before one was found

    def look(self) -> None:
        """Look at the folder; while that cannot be read, what was known before stays."""
        with contextlib.suppress(OSError):
            self._sizes = self._folder.sizes()
            first = next(iter(in_effect(self._sizes)), None)
            if first is not None and (first != self._first or self.oldest_ns is None):
                self.oldest_ns = self._begin_ns(first)
                self._first = first

    def bytes(self, used: Mapping[SegmentName, int]) -> int:
        """Bytes of all segments; of those in `used` what is in them, not what is reserved."""
        return sum((self._sizes | dict(used)).values())

    def _begin_ns(self, name: SegmentName) -> int | None:
        """The time of a segment's first event; when it was begun, if a loss is the first there."""
        segment = Segment.open(self._folder.files, self._folder.path, name)
        try:
            record = segment.head_at(DATA_START)
            if record is None or segment.head is None:
                return None
            is_event = record.kind == FRAME_RECORD
            return record.time_ns if is_event else segment.head.created_ns
        finally:
            segment.close()
