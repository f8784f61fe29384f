"""Streams that the subscriptions of a peer take: so many of one publisher, so many in all.

A subscription asks every publisher for all of its streams, and a publisher keeps only so many
prefixes for one subscriber: whoever names streams without end would have those of others refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshmsg._log_limit import LogLimit

if TYPE_CHECKING:
    from meshmsg._control import StreamInfo
    from meshmsg._link import Link

#: Of one peer, and of all: less than `PREFIXES_EACH_MAX`, with the tokens of subscriptions.
EACH_MAX = 5000
TOTAL_MAX = 15_000
#: The rest is for peers that the user has named, whom nobody can lock out.
LEARNT_MAX = 10_000


class TakenStreams:
    """Counts them; on the I/O thread."""

    def __init__(self, notes: LogLimit, counters: Counter[str]) -> None:
        self._notes = notes
        self._counters = counters
        self._names: set[str] = set()
        self._peers: Counter[str] = Counter()

    def allowed(self, link: Link, infos: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Return those of a peer's streams that are taken already, or that there is room for."""
        found, refused = [], 0
        total = TOTAL_MAX if link.given else LEARNT_MAX
        for info in infos:
            if info.name not in self._names:
                if self._peers[link.peer] >= EACH_MAX or len(self._names) >= total:
                    refused += 1
                    continue
                self._names.add(info.name)
                self._peers[link.peer] += 1
            found.append(info)
        if refused:
            self._counters["streams_full"] += refused
            text = "%d streams of %s are not taken: %d of one peer, and %d in all, are the most"
            self._notes.error(text, refused, link.peer, EACH_MAX, total, key=("full", link.peer))
        return found
