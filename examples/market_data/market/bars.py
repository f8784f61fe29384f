"""One-second bars: open, high, low, close, volume and volume-weighted average price, by stock.

Everything is kept in whole numbers (prices with four decimals, `notional` is price times shares),
so that bars that were made elsewhere from the same trades are equal, and not only nearly so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from market.simulator import Print

SECOND_NS = 10**9

TRADE_SCHEMA = "time_ns BIGINT, stock STRING, price BIGINT, shares BIGINT, match BIGINT"
"""A trade as Spark reads it."""

BAR = (
    "min_by(price, match) AS open",
    "max(price) AS high",
    "min(price) AS low",
    "max_by(price, match) AS close",
    "sum(shares) AS volume",
    "sum(price * shares) AS notional",
    "count(*) AS trades",
    "sum(price * shares) / sum(shares) AS vwap",
)
"""Columns of a `Bar`, in its order, and what it says of the average."""

BARS_SQL = f"""
SELECT stock, time_ns div {SECOND_NS} AS second, {", ".join(BAR)}
FROM trades GROUP BY stock, time_ns div {SECOND_NS}
"""
"""One-second bars from a view `trades`."""


class Bar(NamedTuple):
    """What was traded in one stock in one second."""

    open: int
    high: int
    low: int
    close: int
    volume: int
    notional: int
    trades: int

    @property
    def vwap(self) -> float:
        """The volume-weighted average price."""
        return self.notional / self.volume

    def and_then(self, later: Bar) -> Bar:
        """Both together, the other one being later."""
        return Bar(
            self.open,
            max(self.high, later.high),
            min(self.low, later.low),
            later.close,
            self.volume + later.volume,
            self.notional + later.notional,
            self.trades + later.trades,
        )


Bars = dict[tuple[str, int], Bar]


def add_prints(bars: Bars, prints: Iterable[Print]) -> Bars:
    """Trades, in order, into the bars by stock and second since midnight."""
    for trade in prints:
        place = (trade.stock, trade.time_ns // SECOND_NS)
        price, shares = trade.price, trade.shares
        one = Bar(price, price, price, price, shares, price * shares, 1)
        there = bars.get(place)
        bars[place] = one if there is None else there.and_then(one)
    return bars


def bars_from(rows: Iterable[Sequence[object]]) -> Bars:
    """Bars from rows of stock, second and the fields of a `Bar`, as JSON has them."""
    return {(str(row[0]), int(str(row[1]))): Bar(*(int(str(n)) for n in row[2:])) for row in rows}


def different_bars(ours: Bars, theirs: Bars) -> list[tuple[str, int]]:
    """Where two sets of bars are not the same, or only one has any."""
    return sorted(
        place for place in ours.keys() | theirs.keys() if ours.get(place) != theirs.get(place)
    )
