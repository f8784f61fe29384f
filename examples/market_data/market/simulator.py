"""The exchange: orders come, match by price and time, and go, all by a seed.

Each stock has a fair price that wanders, with a drift that wanders too.  Traders quote around it,
take what is offered, change their minds, and pull quotes that the price has left behind; when it
runs through a quote, that is traded against.  What happens is told as ITCH messages, in order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain, islice, product
from string import ascii_uppercase
from typing import NamedTuple

from market.arrivals import Arrival, Arrivals
from market.book import Books, Side
from meshmsg import ConfigError
from meshmsg.moldudp.itch import (
    AddOrder,
    Cancelled,
    Deleted,
    Executed,
    Message,
    Replaced,
    StockDirectory,
    SystemEvent,
)
from meshmsg.moldudp.itch import Trade as HiddenTrade

TICK = 100  # one cent
OPEN_NS = 34_200 * 10**9  # 09:30
STOCKS_MAX = 10_000
ACCOUNTS = 200
LOT = 100
#: A stock has at least so many orders before anything else happens, and about at most so many.
ORDERS_MIN, ORDERS_MAX = 12, 120
#: Levels that one order eats through at most.
SWEEP_MAX = 3
PRICE_MIN, PRICE_MAX = 20 * TICK, 2_000_000 * TICK
#: The busiest stocks have names that people know.
KNOWN = ("AAPL", "MSFT", "NVDA", "AMZN", "GOOG", "META", "TSLA", "AVGO", "COST", "NFLX", "AMD")


class Print(NamedTuple):
    """A trade, as it goes on record."""

    time_ns: int
    stock: str
    price: int
    shares: int
    match: int


class Entered(NamedTuple):
    """An order as it came in, before anything became of it."""

    time_ns: int
    ref: int
    account: str
    stock: str
    side: str
    shares: int
    price: int


class Tick(NamedTuple):
    """What happened in a stretch of time."""

    feed: list[Message]
    prints: list[Print]
    entered: list[Entered]


@dataclass(slots=True)
class Stock:
    """One stock: its fair price in ticks, and its orders."""

    name: str
    locate: int
    fair: float
    drift: float
    sigma: float
    spread: float
    refs: list[int]


def stock_names(count: int) -> list[str]:
    """Names for stocks: well-known ones, then AAAA, AAAB ..."""
    made = ("".join(letters) for letters in product(ascii_uppercase, repeat=4))
    return list(islice(chain(KNOWN, (name for name in made if name not in KNOWN)), count))


class Simulator:
    """A day of trading, for as long as it is asked; the same for the same seed.

    >>> market = Simulator(stocks=3, rate=1000, seed=7)
    >>> ticks = [market.open(), market.until(1.0), market.close()]
    >>> market.books.hash() == Simulator.replayed(3, 1000, 7, 1.0).books.hash()
    True
    """

    def __init__(
        self, stocks: int = 300, rate: float = 5000.0, seed: int = 7, check_every: int = 0
    ) -> None:
        if not 1 <= stocks <= STOCKS_MAX:
            raise ConfigError("stocks", f"{stocks!r} is not a number from 1 to {STOCKS_MAX:,}")
        if not 0 < rate < 1e7:
            raise ConfigError("rate", f"{rate!r} is not a number of arrivals a second")
        self.books = Books()
        self.messages = 0  #: told so far
        #: The hash of the books after so many messages, if `check_every` is given.
        self.hashes: dict[int, str] = {}
        self._check_every = check_every
        self._rng = rng = random.Random(seed)
        self._arrivals = Arrivals(rate, stocks, rng)
        self.stocks = [
            Stock(
                name,
                locate,
                fair=min(90_000.0, rng.lognormvariate(9.0, 0.9) + 500),
                drift=0.0,
                sigma=rng.uniform(0.15, 0.6),
                spread=rng.uniform(1.0, 6.0),
                refs=[],
            )
            for locate, name in enumerate(stock_names(stocks), 1)
        ]
        self._slots: dict[int, int] = {}  # where an order is in its stock's `refs`
        self._next_ref = 1
        self._next_match = 1
        self._ahead: Arrival | None = None
        self._now_ns = OPEN_NS
        self._tick = Tick([], [], [])

    @classmethod
    def replayed(cls, stocks: int, rate: float, seed: int, seconds: float) -> Simulator:
        """A market as it is after so many seconds."""
        made = cls(stocks, rate, seed)
        made.open()
        made.until(seconds)
        made.close()
        return made

    def open(self) -> Tick:
        """The day begins: who is traded here."""
        self._say(SystemEvent(0, 0, self._now_ns, "O"))
        for stock in self.stocks:
            self._say(StockDirectory(stock.locate, 0, self._now_ns, stock.name))
        self._say(SystemEvent(0, 0, self._now_ns, "Q"))
        return self._take()

    def until(self, at_s: float) -> Tick:
        """All that happens up to this many seconds after the opening."""
        while True:
            arrival = self._ahead or self._arrivals.next()
            if arrival.at_s >= at_s:
                self._ahead = arrival
                return self._take()
            self._ahead = None
            self._now_ns = OPEN_NS + int(arrival.at_s * 1e9)
            stock = self.stocks[arrival.stock]
            if arrival.news:  # good or bad
                stock.fair += self._rng.gauss(0.0, 8.0) * stock.spread
            self._act(stock)

    def close(self) -> Tick:
        """The day ends; what rests in the books stays there."""
        self._say(SystemEvent(0, 0, self._now_ns, "M"))
        self._say(SystemEvent(0, 0, self._now_ns, "C"))
        return self._take()

    def _take(self) -> Tick:
        tick, self._tick = self._tick, Tick([], [], [])
        return tick

    def _say(self, message: Message) -> None:
        """Tell of what has just been done to the books, and of nothing else."""
        self._tick.feed.append(message)
        self.messages += 1
        if self._check_every and self.messages % self._check_every == 0:
            self.hashes[self.messages] = self.books.hash()

    # --- what traders do ---

    def _act(self, stock: Stock) -> None:
        rng = self._rng
        stock.drift = 0.98 * stock.drift + rng.gauss(0.0, 0.02) * stock.sigma
        moved = stock.fair + stock.drift + rng.gauss(0.0, stock.sigma)
        stock.fair = min(max(moved, PRICE_MIN / TICK + 50), PRICE_MAX / TICK - 50)
        draw = rng.random()
        orders = len(stock.refs)
        if orders < ORDERS_MIN or (draw < 0.46 and orders < ORDERS_MAX):
            self._quote(stock)
        elif draw < 0.80:
            self._delete(stock)
        elif draw < 0.85:
            self._cancel(stock)
        elif draw < 0.92:
            self._replace(stock)
        elif draw < 0.99:
            self._take_shares(stock)
        else:
            self._trade_hidden(stock)

    def _quote(self, stock: Stock) -> None:
        """A limit order near the fair price; where it crosses, it trades first."""
        side = self._side()
        price = self._near(stock, side)
        ref, shares = self._enter(stock, side, self._size(), price)
        shares = self._match(stock, side, price, shares)
        if shares:
            self._rest(stock, side, price, ref, shares)

    def _delete(self, stock: Stock) -> None:
        ref = self._stale(stock)
        self._gone(stock, ref)
        self.books.remove(ref)
        self._say(Deleted(stock.locate, 0, self._now_ns, ref))

    def _cancel(self, stock: Stock) -> None:
        ref = self._rng.choice(stock.refs)
        shares = self.books.shares(ref)
        if shares <= LOT:
            self._delete(stock)
            return
        part = LOT * self._rng.randint(1, (shares - 1) // LOT)
        self.books.reduce(ref, part)
        self._say(Cancelled(stock.locate, 0, self._now_ns, ref, part))

    def _replace(self, stock: Stock) -> None:
        """A quote follows the price, as far as it can without trading."""
        ref = self._stale(stock)
        side = self.books.orders[ref][1]
        price = self._near(stock, side)
        if self._crosses(stock, side, price):
            self._delete(stock)
            return
        new, shares = self._enter(stock, side, self._size(), price)
        self.books.remove(ref)
        self._gone(stock, ref)
        self.books.add(stock.locate, side, price, new, shares)
        self._here(stock, new)
        self._say(Replaced(stock.locate, 0, self._now_ns, ref, new, shares, price))

    def _take_shares(self, stock: Stock) -> None:
        """An order at any price within a few levels; what it does not get is not kept."""
        side = self._side()
        other = self._other(stock, side)
        if not other.prices:
            return
        reach = min(SWEEP_MAX, len(other.prices)) - 1
        price = other.prices[-1 - reach] if side == "S" else other.prices[reach]
        _, shares = self._enter(stock, side, self._size(), price)
        self._match(stock, side, price, shares)

    def _trade_hidden(self, stock: Stock) -> None:
        """A trade at the middle, against an order that nobody saw."""
        bid, ask = (s.best for s in self._sides(stock))
        if bid is None or ask is None:
            return
        price, shares, side = (bid + ask) // 2, self._size(), self._side()
        match = self._print(stock, price, shares)
        ref, self._next_ref = self._next_ref, self._next_ref + 1
        head = (stock.locate, 0, self._now_ns, ref)
        self._say(HiddenTrade(*head, side, shares, stock.name, price, match))

    # --- the matching engine ---

    def _match(self, stock: Stock, side: str, limit: int, shares: int) -> int:
        """Trade against the best orders of the other side; returns what is left."""
        other = self._other(stock, side)
        while shares and (price := other.best) is not None:
            if price > limit if side == "B" else price < limit:
                break
            ref, resting = next(iter(other.levels[price].items()))
            part = min(shares, resting)
            if part == resting:
                self._gone(stock, ref)
            self.books.reduce(ref, part)
            shares -= part
            match = self._print(stock, price, part)
            self._say(Executed(stock.locate, 0, self._now_ns, ref, part, match))
        return shares

    def _print(self, stock: Stock, price: int, shares: int) -> int:
        match, self._next_match = self._next_match, self._next_match + 1
        self._tick.prints.append(Print(self._now_ns, stock.name, price, shares, match))
        return match

    def _enter(self, stock: Stock, side: str, shares: int, price: int) -> tuple[int, int]:
        ref, self._next_ref = self._next_ref, self._next_ref + 1
        account = f"A{int(self._rng.random() * ACCOUNTS):03}"
        row = Entered(self._now_ns, ref, account, stock.name, side, shares, price)
        self._tick.entered.append(row)
        return ref, shares

    def _rest(self, stock: Stock, side: str, price: int, ref: int, shares: int) -> None:
        self.books.add(stock.locate, side, price, ref, shares)
        self._here(stock, ref)
        head = (stock.locate, 0, self._now_ns, ref)
        self._say(AddOrder(*head, side, shares, stock.name, price))

    def _crosses(self, stock: Stock, side: str, price: int) -> bool:
        best = self._other(stock, side).best
        return best is not None and (price >= best if side == "B" else price <= best)

    def _sides(self, stock: Stock) -> tuple[Side, Side]:
        book = self.books.by_locate.get(stock.locate)
        return (book.bids, book.asks) if book else (_NO_BIDS, _NO_ASKS)

    def _other(self, stock: Stock, side: str) -> Side:
        return self._sides(stock)[side == "B"]

    # --- draws ---

    def _side(self) -> str:
        return "B" if self._rng.random() < 0.5 else "S"

    def _size(self) -> int:
        return LOT * min(50, 1 + int(self._rng.expovariate(0.5)))

    def _near(self, stock: Stock, side: str) -> int:
        away = stock.spread / 2 + self._rng.expovariate(0.25) - 1
        ticks = stock.fair - away if side == "B" else stock.fair + away
        return TICK * max(1, round(ticks))

    def _stale(self, stock: Stock) -> int:
        """Of two orders the one that is further from the fair price."""
        first, second = self._rng.choice(stock.refs), self._rng.choice(stock.refs)
        fair, orders = stock.fair * TICK, self.books.orders
        return max(first, second, key=lambda ref: abs(orders[ref][2] - fair))

    # --- which orders a stock has, to draw from ---

    def _here(self, stock: Stock, ref: int) -> None:
        self._slots[ref] = len(stock.refs)
        stock.refs.append(ref)

    def _gone(self, stock: Stock, ref: int) -> None:
        slot = self._slots.pop(ref)
        last = stock.refs.pop()
        if last != ref:
            stock.refs[slot] = last
            self._slots[last] = slot


_NO_BIDS, _NO_ASKS = Side(bids=True), Side(bids=False)
