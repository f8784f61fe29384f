"""Who is here: peers that were heard of directly, and when they count as lost.

A peer joins with its card, leaves by saying so, and is lost within `timeout_s` of its last sign.
Silence counts only while we ourselves were listening: after a pause of our own (a stopped process,
a suspended laptop, a starved thread) its length is forgiven, since signs of life may lie unread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import accumulate

#: Peers that left, which what still arrives does not bring back; and peers that were lost.
LEFT_MAX = 1024
#: Names and addresses on one card, in bytes, and on all of them; more is left out.
CARD_BYTES_MAX = 64 * 1024
CARDS_BYTES_MAX = 16 * 1024 * 1024
#: What a text takes beside its bytes.
TEXT_COST = 50
#: A tick that comes later than this many intervals means that we did not run.
LATE_INTERVALS = 2.0


def _size(*texts: str) -> int:
    """About how much texts take, in bytes: in one step, since a card may name thousands."""
    return len("".join(texts).encode("utf-8", "replace")) + TEXT_COST * len(texts)


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

    def size(self) -> int:
        """About how much it takes, in bytes."""
        lists = (self.addresses, self.streams, self.groups, self.roles)
        return len(self.peer) + sum(_size(*texts) for texts in lists)

    def shortened(self, room: int) -> Card:
        """The same with as many streams, groups and roles as there is room for."""
        if self.size() <= room:
            return self
        room -= replace(self, streams=(), groups=(), roles=()).size()
        kept: list[tuple[str, ...]] = []
        for texts in (self.roles, self.streams, self.groups):
            some = texts[: max(room, 0) // TEXT_COST]
            fit = bisect_right(list(accumulate(map(_size, some))), room)
            room -= _size(*texts)
            kept.append(texts[:fit])
        return replace(self, roles=kept[0], streams=kept[1], groups=kept[2])


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
        self._bytes = self._lost_bytes = 0  # on all cards
        self.shortened = 0  #: cards that were

    def __contains__(self, instance: int) -> bool:
        return instance in self.members

    def __len__(self) -> int:
        return len(self.members)

    def here(self, card: Card, *, now: float) -> Change | None:
        """A peer showed its card."""
        if card.instance in self._left:
            return None
        member = self.members.get(card.instance)
        if member is None or card.serial > member.card.serial:
            card = self._fitted(card, 0 if member is None else member.card.size())
        if member is None:
            self.members[card.instance] = Member(card, now)
            self._find_again(card.instance)
            return Change("joined", card)
        member.heard_at = max(member.heard_at, now)
        if card.serial <= member.card.serial:
            return None  # an older card came late, or over a second connection
        member.card = card
        return Change("changed", card)

    def _fitted(self, card: Card, before: int) -> Card:
        """A card as it is kept, in place of one that took so much."""
        room = min(CARD_BYTES_MAX, max(0, CARDS_BYTES_MAX - self._bytes + before))
        kept = card.shortened(room)
        self.shortened += kept is not card
        self._bytes += kept.size() - before
        return kept

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
        self._find_again(instance)
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)
        member = self.members.pop(instance, None)
        if member is None:
            return None
        self._bytes -= member.card.size()
        return Change("left", member.card)

    def _find_again(self, instance: int) -> None:
        """A peer that was lost is not any more, or was for too long."""
        card, _ = self._lost.pop(instance, (None, 0.0))
        self._lost_bytes -= 0 if card is None else card.size()

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
            self._bytes -= card.size()
            self._lost_bytes += card.size()
            self._lost[card.instance] = (card, now)
        while len(self._lost) > LEFT_MAX or self._lost_bytes > CARDS_BYTES_MAX:
            self._find_again(next(iter(self._lost)))
        return [Change("lost", card) for card in lost]

    def forgive(self, slept_s: float) -> None:
        """We did not run for this long: nobody is to blame for the silence."""
        for member in self.members.values():
            member.heard_at += slept_s
