"""Multicast sockets on loopback: bursts out, datagrams in, faults on demand."""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Iterator

import pytest

from meshmsg._model.errors import BindError, ConfigError
from meshmsg._model.multicast_config import Multicast
from meshmsg.transports.udp.interfaces import Interface
from meshmsg.transports.udp.multicast import (
    Datagram,
    Group,
    MulticastClient,
    MulticastServer,
    groups_of,
    lose,
)
from tests.scenarios.multicast.conftest import new_group

LO = "127.0.0.1"
WAIT_S = 30.0


@pytest.fixture
def pair() -> Iterator[tuple[MulticastServer, MulticastClient]]:
    config = Multicast(new_group())
    server = MulticastServer(config, LO)
    client = MulticastClient(groups_of(config, LO)[0], None, 1 << 16)
    yield server, client
    client.close()
    server.close()


def received(client: MulticastClient, size: int) -> bytes:
    data = b""
    while len(data) < size and select.select([client.fd], [], [], WAIT_S)[0]:
        datagram = client.recv()
        data += b"" if datagram is None else datagram.data
    return data


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 31, 1 << 62])
def test_a_buffer_larger_than_any_is_as_large_as_the_system_gives(size: int) -> None:
    client = MulticastClient(groups_of(Multicast(new_group()), LO)[0], None, size)
    assert client.granted_bytes > 0
    client.close()


def test_a_burst_comes_as_packets_of_its_size(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    server, client = pair
    burst = b"".join(bytes([65 + n]) * 100 for n in range(5)) + b"end"
    server.send(burst, 100)
    found: list[Datagram] = []
    while sum(len(one.data) for one in found) < len(burst):
        assert select.select([client.fd], [], [], WAIT_S)[0]
        datagram = client.recv()
        assert datagram is not None
        assert datagram.packet_bytes == 100 or datagram.data == b"end"
        assert datagram.source[:2] == server.sources[0]
        found.append(datagram)
    assert b"".join(one.data for one in found) == burst
    assert client.recv() is None


def test_where_the_kernel_cannot_cut_the_sender_does(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    server, client = pair
    server.lines[0].segments = False
    server.send(b"a" * 50 + b"b" * 50 + b"c", 50)
    assert received(client, 101) == b"a" * 50 + b"b" * 50 + b"c"
    assert server.stats()[0]["kernel_segments"] is False


def test_a_fault_drops_packets_at_either_end(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    server, client = pair
    server.fault = lambda packet: packet[:1] == b"b"
    server.send(b"aaaabbbbcccc", 4)
    assert received(client, 8) == b"aaaacccc"
    assert server.counters["injected_drops"] == 1
    server.fault = lambda packet: True
    server.send(b"aaaa", 4)
    server.fault = None
    client.fault = lambda packet: packet[:1] == b"d"
    server.send(b"ddddeeee", 4)
    assert received(client, 4) == b"eeee"
    assert client.counters["injected_drops"] == 1


@pytest.mark.parametrize(
    ("lost", "left"),
    [((), b"aaabbbcc"), ((b"a",), b"bbbcc"), ((b"b", b"c"), b"aaa"), ((b"c",), b"aaabbb")],
)
def test_what_a_fault_leaves_of_a_burst(lost: tuple[bytes, ...], left: bytes) -> None:
    counters: Counter[str] = Counter()
    assert lose(lambda packet: packet[:1] in lost, b"aaabbbcc", 3, counters) == left
    assert counters["injected_drops"] == len(lost)


def test_requests_and_reports_come_back_to_the_sender(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    server, client = pair
    requests = server.inlets[1].socket.getsockname()[1]
    client.request(b"nack", requests)
    client.report(b"status", server.sources[0])
    found = set()
    by_fd = {inlet.pollable: inlet for inlet in server.inlets}
    while len(found) < 2:
        ready = select.select(list(by_fd), [], [], WAIT_S)[0]
        assert ready
        for fd in ready:
            said = by_fd[fd].recv()
            assert said is not None
            found.add(said[0])
    assert found == {b"nack", b"status"}
    assert all(inlet.recv() is None for inlet in server.inlets)


def test_nothing_comes_soon_where_nothing_was_sent(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    server, client = pair
    assert client.recv_soon() is None
    server.send(b"now", 10)
    assert select.select([client.fd], [], [], WAIT_S)[0]
    datagram = client.recv_soon()
    assert datagram is not None
    assert datagram.data == b"now"


def test_a_stream_has_one_line_or_two() -> None:
    one, two = new_group(), new_group()
    groups = groups_of(Multicast(one, second=two), LO)
    assert [f"{group.host}:{group.port}" for group in groups] == [one, two]
    with pytest.raises(ConfigError, match="no interface") as caught:
        groups_of(Multicast(one, second=two, second_interface="none-such"), LO)
    assert caught.value.field == "second_interface"


def test_a_group_that_cannot_be_joined_is_told_by_its_place() -> None:
    nowhere = Group("239.200.1.1", 30_000, Interface("gone", 9999, "203.0.113.7"))
    with pytest.raises(BindError, match="on gone"):
        MulticastClient(nowhere, None, 1 << 16)


def test_a_group_is_the_same_in_both_forms() -> None:
    four = Group("239.1.2.3", 7000, Interface("lo", 1, LO))
    assert four.address == ("239.1.2.3", 7000)
    assert four.packed[2:8] == (7000).to_bytes(2, "big") + bytes([239, 1, 2, 3])
    six = Group("ff02::5", 7000, Interface("lo", 1, LO)).at(7001)
    assert six.address == ("ff02::5", 7001, 0, 1)
    assert len(six.packed) == 28


def test_the_window_is_a_part_of_what_was_granted_and_never_tiny(
    pair: tuple[MulticastServer, MulticastClient],
) -> None:
    _, client = pair
    client.granted_bytes = 1000
    assert client.window_bytes == 32 * 1024
    client.granted_bytes = 1 << 20
    assert client.window_bytes == 1 << 18
