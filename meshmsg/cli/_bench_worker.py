"""The subscriber's side of `meshmsg bench`, a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from meshmsg import Multicast, Peer, Stream, Subscription
from meshmsg.cli._workers import say, stop_asked

TOPIC = "bench.data"
PING = "ping.bench"
PONG = "pong.bench"
#: The payload that ends a measurement.
END = b""


def main(settings: Mapping[str, Any]) -> None:
    """Take part in one measurement."""
    stop_asked()
    name, connect = settings["name"], settings["connect"]
    if settings["measure"] == "round trip":
        group = settings.get("group")
        pong = Stream("pong.**", transport=None if group is None else Multicast(group))
        with Peer(name, streams=pong, connect=connect, discovery="none") as peer:
            _echo(peer)
        return
    count = {"events": _count_events, "batches": _count_batches}[settings["measure"]]
    with (
        Peer(name, connect=connect, discovery="none") as peer,
        peer.subscribe("bench.**") as events,
    ):
        say(_measure(events, count))


def _measure(events: Subscription, count: Callable[[Subscription], int]) -> dict[str, Any]:
    first = events.get()
    assert first is not None
    started = time.perf_counter()
    counted = count(events)
    took = time.perf_counter() - started
    return {"events": counted, "seconds": took, "lost": events.lost}


def _count_events(events: Subscription) -> int:
    counted = 0
    for event in events:
        if event.data == END:
            break
        counted += 1
    return counted


def _count_batches(events: Subscription) -> int:
    counted = 0
    for batch in events.batches():
        payloads = batch.payloads
        counted += len(payloads)
        if payloads[-1] == END:
            return counted - 1
    return counted


def _echo(peer: Peer) -> None:
    with peer.subscribe("ping.**") as events:
        peer.wait_for_subscribers(PONG, timeout=30)
        say({"ready": True})
        for event in events:
            data = event.data
            if data == END:
                return
            peer.publish(PONG, data)
