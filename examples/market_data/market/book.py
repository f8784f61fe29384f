"""An order book: orders by price, and by time within a price; and a hash by which two compare."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from struct import Struct

_ORDER = Struct(">IQI")
_SIDE = Struct(">Hc")
HASH_BYTES = 8


class BookError(Exception):
    """A message that does not fit the book: something was missed, or came twice."""


class Side:
    """One side: `levels[price][ref]` is the shares of an order, in the order they are served."""

    __slots__ = ("best_is_last", "levels", "prices")

    def __init__(self, *, bids: bool) -> None:
        self.best_is_last = bids
        self.levels: dict[int, dict[int, int]] = {}
        self.prices: list[int] = []  # ascending

    @property
    def best(self) -> int | None:
        """The best price, `None` where there is no order."""
        if not self.prices:
            return None
        return self.prices[-1] if self.best_is_last else self.prices[0]

    def from_best(self) -> Iterator[int]:
        """Prices, the best first."""
        return reversed(self.prices) if self.best_is_last else iter(self.prices)

    def add(self, price: int, ref: int, shares: int) -> None:
        """An order, behind the others of its price."""
        level = self.levels.get(price)
        if level is None:
            self.levels[price] = {ref: shares}
            insort(self.prices, price)
        else:
            level[ref] = shares

    def remove(self, price: int, ref: int) -> None:
        """An order is gone."""
        level = self.levels[price]
        del level[ref]
        if not level:
            del self.levels[price]
            del self.prices[bisect_left(self.prices, price)]


class Book:
    """The orders of one stock."""

    __slots__ = ("asks", "bids")

    def __init__(self) -> None:
        self.bids = Side(bids=True)
        self.asks = Side(bids=False)

    def side(self, letter: str) -> Side:
        """`B` the bids, anything else the asks."""
        return self.bids if letter == "B" else self.asks

    @property
    def crossed(self) -> bool:
        """Whether somebody bids at least what another asks; never so after matching."""
        bid, ask = self.bids.best, self.asks.best
        return bid is not None and ask is not None and bid >= ask


class Books:
    """The books of a market, and where each order is."""

    def __init__(self) -> None:
        self.by_locate: dict[int, Book] = {}
        self.orders: dict[int, tuple[int, str, int]] = {}  # ref: locate, side, price

    def add(self, locate: int, side: str, price: int, ref: int, shares: int) -> None:
        """A new order; raises `BookError` if there is one of that reference."""
        if ref in self.orders or shares <= 0:
            raise BookError(f"order {ref} is there already, or is empty")
        book = self.by_locate.get(locate)
        if book is None:
            book = self.by_locate[locate] = Book()
        book.side(side).add(price, ref, shares)
        self.orders[ref] = (locate, side, price)

    def reduce(self, ref: int, shares: int) -> None:
        """Shares were executed or cancelled; the order keeps its place, or is gone."""
        locate, side, price = self._find(ref)
        level = self.by_locate[locate].side(side).levels[price]
        left = level[ref] - shares
        if left < 0 or shares <= 0:
            raise BookError(f"order {ref} has {level[ref]} shares, not {shares}")
        if left:
            level[ref] = left
        else:
            self.remove(ref)

    def remove(self, ref: int) -> tuple[int, str, int]:
        """An order is gone; returns where it was."""
        locate, side, price = found = self._find(ref)
        self.by_locate[locate].side(side).remove(price, ref)
        del self.orders[ref]
        return found

    def shares(self, ref: int) -> int:
        """What is left of an order."""
        locate, side, price = self._find(ref)
        return self.by_locate[locate].side(side).levels[price][ref]

    def _find(self, ref: int) -> tuple[int, str, int]:
        try:
            return self.orders[ref]
        except KeyError:
            raise BookError(f"there is no order {ref}") from None

    def rows(self) -> Iterator[tuple[int, str, int, int, int]]:
        """Every order: locate, side, price, reference, shares; in one order for equal books."""
        for locate in sorted(self.by_locate):
            book = self.by_locate[locate]
            for letter in "BS":
                side = book.side(letter)
                for price in side.from_best():
                    for ref, shares in side.levels[price].items():
                        yield locate, letter, price, ref, shares

    def hash(self) -> str:
        """The same for equal books: all orders, with price, shares and place in their queue."""
        digest = hashlib.blake2b(digest_size=HASH_BYTES)
        place: tuple[int, str] | None = None
        for locate, letter, price, ref, shares in self.rows():
            if (locate, letter) != place:
                place = (locate, letter)
                digest.update(_SIDE.pack(locate, letter.encode()))
            digest.update(_ORDER.pack(price, ref, shares))
        return digest.hexdigest()

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[object]]) -> Books:
        """The books that `rows` came from."""
        books = cls()
        for row in rows:
            locate, side, price, ref, shares = row
            books.add(locate, side, price, ref, shares)  # type: ignore[arg-type]
        return books
