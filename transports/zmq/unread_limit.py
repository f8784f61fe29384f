"""How far a connection is ahead of what was read from it; one that is too far ahead is cut.

ZeroMQ limits the parts of a message, not the message: it keeps all parts until the last one has
come, and counts none of them against the high-water mark (libzmq 4.3.5).  A connection that never
sends a last part would fill the memory.  The kernel knows what ZeroMQ has taken from a connection
(`tcpi_bytes_received`, less what is unread); whoever reads the socket knows what it got.

Two bounds for the difference:
- `message`: after the socket was seen empty, only an unfinished message can be left, and that is
  never larger than the largest message.  This holds however slowly the socket is read.
- `queued`: what whole messages may wait unread, where the socket is never seen empty.

Only TCP on Linux is measured.  A unix socket has no such count, so over ipc both ends are processes
of one user, or of root: `context.bind` lets in nobody else, and here a connection that we have made
to a process of somebody else is cut.  Who has our user's rights can end this process anyway.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterable
from typing import NamedTuple

import zmq

from meshmsg.transports.zmq.context import own_users, unwatch, watch

MEASURED = sys.platform == "linux"
#: `struct tcp_info`, as Linux has it since 4.1.
_RECEIVED_AT = 128
#: `struct ucred`: process, user, group.
_PEER = struct.Struct("=iII")
#: What ZeroMQ and CURVE put around a message, at most; and around the greeting.
MESSAGE_COST = 64
GREETING_COST = 64 * 1024


class Limits(NamedTuple):
    """Bytes that a connection may be ahead."""

    message: int
    """Once all that waited was read: its unfinished message."""
    queued: float
    """At any time."""


def limits_of(message_bytes_max: int, queued_bytes_max: float) -> Limits:
    """For a socket that takes messages up to a size, and so many bytes of them unread."""
    message = message_bytes_max + GREETING_COST
    return Limits(message, message + queued_bytes_max)


def taken_bytes(fd: int) -> int | None:
    """What ZeroMQ has read from a TCP connection so far; `None` for anything else."""
    if not MEASURED:
        return None
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):  # closed by now, or not a socket
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
        unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    except OSError:
        return None
    finally:
        connection.detach()  # it is ZeroMQ's
    if len(info) < _RECEIVED_AT + 8:
        return None
    received: int = struct.unpack_from("=Q", info, _RECEIVED_AT)[0]
    return received - int.from_bytes(unread, sys.byteorder)


def is_foreign(fd: int) -> bool:
    """Whether a process of another user is at the other end of an ipc connection."""
    if not MEASURED:
        return False
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):  # closed by now, or not a socket
        return False
    try:
        if connection.family != socket.AF_UNIX:
            return False
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return False
    finally:
        connection.detach()  # it is ZeroMQ's
    return _PEER.unpack(peer)[1] not in own_users()


class Meter:
    """How far one connection, or all of one socket, are ahead."""

    __slots__ = ("_emptied", "_got", "_limits", "ahead")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._got = 0
        self._emptied = -1
        self.ahead = 0  #: bytes, at the last look

    def is_over(self, grown: int, got: int, emptied: int) -> bool:
        """Take note of what came since the last look; tell whether it is more than may be.

        `grown` is what ZeroMQ took since then.  `got` is all that was read so far, and `emptied`
        how often there was nothing more to read.
        """
        fresh, self._got = got - self._got, got
        left = self.ahead - fresh if emptied != self._emptied >= 0 else 0
        self._emptied = emptied
        # The cost of a message is estimated, and must not become credit.
        self.ahead = max(0, self.ahead + grown - fresh)
        return left > self._limits.message or self.ahead > self._limits.queued


class DialledMeter:
    """How far the connections that one socket has made are ahead.

    Messages do not say on which of them they came: all are cut where one is too far ahead, and
    those that are honest are back at once.
    """

    def __init__(self, limits: Limits) -> None:
        self._meter = Meter(limits)
        # By descriptor: which file it is, and what was taken of it at the last look.
        self._taken: dict[int, tuple[int, int]] = {}

    def look(self, descriptors: Iterable[int], got: int, emptied: int) -> int:
        """Cut the connections if they are too far ahead, and those to other users; return how many.

        `got` and `emptied` are those of `Meter.is_over`.
        """
        grown = strangers = 0
        before, self._taken = self._taken, {}
        for fd in descriptors:
            file, taken = file_of(fd), taken_bytes(fd)
            if taken is not None:
                known, was = before.get(fd, (file, 0))
                grown += taken - was if known == file else taken
                self._taken[fd] = (file, taken)
            elif is_foreign(fd):
                strangers += shut(fd)
        if not self._meter.is_over(grown, got, emptied):
            return strangers
        over, self._taken = self._taken, {}
        self._meter.ahead = 0
        return strangers + sum(shut(fd) for fd, (file, _) in over.items() if file_of(fd) == file)


class Dialled:
    """The connections that one socket has made, and their meter; any thread."""

    def __init__(self, zmq_socket: zmq.Socket[bytes], limits: Limits) -> None:
        self._owner = zmq_socket
        self._watcher = watch(zmq_socket, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._lock = threading.Lock()
        self._meter = DialledMeter(limits)
        self._open: set[int] = set()
        self._closed = False

    def look(self, got: int, emptied: int) -> int:
        """Cut the connections if they are too far ahead; return how many were."""
        with self._lock:
            if self._closed:
                return 0
            self._read_events()
            return self._meter.look(self._open, got, emptied)

    def _read_events(self) -> None:
        while True:
            try:
                event, _ = self._watcher.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            fd = int.from_bytes(event[2:], sys.byteorder)
            if int.from_bytes(event[:2], sys.byteorder) == zmq.EVENT_CONNECTED:
                self._open.add(fd)
            else:
                self._open.discard(fd)

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            if not self._closed:
                self._closed = True
                unwatch(self._owner)
                self._watcher.close(linger=0)


def file_of(fd: int) -> int:
    """A number for what a descriptor stands for now; 0 for nothing."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def shut(fd: int) -> bool:
    """End a connection; ZeroMQ sees it and closes the descriptor."""
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):
        return False
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        connection.detach()
    return True
