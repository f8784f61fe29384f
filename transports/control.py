"""The control channel: ROUTER on the side that is dialled, DEALER on the side that dials.

A message has one part, or two where frames go along.  Sockets only: what is said and what it means
is decided elsewhere.

Two parts travel as one message of ZeroMQ, the length of the first ahead: a peer that is killed
while a message of several parts is on its way ends the process that reads it (libzmq 4.3.5,
`Assertion failed: !_more (src/fq.cpp)`).
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple, TypeVar

import zmq

from meshmsg._control import CONTROL_BYTES_MAX
from meshmsg.transports.curve import CONTROL
from meshmsg.transports.zmq_base import Context, Monitor, bind, source_fd, user_id

QUEUE_MESSAGES = 4096
#: A message from this size on is handed to ZeroMQ without a copy; for smaller ones that costs more.
LARGE_BYTES = 64 * 1024
#: What a message of two parts begins with; the length of the first follows, four bytes.
PAIR = b"MMT1"

Bytes = TypeVar("Bytes", bytes, memoryview)


def join_parts(parts: list[bytes]) -> bytes:
    """A message and the frames that go along, as they travel: as one, and the frames as one part.

    A sender killed between two parts would harm us.
    """
    if len(parts) == 1:
        return parts[0]
    return b"".join((PAIR, len(parts[0]).to_bytes(4, "little"), *parts))


def split_parts(data: Bytes) -> list[Bytes]:
    """What `join_parts` was given; anything else is one part, for others to judge."""
    if data[:4] != PAIR:
        return [data]
    stop = 8 + int.from_bytes(data[4:8], "little")
    return [data[8:stop], data[stop:]] if len(data) >= max(8, stop) else [data]


class Request(NamedTuple):
    """What somebody who dialled us says."""

    identity: bytes
    """A routing id, by which it is answered."""
    host: str
    """Where it comes from; empty for ipc."""
    user: bytes
    """Who it is, as proved by its key; empty where there are no keys."""
    fd: int
    """Its connection."""
    parts: list[bytes]


class ControlServer:
    """Listens for the control messages of those who dial."""

    def __init__(self, context: Context) -> None:
        self._socket = context.socket(
            zmq.ROUTER,
            send_queue=QUEUE_MESSAGES,
            recv_queue=QUEUE_MESSAGES,
            listens=CONTROL,
            message_bytes_max=CONTROL_BYTES_MAX,
        )
        self._secured = context.curve is not None
        self.pollable = self._socket
        self.addresses: list[str] = []

    def bind(self, address: str) -> str:
        """Listen; returns the real address."""
        real = bind(self._socket, address)
        self.addresses.append(real)
        return real

    def recv(self) -> Request | None:
        """The next request; `None` for nothing now."""
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        try:
            # For ipc it is not an address but "localhost:uid:gid:pid".
            host = str(ip_address(parts[-1].get("Peer-Address")))
        except (zmq.ZMQError, ValueError):
            host = ""
        last = parts[-1]
        user = user_id(last) if self._secured else b""
        identity, *rest = [bytes(part.buffer) for part in parts]
        said = split_parts(rest[0]) if len(rest) == 1 else rest
        return Request(identity, host, user, source_fd(last), said)

    def send(self, to: bytes, parts: list[bytes]) -> bool:
        """`False` if nobody is there or its queue is full: the other side will ask again."""
        try:
            message = join_parts(parts)
            self._socket.send_multipart([to, message], zmq.NOBLOCK, copy=len(message) < LARGE_BYTES)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_s: float) -> None:
        """Close; what is queued has `linger_s` to leave."""
        self._socket.close(linger=int(linger_s * 1000))


class ControlClient:
    """One dialled connection; ZeroMQ redials by itself, the monitor tells of it."""

    def __init__(self, context: Context, address: str, key: bytes = b"") -> None:
        self._socket = context.socket(
            zmq.DEALER,
            send_queue=QUEUE_MESSAGES,
            recv_queue=QUEUE_MESSAGES,
            ipv6="[" in address,
        )
        # What cannot be sent now is not kept for a later connection: it would be stale.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self.pollable = self._socket
        self.monitor = Monitor(self._socket)
        context.connect(self._socket, address, key)

    def recv(self) -> list[bytes] | None:
        """The next message's parts, or `None` when there is none now."""
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return split_parts(parts[0]) if len(parts) == 1 else parts

    def send(self, parts: list[bytes]) -> bool:
        """`False` if there is no connection now."""
        try:
            self._socket.send(join_parts(parts), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """Close."""
        self.monitor.close()
        self._socket.close(linger=int(linger_s * 1000))
