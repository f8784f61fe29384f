"""What the ZeroMQ sockets of meshmsg share: a context, limits, addresses, polling."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import zmq

from meshmsg._model.errors import BindError
from meshmsg._wire.frame import FRAME_BYTES_MAX
from meshmsg.recovery.log.files import processes_with
from meshmsg.transports.inherited import note_bound
from meshmsg.transports.zmq.curve import Curve

RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
#: The system would wait for up to two minutes, and a network that is back would go unnoticed.
CONNECT_MS = 5000
#: A message that claims to be larger is refused by ZeroMQ before memory is taken for it.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 4096
#: Sockets of one peer; one that dials has two more that watch it.
SOCKETS_MAX = 49_152
#: Who connects and does not say so in this time is disconnected.
HANDSHAKE_S = 10.0
#: State of a socket that listens, in the kernel's table of TCP.
LISTENS = "0A"


class Context:
    """The ZeroMQ context of one peer, and the keys of its sockets."""

    def __init__(self, curve: Curve | None = None, handshake_s: float = HANDSHAKE_S) -> None:
        self.curve = curve
        #: Who somebody is that dialled us, by its routing id at the control channel.
        self.user_of: Callable[[bytes], bytes] = lambda identity: b""
        self._handshake_ms = milliseconds(handshake_s)
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.zmq.set(zmq.MAX_SOCKETS, SOCKETS_MAX)

    def socket(
        self,
        kind: int,
        *,
        send_queue: int,
        recv_queue: int,
        ipv6: bool = False,
        listens: bytes = b"",
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> zmq.Socket[bytes]:
        """A socket with the limits that all of ours have; queues are in messages.

        One that will be bound says what for in `listens`; others are given a key when they dial.
        """
        socket = new_socket(self.zmq, kind)
        if self.curve is not None and listens:
            self.curve.listen(socket, listens)
        socket.setsockopt(zmq.SNDHWM, send_queue)
        socket.setsockopt(zmq.RCVHWM, recv_queue)
        socket.setsockopt(zmq.MAXMSGSIZE, message_bytes_max)
        socket.setsockopt(zmq.HANDSHAKE_IVL, self._handshake_ms)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if ipv6:
            socket.setsockopt(zmq.IPV6, 1)
        return socket

    def connect(self, socket: zmq.Socket[bytes], address: str, key: bytes = b"") -> None:
        """Dial; where there are keys, whoever listens there must have the one named."""
        if self.curve is not None:
            self.curve.dial(socket, key or self.curve.doors[0])
        socket.connect(address)

    def close(self) -> None:
        """Free it; its sockets must be closed, but for those that nobody had a hold of yet.

        Ctrl-C may come while a socket is made: its creator never gets it, and what is raised keeps
        it.  ZeroMQ would wait for such a socket until that is forgotten.
        """
        self.zmq.destroy(linger=0)


class _Socket(zmq.Socket[bytes]):
    """A socket that its last reference closes without a word: that of an interrupted one does."""

    def __del__(self) -> None:
        self.close(linger=0)


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Open a socket; one that is interrupted before its context knows it is freed at once."""
    try:
        return context.socket(kind, socket_class=_Socket)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # which have the socket
        raise


def bind(socket: zmq.Socket[bytes], address: str) -> str:
    """Bind; returns the real address (`:*` and `:0` get a port).  Raises `BindError`.

    An ipc address lets in our own user and root, whatever the permissions of its file say: what
    comes over ipc cannot be measured (see `unread_limit`).
    """
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    if address.startswith("ipc://"):
        for user in own_users():
            socket.setsockopt(zmq.IPC_FILTER_UID, user)
    try:
        socket.bind(address.removesuffix(":0") + ":*" if address.endswith(":0") else address)
    except zmq.ZMQError as error:
        raise BindError(address, _bind_problem(error, address)) from None
    real: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    note_bound(socket, real)
    return real


def own_users() -> set[int]:
    """Return the users who may be at the other end of an ipc connection."""
    return {0, os.geteuid()}


def _bind_problem(error: zmq.ZMQError, address: str) -> str:
    if error.errno == zmq.EADDRINUSE:
        by = "".join(f" by process {pid}" for pid in _listeners(address)[:1])
        return f"the port is taken{by}: free it, or choose another (':*' takes a free one)"
    if error.errno in (zmq.EADDRNOTAVAIL, errno.ENODEV):
        return "no interface of this machine has that address"
    return f"{error.strerror}"


