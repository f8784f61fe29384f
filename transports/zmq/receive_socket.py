"""A ZeroMQ socket that takes messages of any number of publishers, and can be waited for.

No lock: whoever calls holds the one that guards the socket.
"""

from __future__ import annotations

from collections.abc import Iterable

import zmq

from meshmsg._model.errors import ProtocolError
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq.context import Context, milliseconds
from meshmsg.transports.zmq.port import port_of
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, Dialled, Limits

SOON_S = 0.04


class ZmqInlet:
    """Messages in, over any number of connections that this side makes."""

    def __init__(self, context: Context, socket: zmq.Socket[bytes], limits: Limits) -> None:
        self._context = context
        self._socket = socket
        self._dialled = Dialled(socket, limits)
        self._socket.setsockopt(zmq.RCVTIMEO, milliseconds(SOON_S))
        self._connected: set[str] = set()
        self._recv = self._socket.recv
        self._port = port_of(socket)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self.wakeup = Wakeup()
        self._poller.register(self.wakeup.fd, zmq.POLLIN)
        self.fds: tuple[int, ...] = (int(self._socket.getsockopt(zmq.FD)),)
        #: Messages of streams that are not whose they came from.
        self.foreign = 0
        #: The address that the last message came from, where that is known.
        self.came_from = ""

    def connect(self, address: str, key: bytes = b"", streams: Iterable[bytes] = ()) -> None:
        """Connect to a publisher; a second call for the same address does nothing.

        `key` is the one that it must have, and `streams` are its own, as its messages begin.
        Raises `ProtocolError` for an address that ZeroMQ does not take.
        """
        if address in self._connected:
            return
        if "[" in address:
            self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._context.connect(self._socket, address, key)
        except zmq.ZMQError as error:
            raise ProtocolError(f"{address!r}: {error}") from None
        self._connected.add(address)

    def disconnect(self, address: str) -> None:
        """Leave a publisher; what it sent and is not yet read is lost."""
        if address in self._connected:
            self._connected.discard(address)
            self._socket.disconnect(address)

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""
        return self._port.recv()

    def recv_soon(self) -> bytes | None:
        """The next message, if it comes within `SOON_S`; deaf to wake-up calls meanwhile.

        One call, where polling takes several: half of what waiting for a message costs.
        """
        data = self._port.recv()
        if data is not None:
            return data
        try:
            data = self._recv()
        except zmq.Again:
            return None
        self._port.got_bytes += len(data) + MESSAGE_COST
        return data

    def look(self) -> int:
        """Cut connections that are too far ahead of what was read; return how many were."""
        return self._dialled.look(self._port.got_bytes, self._port.emptied)

    def wait(self, timeout_s: float) -> None:
        """Until there is a message, a wake-up call, or the time is up."""
        ready = self._poller.poll(milliseconds(timeout_s))
        if any(owner == self.wakeup.fd for owner, _ in ready):
            self.wakeup.clear()

    def close(self) -> None:
        """Close at once."""
        self._dialled.close()
        self._port.close()
        self._socket.close(linger=0)
        self.wakeup.close()
