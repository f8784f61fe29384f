"""A risk desk: what each account has ordered in all, summed up by the members of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

#: An account over this is reported: price (four decimals) times shares.
LIMIT = 2_000_000 * 10_000


class Risk:
    """One member's part of the book of accounts."""

    def __init__(self) -> None:
        self.handled = 0
        self.again = 0  #: orders that came a second time, and were in already
        self.exposure: Counter[str] = Counter()
        self.over: set[str] = set()  #: accounts over their limit
        self._seen: dict[str, int] = {}

    def on_order(self, order: Mapping[str, Any]) -> None:
        """An order; those of one account come one after the other."""
        account, ref = order["account"], order["ref"]
        if ref <= self._seen.get(account, 0):
            self.again += 1
            return
        self._seen[account] = ref
        self.handled += 1
        self.exposure[account] += order["shares"] * order["price"]
        if self.exposure[account] > LIMIT:
            self.over.add(account)
