"""The control channel: ROUTER on the side that is dialled, DEALER on the side that dials.

A message has one part, or two where frames go along.  Sockets only: what is said and what it means
is decided elsewhere.

Two parts travel as one message of ZeroMQ, the length of the first ahead: a peer that is killed
while a message of several parts is on its way ends the process that reads it (libzmq 4.3.5,
`Assertion failed: !_more (src/fq.cpp)`).
"""

from __future__ import annotations

import threading
from collections import deque
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

import zmq

from meshmsg._wire.control import CONTROL_BYTES_MAX, SMALL_BYTES_MAX
from meshmsg.transports.zmq.connection_monitor import Door
from meshmsg.transports.zmq.context import (
    MESSAGE_BYTES_MAX,
    Context,
    Monitor,
    bind,
    source_fd,
    user_id,
)
from meshmsg.transports.zmq.curve import CONTROL
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, DialledMeter, Limits, limits_of

QUEUE_MESSAGES = 4096
#: A message from this size on is followed until it has left, and handed to ZeroMQ without a copy;
#: smaller ones are bounded by their number.
LARGE_BYTES = 4096
#: What may wait to leave for one client, and for all of them.
UNSENT_BYTES_MAX = 64 * 1024 * 1024
UNSENT_TOTAL_BYTES_MAX = 512 * 1024 * 1024
#: What a dialled peer may have sent that is not read yet.
ANSWERS_BYTES_MAX = 256 * 1024 * 1024
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


def said_in(message: list[zmq.Frame]) -> list[bytes | memoryview]:
    """Return what a message says, and the frames that go along; nothing of what nobody sends so.

    What is large is not copied: a hostile one is refused by its first bytes, and all threads of the
    process wait while megabytes are copied to memory that is touched for the first time.
    """
    if len(message) != 1:
        return []
    data = message[0].buffer
    return [*split_parts(data)] if len(data) > SMALL_BYTES_MAX else [*split_parts(bytes(data))]


class _Waiting:
    """What waits to leave for one client."""

    __slots__ = ("handed", "handed_bytes", "queued_bytes")

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.handed: deque[tuple[zmq.MessageTracker, int]] = deque()
        self.handed_bytes = 0


class Unsent:
    """Bytes that wait to leave for each client, in our queue or in ZeroMQ's; any thread.

    ZeroMQ counts messages, and does not tell how many wait; but it tells when it is done with the
    bytes of one, in order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        self.total = 0

    def of(self, to: bytes) -> int:
        """What waits for a client."""
        with self._lock:
            return self._settle(to)

    def queue(self, to: bytes, size: int) -> bool:
        """Count a message that is about to be queued; `False` if too much waits already."""
        with self._lock:
            if self._settle(to) >= min(UNSENT_BYTES_MAX, UNSENT_TOTAL_BYTES_MAX - self.total):
                return False
            self._waiting.setdefault(to, _Waiting()).queued_bytes += size
            self.total += size
            return True

    def leave(self, to: bytes, size: int, tracker: zmq.MessageTracker | None) -> None:
        """A message was taken from the queue: ZeroMQ has it now, or with no tracker nobody."""
        with self._lock:
            one = self._waiting.get(to)
            if one is None:
                return
            one.queued_bytes -= size
            if tracker is None:
                self.total -= size
            else:
                one.handed.append((tracker, size))
                one.handed_bytes += size
            self._settle(to)

    def sweep(self) -> None:
        """Forget what has left meanwhile."""
        with self._lock:
            for to in list(self._waiting):
                self._settle(to)

    def _settle(self, to: bytes) -> int:
        one = self._waiting.get(to)
        if one is None:
            return 0
        while one.handed and one.handed[0][0].done:
            size = one.handed.popleft()[1]
            one.handed_bytes -= size
            self.total -= size
        left = one.queued_bytes + one.handed_bytes
        if not left:
            del self._waiting[to]
        return left


def _size_of(message: list[zmq.Frame]) -> int:
    """Return how much of a connection a message takes."""
    return sum(len(part.buffer) + MESSAGE_COST for part in message)


#: Stands for an address that cannot be told: its connection broke before ZeroMQ could ask for it.
NOWHERE = "0.0.0.0"


class Request(NamedTuple):
    """What somebody who dialled us says."""

    identity: bytes
    """A routing id, by which it is answered."""
    host: str
    """Where it comes from; empty for ipc, `NOWHERE` if nobody can tell."""
    user: bytes
    """Who it is, as proved by its key; empty where there are no keys."""
    fd: int
    """Its connection."""
    parts: list[bytes | memoryview]
    size: int = 0
    """Bytes of all parts."""


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
        self._socket.copy_threshold = LARGE_BYTES
        self._secured = context.curve is not None
        self.pollable = self._socket
        self.unsent = Unsent()
        self.addresses: list[str] = []

    def bind(self, address: str) -> str:
        """Listen; returns the real address."""
        real = bind(self._socket, address)
        self.addresses.append(real)
        return real

    def watched(self, limits: Limits) -> Door:
        """Watch who is connected, and return what tells."""
        return Door(self._socket, limits)

    def recv(self) -> Request | None:
        """The next request; `None` for nothing now."""
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        try:
            # For ipc it is not an address but "localhost:uid:gid:pid".
            host = str(ip_address(parts[-1].get("Peer-Address")))
        except ValueError:
            host = ""
        except zmq.ZMQError:  # it must not pass for a program on this machine
            host = NOWHERE
        last = parts[-1]
        user = user_id(last) if self._secured else b""
        identity, *rest = parts
        size = _size_of(rest)
        return Request(bytes(identity.buffer), host, user, source_fd(last), said_in(rest), size)

    def wait(self, timeout_s: float) -> None:
        """Wait for a request."""
        self._socket.poll(max(1, int(timeout_s * 1000)))

    def may_queue(self, to: bytes, parts: list[bytes]) -> bool:
        """Count what is about to be sent, from any thread; `False` if too much waits already."""
        size = sum(map(len, parts))
        return size < LARGE_BYTES or self.unsent.queue(to, size)

    def send(self, to: bytes, parts: list[bytes]) -> bool:
        """Send what `may_queue` has counted.

        `False` if nobody is there or its queue is full: the other side will ask again.
        """
        size = sum(map(len, parts))
        large = size >= LARGE_BYTES
        tracker: zmq.MessageTracker | None = None
        try:
            message = [to, join_parts(parts)]
            tracker = self._socket.send_multipart(message, zmq.NOBLOCK, copy=not large, track=large)
        except zmq.ZMQError:
            return False
        finally:
            if large:
                self.unsent.leave(to, size, tracker)
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
        self._meter = DialledMeter(limits_of(MESSAGE_BYTES_MAX, ANSWERS_BYTES_MAX))
        self._got = self._emptied = 0
        context.connect(self._socket, address, key)

    def recv(self) -> list[bytes | memoryview] | None:
        """The next message's parts, or `None` when there is none now."""
        try:
            message = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._emptied += 1
            return None
        self._got += _size_of(message)
        return said_in(message)

    def look(self) -> int:
        """Cut the connection if it is too far ahead of what was read; return how many were."""
        return self._meter.look(self.monitor.open_fds(), self._got, self._emptied)

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
