"""Work over ZeroMQ PUSH/PULL: from a publisher to the members of its groups.

The publisher binds one PUSH socket for each member, and the member's PULL socket connects to those
of all its publishers.  Credit decides what is sent, so nothing is dealt blindly; a queue has room
for all that credit allows, so nothing is ever dropped or held back by ZeroMQ.

No class has a lock: whoever calls holds the one that guards the socket.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from meshmsg._errors import ProtocolError
from meshmsg.transports.fanout import SOON_S
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq_base import Context, Monitor, bind, companion, milliseconds


class WorkOutlet:
    """The PUSH socket for one member; its monitor tells when the member comes and goes."""

    def __init__(self, context: Context, member: int, control_addresses: Sequence[str]) -> None:
        # 0 is no limit: the member's credit is the limit.
        self._socket = context.socket(zmq.PUSH, send_queue=0, recv_queue=0)
        self.member = member
        self.connected = False
        self.monitor = Monitor(self._socket)
        self.addresses: list[tuple[str, str]] = []
        try:
            for address in control_addresses:
                self.addresses.append((address, bind(self._socket, _beside(address, member))))
        except BaseException:
            self.close(0.0)
            raise
        self._send = self._socket.send

    def send(self, message: bytes) -> bool:
        """`False` if the member is not connected."""
        try:
            self._send(message, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_s: float) -> None:
        """Close; what is queued has `linger_s` to leave."""
        self.monitor.close()
        self._socket.close(linger=int(linger_s * 1000))


def _beside(control_address: str, member: int) -> str:
    if control_address.startswith("ipc://"):
        return f"{control_address}.work-{member:x}"
    return companion(control_address)


class WorkInlet:
    """The PULL socket of one member, connected to any number of publishers."""

    def __init__(self, context: Context) -> None:
        self._socket = context.socket(zmq.PULL, send_queue=0, recv_queue=0)
        self._socket.setsockopt(zmq.RCVTIMEO, milliseconds(SOON_S))
        self._connected: set[str] = set()
        self._recv = self._socket.recv
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self.wakeup = Wakeup()
        self._poller.register(self.wakeup.fd, zmq.POLLIN)
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def connect(self, address: str) -> None:
        """Connect to a publisher; raises `ProtocolError` for an address that cannot be used."""
        if address in self._connected:
            return
        if "[" in address:
            self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            raise ProtocolError(f"{address!r}: {error}") from None
        self._connected.add(address)

    def disconnect(self, address: str) -> None:
        """Leave a publisher."""
        if address in self._connected:
            self._connected.discard(address)
            self._socket.disconnect(address)

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""
        try:
            return self._recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def recv_soon(self) -> bytes | None:
        """The next message, if it comes within `SOON_S`; deaf to wake-up calls meanwhile."""
        try:
            return self._recv()
        except zmq.Again:
            return None

    def wait(self, timeout_s: float) -> None:
        """Until there is a message, a wake-up call, or the time is up."""
        ready = self._poller.poll(milliseconds(timeout_s))
        if len(ready) > 1 or (ready and ready[0][0] == self.wakeup.fd):
            self.wakeup.clear()

    def close(self) -> None:
        """Close at once."""
        self._socket.close(linger=0)
        self.wakeup.close()
