"""Noise, forgeries, echoes and floods on the group: counted and dropped, and the stream goes on."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from meshmsg import Feed, Multicast, Peer, Stream, Subscription
from meshmsg._model.multicast_config import split_group
from meshmsg._wire import packet
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from tests.support import numbered
from tests.support.waiting import wait_until

STREAM = "pub/a.**"
WIRE_ID = stream_wire_id("default", STREAM)
LOOPBACK = struct.pack("4s4s", socket.inet_aton("0.0.0.0"), socket.inet_aton("127.0.0.1"))


class Stranger:
    """A program on this machine that sends to a group, and hears what is sent there."""

    def __init__(self, group: str, address: str = "127.0.0.1") -> None:
        self._group = split_group("group", group)
        self._tx = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tx.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        self._tx.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        self._tx.bind((address, 0))
        self._rx = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._rx.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._rx.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._rx.bind(self._group)
        member = socket.inet_aton(self._group[0]) + socket.inet_aton("127.0.0.1")
        self._rx.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self._rx.setblocking(False)

    def send(self, data: bytes, *, requests: bool = False) -> None:
        host, port = self._group
        self._tx.sendto(data, (host, port + requests))

    def send_to(self, data: bytes, address: tuple[str, int]) -> None:
        self._tx.sendto(data, address)

    def heard(self) -> list[bytes]:
        """What was sent to the group since the last time."""
        packets = []
        while True:
            try:
                packets.append(self._rx.recv(65_535))
            except BlockingIOError:
                return packets

    def close(self) -> None:
        self._tx.close()
        self._rx.close()


@contextmanager
def stranger_on(group: str, address: str = "127.0.0.1") -> Iterator[Stranger]:
    stranger = Stranger(group, address)
    try:
        yield stranger
    finally:
        stranger.close()


@contextmanager
def subscribed(group: str, *, by_hand: bool, **transport: Any) -> Iterator[tuple[Peer, Any]]:
    """A publisher and a subscription, connected or by hand, on loopback."""
    multicast = Multicast(group, **transport)
    feeds = [Feed("pub", "a.**", multicast)] if by_hand else []
    with Peer("pub", streams=[Stream("a.**", transport=multicast)]) as pub:
        connect = [] if by_hand else [pub.address]
        with Peer("sub", connect=connect, feeds=feeds) as sub, sub.subscribe("a.**") as events:
            if not by_hand:
                pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish_many("a.b", numbered.payloads(0, 10))
            events.wait_for_publishers(1, timeout=30)
            reader = numbered.Reader(events)
            if not by_hand:
                reader.read(10)
            yield pub, reader


def both_kinds() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("by_hand", [False, True], ids=["connected", "by hand"])


def figures_of(events: Subscription) -> dict[str, int]:
    """All counters of a subscription: its own, its packets', its line's."""
    stats = events.stats()
    (source,) = stats["sources"]
    packets = source["multicast"]
    return {**stats["counters"], **source, **packets, **packets["lines"][0]}


def read_on(pub: Peer, reader: numbered.Reader, count: int = 1000) -> None:
    """What is published from here on arrives, and nothing else."""
    events = reader.events
    first = pub.stats()["streams"]["a.**"]["next"]
    pub.publish_many("a.b", numbered.payloads(first, first + count))
    result = reader.read(first + count, timeout=30)
    assert result["losses"] == []
    assert len(result["epochs"]) == 1
    assert events.get(timeout=0.05) is None
    assert "io_errors" not in pub.stats()["counters"]


def epoch_of(pub: Peer) -> int:
    return int(pub.stats()["streams"]["a.**"]["epoch"])


AHEAD = (0, 1, 5, 50, 1000, 1 << 21, 1 << 40)


def forgeries(
    rng: random.Random, epoch: int, number: int, event: int, aheads: Sequence[int] = AHEAD
) -> Iterator[bytes]:
    """Packets in good form, of the right stream and epoch, with numbers that could be, or not."""
    frame = encode_frame(WIRE_ID, epoch, event, "a.b", [b"forged"] * 3, 1)
    for ahead in aheads:
        for first in (event, event + ahead, 0):
            for kind in (packet.DATA, packet.REPAIR):
                for places in (1, 2, 40):
                    head = packet.DATA_HEAD.pack(
                        packet.PACKET_MAGIC, kind, 0, rng.randrange(places), WIRE_ID, epoch,
                        number + ahead, first, len(frame), places, 3,
                    )  # fmt: skip
                    yield head + frame
        for flags in (0, packet.ANSWERS, packet.ENDS):
            top = number + ahead
            for low in (0, top):
                beat = packet.PacketBeat(WIRE_ID, epoch, top, low, 0, event + ahead, 9, flags)
                yield beat.encode()
        ranges = [(number + ahead, number + ahead + 10)]
        yield packet.PacketRequest(packet.CONFIRM, WIRE_ID, epoch, 0, ranges).encode()
        yield packet.PacketRequest(packet.NACK, WIRE_ID, epoch, 7, ranges).encode()
        yield packet.PacketParity(WIRE_ID, epoch, number + ahead, 0, 4, 2, bytes(900)).encode()
        yield packet.PacketStatus(WIRE_ID, epoch, number + ahead, 7, 1 << 20).encode()


@both_kinds()
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"], ids=["same host", "another"])
def test_forged_packets_are_counted_and_dropped(group: str, by_hand: bool, address: str) -> None:
    with (
        subscribed(group, by_hand=by_hand) as (pub, reader),
        stranger_on(group, address) as stranger,
    ):
        read_on(pub, reader)
        stats = pub.stats()["streams"]["a.**"]
        number, event = stats["multicast"]["next"], stats["next"]
        before = figures_of(reader.events).get("other_sources", 0)
        sent = 0
        for data in forgeries(random.Random(1), epoch_of(pub), number, event):
            stranger.send(data)
            sent += 1
        read_on(pub, reader, 20_000)
        figures = figures_of(reader.events)
        assert figures["other_sources"] - before == sent
        assert figures["missing"] == 0


@both_kinds()
def test_echoes_of_real_packets_change_nothing(group: str, by_hand: bool) -> None:
    with subscribed(group, by_hand=by_hand) as (pub, reader), stranger_on(group) as stranger:
        read_on(pub, reader, 20_000)
        recorded = stranger.heard()
        assert len(recorded) > 500
        read_on(pub, reader)
        for data in recorded:
            stranger.send(data)
        read_on(pub, reader)
        assert figures_of(reader.events)["other_sources"] == len(recorded)


def test_echoes_from_the_senders_own_port_are_duplicates(group: str) -> None:
    """A switch that sends packets twice, or somebody who forges the sender's address."""
    with subscribed(group, by_hand=False) as (pub, reader), stranger_on(group) as stranger:
        read_on(pub, reader, 20_000)
        recorded = stranger.heard()
        read_on(pub, reader)
        line = pub._open_node().publisher._outlets[STREAM].packets.server.lines[0]
        for data in recorded:
            line.send(data, len(data))
        read_on(pub, reader)
        assert figures_of(reader.events)["duplicates"] > 500


