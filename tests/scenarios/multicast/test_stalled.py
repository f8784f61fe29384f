"""Receivers that do not read: what they hold up, for how long, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Feed, Multicast, Peer, PublishTimeout, Stream, Tuning
from meshmsg._wire import packet
from tests.scenarios.multicast.test_bad_packets import STREAM, WIRE_ID, epoch_of, stranger_on
from tests.support import numbered
from tests.support.waiting import wait_until

COUNT = 60_000
#: So little that it is full at once.
SMALL = Tuning(inbox_bytes_max=128 * 1024)


@contextmanager
def stalled(group: str, by_hand: bool, **stream: Any) -> Iterator[tuple[Peer, numbered.Reader]]:
    """A publisher that waits, and a subscription that reads only when it is told to."""
    line = Multicast(group, receive_buffer="64KiB")
    held = Stream(
        "a.**",
        transport=line,
        overflow="block",
        window_bytes="256KiB",
        buffer_bytes="512KiB",
        **stream,
    )
    with Peer("pub", streams=[held]) as pub:
        feeds = [Feed("pub", "a.**", line)] if by_hand else []
        connect = [] if by_hand else [pub.address]
        with (
            Peer("sub", connect=connect, feeds=feeds, tuning=SMALL) as sub,
            sub.subscribe("a.**") as events,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            yield pub, numbered.Reader(events)


def publish(pub: Peer, first: int, stop: int, timeout: float) -> None:
    for at in range(first, stop, 500):
        pub.publish_many("a.b", numbered.payloads(at, min(at + 500, stop)), timeout=timeout)


def figures(pub: Peer) -> dict[str, Any]:
    return dict(pub.stats()["streams"]["a.**"]["multicast"])


def both_kinds() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("by_hand", [False, True], ids=["connected", "by hand"])


@both_kinds()
def test_publisher_waits_and_names_whom_it_waits_for(group: str, by_hand: bool) -> None:
    with stalled(group, by_hand) as (pub, reader):
        name = r"receiver #[0-9a-f]{6} \(not connected\)" if by_hand else "sub/-#"
        with pytest.raises(PublishTimeout, match=f"blocked for 0.3 s by {name}"):
            publish(pub, 0, COUNT, timeout=0.3)
        stats = pub.stats()["streams"]["a.**"]
        assert stats["blocked_by"]
        result = reader.read(stats["next"], timeout=30)
        assert result["losses"] == []
        wait_until(lambda: pub.stats()["streams"]["a.**"]["blocked_by"] == [])


@both_kinds()
def test_receiver_that_does_not_read_is_evicted_after_its_time(group: str, by_hand: bool) -> None:
    with stalled(group, by_hand, evict_after="0.3s") as (pub, reader):
        publish(pub, 0, COUNT, timeout=30)
        assert pub.stats()["counters"]["evictions"] == 1
        events = reader.events
        # The reader checks every event, and that every gap is a loss, to the number.
        result = reader.read(COUNT, timeout=30)
        assert result["delivered"] + result["lost"] == COUNT
        assert result["lost"] > COUNT / 4
        reasons = {reason for *_, reason in result["losses"]}
        assert reasons == {"overflow"} if by_hand else reasons <= {"evicted", "overflow"}
        assert len(events.evictions) == (0 if by_hand else 1)
        # It has caught up: it is waited for again, gets everything, and has its time again.
        sender = pub._open_node().publisher._outlets[STREAM].packets.sender
        wait_until(lambda: len(list(sender._waited_for())) == 1)
        lost = result["lost"]
        publish(pub, COUNT, COUNT + 1000, timeout=30)
        assert reader.read(COUNT + 1000, timeout=30)["lost"] == lost
        publish(pub, COUNT + 1000, COUNT + COUNT, timeout=30)
        assert pub.stats()["counters"]["evictions"] == 2


def test_strangers_without_room_hold_a_stream_up_no_longer_than_it_says(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with stalled(group, False, evict_after="0.3s") as (pub, reader), stranger_on(group) as stranger:
        source = pub._open_node().publisher._outlets[STREAM].packets.server.sources[0]
        epoch = epoch_of(pub)

        def report() -> None:
            """They never fall silent, and never have room."""
            for receiver in range(1, 100):
                status = packet.PacketStatus(WIRE_ID, epoch, 0, receiver, 0)
                stranger.send_to(status.encode(), source)

        report()
        wait_until(lambda: figures(pub)["receivers"] == 100)
        with caplog.at_level(logging.WARNING, logger="meshmsg.peer"):
            for at in range(0, 20_000, 500):
                report()
                publish(pub, at, at + 500, timeout=30)
                assert reader.read(at + 500, timeout=30)["losses"] == []
        assert figures(pub)["evicted_receivers"] == 99
        assert pub.stats()["counters"]["evictions"] == 99
        assert 0 < sum("not connected" in message for message in caplog.messages) < 50


def test_who_reads_from_the_log_does_not_hold_up_what_is_published(
    group: str, tmp_path: Path
) -> None:
    stream = Stream(
        "a.**",
        transport=Multicast(group, receive_buffer="64KiB", receiver_timeout="60s"),
        overflow="block",
        durability="log",
        window_bytes="256KiB",
    )
    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:
        publish(pub, 0, 20_000, timeout=30)
        with (
            Peer("sub", connect=pub.address, tuning=SMALL) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            publish(pub, 20_000, COUNT, timeout=30)  # it has yet to read the first
            result = numbered.Reader(events).read(COUNT, timeout=30)
            assert (result["delivered"], result["losses"]) == (COUNT, [])
