"""Which member of a group has a key: rendezvous hashing.

Every publisher gives each pair of key and member a weight, and the member with the highest weight
has the key.  Publishers that see the same members agree without a word, and when a member comes or
goes only the keys that it gets or had move.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

OWNERS_MAX = 100_000


def weight(key: str, member: int) -> int:
    """The weight of a member for a key: the same on every machine."""
    salt = member.to_bytes(8, "little")
    return int.from_bytes(
        blake2b(key.encode("utf-8", "replace"), digest_size=8, key=salt).digest(), "little"
    )


def owner_of(key: str, members: Iterable[int]) -> int | None:
    """The member that has a key; `None` if there are no members."""
    return max(members, key=lambda member: (weight(key, member), member), default=None)


class Owners:
    """Owners of keys, remembered as long as the members stay the same."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self._known: dict[str, int | None] = {}

    def set_members(self, members: Iterable[int]) -> None:
        """The members that there are now."""
        self._members = tuple(sorted(members))
        self._known.clear()

    def owner(self, key: str) -> int | None:
        """Who has the key now."""
        try:
            return self._known[key]
        except KeyError:
            if len(self._known) >= OWNERS_MAX:
                self._known.clear()
            found = self._known[key] = owner_of(key, self._members)
            return found
