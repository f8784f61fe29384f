"""One stalled and one healthy subscriber, in processes of their own, under each overflow word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from meshmsg import AsyncPeer, Peer, Stream, Tuning
from tests.support.remote import RemoteError, RemotePeer
from tests.support.waiting import wait_until

PAYLOAD_BYTES = 1000
#: More than all pipes and kernel buffers between two processes hold.
MANY = 30_000
PUBLISHER = {"queue_frames": 32, "frame_bytes": 64 * 1024}
#: Of the stalled subscriber: hardly anything is read ahead, hardly anything waits in pipes.
SHORT = {"queue_frames": 4, "inbox_bytes_max": 10_000}


@contextmanager
def overloaded(
    **policy: Any,
) -> Iterator[tuple[RemotePeer, RemotePeer, RemotePeer, Callable[[int], None]]]:
    """A publisher, a healthy and a stalled one, and a way to publish at the healthy one's pace."""
    stream = {"topics": "a.**", "buffer_bytes": "256KiB", "window_bytes": "128KiB"} | policy
    with (
        RemotePeer("pub", streams=[stream], tuning=PUBLISHER) as pub,
        RemotePeer("healthy", connect=pub.address) as healthy,
        RemotePeer("stalled", connect=pub.address, tuning=SHORT) as stalled,
    ):
        healthy.use("readers")
        healthy.run("seen = seqs_aside('a.**')")
        stalled.run("events = peer.subscribe('a.**', name='sleepy')")
        pub.run("peer.wait_for_subscribers('a.b', 2, 30)")
        pub.run("sent = 0")
        total = 0

        def publish(count: int) -> None:
            nonlocal total
            for _ in range(0, count, 100):
                pub.run(f"peer.publish_many('a.b', [bytes({PAYLOAD_BYTES})] * 100)")
                total += 100
                wait_until(partial(_has_seen, healthy, total), what="healthy keeps up")

        yield pub, healthy, stalled, publish


def _has_seen(sub: RemotePeer, count: int) -> bool:
    return bool(sub.eval("len(seen)") == count)


def blocked_by(pub: RemotePeer) -> Any:
    return pub.eval("peer.stats()['streams']['a.**']['blocked_by']")


def waits(pub: RemotePeer) -> int:
    return int(pub.eval("peer.stats()['counters'].get('publish_waits', 0)"))


def read_all(sub: RemotePeer, until: int) -> tuple[list[int], list[Any]]:
    """Read up to an event; what came, and what was reported lost."""
    sub.use("readers")
    got = sub.eval(f"read_seqs(events, {until})")
    lost = sub.eval("[(x.first, x.stop, x.reason) for x in events.losses]")
    accounted = sorted([*got, *(n for first, stop, _ in lost for n in range(first, stop))])
    assert accounted == list(range(until)), "each number once, delivered or lost"
    return got, lost


def test_block_waits_for_the_stalled_one_and_names_it(ledger: Any) -> None:
    with overloaded(overflow="block") as (pub, healthy, stalled, _):
        with pytest.raises(RemoteError, match=r"PublishTimeout.*blocked.*stalled/sleepy#"):
            pub.run(
                f"for _ in range(5000): peer.publish('a.b', bytes({PAYLOAD_BYTES}), timeout=0.5)"
            )
        (name,) = blocked_by(pub)
        assert name.startswith("stalled/sleepy#")
        published = pub.eval("peer.stats()['streams']['a.**']['published']")
        assert published * PAYLOAD_BYTES < 1_000_000, "it waited far too late"
        pub.send("peer.publish('a.b', b'last')")  # blocks until the other reads
        got, lost = read_all(stalled, published + 1)
        pub.answer()
        assert lost == []
        assert len(got) == published + 1
        wait_until(lambda: healthy.eval("len(seen)") == published + 1)
        assert blocked_by(pub) == []
        ledger(pub.address)


