"""Multicast groups in a simulated world."""

import pytest

from meshmsg import Multicast
from meshmsg._model.errors import ClosedError
from meshmsg.transports.memory.multicast import MulticastClient, MulticastServer
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.udp.multicast import groups_of

CONFIG = Multicast("239.1.1.1:9000")


class Pair:
    def __init__(self, buffer_bytes: int = 10_000) -> None:
        self.world = MemoryPlatform()
        self.server = MulticastServer(self.world.machine("a"), CONFIG, "127.0.0.1")
        (group,) = groups_of(CONFIG, "127.0.0.1")
        self.client = MulticastClient(self.world.machine("b"), group, buffer_bytes)


def test_burst_comes_as_packets() -> None:
    pair = Pair()
    pair.server.send(b"aaabbbcc", 3)
    pair.world.sleep(1)
    datagrams = [pair.client.recv_soon() for _ in range(4)]
    assert [d and d.data for d in datagrams] == [b"aaa", b"bbb", b"cc", None]
    assert datagrams[0] is not None
    assert datagrams[0].source == pair.server.sources[0]


def test_requests_and_reports_come_to_the_sender() -> None:
    pair = Pair()
    report, request = pair.server.inlets
    assert CONFIG.request_port is not None
    pair.client.request(b"again", CONFIG.request_port)
    pair.client.report(b"so far", pair.server.sources[0])
    pair.world.sleep(1)
    asked, told = request.recv(), report.recv()
    assert asked is not None
    assert told is not None
    assert (asked[0], told[0]) == (b"again", b"so far")
    assert request.recv() is None


def test_full_buffer_drops() -> None:
    pair = Pair(buffer_bytes=10)
    pair.server.send(bytes(20), 5)
    pair.world.sleep(1)
    assert pair.client.kernel_drops == 2
    assert pair.client.stats()["kernel_drops"] == 2
    assert pair.client.window_bytes > 0


def test_faults_lose_packets_at_either_end() -> None:
    pair = Pair()
    pair.server.fault = lambda packet: packet == b"bbb"
    pair.client.fault = lambda packet: packet == b"aaa"
    pair.server.send(b"aaabbbcc", 3)
    pair.world.sleep(1)
    datagrams = [pair.client.recv() for _ in range(3)]
    assert [d and d.data for d in datagrams] == [b"", b"cc", None]
    assert pair.server.stats()[0]["group"] == "239.1.1.1"


def test_closed_sockets_take_nothing_and_dead_machines_send_nothing() -> None:
    pair = Pair()
    pair.client.close()
    pair.server.send(b"aaa", 3)
    pair.world.sleep(1)
    assert pair.client.recv() is None
    pair.server.close()
    pair.world.kill("a")
    with pytest.raises(ClosedError):
        pair.server.send(b"aaa", 3)
