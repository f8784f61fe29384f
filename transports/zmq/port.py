"""Whole messages in and out of a ZeroMQ socket, by calls that never wait.

The compiled core has the same, and saves what a general binding costs for such calls: to receive,
the GIL given away and taken again; to send, a copy of each large message (`c/zmq_port.c`).

No lock: whoever calls holds the one that guards the socket.
"""

from __future__ import annotations

from typing import Protocol

import zmq

from meshmsg._native import COMPILED
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST

if COMPILED:
    from meshmsg import _speed


class Port(Protocol):
    """Messages of one part in and out of a socket; to be closed before the socket is."""

    got_bytes: int
    """What was received, with what ZeroMQ puts around each message, about."""
    emptied: int
    """How often there was nothing to receive."""

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""

    def send(self, data: bytes, /) -> bool:
        """Whether ZeroMQ has taken it; `False` where that would mean to wait."""

    def close(self) -> None:
        """Let go of the socket."""


class PlainPort:
    """A port that goes through pyzmq."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._recv = socket.recv
        self._send = socket.send
        self.got_bytes = self.emptied = 0

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""
        try:
            data = self._recv(zmq.NOBLOCK)
        except zmq.Again:
            self.emptied += 1
            return None
        self.got_bytes += len(data) + MESSAGE_COST
        return data

    def send(self, data: bytes, /) -> bool:
        """Whether ZeroMQ has taken it; `False` where that would mean to wait."""
        try:
            self._send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Nothing to do: pyzmq knows of a socket that is closed."""


def port_of(socket: zmq.Socket[bytes]) -> Port:
    """The quickest port there is for a socket."""
    if not COMPILED:
        return PlainPort(socket)
    try:
        from zmq.backend.cython import _zmq

        return _speed.Port(socket, socket.underlying, _zmq.__file__)
    except (ImportError, AttributeError, OSError):  # pyzmq of another make
        return PlainPort(socket)


def settle_loans() -> None:
    """Let go of messages that have left, in a process that has nothing more to send."""
    if COMPILED:
        _speed.settle_loans()
