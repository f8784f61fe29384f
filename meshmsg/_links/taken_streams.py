"""Streams of others that subscriptions take: so many of one publisher, so many in all.

A subscription asks every publisher for all of its streams, and a publisher keeps only so many
prefixes for one subscriber: whoever names streams without end would have those of others refused.
A place is given back when no subscription has the stream any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from meshmsg._runtime.log_limit import LogLimit

if TYPE_CHECKING:
    from meshmsg._links.outbound_peer import Link
    from meshmsg._wire.control import StreamInfo


class TakenStreams:
    """Counts them; on the I/O thread."""

    def __init__(self, notes: LogLimit, counters: Counter[str], streams_max: int) -> None:
        self._notes = notes
        self._counters = counters
        self._total_max = streams_max
        #: The rest is for peers that the user has named, whom nobody can lock out.
        self._learnt_max = max(1, streams_max * 2 // 3)
        self._each_max = max(1, streams_max // 3)
        self._names: dict[str, str] = {}  # and whose place each takes
        self._peers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._names)

    def allowed(self, link: Link, infos: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Return those of a peer's streams that are taken already, or that there is room for."""
        found, refused = [], 0
        for info in infos:
            if info.name not in self._names:
                if not self.has_room(link):
                    refused += 1
                    link.untaken.add(info.name)
                    continue
                self._names[info.name] = link.peer
                self._peers[link.peer] += 1
            found.append(info)
        if refused:
            self._counters["streams_full"] += refused
            text = "%d streams of %s are not taken: %d of one peer, and %d in all, are the most"
            most = (self._each_max, self._most(link))
            self._notes.error(text, refused, link.peer, *most, key=("full", link.peer))
        return found

    def has_room(self, link: Link) -> bool:
        """Whether another stream of a peer could be taken."""
        return self._peers[link.peer] < self._each_max and len(self._names) < self._most(link)

    def _most(self, link: Link) -> int:
        return self._total_max if link.given else self._learnt_max

    def keep(self, used: Container[str]) -> None:
        """Give back the places of all streams but these."""
        for name, peer in list(self._names.items()):
            if name not in used:
                del self._names[name]
                self._peers[peer] -= 1
                if not self._peers[peer]:
                    del self._peers[peer]