def test_blocking_subscriber_is_evicted_after_its_time_and_told_why(ledger: Any) -> None:
    with overloaded(overflow="block", evict_after="2s") as (pub, healthy, stalled, _):
        pub.run(f"for _ in range({MANY}): peer.publish('a.b', bytes({PAYLOAD_BYTES}), timeout=30)")
        assert pub.eval("peer.stats()['counters']['evictions']") == 1
        wait_until(lambda: healthy.eval("len(seen)") == MANY, timeout=30)
        _, lost = read_all(stalled, MANY)
        assert {reason for _, _, reason in lost} == {"evicted"}
        (reason,) = stalled.eval("events.evictions")
        assert "blocked pub/a.** for 2 s" in reason
        rows = ledger(pub.address, lost=True)
        assert [bool(row["lost"]) for row in rows].count(True) == 1
        # Having caught up, it is waited for again.
        wait_until(
            lambda: (
                not any(
                    pub.eval(
                        "[s['evicted'] for s in peer.stats()['streams']['a.**']['subscribers']]"
                    )
                )
            )
        )


def test_buffer_holds_for_the_stalled_one_and_does_not_slow_the_healthy_one(ledger: Any) -> None:
    with overloaded(overflow="buffer", buffer_bytes="2MB") as (pub, healthy, stalled, publish):
        publish(1500)
        assert waits(pub) == 0, "within the bound nobody waits"
        assert healthy.eval("len(seen)") == 1500
        got, lost = read_all(stalled, 1500)
        assert lost == []
        assert got == list(range(1500))
        ledger(pub.address)


def test_buffer_blocks_past_its_bound_and_loses_nothing(ledger: Any) -> None:
    with overloaded(overflow="buffer") as (pub, healthy, stalled, _):
        pub.send(f"for _ in range(2000): peer.publish('a.b', bytes({PAYLOAD_BYTES}))")
        wait_until(lambda: healthy.eval("len(seen)") > 250)
        got, lost = read_all(stalled, 2000)
        pub.answer()
        assert waits(pub) > 0
        assert lost == []
        assert got == list(range(2000))
        wait_until(lambda: healthy.eval("len(seen)") == 2000)
        ledger(pub.address)


def test_drop_oldest_keeps_the_newest_and_does_not_slow_the_healthy_one(ledger: Any) -> None:
    with overloaded(overflow="drop_oldest") as (pub, healthy, stalled, publish):
        publish(MANY)
        assert waits(pub) == 0
        assert healthy.eval(f"seen == list(range({MANY}))")
        stats = pub.eval("peer.stats()['streams']['a.**']")
        assert stats["dropped"] > 0, "counted at the publisher while it happens"
        got, lost = read_all(stalled, MANY)
        assert {reason for _, _, reason in lost} == {"overflow"}
        newest = [seq for seq in got if seq >= lost[-1][1]]
        assert len(newest) * PAYLOAD_BYTES > 200_000, "the buffer's content came"
        missed = sum(stop - first for first, stop, _ in lost)
        (row,) = [row for row in ledger(pub.address, lost=True) if "stalled" in row["subscription"]]
        assert row["lost"] == {"overflow": missed}
        dropped = pub.eval("[s['dropped'] for s in peer.stats()['streams']['a.**']['subscribers']]")
        assert sum(dropped) == missed


