"""Recovery with packets lost by an injected fault: needs no rights and runs everywhere."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from meshmsg import Feed, Multicast, Peer, Stream, WaitTimeout, testing
from meshmsg._receive.multicast_groups import Tuner
from tests.scenarios.multicast.conftest import new_group
from tests.support import numbered
from tests.support.pairs import pair
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


@pytest.mark.parametrize("percent", [5, 20])
def test_events_arrive_complete_and_in_order(group: str, ledger: object, percent: int) -> None:
    """The sender, and three receivers that lose packets each on its own."""
    count = 40_000
    stream = {"topics": "a.**", "transport": {"group": group}}
    subs: list[RemotePeer] = []
    with RemotePeer("pub", streams=[stream]) as pub:
        try:
            for number in range(3):
                sub = RemotePeer(f"sub{number}", connect=pub.address)
                subs.append(sub)
                sub.run("import numbered; events = peer.subscribe('a.**')")
                sub.run("events.wait_for_publishers(1, 30); reader = numbered.Reader(events)")
                sub.run(f"loss = testing.lose_packets(peer, {percent / 100}, seed={number})")
                sub.run("path = loss.__enter__()")
                sub.send(f"reader.read({count}, 60)", evaluate=True)
            pub.run("import numbered; peer.wait_for_subscribers('a.b', 3, 30)")
            pub.run(f"numbered.publish(peer, 'a.b', 0, {count})")
            for sub in subs:
                result = sub.answer(70)
                assert (result["first"], result["delivered"], result["losses"]) == (0, count, [])
                assert sub.eval("path.dropped") > 0
            rows = ledger(pub.address)  # type: ignore[operator]
            assert [row["delivered"] for row in rows] == [count] * 3
        finally:
            for sub in subs:
                sub.close()


def test_receiver_counts_when_it_takes_packets(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    enter, asked, may_enter = Tuner.enter, threading.Event(), threading.Event()

    def enter_later(*arguments: Any) -> None:
        asked.set()
        assert may_enter.wait(60)
        enter(*arguments)

    monkeypatch.setattr(Tuner, "enter", enter_later)
    with (
        Peer("pub", streams=[Stream("a.**", transport=Multicast(group))]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as events,
    ):
        try:
            assert asked.wait(60)
            with pytest.raises(WaitTimeout):
                pub.wait_for_subscribers("a.b", timeout=0.5)
        finally:
            may_enter.set()
        pub.wait_for_subscribers("a.b", timeout=60)
        pub.publish_many("a.b", numbered.payloads(0, 1000))
        assert numbered.Reader(events).read(1000)["delivered"] == 1000


def is_held(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def test_packets_are_lost_for_a_consumer_that_waits(group: str) -> None:
    with pair(Stream("a.**", transport=Multicast(group))) as (pub, sub, events):
        waiting = threading.Thread(target=lambda: events.get(timeout=60))
        waiting.start()
        wait_until(lambda: is_held(events._intake.lock), what="it waits")
        with testing.lose_packets(sub, 1.0) as path:
            assert waiting.is_alive()
            pub.publish("a.b", b"x")
            waiting.join(60)
        assert path.data_dropped > 0, "the event came over the connection"


def test_what_the_sender_loses_is_repaired_for_all(group: str) -> None:
    config = Multicast(group)
    with (
        Peer("pub", streams=[Stream("a.**", transport=config)]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as events,
        Peer("hand", feeds=[Feed("pub", "a.**", config)]) as hand,
        hand.subscribe("a.**") as others,
    ):
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        others.wait_for_publishers(1, timeout=30)
        with testing.lose_packets(pub, 0.1, seed=3) as path:
            pub.publish_many("a.b", numbered.payloads(0, 30_000))
            for subscription in (events, others):
                result = numbered.Reader(subscription).read(30_000)
                assert (result["delivered"], result["losses"]) == (30_000, [])
        assert path.dropped > 100
        repairs = pub.stats()["streams"]["a.**"]["multicast"]["repairs"]
        assert repairs < path.dropped * 3


def test_the_last_packet_of_all_is_found_missing(group: str) -> None:
    """Tail loss: nothing follows that would show the gap, but heartbeats do."""
    with pair(Stream("a.**", transport=Multicast(group))) as (pub, _, events):
        for number in range(20):
            with testing.lose_packets(pub, 1.0):
                pub.publish("a.b", number)
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == number


@pytest.mark.parametrize("transport", ["multicast", "zeromq"])
def test_a_busy_stream_does_not_keep_another_line_waiting(transport: str) -> None:
    busy_line = Multicast(new_group()) if transport == "multicast" else None
    busy = Stream("busy.**", overflow="drop_oldest", transport=busy_line)
    calm = Stream("calm.**", transport=Multicast(new_group()))
    with (
        Peer("loud", streams=[busy]) as loud,
        Peer("quiet", streams=[calm]) as quiet,
        Peer("desk", connect=[loud.address, quiet.address]) as desk,
        desk.subscribe("**") as events,
    ):
        loud.wait_for_subscribers("busy.a", timeout=30)
        quiet.wait_for_subscribers("calm.a", timeout=30)
        events.wait_for_publishers(2, timeout=30)
        with events._intake.lock:  # nobody reads meanwhile
            for _ in range(40):
                loud.publish("busy.a", b"x" * 60_000)
            quiet.publish("calm.a", 1)
            time.sleep(0.2)
        read = events.batches(timeout=30)
        streams = [next(read).stream for _ in range(8)]
    assert "quiet/calm.**" in streams
