"""Trials of what the system lets us do."""

from __future__ import annotations

import socket

import pytest
import zmq

from meshmsg.transports.probes import granted_buffers, multicast_echo, path_mtu, why_no_data
from meshmsg.transports.udp.interfaces import find_interface
from meshmsg.transports.zmq.context import Context
from tests.support.ports import free_port


def test_a_packet_to_a_group_comes_back_on_loopback() -> None:
    assert multicast_echo(find_interface("f", "127.0.0.1"), 30.0) < 30.0


def test_buffers_are_granted_up_to_what_was_asked() -> None:
    receive, send = granted_buffers(16_384)
    assert (receive, send) == (16_384, 16_384)


def test_the_way_to_this_machine_has_an_mtu_and_that_to_a_name_none() -> None:
    mtu = path_mtu("127.0.0.1", 9)
    assert mtu is not None
    assert mtu > 1000
    assert path_mtu("::1", 9) is None
    assert path_mtu("no.such.host.invalid", 9) is None


def test_a_data_port_is_told_apart_from_nobody_and_from_one_that_says_nothing() -> None:
    context = Context()
    publisher = context.socket(zmq.XPUB, send_queue=1, recv_queue=1)
    publisher.bind("tcp://127.0.0.1:*")
    address = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
    try:
        assert why_no_data(context, address, b"", 30.0) == ""
        nobody = f"tcp://127.0.0.1:{free_port()}"
        assert "refused" in why_no_data(context, nobody, b"", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            words = why_no_data(context, f"tcp://127.0.0.1:{port}", b"", 0.2)
            assert words == "connected, but nobody shakes hands"
    finally:
        publisher.close(linger=0)
        context.close()


@pytest.mark.parametrize("wanted", [1 << 30])
def test_more_than_the_system_grants_is_less(wanted: int) -> None:
    assert all(granted < wanted for granted in granted_buffers(wanted))