def test_drop_newest_keeps_the_oldest_and_does_not_slow_the_healthy_one(ledger: Any) -> None:
    with overloaded(overflow="drop_newest") as (pub, healthy, stalled, publish):
        # The stalled one's pipe loses everything: what it gets later was kept for it.
        pub.run("lossy = testing.lose_frames(peer, ratio=1.0); lossy.__enter__()")
        publish(2000)
        assert waits(pub) == 0
        assert healthy.eval("seen == list(range(2000))")
        pub.run("lossy.__exit__(None, None, None)")
        publish(100)
        got, lost = read_all(stalled, 2100)
        assert {reason for _, _, reason in lost} == {"overflow"}
        first_lost = lost[0][0]
        assert first_lost * PAYLOAD_BYTES > 150_000, "the oldest were kept, a buffer full"
        assert got[:first_lost] == list(range(first_lost))
        ledger(pub.address, lost=True)


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "buffer"])
def test_memory_of_the_publisher_is_bounded(overflow: str, ledger: Any) -> None:
    stream = {"topics": "a.**", "overflow": overflow, "buffer_bytes": "32MiB"}
    if overflow == "buffer":
        stream["evict_after"] = "0.3s"
    tuning = {"peer_timeout_s": 60, "close_timeout_s": 0.5}
    with (
        RemotePeer("pub", streams=[stream], tuning=tuning) as pub,
        RemotePeer("frozen", connect=pub.address) as frozen,
        RemotePeer("stalled", connect=pub.address) as stalled,
    ):
        frozen.run("events = peer.subscribe('a.**')")
        stalled.run("events = peer.subscribe('a.**')")
        pub.run("peer.wait_for_subscribers('a.b', 2, 30)")
        frozen.stop()
        pub.run("batch = [b'8 bytes!'] * 10_000")
        before = pub.rss_bytes()
        pub.run("for _ in range(1000): peer.publish_many('a.b', batch)")
        grown = pub.rss_bytes() - before
        # Two buffers (drop_newest has a second one), and two full pipes of 1000 frames of 64 KiB.
        assert grown < (2 * 32 + 2 * 64 + 40) * 1024 * 1024, f"grew by {grown / 1e6:.0f} MB"
        assert pub.eval("peer.stats()['streams']['a.**']['published']") == 10_000_000
        frozen.kill()
        stalled.use("readers")
        stalled.run("got = count_all(events, 10_000_000)")
        assert stalled.eval("got + sum(loss.count for loss in events.losses)") == 10_000_000
        ledger(pub.address, lost=True, settle=0)


def test_a_moments_wait_never_counts_as_a_stream_that_blocks() -> None:
    """Queues that fill make publishers wait a little, and nobody is told that it took too long."""
    with Peer("pub", streams=Stream("a.**")) as peer:
        outlet = peer._open_node().publisher.find("a.b")
        outlet.sender.flow.is_crowded = lambda now: True  # type: ignore[method-assign]
        for n in range(5):
            outlet.gated = True
            assert peer.publish("a.b", n, timeout=0.01).seq == 2 * n
            outlet.gated = True
            assert peer.publish_many("a.b", [n], timeout=0.01).seq == 2 * n + 1


def test_a_moments_wait_never_counts_as_a_stream_that_blocks_the_loop() -> None:
    async def run() -> list[int]:
        async with AsyncPeer("pub", streams=Stream("a.**")) as peer:
            outlet = peer._open_node().publisher.find("a.b")
            outlet.sender.flow.is_crowded = lambda now: True  # type: ignore[method-assign]
            seqs = []
            for n in range(5):
                outlet.gated = True
                seqs.append((await peer.publish("a.b", n, timeout=0.01)).seq)
            return seqs

    assert asyncio.run(run()) == list(range(5))


@pytest.mark.parametrize(
    ("overflow", "waits"), [("block", True), ("buffer", True), ("drop_oldest", False)]
)
def test_publisher_pauses_when_queues_fill_if_its_stream_may_wait(
    overflow: str, waits: bool
) -> None:
    stream = Stream("a.**", overflow=overflow, window_bytes="64MiB")
    with Peer("pub", streams=stream, tuning=Tuning(queue_frames=8)) as peer:
        flow = peer._open_node().publisher.find("a.b").sender.flow
        flow.admit(1, "one that reads", 0, now=time.monotonic() + 3600)
        for _ in range(70):  # of 64 KiB: more than the brake's 4 MiB, far less than the window
            peer.publish_many("a.b", [bytes(1024)] * 64, timeout=0.01)
        waited = peer.stats()["counters"].get("publish_waits", 0)
        flow.release(1, now=time.monotonic())
        assert bool(waited) is waits
