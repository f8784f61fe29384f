"""Who is here: `peers()`, callbacks, iterators, sync and async."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from meshmsg import AsyncPeer, ClosedError, Peer, PeerChange, Stream, Tuning
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

QUICK = Tuning(ping_interval_s=0.1, peer_timeout_s=2.0)


def kinds(changes: list[PeerChange]) -> list[tuple[str, str]]:
    return [(change.kind, change.peer.name) for change in changes]


def test_both_sides_of_a_connection_know_each_other() -> None:
    with (
        Peer("hub", streams=[Stream("a.**")]) as hub,
        Peer("leaf", connect=hub.address) as leaf,
        leaf.subscribe("a.**") as events,
        leaf.subscribe("a.**", group="workers") as work,
    ):
        wait_until(lambda: leaf.peers() and hub.peers() and hub.peers()[0].groups)
        (info,) = hub.peers()
        assert (info.name, info.roles, info.groups, info.streams) == (
            "leaf",
            ("subscriber", "worker"),
            ("workers",),
            (),
        )
        (info,) = leaf.peers()
        assert (info.name, info.roles) == ("hub", ("publisher",))
        assert "hub/a.**" in info.streams
        assert info.addresses == (hub.address,)
        assert info.protocol == 2
        assert info.software
        assert info.as_dict()["instance"] == f"{info.instance:016x}"
        assert events.name is not None
        assert work.group == "workers"


def test_changes_come_in_order_to_watches_and_callbacks() -> None:
    with Peer("hub", tuning=QUICK) as hub, hub.watch_peers() as watch:
        called: list[PeerChange] = []
        gone = threading.Event()

        def on_change(change: PeerChange) -> None:
            called.append(change)
            if change.kind == "left":
                gone.set()
                raise RuntimeError("a callback that fails ends nothing")

        stop = hub.on_peers(on_change)
        with Peer("leaf", connect=hub.address, tuning=QUICK) as leaf:
            assert kinds([watch.get(30)]) == [("joined", "leaf")]  # type: ignore[list-item]
            leaf.publish("a.b", 1)
            change = watch.get(30)
            assert change is not None
            assert (change.kind, change.peer.streams) == ("changed", ("leaf/**",))
            with hub.watch_peers() as late:
                assert kinds([late.get(30)]) == [("joined", "leaf")]  # type: ignore[list-item]
        assert kinds([watch.get(30)]) == [("left", "leaf")]  # type: ignore[list-item]
        assert gone.wait(30)
        assert kinds(called) == [("joined", "leaf"), ("changed", "leaf"), ("left", "leaf")]
        wait_until(lambda: hub.stats()["counters"].get("callback_errors") == 1)
        stop()
        assert hub.peers() == []
        assert watch.get(0) is None


def test_killed_peer_is_lost_and_a_frozen_one_comes_back() -> None:
    with Peer("hub", tuning=QUICK) as hub, hub.watch_peers() as watch:
        tuning = {"ping_interval_s": 0.1, "peer_timeout_s": 2.0}
        with RemotePeer("leaf", connect=hub.address, tuning=tuning) as leaf:
            assert kinds([watch.get(30)]) == [("joined", "leaf")]  # type: ignore[list-item]
            leaf.stop()
            assert kinds([watch.get(30)]) == [("lost", "leaf")]  # type: ignore[list-item]
            assert hub.peers() == []
            leaf.go_on()
            assert kinds([watch.get(30)]) == [("joined", "leaf")]  # type: ignore[list-item]
            leaf.kill()
            assert kinds([watch.get(30)]) == [("lost", "leaf")]  # type: ignore[list-item]


def test_closing_the_peer_ends_iterators() -> None:
    peer = Peer("hub").open()
    watch = peer.watch_peers()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    peer.close()
    thread.join(30)
    assert not thread.is_alive()
    assert seen == []
    with pytest.raises(ClosedError):
        peer.watch_peers()
    with pytest.raises(ClosedError):
        peer.peers()


def test_async_iterator() -> None:
    async def main() -> list[tuple[str, str]]:
        async with AsyncPeer("hub", tuning=QUICK) as hub, hub.watch_peers() as watch:
            assert await watch.get(timeout=0) is None
            seen = []
            leaf = AsyncPeer("leaf", connect=hub.address, tuning=QUICK)
            await leaf.__aenter__()
            async for change in watch:
                seen.append((change.kind, change.peer.name))
                if change.kind == "joined":
                    assert [info.name for info in hub.peers()] == ["leaf"]
                    await leaf.close()
                else:
                    break
            waiting = asyncio.ensure_future(watch.get())
            await asyncio.sleep(0)
            watch.close()
            assert await waiting is None
            return seen

    assert asyncio.run(main()) == [("joined", "leaf"), ("left", "leaf")]


def test_asking_works_both_ways() -> None:
    """Of two peers only one has dialled; each can ask the other."""
    with Peer("hub") as hub, Peer("leaf", connect=hub.address) as leaf:
        hub.wait_for_peers(1, timeout=30)
        leaf.wait_for_peers(1, timeout=30)
        wait_until(lambda: hub.peers() and leaf.peers())
        assert [a["peer"] for a in hub.ask("stats").values()] == ["leaf"]
        assert [a["peer"] for a in leaf.ask("stats").values()] == ["hub"]
