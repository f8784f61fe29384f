"""Who is connected to a bound socket, by its monitor; and how a connection is cut.

A connection that says nothing costs a file descriptor, and one that never finishes a message costs
memory (`ahead`).  ZeroMQ ends those that do not finish their handshake in time.  Of too many, or of
those that take too much together, the ones go first that come from the host that has most.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import zmq

from meshmsg.transports.zmq.context import unwatch, watch
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, Limits, Meter, shut, taken_bytes

EVENTS_PER_READ_MAX = 10_000
DESCRIPTORS_MAX = 65_536
#: Parts of the process's file descriptors: what one bound socket may use, and those may use that
#: are dialled back and have yet to answer.
SHARE_OF_FILES = 3 / 8
SHARE_OF_BACKS = 1 / 16
#: Beyond this part nobody new is dialled or let in: the rest is for logs, and what users open.
SHARE_IN_USE = 7 / 8
#: Descriptors that are given free where no connection can be accepted any more.  ZeroMQ tries again
#: and again, as fast as it can, until it can: then it is cut.
SPARES = 4

_WRONG_KEY = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
_NO_KEY = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


class Connection:
    """One that somebody made to us."""

    __slots__ = ("got", "host", "meter", "taken")

    def __init__(self, host: str, limits: Limits) -> None:
        self.host = host
        self.meter = Meter(limits)
        self.taken = 0  #: bytes that ZeroMQ has read, at the last look
        self.got = 0  #: bytes that we have read, about


class Door:
    """Looks after the connections of one bound socket."""

    def __init__(self, socket: zmq.Socket[bytes], limits: Limits) -> None:
        self._owner = socket
        self._limits = limits
        self._socket = watch(
            socket,
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_ACCEPT_FAILED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED,
        )
        self.pollable = self._socket
        #: By descriptor, oldest first.
        self.open: dict[int, Connection] = {}
        #: Those of them that have not said anything yet.
        self.silent: dict[int, None] = {}
        self.emptied = 0  #: how often there was nothing more to read
        self._spares = _spares()
        self.counters: Counter[str] = Counter()
        #: Called with the descriptor of each connection that is gone.
        self.gone: Callable[[int], None] = lambda fd: None

    def read(self) -> None:
        """Take notice of who came and went."""
        if not self._spares and not files_over():
            self._spares = _spares()
        for _ in range(EVENTS_PER_READ_MAX):
            try:
                event, _ = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            kind = int.from_bytes(event[:2], sys.byteorder)
            value = int.from_bytes(event[2:], sys.byteorder)
            if kind == zmq.EVENT_ACCEPTED:
                self.counters["connections"] += 1
                self.forget(value)  # so that the newest is the last
                self.open[value] = Connection(_host_of(value), self._limits)
                self.silent[value] = None
            elif kind == zmq.EVENT_DISCONNECTED:
                self.forget(value)
            elif kind == zmq.EVENT_ACCEPT_FAILED:
                self.counters["accepts_failed"] += 1
                while self._spares:
                    os.close(self._spares.pop())
            else:
                self.counters["handshakes_failed"] += 1
                self.counters[_why(kind, value)] += 1

    def forget(self, fd: int) -> None:
        """A connection is gone, or about to be."""
        self.silent.pop(fd, None)
        if self.open.pop(fd, None) is not None:
            self.gone(fd)

    def spoke(self, fd: int, size: int) -> None:
        """A connection has said something of so many bytes; with the lock of its socket held."""
        self.silent.pop(fd, None)
        connection = self.open.get(fd)
        if connection is not None:
            connection.got += size + MESSAGE_COST

    def look(self, total_max: int) -> list[int]:
        """Return the connections that are too far ahead of what was read from them.

        If all together are more than `total_max` bytes ahead, the host that is most ahead gives
        way: no number of connections takes more.
        """
        self.read()
        over, hosts, total = [], Counter[str](), 0
        for fd, one in self.open.items():
            taken = taken_bytes(fd)
            if taken is None:
                continue
            grown, one.taken = taken - one.taken, taken
            if one.meter.is_over(grown, one.got, self.emptied):
                over.append(fd)
            else:
                total += one.meter.ahead
                hosts[one.host] += one.meter.ahead
        if total > total_max:
            heaviest = hosts.most_common(1)[0][0]
            mine = [fd for fd in self.open if self.open[fd].host == heaviest and fd not in over]
            mine.sort(key=lambda fd: -self.open[fd].meter.ahead)
            for fd in mine:
                if total <= total_max // 2:
                    break
                total -= self.open[fd].meter.ahead
                over.append(fd)
        return over

    def superfluous(self, limit: int) -> list[int]:
        """Return connections beyond the limit, or for which files run short.

        Those are silent ones, then the newest.  Of either, those come first whose host has most.
        """
        over = max(len(self.open) - limit, min(files_over(), len(self.open)))
        if over <= 0:
            return []
        hosts = Counter(one.host for one in self.open.values())
        silent = list(self.silent)
        others = [fd for fd in reversed(self.open) if fd not in self.silent]
        for some in (silent, others):
            some.sort(key=lambda fd: -hosts[self.open[fd].host])
        return (silent + others)[:over]

    def close(self) -> None:
        """Stop watching."""
        while self._spares:
            os.close(self._spares.pop())
        unwatch(self._owner)
        self._socket.close(linger=0)


def _why(kind: int, value: int) -> str:
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "refused_connections"
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value in (_WRONG_KEY, _NO_KEY):
        return "wrong_mesh_keys" if value == _WRONG_KEY else "missing_keys"
    return "strange_connections"


def _host_of(fd: int) -> str:
    """Where a connection comes from; empty for ipc, and for one that is gone already."""
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):
        return ""
    try:
        name = connection.getpeername()
    except OSError:
        return ""
    finally:
        connection.detach()
    return str(name[0]) if isinstance(name, tuple) else ""


def connections_allowed(wanted: int, share: float = SHARE_OF_FILES) -> int:
    """Return how many connections there may be, with a share of the files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, int(soft * share))


