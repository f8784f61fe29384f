"""What to tell whom of other peers: gossip.

Only of peers that are here, heard of directly: hearsay is never passed on, so that nobody who has
gone lives on in rumours.  Whoever connects is told of all; who joined is told to a few, and each of
them meets it and tells a few in turn; and now and then somebody chosen by chance is told of all,
which mends whatever was missed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

#: A peer that joined is told of to this many others.
FANOUT = 3
#: How often all is told to somebody.
ALL_S = 5.0
#: Peers that joined and are yet to be told of; of others they hear when all is told.
NEWS_MAX = 4096


class Rumours:
    """The gossip of one peer; peers are known by the number of their start."""

    def __init__(self, known_max: int, rng: random.Random) -> None:
        self._known_max = known_max
        self._random = rng
        self._news: list[int] = []
        self._all_due = 0.0

    def joined(self, instance: int) -> None:
        """A peer is here that was not."""
        if len(self._news) < NEWS_MAX:
            self._news.append(instance)

    def known(self, here: Iterable[int], receiver: int) -> list[int]:
        """All that a peer is told when it connects."""
        known = [instance for instance in here if instance != receiver]
        if len(known) > self._known_max:
            known = self._random.sample(known, self._known_max)
        return known

    def round(
        self, here: Sequence[int], connected: Sequence[int], *, now: float
    ) -> list[tuple[int, list[int]]]:
        """Called now and then: to whom, and of whom."""
        news, self._news = self._news[: self._known_max], self._news[self._known_max :]
        said: list[tuple[int, list[int]]] = []
        if news:
            for receiver in self._random.sample(connected, min(FANOUT, len(connected))):
                said.append((receiver, [instance for instance in news if instance != receiver]))
        if now >= self._all_due and connected:
            self._all_due = now + ALL_S
            receiver = self._random.choice(connected)
            said.append((receiver, self.known(here, receiver)))
        return [(receiver, told) for receiver, told in said if told]
