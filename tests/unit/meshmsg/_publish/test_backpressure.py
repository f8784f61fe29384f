"""Who publishes faster than it is read waits, is told whom for, and goes on in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshmsg import ClosedError, NameInUse, PublishTimeout, Stream
from meshmsg._publish.backpressure import StreamGates
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.streams import Streams
from tests.support.publishing import fill, outlet_of
from tests.support.waiting import wait_until

SUB = 7


class World:
    """A stream whose subscriber `slow` has taken nothing of more than its window."""

    def __init__(self) -> None:
        self.streams = Streams("pub")
        self.outlet = outlet_of(Stream("a", overflow="block", window_bytes=1024))
        self.streams.outlets[self.outlet.stream] = self.outlet
        self.gates = StreamGates(self.streams, {"a": self.outlet})
        self.outlet.sender.flow.admit(SUB, "slow", 0, ("**",), now=0.0)
        fill(self.outlet, 3, 1024)
        assert self.outlet.is_full()
        self.outlet.gated = True
        self.threads: list[threading.Thread] = []
        self.results: list[Any] = []

    def leave(self) -> None:
        """The subscriber is gone."""
        with self.streams.changed:
            self.outlet.sender.flow.release(SUB, now=1.0)
            self.gates.reopen(self.outlet)

    def wait_in_thread(self, timeout: float | None = None) -> None:
        def wait() -> None:
            try:
                self.results.append(self.gates.wait(self.outlet, timeout, None))
            except Exception as error:
                self.results.append(error)

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        waits = len(self.threads)
        wait_until(lambda: self.streams.counters["publish_waits"] == waits)

    def join(self) -> list[Any]:
        for thread in self.threads:
            thread.join(60)
        return self.results


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    with made.streams.changed:
        made.gates.closed = True
        made.streams.changed.notify_all()
    made.join()


def test_an_open_stream_keeps_nobody(world: World) -> None:
    world.leave()
    assert not world.outlet.gated
    assert world.gates.wait(world.outlet, 0.0, None)
    assert not world.streams.counters


def test_blocked_publishers_are_released_when_the_slow_subscriber_leaves(world: World) -> None:
    for _ in range(3):
        world.wait_in_thread()
    world.leave()
    assert world.join() == [True] * 3


def test_blocked_publisher_is_told_whom_it_waited_for(world: World) -> None:
    with pytest.raises(PublishTimeout) as caught:
        world.gates.wait(world.outlet, 0.0, None)
    assert (caught.value.stream, caught.value.subscribers) == ("pub/a", ["slow"])
    assert world.gates.blockers("a") == ("pub/a", ["slow"])
    assert world.outlet.gated


def test_a_stream_that_is_shut_for_a_moment_only_lets_through_who_waited(world: World) -> None:
    world.outlet.sender.flow.release(SUB, now=1.0)  # nobody has looked since
    assert world.gates.wait(world.outlet, 0.0, None)
    assert not world.outlet.gated


@pytest.mark.parametrize("full", [True, False])
def test_lets_through_opens_what_is_not_full(world: World, full: bool) -> None:
    if not full:
        world.outlet.sender.flow.release(SUB, now=1.0)
    assert world.gates.lets_through("a") == (not full)
    assert world.outlet.gated == full


def test_a_coroutine_is_called_once_when_the_stream_opens(world: World) -> None:
    calls: list[str] = []

    def one() -> None:
        calls.append("one")

    def other() -> None:
        calls.append("other")

    for waiter in (one, one, other):
        assert not world.gates.wait(world.outlet, None, waiter)
    world.gates.forget_waiter("a", other)
    world.gates.forget_waiter("a", other)
    world.gates.forget_waiter("nobody publishes this", one)
    world.leave()
    world.leave()
    assert calls == ["one"]


def test_who_waits_when_the_peer_closes_is_told(world: World) -> None:
    world.wait_in_thread()
    with world.streams.changed:
        world.gates.closed = True
        world.streams.changed.notify_all()
    [error] = world.join()
    assert isinstance(error, ClosedError)
    assert "while the stream was blocked" in str(error)
    with pytest.raises(ClosedError, match=r"the peer is closed$"):
        world.gates.wait(world.outlet, None, lambda: None)
    assert not world.gates.lets_through("a")


def rival(world: World) -> None:
    world.gates.rivals = {"pub/a": "tcp://192.0.2.1:7000"}


def test_a_stream_that_is_taken_from_another_peer_keeps_nobody_waiting(world: World) -> None:
    world.wait_in_thread()
    with world.streams.changed:
        rival(world)
        world.streams.changed.notify_all()
    [error] = world.join()
    assert isinstance(error, NameInUse)
    with pytest.raises(NameInUse):
        world.gates.wait(world.outlet, None, None)


def close(world: World) -> None:
    world.gates.closed = True


@pytest.mark.parametrize("shut", [rival, close])
def test_a_stream_that_nobody_may_publish_stays_shut(
    world: World, shut: Callable[[World], None]
) -> None:
    shut(world)
    world.leave()
    assert world.outlet.gated
    assert not world.gates.lets_through("a")


def test_a_stream_opens_only_when_nobody_is_in_the_way_any_more(world: World) -> None:
    outlet: Outlet = world.outlet
    outlet.sender.flow.admit(SUB + 1, "other", 0, ("**",), now=0.0)
    fill(outlet, 2, 1024)
    world.leave()
    assert outlet.gated
    assert world.gates.blockers("a")[1] == ["other"]
    outlet.sender.flow.release(SUB + 1, now=2.0)
    with world.streams.changed:
        world.gates.reopen(outlet)
    assert not outlet.gated
