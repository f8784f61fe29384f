"""A bridge waits where its stream waits, for as long as it is to go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from meshmsg._bridge.publishing import publish_patiently
from meshmsg._model.errors import NoStream, PublishTimeout


class Blocked:
    """A peer whose stream lets something through at the `opens`th attempt."""

    def __init__(self, opens: int, stopping: threading.Event, stops: int = 0) -> None:
        self.opens, self.stopping, self.stops = opens, stopping, stops
        self.timeouts: list[float] = []
        self.published: list[Any] = []

    def publish(self, topic: str, data: Any, *, key: str | None, timeout: float) -> None:
        self.timeouts.append(timeout)
        if len(self.timeouts) == self.stops:
            self.stopping.set()
        if len(self.timeouts) < self.opens:
            raise PublishTimeout("a.**", timeout, ["slow"])
        self.published.append((topic, data, key))


def publish(peer: Any, stopping: threading.Event) -> None:
    publish_patiently(peer, stopping, "a.b", 1, "k")


def test_event_is_published_at_once_where_nothing_blocks() -> None:
    stopping = threading.Event()
    peer = Blocked(1, stopping)
    publish(peer, stopping)
    assert peer.published == [("a.b", 1, "k")]


def test_blocked_stream_is_waited_for_however_long_it_takes() -> None:
    stopping = threading.Event()
    peer = Blocked(50, stopping)
    publish(peer, stopping)
    assert len(peer.published) == 1
    assert all(timeout > 0 for timeout in peer.timeouts)


def test_bridge_that_is_to_end_tries_once_more_and_gives_up() -> None:
    stopping = threading.Event()
    stopping.set()
    peer = Blocked(2, stopping)
    with pytest.raises(PublishTimeout):
        publish(peer, stopping)
    assert peer.timeouts == [0.0]
    publish(peer, stopping)  # it is open by now
    assert len(peer.published) == 1


def test_bridge_that_is_told_to_end_while_it_waits_gives_up_then() -> None:
    stopping = threading.Event()
    peer = Blocked(100, stopping, stops=3)
    with pytest.raises(PublishTimeout):
        publish(peer, stopping)
    assert len(peer.timeouts) == 3


def test_other_errors_are_not_waited_out() -> None:
    class Wrong:
        def publish(self, *_: Any, **__: Any) -> None:
            raise NoStream("a.b", [])

    with pytest.raises(NoStream):
        publish(Wrong(), threading.Event())
