"""A forked child lets go of sockets that are its parent's."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import zmq

from meshmsg.transports import inherited
from meshmsg.transports.inherited import note_bound, owned


def in_a_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_child_does_not_have_owned_sockets_and_the_parent_keeps_them() -> None:
    with owned(socket.socket()) as sock, socket.socket() as other:
        fd, kept = sock.fileno(), other.fileno()
        assert in_a_child(lambda: not is_open(fd) and is_open(kept))
        assert is_open(fd)


def test_a_child_does_not_have_a_port_that_zeromq_listens_at() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as bound:
        bound.setsockopt(zmq.LINGER, 0)
        bound.bind("tcp://127.0.0.1:*")
        address = bound.getsockopt_string(zmq.LAST_ENDPOINT)
        note_bound(bound, address)
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
        listening = [fd for fd in descriptors if inherited._address_of(fd) == address]
        assert len(listening) == 1
        assert in_a_child(lambda: not is_open(listening[0]))
        assert is_open(listening[0])


def test_the_address_of_what_is_no_socket_is_empty() -> None:
    read_end, write_end = os.pipe()
    assert inherited._address_of(read_end) == ""
    os.close(read_end)
    os.close(write_end)
    assert inherited._address_of(read_end) == ""
    assert inherited._waiting_in(read_end) == set()
