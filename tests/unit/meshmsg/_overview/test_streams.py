"""Rows of streams, subscribers, groups, multicast and logs."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._overview.figures import read_stats
from meshmsg._overview.history import Rates
from meshmsg._overview.mesh import Look, MeshView
from meshmsg._overview.streams import StreamRows
from tests.support.overviews import group, peer, stream, subscriber


def rows(rates: Rates, now: float, one: dict[str, Any], *, is_here: bool = True) -> StreamRows:
    made = StreamRows(rates, now)
    for figures in read_stats(peer("a", one)).streams.values():
        made.add("a", figures, is_here=is_here)
    return made


def test_rates_and_the_slowest() -> None:
    rates = Rates()
    one = stream("a/s", subscriber("b/x"), groups=[group("g", "c/w", lag=4)])
    rows(rates, 0.0, one)
    later = stream(
        "a/s",
        subscriber("b/x", behind=7, delivered=20, lost={"gone": 2}),
        published=40,
        bytes=4_000,
        groups=[group("g", "c/w", lag=9, acked=6, lost={"expired": 1})],
    )
    made = rows(rates, 2.0, later)
    (row,) = made.streams
    assert (row.published_s, row.bytes_s, row.behind, row.lost) == (20.0, 2_000.0, 9, 3)
    assert made.subscribers[0].delivered_s == 10.0
    assert made.groups[0].acked_s == 3.0
    assert made.published == {"a": 20.0}


def test_a_new_epoch_begins_anew() -> None:
    rates = Rates()
    rows(rates, 0.0, stream("a/s", published=10))
    assert rows(rates, 1.0, stream("a/s", published=90, epoch=2)).streams[0].published_s == 0.0


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        ({}, "live"),
        ({"attached": False}, "away"),
        ({"blocking": True}, "blocking"),
        ({"blocking": True, "evicted": True}, "evicted"),
    ],
)
def test_states_of_subscribers(figures: dict[str, Any], state: str) -> None:
    one = stream("a/s", subscriber("b/x", **figures))
    assert rows(Rates(), 0.0, one).subscribers[0].state == state
    assert rows(Rates(), 0.0, one, is_here=False).subscribers[0].state == "gone"


def test_multicast_and_logs() -> None:
    sender = {
        "flow": "slowest",
        "next": 9,
        "sent": 9,
        "slowest": 4,
        "receivers": 2,
        "nacks": 3,
        "unreached": ["b"],
    }
    times = {"bounds": [0.1, 1.0], "counts": [1, 0, 0], "sum": 0.1}
    log = {"path": "/d", "open": True, "next": 9, "sync_s": times, "problem": "no space"}
    log |= {"disk_bytes": 4096, "oldest_s": 60.5, "retention": "7d"}
    made = rows(Rates(), 0.0, stream("a/s", multicast=sender, log=log))
    assert made.streams[0].transport == "multicast"
    assert (made.senders[0].behind, made.senders[0].unreached) == (5, ["b"])
    (row,) = made.logs
    assert (row.sync_p99_s, row.problem) == (0.1, "no space")
    assert (row.peer, row.disk_bytes, row.oldest_s, row.retention) == ("a", 4096, 60.5, "7d")


def test_logs_of_a_recorder_stand_beside_those_of_publishers() -> None:
    kept = [
        {"stream": "a/s", "next": 9, "disk_bytes": 64, "oldest_s": None, "retention": "1GB"},
        {"stream": "a/t", "next": 0},  # of a peer whose statistics do not tell more
    ]
    one = peer("r", recorder={"topics": ["**"], "problem": None, "streams": kept})
    seen = MeshView().take(Look(one), now=0.0)
    assert [(row.stream, row.peer, row.events) for row in seen.logs] == [
        ("a/s", "r", 9),
        ("a/t", "r", 0),
    ]
    assert [(row.disk_bytes, row.retention) for row in seen.logs] == [(64, "1GB"), (None, None)]
