"""What the ZeroMQ sockets of meshmsg share: a context, limits, addresses, polling."""

from __future__ import annotations

import contextlib
import errno
import math
import sys
from collections.abc import Iterable
from typing import Any, Protocol

import zmq

from meshmsg._errors import BindError
from meshmsg._frame import FRAME_BYTES_MAX

RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
#: The system would wait for up to two minutes, and a network that is back would go unnoticed.
CONNECT_MS = 5000
#: A message that claims to be larger is refused by ZeroMQ before memory is taken for it.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 4096
#: Peers that may be connected at once.
SOCKETS_MAX = 16384


class Context:
    """The ZeroMQ context of one peer."""

    def __init__(self) -> None:
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.zmq.set(zmq.MAX_SOCKETS, SOCKETS_MAX)

    def socket(
        self, kind: int, *, send_queue: int, recv_queue: int, ipv6: bool = False
    ) -> zmq.Socket[bytes]:
        """A socket with the limits that all of ours have; queues are in messages."""
        socket = self.zmq.socket(kind)
        socket.setsockopt(zmq.SNDHWM, send_queue)
        socket.setsockopt(zmq.RCVHWM, recv_queue)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if ipv6:
            socket.setsockopt(zmq.IPV6, 1)
        return socket

    def close(self) -> None:
        """Free it; its sockets must be closed."""
        self.zmq.term()


def bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Bind; returns the real address (`:*` and `:0` get a port).  Raises `BindError`."""
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(address.removesuffix(":0") + ":*" if address.endswith(":0") else address)
    except zmq.ZMQError as error:
        raise BindError(address, _bind_problem(error)) from None
    real: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return real


def _bind_problem(error: zmq.ZMQError) -> str:
    if error.errno == zmq.EADDRINUSE:
        return "the port is taken: stop who has it, or choose another (':*' takes a free one)"
    if error.errno in (zmq.EADDRNOTAVAIL, errno.ENODEV):
        return "no interface of this machine has that address"
    return f"{error.strerror}"


def companion(address: str) -> str:
    """Where the data socket listens that belongs to a control address."""
    if address.startswith("ipc://"):
        return address + ".data"
    return address.rpartition(":")[0] + ":*"


def milliseconds(timeout_s: float) -> int:
    """For a ZeroMQ poll; rounded up, so that a short wait does not become a busy loop."""
    return math.ceil(max(0.0, timeout_s) * 1000)


class Pollable(Protocol):
    """Something with a ZeroMQ socket or a file descriptor."""

    @property
    def pollable(self) -> Any:
        """What a ZeroMQ poller takes."""


class Poller:
    """Waits for any of a changing set of things to become readable."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._owners: dict[Any, Pollable] = {}

    def add(self, owner: Pollable) -> None:
        """Wait for this one too."""
        pollable = owner.pollable
        self._owners[pollable] = owner
        self._poller.register(pollable, zmq.POLLIN)

    def remove(self, owner: Pollable) -> None:
        """Do not wait for it any more."""
        pollable = owner.pollable
        if self._owners.pop(pollable, None) is not None:
            self._poller.unregister(pollable)

    def wait(self, timeout_s: float) -> list[Pollable]:
        """Those that are readable; empty when the time is up."""
        ready = self._poller.poll(milliseconds(timeout_s))
        return [self._owners[pollable] for pollable, _ in ready]


class Monitor:
    """Tells when the connection of a socket comes and goes."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._owner = socket
        self._socket = socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
        )
        # By descriptor; a handshake does not say on which of the streams that are open it was.
        self._open: set[bytes] = set()
        self._ours: set[bytes] = set()
        self.pollable = self._socket

    def read(self) -> Iterable[bool]:
        """`True` for each connection made, `False` for each one lost.

        Whoever comes and does not speak ZeroMQ makes no connection, and loses none.
        """
        while True:
            try:
                event, _ = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            kind, descriptor = int.from_bytes(event[:2], sys.byteorder), event[2:]
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._ours |= self._open
                yield True
            elif kind == zmq.EVENT_DISCONNECTED:
                self._open.discard(descriptor)
                if descriptor in self._ours:
                    self._ours.discard(descriptor)
                    yield False
            else:
                self._open.add(descriptor)

    def close(self) -> None:
        """Stop watching."""
        with contextlib.suppress(zmq.ZMQError):
            self._owner.disable_monitor()
        self._socket.close(linger=0)
