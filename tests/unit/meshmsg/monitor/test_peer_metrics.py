"""Figures of a peer as samples, where parts of them are not there."""

from __future__ import annotations

from meshmsg import Peer, Stream
from meshmsg.monitor.peer_metrics import (
    BATCH,
    DELAY,
    LOG_PROBLEM,
    PEER_COUNTS,
    RECEIVED_LOST,
    samples,
)


def test_a_log_that_is_not_open_costs_nothing_else() -> None:
    with Peer("a", streams=[Stream("a.**")]) as peer:
        stats = peer.stats()
    stats["streams"]["a.**"]["log"] = {"path": "x", "open": False}
    found = {sample.metric: sample.value for sample in samples(stats)}
    assert found[LOG_PROBLEM] == 0.0


def test_what_alerts_are_about_is_there_before_it_happens() -> None:
    with (
        Peer("a", streams=[Stream("a.**")]) as peer,
        Peer("b", connect=peer.address) as other,
        other.subscribe("**") as events,
    ):
        peer.wait_for_subscribers("a.b", timeout=30)
        peer.publish("a.b", 1)
        assert events.get(timeout=30) is not None
        stats = other.stats()
    lost = [s.value for s in samples(stats) if s.metric == RECEIVED_LOST[0]]
    assert lost == [0.0]
    names = {s.labels[0] for s in samples(stats) if s.metric == PEER_COUNTS}
    assert "evictions" in names
    stats["subscriptions"][0]["sources"][0]["lost"] = {"evicted": 3, "expired": 4}
    found = {s.labels[2:]: s.value for s in samples(stats) if s.metric in RECEIVED_LOST}
    assert found == {(): 7.0, ("evicted",): 3.0, ("expired",): 4.0}


def test_a_subscription_shows_how_its_events_come() -> None:
    with (
        Peer("a", streams=[Stream("a.**")]) as peer,
        Peer("b", connect=peer.address) as other,
        other.subscribe("**") as events,
    ):
        peer.wait_for_subscribers("a.b", timeout=30)
        peer.publish("a.b", 1)
        assert events.get(timeout=30) is not None
        found = {s.metric: s for s in samples(other.stats())}
    assert found[DELAY].labels == found[BATCH].labels
    assert sum(found[DELAY].value["counts"]) == 1
    assert (sum(found[BATCH].value["counts"]), found[BATCH].value["sum"]) == (1, 1.0)