@both_kinds()
def test_forgeries_from_the_senders_own_port_do_not_stop_the_stream(
    group: str, by_hand: bool
) -> None:
    """Who can forge the sender's address can slow a stream, not break what it delivers."""
    with subscribed(group, by_hand=by_hand) as (pub, reader):
        read_on(pub, reader)
        server = pub._open_node().publisher._outlets[STREAM].packets.server
        rng = random.Random(2)
        for data in forgeries(rng, epoch_of(pub), 0, 0, aheads=(0, 1 << 40)):
            server.send(data, len(data))  # of numbers that are read already, or cannot be
        for _ in range(500):  # and random bytes
            server.send(b"MMP1" + rng.randbytes(rng.randrange(100)), 1400)
        read_on(pub, reader, 20_000)
        stats = pub.stats()["streams"]["a.**"]
        number, event = stats["multicast"]["next"], stats["next"]
        frame = encode_frame(WIRE_ID, epoch_of(pub), event, "a.b", [b"forged"] * 3, 1)
        spoiled = bytearray(frame)
        spoiled[-1] ^= 1
        # The next packet, with content that does not prove itself: the true one comes second.
        head = packet.DATA_HEAD.pack(
            packet.PACKET_MAGIC, packet.DATA, 0, 0, WIRE_ID, epoch_of(pub),
            number, event, len(frame), 1, 3,
        )  # fmt: skip
        server.send(head + spoiled, 1400)
        read_on(pub, reader, 20_000)
        assert figures_of(reader.events)["spoiled_frames"] == 1


