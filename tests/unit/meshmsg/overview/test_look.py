"""Asking real peers."""

from __future__ import annotations

import gc
import time

import pytest

from meshmsg import ClosedError, Peer, Stream
from meshmsg.overview.look import LEDGER_EACH, PERIOD_S, MeshLook
from meshmsg.overview.mesh import MeshView
from meshmsg.overview.rows import View
from tests.support.waiting import wait_until

PATIENCE_S = 30


def test_all_peers_are_seen_by_one_that_does_nothing() -> None:
    with (
        Peer("shop", streams=Stream("s.**")) as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("s.**", name="all") as events,
        Peer("eye", connect=[shop.address, desk.address]) as eye,
    ):
        shop.wait_for_subscribers("s.x", timeout=PATIENCE_S)
        for n in range(10):
            shop.publish("s.x", n)
            assert events.get(timeout=PATIENCE_S) is not None
        looking, view = MeshLook(eye), MeshView()

        def look() -> View:
            return view.take(looking.look(), now=time.monotonic())

        def is_whole() -> bool:
            seen = look()
            here = {peer.name for peer in seen.peers if peer.state == "here"}
            return here == {"shop", "desk", "eye"} and [f.subscriber for f in seen.flows] == [
                "desk"
            ]

        wait_until(is_whole, PATIENCE_S)
        wait_until(lambda: any(line.delivered == 10 for line in look().ledger), PATIENCE_S)
        assert all(line.reconciles for line in look().ledger)
        assert ("desk", "shop") in look().links
        assert looking.pause_s >= PERIOD_S
        desk.close()
        wait_until(
            lambda: "left" in {p.state for p in look().peers if p.name == "desk"}, PATIENCE_S
        )
        looking.close()
        looking.close()


def test_the_ledger_is_asked_for_less_often() -> None:
    with Peer("alone", discovery="none") as peer:
        looking = MeshLook(peer)
        asked = [looking.look().ledgers is not None for _ in range(2 * LEDGER_EACH)]
        assert [n for n, was in enumerate(asked) if was] == [0, LEDGER_EACH]


def test_a_peer_that_is_closed_or_gone_is_not_looked_at() -> None:
    with Peer("brief", discovery="none") as peer:
        looking = MeshLook(peer)
    with pytest.raises(ClosedError):
        looking.look()
    del peer
    gc.collect()
    with pytest.raises(ClosedError, match="gone"):
        looking.look()
