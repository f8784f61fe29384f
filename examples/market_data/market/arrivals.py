"""When something happens in a market, and in which stock: bursts, and a few busy stocks.

A Hawkes process: everything that happens makes more of it likely for a moment, in the same stock
above all; and now and then there is news of a stock, which sets off a lot.  How busy stocks are
follows Zipf's law, as it does in real markets.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from itertools import accumulate
from typing import NamedTuple

#: Of all that happens, this part was set off by what happened before.
BRANCHING = 0.5
#: And this part by news, of which there is some every few seconds.
NEWS = 0.15
NEWS_EVERY_S = 2.0
#: How fast the excitement is over, a second.
DECAY_S = 8.0
#: What an arrival sets off happens in the same stock with this chance.
SAME_STOCK = 0.7
ZIPF = 0.9
#: Stocks that are remembered as lively.
RECENT = 16


class Arrival(NamedTuple):
    """Seconds since the start, the stock's place, and whether there is news of it."""

    at_s: float
    stock: int
    news: bool


class Arrivals:
    """Times and stocks, by a seed; `rate` is arrivals a second in the long run."""

    def __init__(self, rate: float, stocks: int, rng: random.Random) -> None:
        self._rng = rng
        # Each arrival sets off BRANCHING others, news enough for its own part of them all.
        self._base = rate * (1 - BRANCHING - NEWS)
        self._excited = 0.0  # arrivals a second on top of the base
        self._jump = BRANCHING * DECAY_S
        self._news_jump = rate * NEWS * NEWS_EVERY_S * DECAY_S
        self._news_chance = 1 / (rate * NEWS_EVERY_S)
        self._weights = list(accumulate(1 / (n + 1) ** ZIPF for n in range(stocks)))
        self._recent = [self._pick() for _ in range(RECENT)]
        self._at = 0.0

    def next(self) -> Arrival:
        """What happens next."""
        rng = self._rng
        while True:
            most = self._base + self._excited
            wait = rng.expovariate(most)
            self._at += wait
            # Thinning: the rate falls while we wait, so not every draw counts.
            self._excited *= math.exp(-wait * DECAY_S)
            if rng.random() * most <= self._base + self._excited:
                break
        lively = rng.random() * (self._base + self._excited) < self._excited * SAME_STOCK
        stock = rng.choice(self._recent) if lively else self._pick()
        self._recent[int(rng.random() * RECENT)] = stock
        self._excited += self._jump
        news = rng.random() < self._news_chance
        if news:
            self._excited += self._news_jump
            self._recent = [stock] * RECENT
        return Arrival(self._at, stock, news)

    def _pick(self) -> int:
        return bisect(self._weights, self._rng.random() * self._weights[-1])
