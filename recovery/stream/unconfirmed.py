"""Subscriptions that were asked for and not confirmed: they are asked for again, ever more rarely.

A request or its answer may be lost, and a publisher that has no room now may have some later.
Pauses double from `FIRST_S` to `LAST_S`.

A publisher of thousands of streams takes its time.  While its answers come, nothing is asked again:
the pause counts from the last answer to the same subscription, up to `LAST_S` after the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

FIRST_S = 1.0
LAST_S = 30.0
#: What is confirmed stays in line for a while: so much of it, at most.
OVER_MAX = 1000
NEVER = float("inf")

Link = TypeVar("Link")


class Ask(NamedTuple, Generic[Link]):
    """A stream that a subscription asked one link for."""

    link: Link
    sub: int
    stream: str


class _Wait(NamedTuple):
    due: float
    pause_s: float
    asked_at: float


Key = tuple[int, int, str]


class Unconfirmed(Generic[Link]):
    """All of one peer.  A link is known by identity."""

    def __init__(self) -> None:
        self._waits: dict[Key, tuple[Ask[Link], _Wait]] = {}
        self._heap: list[tuple[float, Key]] = []  # of those, and of some that are over
        self._heard: dict[tuple[int, int], float] = {}  # by link and subscription

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def next_due(self) -> float:
        """When `due` has something to tell, at the earliest."""
        return self._heap[0][0] if self._heap else NEVER

    def asked(self, link: Link, sub: int, streams: Iterable[str], *, now: float) -> None:
        """A subscription asked for streams; one that asks again waits for longer."""
        for stream in streams:
            key = (id(link), sub, stream)
            known = self._waits.get(key)
            pause_s = FIRST_S if known is None else min(known[1].pause_s * 2, LAST_S)
            self._wait(key, Ask(link, sub, stream), _Wait(now + pause_s, pause_s, now))

    def _wait(self, key: Key, ask: Ask[Link], wait: _Wait) -> None:
        self._waits[key] = (ask, wait)
        heappush(self._heap, (wait.due, key))
        if len(self._heap) > 2 * len(self._waits) + OVER_MAX:
            self._heap = sorted((known.due, of) for of, (_, known) in self._waits.items())

    def waits(self, link: Link, sub: int, streams: Iterable[str], *, now: float) -> None:
        """It was turned away for now: it asks again when its pause is over."""
        for stream in streams:
            if (id(link), sub, stream) not in self._waits:
                self.asked(link, sub, [stream], now=now)

    def settled(self, link: Link, sub: int, stream: str, *, now: float) -> None:
        """It was confirmed, or refused for good."""
        if self._waits.pop((id(link), sub, stream), None) is not None:
            self._heard[id(link), sub] = now
        if not self._waits:
            self._heard.clear()

    def forget(self, *, link: Link | None = None, sub: int | None = None) -> None:
        """A link or a subscription is gone."""
        for key, (ask, _) in list(self._waits.items()):
            if (link is not None and ask.link is link) or ask.sub == sub:
                del self._waits[key]
        for of in [of for of in self._heard if of[0] == id(link) or of[1] == sub]:
            del self._heard[of]

    def due(self, *, now: float, most: int) -> list[Ask[Link]]:
        """Return what has to be asked for again, of so much that is due; the rest is due, too."""
        found: list[Ask[Link]] = []
        for _ in range(most):
            if self.next_due > now:
                break
            due, key = heappop(self._heap)
            known = self._waits.get(key)
            if known is None or known[1].due != due:
                continue
            ask, wait = known
            later = min(self._heard.get(key[:2], 0.0) + wait.pause_s, wait.asked_at + LAST_S)
            if later > now:
                self._wait(key, ask, wait._replace(due=later))
            else:
                found.append(ask)
                self._wait(key, ask, wait._replace(due=now + wait.pause_s))
        return found
