"""What publishers have declared of their streams, and who may lend these to others.

A recorder names streams of others and says itself which topics they have: that a key may publish
those says nothing, if their publisher has declared other ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from meshmsg._access.allow_list import Grant, covered

if TYPE_CHECKING:
    from meshmsg._wire.control import StreamInfo

STREAMS_MAX = 100_000


class Declared:
    """The topics of streams, as their publishers said whose keys may publish them."""

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def learn(self, infos: Iterable[StreamInfo]) -> bool:
        """A publisher declares its streams; whether anything is new by that."""
        fresh = {info.name: info.topics for info in infos}
        if fresh.items() <= self._topics.items():
            return False
        if len(self._topics) + len(fresh) > STREAMS_MAX:
            self._topics.clear()
        self._topics.update(fresh)
        return True

    def may_lend(self, grant: Grant, infos: Iterable[StreamInfo]) -> list[StreamInfo]:
        """Of streams that somebody has recorded, those that it may give to others."""
        known = [(info, self._known(info)) for info in infos]
        may = covered(grant.publish, chain.from_iterable(topics for _, topics in known))
        return [info for info, topics in known if may.issuperset(topics)]

    def _known(self, info: StreamInfo) -> list[str]:
        """What is said of a stream's topics, by whoever says something."""
        known = [info.topics]
        if info.name in self._topics:
            known.append(self._topics[info.name])
        own = info.name.partition("/")[2]
        if "*" in own:  # without a name of its own, a stream is named by its topics
            known.append(own)
        return known
