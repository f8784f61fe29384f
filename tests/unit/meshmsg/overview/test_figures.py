"""What another peer said is typed, cut and checked before anything uses it."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg import Peer
from meshmsg.overview.figures import NAME_MAX, Times, read_cards, read_stats
from tests.support.overviews import card, peer, stream, subscriber


def test_real_figures_can_be_read() -> None:
    with Peer("a", discovery="none") as one:
        figures = read_stats(one.stats())
        assert (figures.peer, figures.streams) == ("a", {})
        assert read_cards(one.stats()["peers"]) == []


def test_long_names_are_cut() -> None:
    figures = read_stats(peer("a", stream("a/" + "x" * 1_000)))
    (one,) = figures.streams.values()
    assert len(one.stream) == NAME_MAX
    assert one.stream.endswith("…")


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"peer": "a"},
        peer("a", peer=7),
        peer("a", streams=[1]),
        peer("a", stream("a/x", published=-1)),
        peer("a", stream("a/x", published=1 << 70)),
        peer("a", stream("a/x", subscriber("b/y", blocked_s=float("nan")))),
        peer("a", stream("a/x", subscriber("b/y", lost={"gone": "many"}))),
    ],
)
def test_an_answer_of_another_shape_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected|Object|missing"):
        read_stats(wrong)


def test_cards_of_another_shape_are_refused() -> None:
    assert read_cards([card("a", "publisher")])[0].roles == ["publisher"]
    with pytest.raises(ValueError, match="Expected"):
        read_cards([1])


def test_quantiles_of_times() -> None:
    assert Times([0.1, 1.0], [0, 0, 0]).quantile(0.5) is None
    assert Times([0.1, 1.0], [1, 1, 0]).quantile(0.99) == 1.0
    assert Times([0.1, 1.0], [0, 0, 1]).quantile(0.5) is None  # beyond all bounds
