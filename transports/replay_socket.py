"""A connection to a peer for reading its logs: one DEALER socket with a context of its own.

For plain programs that are no peers.  Sockets only: what is asked is decided elsewhere.
"""

from __future__ import annotations

import zmq

from meshmsg.transports.control import split_parts
from meshmsg.transports.zmq_base import Context, Monitor, milliseconds

#: Answers that wait here unread; what is ahead of us is bounded by credit, in bytes.
QUEUE_MESSAGES = 4096


class Disconnected(Exception):
    """The connection that was there is gone."""


class ReplaySocket:
    """Asks one peer.  Not for several threads."""

    def __init__(self, address: str) -> None:
        self._context = Context()
        self._socket = self._context.socket(
            zmq.DEALER,
            send_queue=QUEUE_MESSAGES,
            recv_queue=QUEUE_MESSAGES,
            ipv6="[" in address,
        )
        self._monitor = Monitor(self._socket)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor.pollable, zmq.POLLIN)
        self._socket.connect(address)

    def send(self, data: bytes) -> bool:
        """`False` if too much waits to be sent."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def recv(self, timeout_s: float) -> list[memoryview] | None:
        """The parts of the next message, `None` when the time is up; raises `Disconnected`."""
        while True:
            try:
                return split_parts(self._socket.recv(zmq.NOBLOCK, copy=False).buffer)
            except zmq.Again:
                pass
            ready = dict(self._poller.poll(milliseconds(timeout_s)))
            if not ready:
                return None
            # First what came before the end of the connection.
            if self._socket not in ready and not all(self._monitor.read()):
                raise Disconnected

    def close(self) -> None:
        """Close."""
        self._monitor.close()
        self._socket.close(linger=100)
        self._context.close()
