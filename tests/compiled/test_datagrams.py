"""Datagrams by the compiled core: as Python's own sockets have them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from meshmsg._native import COMPILED
from meshmsg.transports.udp.interfaces import find_interface
from meshmsg.transports.udp.multicast import (
    DATAGRAM_BYTES_MAX,
    SO_RXQ_OVFL,
    SOL_UDP,
    UDP_GRO,
    Datagram,
    Group,
)
from meshmsg.transports.wakeup import Wakeup

if COMPILED:
    from meshmsg import _speed
if not COMPILED or not hasattr(_speed, "Datagrams"):
    pytest.skip("the compiled core is not in use", allow_module_level=True)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    host = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    with (
        socket.socket(request.param, socket.SOCK_DGRAM) as out,
        socket.socket(request.param, socket.SOCK_DGRAM) as into,
    ):
        for one in (out, into):
            one.bind((host, 0))
        yield out, into


def packed(sock: socket.socket) -> bytes:
    host, port = sock.getsockname()[:2]
    return Group(host, port, find_interface("interface", "127.0.0.1")).packed


def test_one_datagram_is_as_python_has_it(pair: Pair) -> None:
    out, into = pair
    port = _speed.Datagrams(into.fileno(), Datagram)
    assert port.recv() is None
    sizes = [0, 1, 100, 2048, 2049, *[50] * 20, 9000, 30_000, *[60] * 20, 1]
    for n, size in enumerate(sizes):
        data = bytes([n]) * size
        out.sendto(data, into.getsockname())
        found = port.recv()
        assert type(found) is Datagram
        assert found == Datagram(data, max(1, size), out.getsockname())
    out.sendto(b"once more", into.getsockname())
    data, _, _, source = into.recvmsg(DATAGRAM_BYTES_MAX)
    assert (data, source) == (b"once more", out.getsockname())
    assert port.recv() is None


def test_another_source_is_named(pair: Pair) -> None:
    out, into = pair
    port = _speed.Datagrams(into.fileno(), Datagram)
    with socket.socket(out.family, socket.SOCK_DGRAM) as other:
        other.bind((out.getsockname()[0], 0))
        for sender in (out, other, other, out):
            sender.sendto(b"x", into.getsockname())
            assert port.recv().source == sender.getsockname()


def test_bursts_are_cut_and_come_together(pair: Pair) -> None:
    out, into = pair
    into.setsockopt(SOL_UDP, UDP_GRO, 1)
    receiver = _speed.Datagrams(into.fileno(), Datagram)
    sender = _speed.Datagrams(out.fileno(), tuple)
    to = packed(into)
    data = os.urandom(1000 * 30 + 123)
    for burst in (data, memoryview(data), data[:1000], data[:7]):
        assert sender.send(burst, 1000, to)
        got, size = b"", 0
        while len(got) < len(burst):
            found = receiver.recv()
            assert found is not None
            got += found.data
            size = found.packet_bytes
        assert got == burst
        assert size == min(1000, len(burst))


def test_it_looks_for_a_while_and_lets_others_run(pair: Pair) -> None:
    out, into = pair
    port = _speed.Datagrams(into.fileno(), Datagram)
    assert port.look(1000) is None
    ran = []

    def send() -> None:
        ran.append(True)
        out.sendto(b"here", into.getsockname())

    later = threading.Timer(0.05, send)
    later.start()
    found = port.look(10**12)
    assert found.data == b"here"
    assert ran
    later.join()


def test_drops_are_counted(pair: Pair) -> None:
    out, into = pair
    into.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    port = _speed.Datagrams(into.fileno(), Datagram)
    for _ in range(200):
        out.sendto(bytes(1000), into.getsockname())
    got = 0
    while port.recv() is not None:
        got += 1
    out.sendto(b"tells", into.getsockname())
    assert port.recv() is not None
    assert port.drops == 200 - got > 0


def test_closed_one_touches_no_descriptor(pair: Pair) -> None:
    out, into = pair
    port = _speed.Datagrams(into.fileno(), Datagram)
    to = packed(out)
    port.close()
    out.sendto(b"x", into.getsockname())
    assert port.recv() is None
    assert port.look(10) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        port.send(b"x", 10, to)
    assert into.recv(10) == b"x"


def test_errors_are_the_systems(pair: Pair) -> None:
    out, into = pair
    port = _speed.Datagrams(out.fileno(), tuple)
    with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
        port.send(bytes(70_000), 65_000, packed(into))
    with pytest.raises(ValueError, match="65535"):
        port.send(b"x", 70_000, packed(into))
    with pytest.raises(TypeError):
        port.send("text", 10, packed(into))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _speed.Datagrams(out.fileno(), dict)  # type: ignore[arg-type]


def test_address_is_packed_as_the_system_has_it() -> None:
    here = find_interface("interface", "127.0.0.1")
    expected = struct.pack("=H", socket.AF_INET) + bytes([0x75, 0x31, 239, 255, 7, 7]) + bytes(8)
    assert Group("239.255.7.7", 30001, here).packed == expected
    assert len(Group("ff05::1", 30001, here).packed) == 28


def test_wakeup_calls_gather() -> None:
    wakeup = Wakeup()
    try:
        for _ in range(3):
            wakeup.set()
        assert os.eventfd_read(wakeup.fd) == 3
        wakeup.clear()
    finally:
        wakeup.close()
    wakeup.set()
    with pytest.raises(OSError, match="Bad file descriptor"):
        _speed.poke(-1)
