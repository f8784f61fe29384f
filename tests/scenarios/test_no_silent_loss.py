"""Whatever loses a frame, the gap is found, repaired, or reported with its exact range."""

from __future__ import annotations

import random

import pytest

import meshmsg
from meshmsg import Loss, Peer, Stream, Tuning
from meshmsg.testing import lose_frames, lose_messages
from tests.support.pairs import pair
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

FAST = Tuning(heartbeat_min_s=0.02, heartbeat_max_s=0.2, repair_deadline_s=1.0)


def drain(events: meshmsg.Subscription, count: int, timeout: float = 30) -> list[meshmsg.Event]:
    got: list[meshmsg.Event] = []
    while len(got) < count:
        more = events.get_many(count, timeout=timeout)
        assert more, f"{len(got)} of {count}; {events.losses}; {events.stats()}"
        got += more
    return got


@pytest.mark.parametrize("seed", range(3))
def test_dropped_frames_are_repaired_in_order_without_duplicates(seed: int) -> None:
    with pair(tuning=FAST) as (pub, _, events), lose_frames(pub, ratio=0.3, seed=seed) as lossy:
        size = random.Random(seed)
        sent = 0
        while sent < 20_000:
            count = size.randrange(1, 300)
            pub.publish_many("a.b", list(range(sent, sent + count)))
            sent += count
        got = drain(events, sent)
        assert [event.data for event in got] == list(range(sent))
        assert [event.seq for event in got] == list(range(sent))
        assert lossy.dropped > 10
        assert events.losses == []
        assert events.stats()["sources"][0]["repaired"] > 0
        assert pub.ledger().reconciles


def test_lost_tail_before_silence_is_found() -> None:
    with pair(tuning=FAST) as (pub, _, events):
        pub.publish("a.b", "heard")
        assert drain(events, 1)[0].data == "heard"
        with lose_frames(pub, ratio=1.0):
            pub.publish("a.b", "the last one")
            assert drain(events, 1, timeout=30)[0].data == "the last one"


def test_lost_tail_is_found_even_if_no_heartbeat_gets_through() -> None:
    with pair(tuning=FAST) as (pub, _, events), lose_messages(pub, lambda message: True):
        pub.publish("a.b", "unheard of")
        assert drain(events, 1, timeout=30)[0].data == "unheard of"


def test_loss_past_the_buffer_is_reported_with_its_exact_range() -> None:
    stream = Stream("a.**", overflow="drop_oldest", buffer_bytes="64KiB")
    seen: list[Loss] = []
    with pair(stream, tuning=FAST, options={"on_loss": seen.append}) as (pub, _, events):
        payload = bytes(1000)
        with lose_frames(pub, ratio=1.0):
            for _ in range(1000):
                pub.publish("a.b", payload)
            pub.flush()
        held_from = pub.stats()["streams"]["a.**"]["first_available"]
        assert held_from > 0
        pub.publish("a.b", b"after")
        got = drain(events, 1001 - held_from)
        assert seen == events.losses
        assert [(loss.first, loss.stop, loss.reason) for loss in seen] == [
            (0, held_from, "overflow")
        ]
        assert [event.seq for event in got] == list(range(held_from, 1001))
        stats = pub.stats()["streams"]["a.**"]
        assert stats["subscribers"][0]["dropped"] == held_from
        rows = pub.ledger().rows
        assert rows[0].lost == {"overflow": held_from}
        assert rows[0].reconciles


def test_loss_is_raised_when_asked_and_the_subscription_goes_on() -> None:
    stream = Stream("a.**", overflow="drop_oldest", buffer_bytes="64KiB")
    with pair(stream, tuning=FAST, options={"on_loss": "raise"}) as (pub, _, events):
        with lose_frames(pub, ratio=1.0):
            pub.publish_many("a.b", [bytes(1000)] * 1000)
        pub.publish("a.b", b"after")
        with pytest.raises(meshmsg.EventsLost) as caught:
            events.get(timeout=30)
        assert caught.value.loss.first == 0
        got = drain(events, 1001 - caught.value.loss.stop)
        assert got[-1].data == b"after"


