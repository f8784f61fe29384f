"""A peer of very many streams costs a little for each of them, and that once."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from meshmsg import Peer, Stream
from meshmsg._publish.published_stream import Outlet
from meshmsg.recovery.stream.flow_control import FlowControl
from tests.support.waiting import wait_until

STREAMS = 640  #: ten pages


def test_each_stream_admits_a_subscriber_once(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: Counter[int] = Counter()
    come_back = FlowControl.come_back

    def counted(flow: FlowControl, *given: Any, **named: Any) -> None:
        admitted[id(flow)] += 1
        come_back(flow, *given, **named)

    monkeypatch.setattr(FlowControl, "come_back", counted)
    streams = [Stream(f"t{n}.**") for n in range(STREAMS)]
    with Peer("many", streams=streams) as many, Peer("sub", connect=many.address) as sub:
        with sub.subscribe("**") as events:
            publisher = many._node.publisher
            wait_until(
                lambda: (
                    sum(len(s.confirmed) for s in publisher.subscribers.subs.values()) == STREAMS
                )
            )
            many.publish(f"t{STREAMS - 1}.x", "the last one")
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == "the last one"
        assert sub.stats()["counters"].get("subscriptions_repeated", 0) == 0
    assert len(admitted) == STREAMS
    # Its page may come before its pipe is seen, or after.
    assert max(admitted.values()) <= 2


def test_looking_after_streams_leaves_time_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer("many", streams=[Stream(f"t{n}.**") for n in range(20)]) as many:
        publisher = many._node.publisher
        tended, spent = publisher._tended, 0.0

        def slowly(outlet: Outlet, now: float) -> float:
            nonlocal spent
            began = time.monotonic()
            time.sleep(0.001)
            due = tended(outlet, now)
            spent += time.monotonic() - began
            return due

        monkeypatch.setattr(publisher, "_tended", slowly)
        began = time.monotonic()
        while time.monotonic() - began < 0.6:
            many._node.wake()  # as all that comes in does
            time.sleep(0.001)
        took = time.monotonic() - began
    assert 0 < spent < took / 3
