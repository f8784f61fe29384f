"""The exchange: the same for the same seed, and always in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.arrivals import Arrivals
from market.handler import Handler
from market.simulator import Simulator, stock_names
from meshmsg import ConfigError
from meshmsg.moldudp.itch import AddOrder, Executed, Message, encode_message


def day(seed: int, *, stocks: int = 20, seconds: float = 1.0, steps: int = 1) -> list[Message]:
    market = Simulator(stocks, 2000, seed)
    feed = market.open().feed
    for step in range(1, steps + 1):
        feed += market.until(seconds * step / steps).feed
    return feed + market.close().feed


def test_same_seed_same_day_however_it_is_cut() -> None:
    assert day(7) == day(7, steps=13)


def test_another_seed_is_another_day() -> None:
    assert day(7) != day(8)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), stocks=st.integers(1, 20))
def test_books_rebuilt_from_the_feed_are_the_exchanges_own(seed: int, stocks: int) -> None:
    market = Simulator(stocks, 2000, seed, check_every=100)
    handler = Handler(check_every=100)
    traded: Counter[int] = Counter()
    steps = (market.open, lambda: market.until(0.2), lambda: market.until(0.5), market.close)
    for step in steps:
        tick = step()
        handler.on_messages(handler.applied, [encode_message(message) for message in tick.feed])
        assert not any(book.crossed for book in market.books.by_locate.values())
        assert handler.books.hash() == market.books.hash()
        for trade in tick.prints:
            traded[trade.match] += trade.shares
        for message in tick.feed:
            if isinstance(message, Executed):
                assert traded[message.match] == message.shares
    assert handler.closed
    assert handler.applied == market.messages
    assert handler.hashes == market.hashes
    assert len(market.hashes) == market.messages // 100


def test_the_flow_has_everything_a_book_can_do() -> None:
    kinds = Counter(type(message).__name__ for message in day(7, seconds=2))
    for name in ("AddOrder", "Deleted", "Cancelled", "Replaced", "Executed", "Trade"):
        assert kinds[name] > 10, kinds
    assert kinds["StockDirectory"] == 20


def test_time_goes_forward() -> None:
    times = [message.time_ns for message in day(3)]
    assert times == sorted(times)


def test_a_few_stocks_are_busy() -> None:
    adds = Counter(m.stock for m in day(7, stocks=100, seconds=2) if isinstance(m, AddOrder))
    assert sum(count for _, count in adds.most_common(10)) > 0.3 * adds.total()
    assert len(adds) > 80


def test_arrivals_come_at_the_rate_that_was_asked_for_in_bursts() -> None:
    import random

    arrivals = Arrivals(1000, 10, random.Random(5))
    seconds = Counter(int(arrivals.next().at_s) for _ in range(30_000))
    full = [seconds[n] for n in range(max(seconds))]
    assert 700 < sum(full) / len(full) < 1300
    assert max(full) > 1.5 * min(full)


def test_names_are_unique_and_fit_itch() -> None:
    names = stock_names(1000)
    assert len(set(names)) == 1000
    assert all(1 <= len(name) <= 8 for name in names)


@pytest.mark.parametrize("wrong", [{"stocks": 0}, {"stocks": 10**6}, {"rate": 0}, {"rate": -1.0}])
def test_bad_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Simulator(**wrong)