def test_gap_that_nobody_answers_is_declared_lost_within_the_deadline() -> None:
    with pair(tuning=FAST) as (pub, _, events):
        publisher = pub._open_node().publisher
        publisher.subscribers.on_nack = lambda link, message: None  # type: ignore[method-assign]
        with lose_frames(pub, ratio=1.0):
            pub.publish("a.b", "never answered for")
        pub.publish("a.b", "next")
        assert drain(events, 1, timeout=30)[0].data == "next"
        assert [(x.first, x.stop, x.reason) for x in events.losses] == [(0, 1, "deadline")]


def test_high_water_mark_drop_is_repaired() -> None:
    tuning = Tuning(queue_frames=4, inbox_bytes_max=1, heartbeat_min_s=0.02)
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}], tuning={"queue_frames": 4}) as pub,
        Peer("sub", connect=pub.address, tuning=tuning) as sub,
        sub.subscribe("a.**") as events,
    ):
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        # Far more frames than the pipes between the two hold, while nobody reads.
        pub.run("for n in range(600): peer.publish_many('a.b', [bytes(30000)] * 2)")
        got = drain(events, 1200)
        assert [event.seq for event in got] == list(range(1200))
        assert events.losses == []
        assert events.stats()["sources"][0]["repaired"] > 0, "the pipes were larger than expected"


def test_subscriber_frozen_and_thawed_loses_nothing(ledger) -> None:  # type: ignore[no-untyped-def]
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}]) as pub,
        RemotePeer("sub", connect=pub.address) as sub,
    ):
        sub.run("events = peer.subscribe('a.**')")
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        sub.stop()
        pub.run(
            "for n in range(100): peer.publish_many('a.b', list(range(n * 500, n * 500 + 500)))"
        )
        sub.go_on()
        assert sub.eval(
            "[e.data for e in (events.get(30) for _ in range(50000))] == list(range(50000))"
        )
        ledger(pub.address)


def test_large_events_are_fetched_and_arrive_whole() -> None:
    with pair(tuning=FAST) as (pub, _, events):
        large = [bytes([n]) * (3 << 20) for n in range(8)]
        for payload in large:
            pub.publish("a.b", payload)
        pub.publish("a.b", b"small")
        got = drain(events, 9)
        assert [event.data for event in got] == [*large, b"small"]
        assert pub.stats()["counters"]["announced_frames"] == 8


def test_broken_connection_is_mended_without_loss(tcp_proxy) -> None:  # type: ignore[no-untyped-def]
    with Peer("pub", streams=[Stream("a.**")], tuning=FAST) as pub:
        control, data = pub.addresses[0], pub._open_node()._fanout.addresses[0][1]
        with tcp_proxy(control) as control_proxy, tcp_proxy(data) as data_proxy:
            # The subscriber is sent to the proxies by what the publisher announces.
            pub._open_node()._fanout.addresses[:] = [(control_proxy.address, data_proxy.address)]
            with (
                Peer("sub", connect=control_proxy.address, tuning=FAST) as sub,
                sub.subscribe("a.**") as events,
            ):
                pub.wait_for_subscribers("a.b", count=1, timeout=30)
                sent = 0
                for round_ in range(5):
                    pub.publish_many("a.b", list(range(sent, sent + 500)))
                    sent += 500
                    (data_proxy if round_ % 2 else control_proxy).cut()
                    pub.publish_many("a.b", list(range(sent, sent + 500)))
                    sent += 500
                got = drain(events, sent)
                assert [event.data for event in got] == list(range(sent))
                assert events.losses == []
                wait_until(lambda: pub.ledger().in_flight == 0)
                assert pub.ledger().reconciles


def test_books_tell_what_was_filtered_from_what_was_delivered() -> None:
    with pair(Stream("a.**"), "a.wanted", topic="a.wanted") as (pub, _, events):
        for n in range(300):
            pub.publish("a.wanted" if n % 3 == 0 else "a.other", n)
        pub.publish_many("a.other", [0] * 50)
        assert [event.data for event in drain(events, 100)] == list(range(0, 300, 3))
        assert events.get(timeout=0.2) is None
        (row,) = pub.ledger().rows
        assert (row.published, row.delivered, row.filtered, row.in_flight) == (350, 100, 250, 0)
        assert row.reconciles
