"""What gathers in an open frame leaves, whoever waits for what; and nobody polls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from meshmsg import Peer, Stream
from meshmsg._peer.node import Node
from tests.support.pairs import pair
from tests.support.waiting import wait_until

BURST = 200
WAIT_S = 60.0


def node_of(peer: Peer) -> Node:
    return peer._open_node()


@contextmanager
def held_up(peer: Peer) -> Iterator[None]:
    """The I/O thread of a peer does nothing meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    node_of(peer).call(hold)
    assert begun.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()


def test_the_end_of_a_burst_does_not_wait_for_the_io_thread() -> None:
    with pair() as (pub, _, events):
        events.wait_for_publishers(timeout=WAIT_S)
        with held_up(pub):
            for n in range(BURST):
                pub.publish("a.b", n)
            # This thread only waits for the other one: it neither publishes nor reads.
            taken: list[int] = []

            def take() -> None:
                while len(taken) < BURST and (event := events.get(timeout=WAIT_S)) is not None:
                    taken.append(event.data)

            taker = threading.Thread(target=take)
            taker.start()
            taker.join(WAIT_S / 2)
            assert taken == list(range(BURST))


def test_a_rush_over_many_streams_ends_by_itself() -> None:
    # Not more than ZeroMQ has room for: nobody could ask for it again.
    streams, count = 40, 400
    with (
        Peer("pub", streams=[Stream(f"a{n}.**") for n in range(streams)]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("**") as events,
    ):
        for n in range(streams):
            pub.wait_for_subscribers(f"a{n}.b", timeout=WAIT_S)
        events.wait_for_publishers(streams, timeout=WAIT_S)
        with held_up(pub):
            for n in range(count):
                pub.publish(f"a{n % streams}.b", n)
            taken = {event.data for _ in range(count) if (event := events.get(WAIT_S / 2))}
            assert taken == set(range(count))
        wait_until(lambda: not node_of(pub).publisher._dirty)


def test_a_busy_consumer_does_not_have_its_peer_poll() -> None:
    with pair() as (pub, sub, events):
        pub.publish("a.b", 1)
        event = events.get(timeout=WAIT_S)
        assert event is not None  # and from here on nobody reads
        node = node_of(sub)
        turns = pings = 0
        wait, ping = node._poller.wait, node.links.on_ping

        def count_turn(timeout_s: float) -> list[object]:
            nonlocal turns
            turns += 1
            return wait(timeout_s)

        def count_ping(now: float) -> None:
            nonlocal pings
            pings += 1
            ping(now)

        (intake,) = node.intakes.values()
        wait_until(lambda: intake.driven_at + intake.background_s < time.monotonic())
        node.links.on_ping = count_ping  # type: ignore[method-assign]
        node._poller.wait = count_turn  # type: ignore[method-assign,assignment]
        wait_until(lambda: pings == 1)
        turns = 0
        wait_until(lambda: pings == 3)
        assert turns < 100  # it was 200 a second


def test_what_comes_for_a_busy_consumer_is_read_ahead() -> None:
    with pair() as (pub, sub, events):
        pub.publish("a.b", 0)
        event = events.get(timeout=WAIT_S)
        assert event is not None
        (intake,) = node_of(sub).intakes.values()
        watched = node_of(sub)._background._watched
        for n in range(1, 4):
            wait_until(lambda: bool(watched.get(intake)))
            pub.publish("a.b", n)
            wait_until(lambda n=n: intake.figures_of(intake.sources())[0].received == n + 1)  # type: ignore[misc]
        assert [event.data for event in events.get_many(3, timeout=WAIT_S)] == [1, 2, 3]
        wait_until(lambda: not watched)  # who reads again does so by itself
