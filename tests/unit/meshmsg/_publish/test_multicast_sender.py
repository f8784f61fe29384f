"""A multicast stream on its way out: which packets leave, and what receivers may cause."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshmsg import Multicast, Security, Stream
from meshmsg._access.multicast_keys import SendingSeal
from meshmsg._publish import multicast_sender
from meshmsg._publish.multicast_sender import PacketOutlet
from meshmsg._wire.packet import (
    DATA,
    HEARTBEAT,
    NACK,
    REPAIR,
    SEAL_BYTES,
    PacketRequest,
    PacketStatus,
)
from meshmsg.transports.udp.multicast import MulticastClient, groups_of
from tests.scenarios.multicast.conftest import new_group
from tests.support.cores import EPOCH, STREAM, frame_of

LO = "127.0.0.1"
WAIT_S = 60.0
KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"


class World:
    """A stream, who listens to its group, and who asks it for something."""

    def __init__(self, sealed: bool, overflow: str = "drop_oldest", **transport: Any) -> None:
        config = Multicast(new_group(), **transport)
        stream = Stream("a", overflow=overflow, transport=config, buffer_bytes=64 * 1024)
        self.seal = SendingSeal(Security(mesh_key=KEY), STREAM) if sealed else None
        self.outlet = PacketOutlet(stream, STREAM, EPOCH, LO, self.seal)
        self.client = MulticastClient(groups_of(config, LO)[0], None, 1 << 16)
        self.asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.outlet.open(0.0)

    def send(self, *numbers: int, size: int = 20, now: float = 0.0) -> bool:
        return [self.outlet.send(frame_of(n, size=size), now) for n in numbers][-1]

    def heard(self, count: int, kind: int = DATA) -> list[bytes]:
        """So many packets of a kind that came, no more."""
        found: list[bytes] = []
        while len(found) < count:
            assert select.select([self.client.fd], [], [], WAIT_S)[0], found
            datagram = self.client.recv()
            if datagram is not None:
                data, size = datagram.data, datagram.packet_bytes or len(datagram.data)
                packets = [data[at : at + size] for at in range(0, len(data), size)]
                found += [packet for packet in packets if packet[4] == kind]
        assert len(found) == count
        return found

    def ask(self, *packets: bytes, now: float = 0.0) -> float:
        """Somebody says this to the sender; what the I/O thread does when it is there."""
        inlet = self.outlet.server.inlets[0]
        for packet in packets:
            self.asker.sendto(packet, (LO, self.outlet.server.sources[0][1]))
        assert select.select([inlet.socket], [], [], WAIT_S)[0]
        return self.outlet.on_inlet(inlet, now)

    def close(self) -> None:
        self.asker.close()
        self.client.close()
        self.outlet.server.close()


@pytest.fixture
def worlds() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(sealed: bool = False, *arguments: Any, **transport: Any) -> World:
        made.append(World(sealed, *arguments, **transport))
        return made[-1]

    yield make
    for world in made:
        world.close()


def nack(*ranges: tuple[int, int], stream: int = STREAM) -> bytes:
    return PacketRequest(NACK, stream, EPOCH, 1, list(ranges)).encode()


@pytest.mark.parametrize(
    ("overflow", "flow"),
    [("block", "slowest"), ("buffer", "slowest"), ("drop_oldest", "rate"), ("drop_newest", "rate")],
)
def test_where_the_publisher_waits_the_slowest_receiver_sets_the_pace(
    worlds: Callable[..., World], overflow: str, flow: str
) -> None:
    assert worlds(False, overflow).outlet.stats()["flow"] == flow
    assert worlds(False, overflow, flow="fastest").outlet.stats()["flow"] == "fastest"


def test_an_event_leaves_as_one_packet_and_a_large_one_as_several(
    worlds: Callable[..., World],
) -> None:
    world = worlds()
    assert world.send(0)
    assert world.send(1, size=3000)
    world.heard(4)
    assert (world.outlet.sent_events, world.outlet.unsent_bytes) == (2, 0)
    assert world.outlet.stats()["next"] == 4


def test_what_is_not_due_yet_leaves_by_the_clock(worlds: Callable[..., World]) -> None:
    world = worlds(rate="1MB")
    sent_all = True
    n = 0
    while sent_all and n < 10_000:
        sent_all = world.send(n, size=1000)
        n += 1
    assert not sent_all
    assert world.outlet.unsent_bytes > 0
    assert world.outlet.is_busy()
    due = world.outlet.on_tick(0.0)
    assert 0.0 < due < 1.0
    now = due
    while world.outlet.unsent_bytes:
        now = max(now + 0.001, world.outlet.on_tick(now))
    assert world.outlet.sent_events == n


def test_packets_that_somebody_misses_are_sent_again(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.send(0, 1, 2)
    first = world.heard(3)
    world.ask(nack((1, 2)), now=1.0)
    world.outlet.on_tick(1.1)
    [repair] = world.heard(1, REPAIR)
    assert repair[5:] == first[1][5:]


def test_nonsense_and_what_is_for_another_stream_is_counted(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.send(0)
    world.heard(1)
    world.ask(b"nonsense", b"", nack((0, 1), stream=STREAM + 1), frame_of(0))
    counters = world.outlet.counters

    def counted() -> int:
        return counters["bad_packets"] + counters["other_packets"]

    while counted() < 4:
        world.ask()
    assert counters == {"bad_packets": 3, "other_packets": 1}
    assert world.client.recv() is None


def test_a_flood_of_requests_is_left_for_nine_times_as_long_as_was_read(
    worlds: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds()
    monkeypatch.setattr(multicast_sender, "INLET_S", -1.0)
    assert world.ask(nack((0, 1)), nack((0, 1))) > 0.0
    monkeypatch.setattr(multicast_sender, "INLET_S", 60.0)
    assert world.ask() == 0.0


def test_one_bad_message_does_not_stop_the_others(
    worlds: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds()
    seen: list[object] = []

    def fail(status: PacketStatus, *, now: float) -> None:
        seen.append(status)
        raise ZeroDivisionError

    monkeypatch.setattr(world.outlet.sender, "on_status", fail)
    status = PacketStatus(STREAM, EPOCH, 0, 9, 1 << 20).encode()
    world.ask(status, status)
    while len(seen) < 2:
        world.ask()
    assert world.outlet.counters["io_errors"] == 2


def test_receivers_that_only_report_are_strangers(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.send(0)
    assert world.outlet.admit(7, 0.0) == 1  # what is sent from here on is for it
    world.ask(PacketStatus(STREAM, EPOCH, 1, 9, 1 << 20).encode())
    assert world.outlet.strangers({7: None}) == 1
    assert world.outlet.strangers({7: None, 9: None}) == 0


def test_a_receiver_that_takes_nothing_makes_the_stream_crowded(
    worlds: Callable[..., World],
) -> None:
    world = worlds(False, "buffer")
    world.outlet.admit(7, 0.0)
    n = 0
    while not world.outlet.is_crowded():
        assert n < 1000
        world.send(n, size=1000)
        n += 1
    assert 64 * 1024 < world.outlet.unsent_bytes < 80 * 1024
    assert not world.outlet.is_paced()  # it waits for a report
    world.outlet.sender.forget(7)
    world.outlet.on_tick(10.0)
    assert not world.outlet.is_crowded()


def test_sealed_packets_are_as_large_on_the_wire_and_open_requests_only(
    worlds: Callable[..., World],
) -> None:
    plain, sealed = worlds(), worlds(True)
    for world in (plain, sealed):
        world.send(0, size=5000)
    largest = [max(map(len, world.heard(4))) for world in (plain, sealed)]
    assert largest[0] == largest[1]
    assert sealed.outlet.info.packet_bytes == plain.outlet.info.packet_bytes - SEAL_BYTES
    assert sealed.outlet.seal_info() is not None
    assert plain.outlet.seal_info() is None
    sealed.ask(nack((0, 1)))  # not sealed
    assert sealed.outlet.stats()["unsealed"] == 1
    sealed.outlet.on_tick(0.001)
    assert sealed.client.recv() is None


def test_the_end_is_told(worlds: Callable[..., World]) -> None:
    world = worlds()
    world.send(0)
    world.heard(1)
    world.outlet.end(0.0)
    assert world.heard(1, HEARTBEAT)
