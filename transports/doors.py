"""Who is connected to a bound socket, by its monitor; and how a connection is cut.

A connection that says nothing costs a file descriptor.  ZeroMQ ends those that do not finish their
handshake in time; how many there may be at once, and which go first, is decided elsewhere.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable

import zmq

from meshmsg.transports.zmq_base import unwatch, watch

EVENTS_PER_READ_MAX = 10_000
DESCRIPTORS_MAX = 65_536
#: Part of the process's file descriptors that one bound socket may use.
SHARE_OF_FILES = 3 / 8

_WRONG_KEY = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_NO_KEY = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


class Door:
    """Counts the connections of one bound socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._owner = socket
        self._socket = watch(
            socket,
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_ACCEPT_FAILED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED,
        )
        self.pollable = self._socket
        #: By descriptor, oldest first, since when.
        self.open: dict[int, float] = {}
        #: Those of them that have not said anything yet.
        self.silent: dict[int, float] = {}
        self.counters: Counter[str] = Counter()

    def read(self) -> None:
        """Take notice of who came and went."""
        now = time.monotonic()
        for _ in range(EVENTS_PER_READ_MAX):
            try:
                event, _ = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            kind = int.from_bytes(event[:2], sys.byteorder)
            value = int.from_bytes(event[2:], sys.byteorder)
            if kind == zmq.EVENT_ACCEPTED:
                self.counters["connections"] += 1
                self.open.pop(value, None)  # so that the newest is the last
                self.open[value] = self.silent[value] = now
            elif kind == zmq.EVENT_DISCONNECTED:
                self.open.pop(value, None)
                self.silent.pop(value, None)
            elif kind == zmq.EVENT_ACCEPT_FAILED:
                self.counters["accepts_failed"] += 1
            else:
                self.counters["handshakes_failed"] += 1
                self.counters[_why(kind, value)] += 1

    def spoke(self, fd: int) -> None:
        """A connection has said something; from any thread."""
        self.silent.pop(fd, None)

    def close(self) -> None:
        """Stop watching."""
        unwatch(self._owner)
        self._socket.close(linger=0)


def _why(kind: int, value: int) -> str:
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "refused_connections"
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value in (_WRONG_KEY, _NO_KEY):
        return "wrong_mesh_keys" if value == _WRONG_KEY else "missing_keys"
    return "strange_connections"


def connections_allowed(wanted: int) -> int:
    """How many connections a bound socket may have, with the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, int(soft * SHARE_OF_FILES))


def cut(descriptors: Iterable[int], addresses: Iterable[str]) -> int:
    """End the connections among the descriptors that came to one of our addresses.

    A descriptor may have been closed meanwhile and be something else now: only what is connected to
    a port of ours is touched.
    """
    names = set(addresses)
    return sum(_cut(fd, names) for fd in descriptors)


def cut_all(addresses: Iterable[str]) -> int:
    """End all connections that came to one of our addresses, those too that nobody has noted."""
    try:
        names = [int(name) for name in os.listdir("/dev/fd") if name.isdecimal()]
    except OSError:  # there is no descriptor left to look with
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        names = list(range(DESCRIPTORS_MAX if soft < 0 else min(soft, DESCRIPTORS_MAX)))
    return cut(names, addresses)


def _cut(fd: int, addresses: set[str]) -> bool:
    # Not a copy of the descriptor: this has to work when there is none left.
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):  # closed by now, or not a socket
        return False
    try:
        if not _is_ours(connection, addresses):
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        connection.detach()  # it is ZeroMQ's, to be closed there
    return True


def _is_ours(connection: socket.socket, addresses: set[str]) -> bool:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False  # what listens must go on doing so
    name = connection.getsockname()
    if isinstance(name, str):
        return f"ipc://{name}" in addresses
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(name, tuple):
        return False
    ports = {address.rpartition(":")[2] for address in addresses if address.startswith("tcp://")}
    return str(name[1]) in ports and connection.type == socket.SOCK_STREAM
