"""Who is here: peers that were heard of directly, and when they count as lost.

A peer joins with its card, leaves by saying so, and is lost within `timeout_s` of its last sign.
Silence counts only while we ourselves were listening: after a pause of our own (a stopped process,
a suspended laptop, a starved thread) its length is forgiven, since signs of life may lie unread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

#: Peers that left, which what still arrives does not bring back; and peers that were lost.
LEFT_MAX = 1024
#: A tick that comes later than this many intervals means that we did not run.
LATE_INTERVALS = 2.0


@dataclass(frozen=True, slots=True)
class Card:
    """What a peer says of itself; a newer one has a greater `serial`."""

    peer: str
    instance: int
    serial: int = 0
    addresses: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    software: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Something happened to a peer: `joined`, `changed`, `left` or `lost`."""

    kind: str
    card: Card


class Member:
    """One peer that is here."""

    __slots__ = ("card", "heard_at", "since")

    def __init__(self, card: Card, now: float) -> None:
        self.card = card
        self.since = now
        self.heard_at = now


class MemberBook:
    """All peers that are here, by the number of their start."""

    def __init__(self, timeout_s: float, interval_s: float) -> None:
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._ticked_at: float | None = None
        self._left: OrderedDict[int, None] = OrderedDict()
        self._lost: OrderedDict[int, tuple[Card, float]] = OrderedDict()
        self.members: dict[int, Member] = {}

    def __contains__(self, instance: int) -> bool:
        return instance in self.members

    def __len__(self) -> int:
        return len(self.members)

    def here(self, card: Card, *, now: float) -> Change | None:
        """A peer showed its card."""
        if card.instance in self._left:
            return None
        member = self.members.get(card.instance)
        if member is None:
            self.members[card.instance] = Member(card, now)
            self._lost.pop(card.instance, None)
            return Change("joined", card)
        member.heard_at = max(member.heard_at, now)
        if card.serial <= member.card.serial:
            return None  # an older card came late, or over a second connection
        member.card = card
        return Change("changed", card)

    def heard(self, instance: int, at: float) -> Change | None:
        """A sign of life of a peer, of whatever kind; one that was lost is back by it."""
        member = self.members.get(instance)
        if member is not None:
            member.heard_at = max(member.heard_at, at)
            return None
        card, lost_at = self._lost.get(instance, (None, 0.0))
        if card is None or at <= lost_at:
            return None
        return self.here(card, now=at)

    def left(self, instance: int) -> Change | None:
        """A peer said good-bye; it does not come back under this number."""
        self._left[instance] = None
        self._lost.pop(instance, None)
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)
        member = self.members.pop(instance, None)
        return None if member is None else Change("left", member.card)

    def on_tick(self, *, now: float) -> list[Change]:
        """Called every `interval_s`: those that are lost."""
        if self._ticked_at is not None:
            late = now - self._ticked_at
            if late > self._interval_s * LATE_INTERVALS:
                self.forgive(late)
        self._ticked_at = now
        # One interval early: the next tick would come after the time is up.
        limit = now - (self._timeout_s - self._interval_s)
        lost = [m.card for m in self.members.values() if m.heard_at < limit]
        for card in lost:
            del self.members[card.instance]
            self._lost[card.instance] = (card, now)
        while len(self._lost) > LEFT_MAX:
            self._lost.popitem(last=False)
        return [Change("lost", card) for card in lost]

    def forgive(self, slept_s: float) -> None:
        """We did not run for this long: nobody is to blame for the silence."""
        for member in self.members.values():
            member.heard_at += slept_s
