"""Work over ZeroMQ PUSH/PULL: from a publisher to the members of its groups.

The publisher binds one PUSH socket for each member, and the member's PULL socket connects to those
of all its publishers.  Credit decides what is sent, so nothing is dealt blindly; a queue has room
for all that credit allows, so nothing is ever dropped or held back by ZeroMQ.

No class has a lock: whoever calls holds the one that guards the socket.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import zmq

from meshmsg._model.errors import BindError
from meshmsg.transports.zmq.connection_monitor import cut
from meshmsg.transports.zmq.context import MESSAGE_BYTES_MAX, Context, Monitor, bind, companion
from meshmsg.transports.zmq.curve import WORK
from meshmsg.transports.zmq.port import port_of
from meshmsg.transports.zmq.receive_socket import ZmqInlet
from meshmsg.transports.zmq.unread_limit import GREETING_COST, limits_of, taken_bytes

#: Connections to the socket of one member, which needs one: the others are strangers.
CONNECTIONS_MAX = 16


class WorkMonitor(Monitor):
    """Tells when the member comes and goes, and keeps strangers from using up all descriptors."""

    addresses: Sequence[tuple[str, str]] = ()

    def read(self) -> Iterable[bool]:
        """`True` for each connection made, `False` for each one lost."""
        yield from super().read()
        strangers = self._open - self._ours
        if len(strangers) > CONNECTIONS_MAX:
            self._cut([int.from_bytes(one, sys.byteorder) for one in strangers])

    def look(self) -> int:
        """Cut connections that send: a member only takes; return how many were cut."""
        return self._cut([fd for fd in self.open_fds() if (taken_bytes(fd) or 0) > GREETING_COST])

    def _cut(self, descriptors: list[int]) -> int:
        return cut(descriptors, [address for _, address in self.addresses])


class WorkOutlet:
    """The PUSH socket for one member; its monitor tells when the member comes and goes."""

    def __init__(
        self, context: Context, member: int, control_addresses: Sequence[str], user: bytes = b""
    ) -> None:
        # 0 is no limit: the member's credit is the limit.  Nobody but `user` may come for its work.
        try:
            self._socket = context.socket(
                zmq.PUSH, send_queue=0, recv_queue=1, listens=WORK + user, message_bytes_max=1024
            )
            try:
                self.monitor = WorkMonitor(self._socket)
            except zmq.ZMQError:
                self._socket.close(linger=0)
                raise
        except zmq.ZMQError as error:  # too many open files
            raise BindError("a member's port", f"{error.strerror}") from None
        self._port = port_of(self._socket)
        self.member = member
        self.connected = False
        self.addresses: list[tuple[str, str]] = []
        self.monitor.addresses = self.addresses
        try:
            for address in control_addresses:
                self.addresses.append((address, bind(self._socket, _beside(address, member))))
        except BaseException:
            self.close(0.0)
            raise
        self._send = self._port.send

    def send(self, message: bytes) -> bool:
        """`False` if the member is not connected."""
        try:
            return self._send(message)
        except (OSError, zmq.ZMQError):
            return False

    def close(self, linger_s: float) -> None:
        """Close; what is queued has `linger_s` to leave."""
        self._port.close()
        self.monitor.close()
        self._socket.close(linger=int(linger_s * 1000))


def _beside(control_address: str, member: int) -> str:
    if control_address.startswith("ipc://"):
        return f"{control_address}.work-{member:x}"
    return companion(control_address)


def pull_socket(context: Context, credit: int) -> zmq.Socket[bytes]:
    """A PULL socket.  A publisher that sends more than its credit of events has to wait."""
    return context.socket(zmq.PULL, send_queue=0, recv_queue=credit)


#: Credit says how much waits to be read.
WORK_LIMITS = limits_of(MESSAGE_BYTES_MAX, float("inf"))


class WorkInlet(ZmqInlet):
    """The PULL socket of one member, connected to any number of publishers."""

    def __init__(self, context: Context, credit: int) -> None:
        super().__init__(context, pull_socket(context, credit), WORK_LIMITS)
