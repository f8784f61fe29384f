"""A subscriber that is stopped, cut off or killed: who waits for it, and what it gets later."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from meshmsg import Peer, Stream, Tuning
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until as wait_for

#: What is on the way to one that does not read, beside the kernel's buffers.
SMALL = {"inbox_bytes_max": 64 * 1024, "queue_frames": 4}
#: Silence is noticed soon.
QUICK: dict[str, Any] = {**SMALL, "ping_interval_s": 0.2, "peer_timeout_s": 1.0}
BUFFER = 256 * 1024
EVENTS = 20_000
SIZE = 1000
STEP = 50  # events in a frame
LOSSLESS = ["block", "buffer", "spill"]
wait_until = partial(wait_for, timeout=60)


def stream_of(overflow: str, **more: Any) -> Stream:
    return Stream("a.**", overflow=overflow, buffer_bytes=BUFFER, window_bytes=BUFFER, **more)


def subscribers(pub: Peer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pub.stats()["streams"]["a.**"]["subscribers"]
    return found


def away(pub: Peer) -> int:
    """How many are not there; of a publisher that forgets at once, how many are gone of one."""
    found = subscribers(pub)
    return sum(s.get("away_s", 0) > 0 for s in found) if found else 1


def publish(pub: Peer, first: int, stop: int) -> None:
    for n in range(first, stop, STEP):
        payloads = [b"%0*d" % (SIZE, i) for i in range(n, min(n + STEP, stop))]
        pub.publish_many("a.b", payloads, timeout=60)


@contextlib.contextmanager
def publishing(pub: Peer, first: int, stop: int) -> Iterator[None]:
    """Publish on a thread of its own, which may have to wait."""
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(publish(pub, first, stop) is None))
    thread.start()
    yield
    thread.join(90)
    assert done == [True]


def read(sub: RemotePeer, stop: int) -> tuple[list[int], list[tuple[int, int, str]]]:
    """All numbers that came, and what was lost, up to `stop`."""
    sub.use("readers")
    got = sub.eval("read_numbers(events, stop)", stop=stop, timeout=90)
    losses = sub.eval("[(x.first, x.stop, x.reason) for x in events.losses]")
    return got, [(first, last, reason) for first, last, reason in losses]


@contextlib.contextmanager
def one_apart(stream: Stream, **tuning: Any) -> Iterator[tuple[Peer, RemotePeer]]:
    """A publisher, and a subscriber in a process of its own."""
    with (
        Peer("pub", streams=[stream], tuning=Tuning(**(QUICK | tuning))) as pub,
        RemotePeer("sub", connect=pub.address, tuning=QUICK) as sub,
    ):
        sub.run("events = peer.subscribe('a.**')")
        pub.wait_for_subscribers("a.b", count=1, timeout=60)
        yield pub, sub


@pytest.mark.parametrize("overflow", LOSSLESS)
def test_one_that_was_stopped_for_longer_than_its_peer_may_be_silent_gets_everything(
    overflow: str,
) -> None:
    with one_apart(stream_of(overflow)) as (pub, sub):
        sub.stop()
        with publishing(pub, 0, EVENTS):
            wait_until(lambda: away(pub) == 1)
            sub.go_on()
            assert read(sub, EVENTS) == (list(range(EVENTS)), [])
        wait_until(lambda: away(pub) == 0)
        pub.flush(timeout=60)
        assert pub.ledger().reconciles


@pytest.mark.parametrize("overflow", LOSSLESS)
def test_one_that_was_cut_off_gets_everything_that_there_is_room_for(
    overflow: str, tcp_proxy: Any
) -> None:
    count = EVENTS if overflow == "spill" else BUFFER // SIZE // 2  # half of the buffer
    tuning = Tuning(**QUICK)
    with Peer("pub", streams=[stream_of(overflow)], tuning=tuning) as pub:
        data = pub._open_node()._fanout.addresses[0][1]
        with tcp_proxy(pub.address) as control_proxy, tcp_proxy(data) as data_proxy:
            pub._open_node()._fanout.addresses[:] = [(control_proxy.address, data_proxy.address)]
            with RemotePeer("sub", connect=control_proxy.address, tuning=QUICK) as sub:
                sub.run("events = peer.subscribe('a.**')")
                pub.wait_for_subscribers("a.b", count=1, timeout=60)
                for proxy in (control_proxy, data_proxy):
                    proxy.down = True
                    proxy.cut()
                wait_until(lambda: away(pub) == 1)
                publish(pub, 0, count)
                # Its peer has been silent for too long, and nobody waits for it.
                node = pub._open_node()
                wait_until(lambda: not node.reception.clients)
                assert pub.stats()["counters"].get("publish_waits", 0) == 0
                assert pub.ledger().in_flight == 0
                control_proxy.down = data_proxy.down = False
                assert read(sub, count) == (list(range(count)), [])
                wait_until(lambda: away(pub) == 0)
                pub.flush(timeout=60)
                assert pub.ledger().reconciles


@pytest.mark.parametrize("overflow", LOSSLESS)
def test_one_that_was_killed_is_waited_for_no_more_by_publish_flush_and_close(
    overflow: str,
) -> None:
    tuning = Tuning(**SMALL, peer_timeout_s=60)
    with Peer("pub", streams=[stream_of(overflow)], tuning=tuning) as pub:
        sub = RemotePeer("sub", connect=pub.address, tuning=SMALL)
        sub.run("events = peer.subscribe('a.**')")
        pub.wait_for_subscribers("a.b", count=1, timeout=60)
        sub.stop()
        publish(pub, 0, 200)
        sub.kill()
        publish(pub, 200, EVENTS)
        pub.flush(timeout=30)
        (row,) = pub.ledger().rows
        assert row.state == "away"


def test_one_that_never_comes_back_is_forgotten_and_its_spill_freed() -> None:
    with one_apart(stream_of("spill"), subscriber_return_s=2.0) as (pub, sub):
        sub.kill()
        wait_until(lambda: away(pub) == 1)
        publish(pub, 0, EVENTS)
        spill = pub.stats()["streams"]["a.**"]["spill"]
        assert spill["spilled_events"] > EVENTS // 2
        wait_until(lambda: subscribers(pub) == [])
        assert pub.stats()["streams"]["a.**"]["spill"]["bytes"] == 0
        assert pub.stats()["quotas"]["subscriptions"]["used"] == 0


def test_one_that_comes_back_too_late_is_told_that_it_was_away() -> None:
    late = {"subscriber_wait_s": 1.0, "subscriber_return_s": 2.0}
    with one_apart(stream_of("block"), **late) as (pub, sub):
        publish(pub, 0, 10)
        assert read(sub, 10) == (list(range(10)), [])
        pub.flush(timeout=60)
        sub.stop()
        publish(pub, 10, EVENTS)
        wait_until(lambda: subscribers(pub) == [])
        sub.go_on()
        pub.wait_for_subscribers("a.b", count=1, timeout=60)
        publish(pub, EVENTS, EVENTS + 10)
        got, losses = read(sub, EVENTS + 10)
        assert {reason for _, _, reason in losses} == {"away"}
        lost = [n for first, stop, _ in losses for n in range(first, stop)]
        assert sorted(got + lost) == list(range(10, EVENTS + 10))


def test_healthy_subscribers_do_not_wait_while_the_buffer_has_room() -> None:
    stream = Stream("a.**", overflow="buffer", buffer_bytes="64MiB")
    with (
        one_apart(stream) as (pub, sub),
        RemotePeer("good", connect=pub.address, tuning=QUICK) as good,
    ):
        good.run("events = peer.subscribe('a.**')")
        pub.wait_for_subscribers("a.b", count=2, timeout=60)
        sub.stop()
        wait_until(lambda: away(pub) == 1)
        for first in range(0, EVENTS, 1000):
            publish(pub, first, first + 1000)
            assert read(good, first + 1000) == (list(range(first, first + 1000)), [])
        assert not pub.stats()["streams"]["a.**"]["blocked_by"]
        sub.go_on()
        assert read(sub, EVENTS) == (list(range(EVENTS)), [])


def test_peer_that_was_started_again_does_not_leave_its_old_subscriptions_behind() -> None:
    with one_apart(stream_of("spill")) as (pub, sub):
        sub.kill()
        wait_until(lambda: away(pub) == 1)
        with RemotePeer("sub", connect=pub.address, tuning=QUICK) as again:
            again.run("events = peer.subscribe('a.**')")
            pub.wait_for_subscribers("a.b", count=1, timeout=60)
            assert [s["attached"] for s in subscribers(pub)] == [True]


def test_where_all_places_are_taken_those_give_one_who_are_not_there() -> None:
    with one_apart(stream_of("spill")) as (pub, sub):
        pub._open_node().publisher.subscribers.quota.total = 1
        sub.kill()
        wait_until(lambda: away(pub) == 1)
        with RemotePeer("other", connect=pub.address, tuning=QUICK) as other:
            other.run("events = peer.subscribe('a.**')")
            pub.wait_for_subscribers("a.b", count=1, timeout=60)
            assert [s["attached"] for s in subscribers(pub)] == [True]
            assert pub.stats()["counters"]["subscriptions_displaced"] == 1
