"""Who publishes and then waits for an answer does not wait for its own open frame."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from meshmsg import AsyncPeer, Peer, Stream


def hold_back(peer: Any) -> Any:
    """The stream counts as busy, and the gathering thread does not send what is open."""
    node = peer._open_node()
    outlet = node.publisher.find("a.b")
    node.publisher._gathered._send = lambda: False
    outlet.due_ns = 1 << 62
    return outlet


@pytest.mark.parametrize("wait", ["get", "get_many", "batches"])
def test_a_thread_that_waits_sends_what_it_has_published(wait: str) -> None:
    with Peer("p", streams=Stream("a.**")) as peer, peer.subscribe("other.**") as events:
        outlet = hold_back(peer)
        peer.publish("a.b", 1)
        assert outlet.count == 1
        if wait == "get":
            assert events.get(timeout=0.01) is None
        elif wait == "get_many":
            assert events.get_many(timeout=0.01) == []
        else:
            assert list(events.batches(timeout=0.01)) == []
        assert outlet.count == 0
        assert outlet.sender.sealed == 1


def test_a_thread_that_waits_leaves_alone_what_another_is_filling() -> None:
    with Peer("p", streams=Stream("a.**")) as peer, peer.subscribe("other.**") as events:
        outlet = hold_back(peer)
        other = threading.Thread(target=peer.publish, args=("a.b", 1))
        other.start()
        other.join()
        assert events.get(timeout=0.01) is None
        assert outlet.count == 1


def test_a_coroutine_that_waits_sends_what_its_loop_has_published() -> None:
    async def run() -> tuple[int, int]:
        async with (
            AsyncPeer("p", streams=Stream("a.**")) as peer,
            peer.subscribe("other.**") as events,
        ):
            outlet = hold_back(peer)
            await peer.publish("a.b", 1)
            before = outlet.count
            assert await events.get(timeout=0.01) is None
            return before, outlet.count

    assert asyncio.run(run()) == (1, 0)
