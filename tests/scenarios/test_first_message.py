"""After `wait_for_subscribers` returns, nothing is missed, the first event included."""
# ruff: noqa: SIM117 - what is opened and what is expected to fail are two things

from __future__ import annotations

import pytest

import meshmsg
from meshmsg import Peer, Stream
from tests.support.remote import RemotePeer

EVENTS = 1000
STARTS = 100


def test_every_event_arrives_in_a_hundred_fresh_starts() -> None:
    for start in range(STARTS):
        with (
            Peer("pub", streams=[Stream("first.**")]) as pub,
            Peer("one", connect=pub.address) as one,
            Peer("two", connect=pub.address) as two,
            one.subscribe("first.**") as first,
            two.subscribe("first.message") as second,
        ):
            pub.wait_for_subscribers("first.message", count=2, timeout=30)
            for number in range(EVENTS):
                pub.publish("first.message", number)
            for events in (first, second):
                got = [event.data for event in _take(events, EVENTS)]
                assert got == list(range(EVENTS)), f"in start {start}"
                assert events.stats()["sources"][0]["nacks"] == 0, "not by luck of a repair"


def _take(events: meshmsg.Subscription, count: int) -> list[meshmsg.Event]:
    taken: list[meshmsg.Event] = []
    while len(taken) < count:
        more = events.get_many(count - len(taken), timeout=30)
        assert more, f"only {len(taken)} of {count}"
        taken += more
    return taken


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_first_event_arrives_in_processes_of_their_own(transport: str, tmp_path: object) -> None:
    bind = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/pub"
    for _ in range(3):
        with (
            RemotePeer("pub", bind=bind, streams=[{"topics": "first.**"}]) as pub,
            RemotePeer("sub", connect=pub.address) as sub,
        ):
            sub.run("events = peer.subscribe('first.**')")
            pub.run("peer.wait_for_subscribers('first.x', 1, timeout=30)")
            pub.run(f"for n in range({EVENTS}): peer.publish('first.x', n)")
            got = sub.eval(f"[events.get(30).data for _ in range({EVENTS})]")
            assert got == list(range(EVENTS))


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_publisher_that_dials_the_subscriber_is_dialled_back(
    transport: str, tmp_path: object
) -> None:
    bind = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/sub"
    with Peer("sub", bind=bind) as sub, sub.subscribe("**") as events:
        with Peer("pub", connect=sub.address) as pub:
            pub.wait_for_subscribers("some.topic", count=1, timeout=30)
            pub.publish("some.topic", "first")
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == "first"


def test_waiting_for_more_than_there_are_names_what_is_missing() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        with pytest.raises(meshmsg.WaitTimeout, match=r"0 of 2 subscribers for 'a.b'"):
            pub.wait_for_subscribers("a.b", count=2, timeout=0.05)


def test_subscription_of_other_topics_does_not_count() -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.b.*") as events,
    ):
        events.wait_for_publishers(timeout=30)
        pub.wait_for_subscribers("a.b.c", count=1, timeout=30)
        with pytest.raises(meshmsg.WaitTimeout):
            pub.wait_for_subscribers("a.x", count=1, timeout=0.05)
