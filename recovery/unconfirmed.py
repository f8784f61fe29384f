"""Subscriptions that were asked for and not confirmed: they are asked for again, ever more rarely.

A request or its answer may be lost, and a publisher that has no room now may have some later.
Pauses double from `FIRST_S` to `LAST_S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

FIRST_S = 1.0
LAST_S = 30.0
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


class Unconfirmed(Generic[Link]):
    """All of one peer.  A link is known by identity."""

    def __init__(self) -> None:
        self._waits: dict[tuple[int, int, str], tuple[Ask[Link], _Wait]] = {}
        self._due = NEVER

    def __len__(self) -> int:
        return len(self._waits)

    def asked(self, link: Link, sub: int, streams: Iterable[str], *, now: float) -> None:
        """A subscription asked for streams; one that asks again waits for longer."""
        for stream in streams:
            key = (id(link), sub, stream)
            known = self._waits.get(key)
            pause_s = FIRST_S if known is None else min(known[1].pause_s * 2, LAST_S)
            wait = _Wait(now + pause_s, pause_s)
            self._waits[key] = (Ask(link, sub, stream), wait)
            self._due = min(self._due, wait.due)

    def waits(self, link: Link, sub: int, streams: Iterable[str], *, now: float) -> None:
        """It was turned away for now: it asks again when its pause is over."""
        for stream in streams:
            if (id(link), sub, stream) not in self._waits:
                self.asked(link, sub, [stream], now=now)

    def settled(self, link: Link, sub: int, stream: str) -> None:
        """It was confirmed, or refused for good."""
        self._waits.pop((id(link), sub, stream), None)

    def forget(self, *, link: Link | None = None, sub: int | None = None) -> None:
        """A link or a subscription is gone."""
        for key, (ask, _) in list(self._waits.items()):
            if (link is not None and ask.link is link) or ask.sub == sub:
                del self._waits[key]

    def due(self, *, now: float) -> list[Ask[Link]]:
        """What has to be asked for again."""
        if now < self._due:
            return []
        found = [ask for ask, wait in self._waits.values() if wait.due <= now]
        later = [wait.due for _, wait in self._waits.values() if wait.due > now]
        self._due = min(later, default=NEVER)
        return found
