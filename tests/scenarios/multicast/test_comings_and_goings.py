"""Senders and receivers that come late, leave, are killed and come back; several of everything."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshmsg import AsyncPeer, Feed, Multicast, Peer, Stream, testing
from tests.scenarios.multicast.conftest import new_group
from tests.support import numbered
from tests.support.pairs import pair
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


def both_kinds() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("by_hand", [False, True], ids=["connected", "by hand"])


def receiver(name: str, address: str, group: str, by_hand: bool) -> Peer:
    feeds = [Feed("pub", "a.**", Multicast(group))] if by_hand else []
    return Peer(name, connect=() if by_hand else address, feeds=feeds)


@both_kinds()
def test_events_of_16_mib_with_loss(group: str, by_hand: bool) -> None:
    events_of = [os.urandom(1 << 20) * 16 for _ in range(3)]
    stream = Stream("a.**", transport=Multicast(group), buffer_bytes="100MiB")
    with (
        Peer("pub", streams=[stream]) as pub,
        receiver("sub", pub.address, group, by_hand) as sub,
        sub.subscribe("a.**") as events,
    ):
        pub.publish("a.b", b"first")
        events.wait_for_publishers(1, timeout=30)
        if not by_hand:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
        with testing.lose_packets(sub, 0.02, seed=5) as path:
            for data in events_of:
                pub.publish("a.b", data, timeout=60)
                while True:
                    event = events.get(timeout=60)
                    assert event is not None, events.stats()
                    if event.data != b"first":
                        break
                assert event.data == data
        assert events.losses == []
        assert path.dropped > 300
        (source,) = events.stats()["sources"]
        repaired = source["multicast"]["repaired"]  # what the kernel dropped among them
        # A lost fragment is repaired alone: not the event again, nor a burst of it.
        repairs = pub.stats()["streams"]["a.**"]["multicast"]["repairs"]
        assert path.dropped * 0.9 < repaired
        assert repairs < repaired * 4


@both_kinds()
@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("last:100", 9_900)])
def test_late_join(group: str, by_hand: bool, start: str, first: int) -> None:
    with Peer("pub", streams=[Stream("a.**", transport=Multicast(group))]) as pub:
        pub.publish_many("a.b", numbered.payloads(0, 10_000))
        with (
            receiver("sub", pub.address, group, by_hand) as sub,
            sub.subscribe("a.**", start=start) as events,
        ):
            reader = numbered.Reader(events)
            result = reader.read(10_000, timeout=30)
            assert (result["first"], result["losses"]) == (first, [])
            pub.publish_many("a.b", numbered.payloads(10_000, 20_000))
            assert reader.read(20_000, timeout=30)["losses"] == []


@both_kinds()
def test_sender_killed_and_restarted(group: str, by_hand: bool) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    stream = {"topics": "a.**", "transport": {"group": group, "receiver_timeout": "1s"}}
    feed = Feed("pub", "a.**", Multicast(group, receiver_timeout="1s"))
    arguments: dict[str, Any] = {"feeds": [feed]} if by_hand else {"connect": address}
    with Peer("sub", **arguments) as sub, sub.subscribe("a.**") as events:
        reader = numbered.Reader(events)
        for life in range(3):
            pub = RemotePeer("pub", bind=address, streams=[stream])
            try:
                if life == 0:
                    if not by_hand:
                        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
                    else:
                        pub.run("peer.publish('a.b', b'')")  # a feed starts with what it hears
                        event = events.get(timeout=30)
                        assert event is not None
                        reader.epochs.append(event.position.epoch)
                        reader.next = 1
                pub.run("import numbered")
                begin = 1 if life == 0 and by_hand else 0
                pub.run(f"numbered.publish(peer, 'a.b', {begin}, 5000)")
                wait_until(partial(_drained, reader, life + 1, 5000), 30, "all of this life")
            finally:
                pub.kill()
        assert len(reader.epochs) == 3
        assert events.losses == []
        assert sub.ledger().reconciles


def _drained(reader: numbered.Reader, epochs: int, stop: int) -> bool:
    """Read what is there; whether so many epochs were entered, and the last read up to `stop`."""
    for batch in reader.events.batches(timeout=0.05):
        reader._take_losses()
        reader._take(batch)
    return len(reader.epochs) == epochs and reader.next == stop


def test_consumer_that_is_behind_gets_all_of_each_start(group: str) -> None:
    """What a repair has completed waits to be put together while the sender starts anew."""
    address = f"tcp://127.0.0.1:{free_port()}"
    lives, count = 4, 20_000
    got: dict[int, list[bytes]] = {}
    with (
        Peer("sub", connect=address) as sub,
        sub.subscribe("a.**") as events,
        testing.lose_packets(sub, 0.05, seed=6),
    ):
        batches = events.batches(timeout=30)

        def take() -> int:
            batch = next(batches)
            got.setdefault(batch.epoch, []).extend(batch.payloads)
            return len(batch)

        taken = 0
        for life in range(lives):
            stream = Stream("a.**", transport=Multicast(group))
            with Peer("pub", bind=address, streams=[stream]) as pub:
                pub.wait_for_subscribers("a.b", timeout=30)
                for first in range(0, count, 1000):
                    pub.publish_many("a.b", numbered.payloads(first, first + 1000))
                for _ in range(5 * life):  # more or less of it
                    taken += take()
        while taken < lives * count:
            taken += take()
        assert list(events.losses) == []
        assert list(got.values()) == [numbered.payloads(0, count)] * lives
        assert sub.ledger().reconciles


@both_kinds()
def test_receiver_restarted_misses_nothing_after_its_start(group: str, by_hand: bool) -> None:
    with Peer("pub", streams=[Stream("a.**", transport=Multicast(group))]) as pub:
        at = 0
        for _ in range(3):
            with (
                receiver("sub", pub.address, group, by_hand) as sub,
                sub.subscribe("a.**") as events,
            ):
                if not by_hand:
                    pub.wait_for_subscribers("a.b", count=1, timeout=30)
                else:
                    pub.publish_many("a.b", numbered.payloads(at, at + 1))
                    at += 1
                    events.wait_for_publishers(1, timeout=30)
                pub.publish_many("a.b", numbered.payloads(at, at + 5000))
                result = numbered.Reader(events).read(at + 5000, timeout=30)
                assert result["first"] in ((at - 1, at) if by_hand else (at,))
                assert result["losses"] == []
                at += 5000


def test_several_streams_on_one_group_and_several_subscriptions(group: str) -> None:
    config = Multicast(group)
    streams = [Stream(f"{name}.**", transport=config) for name in "abc"]
    with (
        Peer("pub", streams=streams) as pub,
        Peer("other", streams=[Stream("d.**", transport=config)]) as other,
        Peer("sub", connect=[pub.address, other.address]) as sub,
    ):
        wanted = ["a.**", "b.**", "c.**", "d.**", "a.**"]
        subscriptions = [sub.subscribe(topics) for topics in wanted]
        everything = sub.subscribe("**")
        try:
            for name, count in (("a", 3), ("b", 2), ("c", 2)):
                pub.wait_for_subscribers(f"{name}.x", count=count, timeout=30)
            other.wait_for_subscribers("d.x", count=2, timeout=30)
            with testing.lose_packets(sub, 0.05, seed=1):
                for at in range(0, 20_000, 500):
                    for salt, name in enumerate("abcd"):
                        peer = other if name == "d" else pub
                        payloads = numbered.payloads(at, at + 500, salt)
                        peer.publish_many(f"{name}.x", payloads)
                for topics, events in zip(wanted, subscriptions, strict=True):
                    reader = numbered.Reader(events, salt="abcd".index(topics[0]))
                    result = reader.read(20_000, timeout=30)
                    assert (result["delivered"], result["losses"]) == (20_000, [])
                total = 0
                deadline = time.monotonic() + 30
                while total < 80_000 and time.monotonic() < deadline:
                    total += len(everything.get_many(10_000, timeout=30))
                assert total == 80_000
                assert everything.losses == []
            for peer in (pub, other):
                assert peer.ledger().reconciles
        finally:
            for events in (*subscriptions, everything):
                events.close()


def test_two_lines_on_loopback(group: str) -> None:
    config = Multicast(group, second=new_group())
    with pair(Stream("a.**", transport=config)) as (pub, sub, events):
        with testing.lose_packets(sub, 0.05, seed=2):
            pub.publish_many("a.b", numbered.payloads(0, 30_000))
            result = numbered.Reader(events).read(30_000, timeout=30)
        assert (result["delivered"], result["losses"]) == (30_000, [])
        (source,) = events.stats()["sources"]
        lines = source["multicast"]["lines"]
        assert all(line["first"] + line["again"] > 1000 for line in lines)


@both_kinds()
def test_async_receiver(group: str, by_hand: bool) -> None:
    async def read(address: str, pub: Peer) -> None:
        feeds = [Feed("pub", "a.**", Multicast(group))] if by_hand else []
        connect = () if by_hand else address
        async with (
            AsyncPeer("sub", connect=connect, feeds=feeds) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            await events.wait_for_publishers(1, timeout=30)
            with testing.lose_packets(sub, 0.05, seed=4):
                pub.publish_many("a.b", numbered.payloads(100, 20_000))
                at = 0
                async for batch in events.batches(timeout=30):
                    assert batch.payloads == numbered.payloads(at, at + len(batch))
                    at += len(batch)
                    if at == 20_000:
                        break
            assert at == 20_000
            assert events.losses == []

    with Peer("pub", streams=[Stream("a.**", transport=Multicast(group))]) as pub:
        pub.publish_many("a.b", numbered.payloads(0, 100))
        asyncio.run(read(pub.address, pub))


@both_kinds()
def test_event_of_which_only_a_part_was_sent_is_not_forgotten(group: str, by_hand: bool) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    transport = {"group": group, "flow": "rate", "rate": "1MB"}
    stream = {"topics": "a.**", "transport": transport}
    with (
        RemotePeer("pub", bind=[address], streams=[stream]) as pub,
        receiver("sub", address, group, by_hand) as sub,
        sub.subscribe("a.**") as events,
    ):
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        pub.run("peer.publish('a.b', b'first')")
        event = events.get(timeout=30)
        assert event is not None
        pub.run("peer.publish('a.b', bytes(12_000_000))")
        wait_until(lambda: sub.ledger().rows[0].in_flight == 1)
        pub.kill()
        assert events.get(timeout=0.2) is None
        with RemotePeer("pub", bind=[address], streams=[stream]) as again:
            again.run("peer.wait_for_subscribers('a.b', 1, 30)")
            again.run("peer.publish('a.b', b'again')")
            later = events.get(timeout=30)
            assert later is not None
            assert later.data == b"again"
    (loss,) = events.losses
    old = event.position
    assert (loss.epoch, loss.first, loss.stop, loss.reason) == (old.epoch, 1, 2, "gone")


def test_event_of_which_only_a_part_was_sent_comes_from_the_log(group: str, tmp_path: Path) -> None:
    """Killed right after `publish` returned: most of its packets had yet to leave."""
    address = f"tcp://127.0.0.1:{free_port()}"
    transport = {"group": group, "flow": "rate", "rate": "1MB"}
    arguments: dict[str, Any] = {
        "bind": [address],
        "data_dir": str(tmp_path),
        "streams": [{"topics": "a.**", "durability": "log", "transport": transport}],
    }
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        with RemotePeer("pub", **arguments) as pub:
            pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
            pub.run("peer.publish('a.b', bytes(8_000_000))")
            wait_until(lambda: sub.ledger().rows[0].in_flight == 1)
            pub.kill()
        assert events.get(timeout=0.2) is None
        with RemotePeer("pub", **arguments):
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == bytes(8_000_000)
    assert events.losses == []