def files_over() -> int:
    """Return how many descriptors are in use beyond `SHARE_IN_USE`; 0 for none.

    The next descriptor is the lowest that is free: all below it are in use.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 0
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return soft - int(soft * SHARE_IN_USE)
    os.close(lowest)
    return max(0, lowest - int(soft * SHARE_IN_USE))


def _spares() -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        while len(found) < SPARES:
            found.append(os.open(os.devnull, os.O_RDONLY))
    return found


def cut(descriptors: Iterable[int], addresses: Iterable[str]) -> int:
    """End the connections among the descriptors that came to one of our addresses.

    A descriptor may have been closed meanwhile and be something else now: only what is connected to
    a port of ours is touched.
    """
    names = set(addresses)
    return sum(_cut(fd, names) for fd in descriptors)


def cut_all(addresses: Iterable[str]) -> int:
    """End all connections that came to one of our addresses, those too that nobody has noted."""
    try:
        names = [int(name) for name in os.listdir("/dev/fd") if name.isdecimal()]
    except OSError:  # there is no descriptor left to look with
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        names = list(range(DESCRIPTORS_MAX if soft < 0 else min(soft, DESCRIPTORS_MAX)))
    return cut(names, addresses)


def _cut(fd: int, addresses: set[str]) -> bool:
    # Not a copy of the descriptor: this has to work when there is none left.
    try:
        connection = socket.socket(fileno=fd)
    except (OSError, ValueError):  # closed by now, or not a socket
        return False
    try:
        ours = _is_ours(connection, addresses)
    except OSError:
        return False
    finally:
        connection.detach()  # it is ZeroMQ's, to be closed there
    return ours and shut(fd)


def _is_ours(connection: socket.socket, addresses: set[str]) -> bool:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False  # what listens must go on doing so
    name = connection.getsockname()
    if isinstance(name, str):
        return f"ipc://{name}" in addresses
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(name, tuple):
        return False
    ports = {address.rpartition(":")[2] for address in addresses if address.startswith("tcp://")}
    return str(name[1]) in ports and connection.type == socket.SOCK_STREAM
