"""The order book, beside a list of orders; snapshots; bars."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.bars import Bar, add_prints, different_bars
from market.book import BookError, Books
from market.handler import Handler, wrong_hashes
from market.risk import Risk
from market.simulator import Print, Simulator
from meshmsg._model.errors import ProtocolError
from meshmsg.moldudp.itch import encode_message

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("add", "reduce", "remove")),
        st.integers(1, 3),
        st.sampled_from("BS"),
        st.integers(1, 9),
        st.integers(1, 500),
    ),
    max_size=200,
)


@settings(max_examples=100, deadline=None)
@given(actions=ACTIONS)
def test_book_is_what_a_plain_list_says(actions: list[tuple[str, int, str, int, int]]) -> None:
    books = Books()
    plain: list[list[object]] = []  # in order of time
    for ref, (what, locate, side, price, shares) in enumerate(actions):
        if what == "add" or not plain:
            books.add(locate, side, price, ref, shares)
            plain.append([locate, side, price, ref, shares])
            continue
        order = plain[shares % len(plain)]
        if what == "remove":
            books.remove(order[3])  # type: ignore[arg-type]
            plain.remove(order)
        else:
            part = 1 + shares % order[4]  # type: ignore[operator]
            books.reduce(order[3], part)  # type: ignore[arg-type]
            order[4] -= part  # type: ignore[operator]
            if not order[4]:
                plain.remove(order)
    plain.sort(key=lambda o: (o[0], o[1], -o[2] if o[1] == "B" else o[2]))  # type: ignore[operator]
    assert [list(row) for row in books.rows()] == plain
    again = Books.from_rows(books.rows())
    assert again.hash() == books.hash()
    assert again.orders == books.orders


def test_hash_tells_what_is_different() -> None:
    def made(*rows: tuple[int, str, int, int, int]) -> str:
        return Books.from_rows(rows).hash()

    hashes = {
        made(),
        made((1, "B", 100, 1, 5)),
        made((2, "B", 100, 1, 5)),
        made((1, "S", 100, 1, 5)),
        made((1, "B", 101, 1, 5)),
        made((1, "B", 100, 2, 5)),
        made((1, "B", 100, 1, 6)),
        made((1, "B", 100, 1, 5), (1, "B", 100, 2, 5)),
        made((1, "B", 100, 2, 5), (1, "B", 100, 1, 5)),  # the other one is served first
    }
    assert len(hashes) == 9


@pytest.mark.parametrize(
    "wrong",
    [
        lambda books: books.add(1, "B", 5, 1, 5),
        lambda books: books.add(1, "B", 5, 2, 0),
        lambda books: books.remove(9),
        lambda books: books.reduce(9, 1),
        lambda books: books.reduce(1, 11),
        lambda books: books.reduce(1, 0),
    ],
)
def test_what_does_not_fit_the_book_is_refused(wrong: object) -> None:
    books = Books.from_rows([(1, "B", 5, 1, 10)])
    before = books.hash()
    with pytest.raises(BookError):
        wrong(books)  # type: ignore[operator]
    assert books.hash() == before


# The handler -----------------------------------------------------------------------------------


def payloads() -> list[bytes]:
    market = Simulator(5, 1000, 3)
    ticks = (market.open(), market.until(1.0), market.close())
    return [encode_message(message) for tick in ticks for message in tick.feed]


def test_a_handler_goes_on_from_its_snapshot_and_skips_what_it_has(tmp_path: Path) -> None:
    feed = payloads()
    whole = Handler(check_every=50)
    whole.on_messages(0, feed)
    first = Handler(check_every=50)
    assert not first.load(tmp_path / "books")
    first.on_messages(0, feed[:300])
    first.save(tmp_path / "books")
    first.on_messages(300, feed[300:400])  # and is killed here
    second = Handler(check_every=50)
    assert second.load(tmp_path / "books")
    second.on_messages(250, feed[250:])
    assert second.books.hash() == whole.books.hash()
    assert (second.applied, second.skipped) == (len(feed), 50)
    assert second.hashes == whole.hashes
    assert second.closed


def test_a_handler_that_misses_messages_says_so() -> None:
    handler = Handler()
    handler.on_messages(0, payloads()[:10])
    with pytest.raises(BookError, match="messages 10 to 11 are missing"):
        handler.on_messages(12, payloads()[12:20])
    with pytest.raises(ProtocolError):
        handler.on_messages(10, [b"nonsense"])
    assert handler.applied == 10


def test_different_hashes_are_found() -> None:
    assert wrong_hashes({1: "a", 2: "b", 3: "c"}, {2: "b", 3: "x", 4: "y"}) == [3]


# Bars and risk ---------------------------------------------------------------------------------


def test_bars_by_hand() -> None:
    second = 10**9
    prints = [
        Print(5 * second, "A", 100, 10, 1),
        Print(5 * second + 1, "B", 7, 1, 2),
        Print(6 * second - 1, "A", 90, 30, 3),
        Print(6 * second, "A", 95, 1, 4),
    ]
    bars = add_prints({}, prints)
    assert bars == {
        ("A", 5): Bar(100, 100, 90, 90, 40, 3700, 2),
        ("B", 5): Bar(7, 7, 7, 7, 1, 7, 1),
        ("A", 6): Bar(95, 95, 95, 95, 1, 95, 1),
    }
    assert bars["A", 5].vwap == 92.5
    assert different_bars(bars, dict(bars)) == []
    other = {**bars, ("A", 5): Bar(100, 100, 90, 90, 40, 3701, 2), ("C", 1): bars["A", 6]}
    assert different_bars(bars, other) == [("A", 5), ("C", 1)]


def test_an_order_that_comes_again_counts_once() -> None:
    desk = Risk()
    order = {"account": "A1", "ref": 5, "shares": 10, "price": 100}
    desk.on_order(order)
    desk.on_order(order)
    desk.on_order({**order, "ref": 6})
    assert (desk.handled, desk.again, desk.exposure["A1"]) == (2, 1, 2000)
