"""A peer of very many streams costs a little for each of them, and that once."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from meshmsg import Peer, Stream, Tuning
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.publisher import LOOK_S
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
    monkeypatch.setattr("meshmsg.recovery.stream.unconfirmed.FIRST_S", 60.0)  # however slow it is
    streams, calm = [Stream(f"t{n}.**") for n in range(STREAMS)], Tuning(peer_timeout_s=60)
    with (
        Peer("many", streams=streams, tuning=calm) as many,
        Peer("sub", connect=many.address, tuning=calm) as sub,
        sub.subscribe("**") as events,
    ):
        publisher = many._node.publisher
        wait_until(
            lambda: sum(len(s.confirmed) for s in publisher.subscribers.subs.values()) == STREAMS
        )
        many.publish(f"t{STREAMS - 1}.x", "the last one")
        event = events.get(timeout=30)
        assert event is not None
        assert event.data == "the last one"
    assert len(admitted) == STREAMS
    # Its page may come before its pipe is seen, or after.
    assert max(admitted.values()) <= 2


def test_looking_after_streams_leaves_time_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes 20 ms or more is not repeated each turn, but when the next is due."""
    with Peer("many", streams=[Stream(f"t{n}.**") for n in range(20)]) as many:
        publisher = many._node.publisher
        tended, looks = publisher._tended, 0

        def slowly(outlet: Outlet, now: float) -> float:
            nonlocal looks
            looks += outlet.config.topics == "t0.**"
            time.sleep(0.001)
            return tended(outlet, now)

        monkeypatch.setattr(publisher, "_tended", slowly)
        began = time.monotonic()
        while time.monotonic() - began < 0.6:
            many._node.wake()  # as all that comes in does
            time.sleep(0.001)
        took = time.monotonic() - began
    assert 0 < looks <= took / LOOK_S + 2