@both_kinds()
def test_forged_heartbeats_from_the_senders_own_port_leave_nobody_deaf(
    group: str, by_hand: bool
) -> None:
    """Three of them, with the number of an event that will never be."""
    with subscribed(group, by_hand=by_hand) as (pub, reader):
        read_on(pub, reader)
        server = pub._open_node().publisher._outlets[STREAM].packets.server
        number = pub.stats()["streams"]["a.**"]["multicast"]["next"] + 100_000
        for ahead in (0, 1, 2):
            top = number + ahead
            beat = packet.PacketBeat(WIRE_ID, epoch_of(pub), top, top, 0, (1 << 62) - 1, 9, 0)
            server.send(beat.encode(), 1400)
        read_on(pub, reader)
        read_on(pub, reader)
        assert figures_of(reader.events)["set_back"] == 1


def test_forged_epoch_leaves_no_feed_deaf(group: str) -> None:
    with subscribed(group, by_hand=True) as (pub, reader):
        read_on(pub, reader)
        server = pub._open_node().publisher._outlets[STREAM].packets.server
        for ahead in (1, 2, 10**6):
            beat = packet.PacketBeat(WIRE_ID, epoch_of(pub) + ahead, 9, 9, 0, (1 << 62) - 1, 9, 0)
            server.send(beat.encode(), 1400)
        events = reader.events
        wait_until(lambda: not events.get(0.01) and figures_of(events)["epoch"] != epoch_of(pub))
        read_on(pub, reader)
        read_on(pub, reader)
        assert figures_of(events)["epoch"] == epoch_of(pub)


@pytest.mark.parametrize("own", [True, False], ids=["of the sender", "of the receiver"])
def test_nobody_shares_the_port_that_packets_are_sent_from(group: str, own: bool) -> None:
    """Whoever did would get the reports, and speak in the sender's name."""
    with subscribed(group, by_hand=False) as (pub, reader):
        sender = pub._open_node().publisher._outlets[STREAM].packets.server.lines[0].socket
        (line,) = reader.events._intake.reading.lines.values()
        address = (sender if own else line._tx).getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind(address)


@both_kinds()
@pytest.mark.parametrize("requests", [False, True], ids=["group", "request port"])
def test_random_and_cut_datagrams_are_counted_and_dropped(
    group: str, by_hand: bool, requests: bool
) -> None:
    with subscribed(group, by_hand=by_hand) as (pub, reader), stranger_on(group) as stranger:
        read_on(pub, reader)
        good = [d for d in stranger.heard() if len(d) > 20]
        good += list(forgeries(random.Random(3), epoch_of(pub), 5, 5))
        rng = random.Random(4)
        for _ in range(2000):
            data = bytearray(rng.choice(good) if rng.random() < 0.7 else rng.randbytes(60))
            if rng.random() < 0.5:
                del data[rng.randrange(len(data)) :]
            for _ in range(rng.randrange(4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            stranger.send(bytes(data), requests=requests)
            if rng.random() < 0.02:
                time.sleep(0.001)  # no test of the kernel's buffers
        read_on(pub, reader, 20_000)
        if requests:
            wait_until(
                lambda: pub.stats()["streams"]["a.**"]["multicast"].get("bad_packets", 0) > 200
            )
        else:
            figures = figures_of(reader.events)
            assert figures["other_sources"] + figures["bad_packets"] > 200


@both_kinds()
def test_another_epoch_of_our_stream_does_not_reset_a_receiver(group: str, by_hand: bool) -> None:
    with subscribed(group, by_hand=by_hand) as (pub, reader), stranger_on(group) as stranger:
        read_on(pub, reader)
        for epoch in (1, epoch_of(pub) - 1, epoch_of(pub) + 1, epoch_of(pub) + 10**9, 1 << 62):
            for data in forgeries(random.Random(5), epoch, 0, 0):
                stranger.send(data)
        read_on(pub, reader, 20_000)
        figures = figures_of(reader.events)
        assert figures["other_sources"] > 500
        assert figures["epoch"] == epoch_of(pub)


def test_stranger_cannot_report_for_receivers_or_hold_the_sender_up(group: str) -> None:
    with (
        subscribed(group, by_hand=False, receiver_timeout="600s") as (pub, reader),
        stranger_on(group) as stranger,
    ):
        read_on(pub, reader)
        source = pub._open_node().publisher._outlets[STREAM].packets.server.sources[0]
        epoch = epoch_of(pub)
        for receiver in range(200):  # without any room: a publisher that waits would wait for them
            status = packet.PacketStatus(WIRE_ID, epoch, 0, receiver, 0)
            stranger.send_to(status.encode(), source)
        status = packet.PacketStatus(WIRE_ID, epoch, 1 << 40, 7, 1 << 30)
        stranger.send_to(status.encode(), source)
        read_on(pub, reader, 200_000)
        figures = pub.stats()["streams"]["a.**"]["multicast"]
        assert figures["strange_status"] >= 1
