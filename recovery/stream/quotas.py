"""Places that those who dial a peer share: so many each, so many in all.

Quotas come in this order:
1. An owner has no more than `each`.
2. While there is room in all, whoever asks gets a place.
3. Then the host that has most gives a place to one that has less, so that nobody who comes late is
   locked out by one who took all; of that host, the owner that has most.

An owner is a key where peers have keys of their own.  Where they have none, anybody can be as many
peers as it likes: a connection is an owner, and the hosts decide.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Owner(NamedTuple):
    """Whose places are counted."""

    host: str
    """The host that it dials from, or its key."""
    link: bytes = b""
    """Its connection; empty for a key, whose connections count as one."""


class Quota:
    """Counts the places of one kind."""

    def __init__(self, each: int, total: int) -> None:
        self.each = each
        self.total = total
        self.used = 0
        self.owners: Counter[Owner] = Counter()
        self._hosts: Counter[str] = Counter()

    def is_over(self, owner: Owner) -> bool:
        """Return True when an owner has all the places that one may have."""
        return self.owners[owner] >= self.each

    def giver(self, owner: Owner) -> Owner | None:
        """Return who has to give a place before this owner can have one.

        That is the owner itself while there is room, and `None` when there is nobody who has more.
        """
        if self.is_over(owner):
            return None
        if self.used < self.total:
            return owner
        host = max(self._hosts, key=self._hosts.__getitem__)
        if host != owner.host and self._hosts[host] < self._hosts[owner.host] + 2:
            return None
        mine = [one for one in self.owners if one.host == host]
        giver = max(mine, key=self.owners.__getitem__)
        return giver if host != owner.host or self.owners[giver] > self.owners[owner] + 1 else None

    def most(self, count: int) -> list[tuple[Owner, int]]:
        """Return so many owners who have most, and how many places each has; any thread."""
        return Counter(dict(self.owners)).most_common(count)

    def take(self, owner: Owner) -> None:
        """Count one place more."""
        self.used += 1
        self.owners[owner] += 1
        self._hosts[owner.host] += 1

    def free(self, owner: Owner, count: int = 1) -> None:
        """Count so many places less."""
        count = min(count, self.owners[owner])
        self.used -= count
        self.owners[owner] -= count
        self._hosts[owner.host] -= count
        if not self.owners[owner]:
            del self.owners[owner]
        if not self._hosts[owner.host]:
            del self._hosts[owner.host]
