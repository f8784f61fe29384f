"""The mesh from the figures of its peers: who is there, who sends to whom, what adds up."""

from __future__ import annotations

import pytest

from meshmsg.overview import mesh
from meshmsg.overview.mesh import GONE_S, Look, MeshView
from meshmsg.overview.rows import PeerRow, View
from tests.support.overviews import card, group, ledger_row, peer, stream, subscriber


def row(view: View, name: str) -> PeerRow:
    return next(one for one in view.peers if one.name == name)


def linked(name: str, *others: str) -> dict[str, object]:
    links = [{"address": f"tcp://{o}", "state": "up", "peer": o, "reason": ""} for o in others]
    return peer(name, links=links)


def test_peers_come_answer_and_go() -> None:
    view = MeshView()
    own = {**peer("me"), "peers": [card("shop", "publisher"), card("mute")]}
    first = view.take(Look(own, [peer("shop", stream("shop/s"))]), now=0.0)
    assert [(p.name, p.state) for p in first.peers] == [
        ("me", "here"),
        ("mute", "silent"),
        ("shop", "here"),
    ]
    assert row(first, "shop").roles == ["publisher"]
    assert row(first, "me").is_self
    gone = view.take(Look(peer("me"), changes=[("left", "mute")]), now=1.0)
    assert (row(gone, "mute").state, row(gone, "shop").state) == ("left", "silent")
    gone = view.take(Look(peer("me")), now=1.5)
    assert (row(gone, "mute").state, row(gone, "shop").state) == ("left", "lost")
    told = view.take(Look(peer("me"), changes=[("left", "shop")]), now=1.7)
    assert row(told, "shop").state == "left"
    (one,) = gone.streams
    assert (one.stream, one.is_here) == ("shop/s", False)
    back = view.take(Look(own, [peer("shop", stream("shop/s"))]), now=2.0)
    assert row(back, "shop").state == "here"
    view.take(Look(peer("me")), now=3.0)
    assert len(view.take(Look(peer("me")), now=4.0 + GONE_S).peers) == 1


def test_links_are_of_both_ends_and_once() -> None:
    a, b, c = linked("a", "b"), linked("b", "a", "c"), peer("c", clients=["b", "stranger"])
    c["links"] = [{"address": "tcp://x", "state": "trying", "peer": "a", "reason": ""}]
    assert MeshView().take(Look(a, [b, c]), now=0.0).links == [("a", "b"), ("b", "c")]


def test_flows_are_between_peers() -> None:
    view = MeshView()

    def look(delivered: int) -> Look:
        one = stream(
            "a/s",
            subscriber("b/x", delivered=delivered),
            subscriber("b/y", delivered=delivered, blocking=True, lost={"gone": 2}),
            subscriber("c/z", attached=False),
            subscriber("a/own"),
            groups=[group("g", "d/w", "e/w", acked=delivered)],
        )
        return Look(peer("a", one))

    view.take(look(0), now=0.0)
    shown = view.take(look(100), now=1.0)
    flows = {f.subscriber: (f.delivered_s, f.blocking, f.lost) for f in shown.flows}
    assert flows == {"b": (200.0, True, 2), "d": (50.0, False, 0), "e": (50.0, False, 0)}
    assert shown.totals.delivered_s == 200.0
    assert row(shown, "a").published_s == 0.0


def test_plots_have_what_streams_do() -> None:
    view = MeshView()
    for n in range(3):
        one = stream("a/s", subscriber("b/x", behind=n), published=10 * n)
        view.take(Look(peer("a", one)), now=float(n))
    assert view.history.points(("rate", "a/s")) == [0.0, 10.0, 10.0]
    assert view.history.points(("behind", "a/s")) == [0, 1, 2]
    view.take(Look(peer("b"), changes=[]), now=3.0)
    assert view.history.points(("rate", "a/s"))[-1] is None


def test_a_row_of_the_ledger_must_be_wrong_twice() -> None:
    view = MeshView()
    good = {"peer": "a", "rows": [ledger_row("a/s", "b/x", 5, 5)]}
    bad = {"peer": "a", "rows": [ledger_row("a/s", "b/x", 9, 5)]}

    def reconciles(answer: dict[str, object]) -> bool:
        (line,) = view.take(Look(peer("a"), ledgers=[answer]), now=0.0).ledger
        return line.reconciles

    assert [reconciles(one) for one in (good, bad, good, bad, bad, bad, good)] == [
        *(True, True, True, True),
        *(False, False, True),
    ]
    shown = view.take(Look(peer("a")), now=1.0)
    assert len(shown.ledger) == 1  # nobody was asked


def test_answers_that_cannot_be_read_are_counted() -> None:
    view = MeshView()
    own = {**peer("a"), "peers": [card("b")]}
    shown = view.take(Look(own, [{"peer": "b"}], ledgers=[{"rows": 3}]), now=0.0)
    assert (shown.unreadable, row(shown, "b").state) == (2, "silent")


def test_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "PEERS_MAX", 3)
    own = {**peer("me"), "peers": [card(f"p{n}") for n in range(9)]}
    assert len(MeshView().take(Look(own), now=0.0).peers) == 3