def _listeners(address: str) -> list[int]:
    """Processes that listen at the port, a forked child of a dead one among them (Linux)."""
    port = address.rpartition(":")[2]
    sockets: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            rows = [line.split() for line in lines][1:]
            sockets |= {
                f"socket:[{row[9]}]"
                for row in rows
                if row[3] == LISTENS and port.isdecimal() and row[1].endswith(f":{int(port):04X}")
            }
    return processes_with(sockets) if sockets else []


def companion(address: str) -> str:
    """Where the data socket listens that belongs to a control address."""
    if address.startswith("ipc://"):
        return address + ".data"
    return address.rpartition(":")[0] + ":*"


def milliseconds(timeout_s: float) -> int:
    """For a ZeroMQ poll; rounded up, so that a short wait does not become a busy loop."""
    return math.ceil(max(0.0, timeout_s) * 1000)


def source_fd(frame: zmq.Frame) -> int:
    """The connection that a message came on; -1 where ZeroMQ does not say."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def user_id(frame: zmq.Frame) -> bytes:
    """Who a message is from, as was said when its connection was let in; empty if nothing was."""
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""


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
        if self._owners.get(pollable) is owner:  # a descriptor's number may be another's by now
            del self._owners[pollable]
            self._poller.unregister(pollable)

    def wait(self, timeout_s: float) -> list[Pollable]:
        """Those that are readable; empty when the time is up."""
        ready = self._poller.poll(milliseconds(timeout_s))
        return [self._owners[pollable] for pollable, _ in ready]


#: Why a handshake failed, as a monitor tells it.
LOCKED_OUT = "the handshake fails: the other side has another mesh key, or none at all"
REFUSED = "the other side's allow-list does not name our public key"
ONE_HAS_NO_KEY = (
    "one side has a key and the other has none: give both the same mesh key, or neither"
)
_MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


def watch(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket on which the events of another one are read.

    It takes as many as come.  With a limit, whoever opens many connections while nobody reads would
    have the thread wait that moves all data, and for ever if the socket is closed meanwhile (libzmq
    4.3.5 waits with the lock that ends the watch).
    """
    address = f"inproc://watch-{int(socket.getsockopt(zmq.FD))}"
    socket.monitor(address, events)
    try:
        watcher = new_socket(socket.context, zmq.PAIR)
    except zmq.ZMQError:
        unwatch(socket)
        raise
    watcher.setsockopt(zmq.RCVHWM, 0)
    watcher.setsockopt(zmq.LINGER, 0)
    watcher.connect(address)
    return watcher


def unwatch(socket: zmq.Socket[bytes]) -> None:
    """End it; what `watch` returned can be closed then."""
    with contextlib.suppress(zmq.ZMQError):
        socket.monitor(None, 0)


class Monitor:
    """Tells when the connection of a socket comes and goes."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._owner = socket
        self._socket = watch(
            socket,
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED,
        )
        #: Why the last handshake failed; empty if it did not.
        self.failure = ""
        #: Handshakes that failed.
        self.failures = 0
        # By descriptor; a handshake does not say on which of the streams that are open it was.
        self._open: set[bytes] = set()
        self._ours: set[bytes] = set()
        #: When the last connection ended; `None` while there is one, or none was begun yet.
        self.ended_at: float | None = None
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
                self.failure = ""
                yield True
            elif kind in _FAILED:
                self.failures += 1
                self.failure = _reason(kind, int.from_bytes(descriptor, sys.byteorder))
            elif kind == zmq.EVENT_DISCONNECTED:
                self.ended_at = time.monotonic()
                self._open.discard(descriptor)
                if descriptor in self._ours:
                    self._ours.discard(descriptor)
                    yield False
            else:
                self.ended_at = None
                self._open.add(descriptor)

    def open_fds(self) -> list[int]:
        """Descriptors of the connections that are there."""
        return [int.from_bytes(one, sys.byteorder) for one in self._open]

    def close(self) -> None:
        """Stop watching."""
        unwatch(self._owner)
        self._socket.close(linger=0)


_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
)


def _reason(kind: int, value: int) -> str:
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return REFUSED
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MISMATCH:
        return ONE_HAS_NO_KEY
    return LOCKED_OUT
