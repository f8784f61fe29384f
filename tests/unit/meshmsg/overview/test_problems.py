"""What somebody should look at, and since when."""

from __future__ import annotations

import pytest

from meshmsg.overview import problems
from meshmsg.overview.mesh import Look, MeshView
from meshmsg.overview.problems import NEWS_S, Problems
from meshmsg.overview.rows import ProblemRow
from tests.support.overviews import card, group, peer, stream, subscriber


def found(look: Look, now: float = 0.0) -> list[tuple[str, str]]:
    return [(row.what, row.problem) for row in MeshView().take(look, now=now).problems]


def test_nothing_is_wrong_with_a_quiet_mesh() -> None:
    assert found(Look(peer("a", stream("a/s", subscriber("b/x"))))) == []


def test_what_is_wrong_is_named() -> None:
    log = {"path": "/d", "open": False}
    sender = {
        "flow": "slowest",
        "next": 1,
        "sent": 1,
        "slowest": 1,
        "receivers": 1,
        "unreached": ["c"],
    }
    recorder = {"topics": ["**"], "problem": "disk full"}
    one = stream(
        "a/s",
        subscriber("b/x", evicted=True),
        blocked=True,
        blocked_by=["b/x"],
        groups=[group("g", lag=3, dead=1)],
        log=log,
        multicast=sender,
    )
    taken = [{"stream": "a/t", "address": "tcp://127.0.0.1:1"}]
    stats = peer("a", one, problem="broken", name_in_use=taken, recorder=recorder)
    texts = dict(found(Look({**stats, "peers": [card("quiet")]})))
    assert texts["a"] == "broken"
    assert texts["a/s → b/x"].startswith("evicted")
    assert texts["recorder a"] == "disk full"
    assert "tcp://127.0.0.1:1" in texts["a/t"]
    assert texts["quiet"] == "the peer does not answer"
    assert texts["a/s → group g"] == "1 dead letters"
    every = [problem for _, problem in found(Look(stats))]
    assert "blocked by b/x" in every
    assert "has work and no members" in every
    assert "its log is not open" in every
    assert any("do not reach c" in problem for problem in every)


def test_bad_ones_come_first_and_keep_their_time() -> None:
    aged = Problems()
    aged.age([("odd", "x", "7 dead letters")], now=10.0)
    rows = aged.age([("odd", "x", "9 dead letters"), ("bad", "y", "broken")], now=15.0)
    assert rows == [
        ProblemRow("bad", "y", "broken", 0.0),
        ProblemRow("odd", "x", "9 dead letters", 5.0),
    ]
    aged.age([], now=20.0)
    assert aged.age([("odd", "x", "9 dead letters")], now=25.0)[0].for_s == 0.0


def test_a_loss_is_news_for_a_while() -> None:
    lost = [{"stream": "a/s", "epoch": 1, "first": 2, "stop": 5, "reason": "overflow"}]
    stats = peer("b", subscriptions=[{"name": "b/x", "topics": [], "sources": [], "losses": lost}])
    view = MeshView()
    (row,) = view.take(Look(stats), now=0.0).problems
    assert (row.what, row.problem) == ("a/s → b/x", "lost 3 events: overflow")
    assert view.take(Look(stats), now=NEWS_S + 1).problems == []
    assert len(view.take(Look(stats), now=NEWS_S + 1).losses) == 1


def test_problems_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "PROBLEMS_MAX", 3)
    assert len(Problems().age([("bad", str(n), "x") for n in range(9)], now=0.0)) == 3
