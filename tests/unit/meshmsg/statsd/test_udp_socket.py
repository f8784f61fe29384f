"""The socket of a StatsD server: datagrams in, many a call."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from meshmsg._model.errors import BindError
from meshmsg.statsd.udp_socket import StatsdInlet


@pytest.fixture
def inlet() -> Iterator[StatsdInlet]:
    made = StatsdInlet("127.0.0.1", 0, 1 << 16)
    yield made
    made.close()
    made.close()


def test_datagrams_come_whole_and_as_many_as_are_asked_for(inlet: StatsdInlet) -> None:
    assert inlet.receive(10) == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for n in range(5):
            client.sendto(b"%d" % n, inlet.address)
    found: list[bytes] = []
    while len(found) < 5:
        inlet.wait(30.0)
        some = inlet.receive(2)
        assert len(some) <= 2
        found += some
    assert found == [b"%d" % n for n in range(5)]
    assert inlet.kernel_drops() in (0, None)


def test_a_buffer_larger_than_the_system_can_be_asked_for_is_no_error() -> None:
    inlet = StatsdInlet("127.0.0.1", 0, 1 << 40)
    assert 0 < inlet.granted_bytes < 1 << 40
    inlet.close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "a..b"])
def test_an_address_that_cannot_be_bound_is_told(host: str) -> None:
    with pytest.raises(BindError):
        StatsdInlet(host, 0, 1 << 16)


def test_a_port_that_is_taken_is_told(inlet: StatsdInlet) -> None:
    with pytest.raises(BindError):
        StatsdInlet(*inlet.address, 1 << 16)
