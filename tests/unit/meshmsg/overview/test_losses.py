"""Losses, each once, the newest first."""

from __future__ import annotations

import pytest

from meshmsg.overview import losses
from meshmsg.overview.figures import Lost, PeerFigures, Subscription
from meshmsg.overview.losses import Losses
from meshmsg.overview.rows import GroupRow


def peer(*lost: Lost) -> PeerFigures:
    subscription = Subscription("b/x", ["**"], [], list(lost))
    return PeerFigures("b", "m", "1", [], {}, [subscription], [], [])


def test_a_range_is_seen_once() -> None:
    seen = Losses()
    first, second = Lost("a/s", 1, 5, 8, "overflow"), Lost("a/s", 1, 20, 21, "gone")
    (row,) = seen.take([peer(first)], [], now=10.0)
    assert (row.count, row.first, row.stop, row.reason, row.seen_s) == (3, 5, 8, "overflow", 0.0)
    rows = seen.take([peer(first, second)], [], now=12.0)
    assert [(row.reason, row.seen_s) for row in rows] == [("gone", 0.0), ("overflow", 2.0)]
    assert len(seen.take([], [], now=13.0)) == 2  # the subscription has ended


def test_groups_only_count() -> None:
    seen = Losses()
    group = GroupRow("a/s", "g", 0, 0, 0, 0, 0.0, 0, 0.0, 0, 4, [])
    (row,) = seen.take([], [group], now=1.0)
    assert (row.name, row.count, row.first) == ("group g", 4, None)


def test_losses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "LOSSES_MAX", 3)
    seen = Losses()
    for n in range(6):
        rows = seen.take([peer(Lost("a/s", 1, n, n + 1, "gone"))], [], now=float(n))
    assert [row.first for row in rows] == [5, 4, 3]
