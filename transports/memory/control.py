"""The control channel of a simulated world: the verbs of `zmq.control`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from meshmsg.transports.memory.network import (
    Connection,
    Dialler,
    Machine,
    Network,
    Signal,
    wait_for,
)
from meshmsg.transports.zmq.control import LARGE_BYTES, QUEUE_MESSAGES, Request, Unsent
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, Limits


def host_of(address: str) -> str:
    """The host that an address names."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


class Door:
    """Who is connected to a socket that listens; see `zmq.connection_monitor.Door`."""

    def __init__(self, network: Network) -> None:
        self._events: deque[tuple[bool, int]] = deque()
        self.pollable = Signal(network.scheduler, lambda: bool(self._events))
        self.open: dict[int, None] = {}
        self.silent: dict[int, None] = {}
        self.emptied = 0
        self.counters: Counter[str] = Counter()
        self.gone: Callable[[int], None] = lambda fd: None

    def note(self, came: bool, number: int) -> None:
        """Somebody came or went."""
        self._events.append((came, number))
        self.pollable.notify()

    def read(self) -> None:
        """Take notice of who came and went."""
        while self._events:
            came, number = self._events.popleft()
            if came:
                self.counters["connections"] += 1
                self.open[number] = self.silent[number] = None
            else:
                self.forget(number)

    def forget(self, fd: int) -> None:
        """A connection is gone."""
        self.silent.pop(fd, None)
        if fd in self.open:
            del self.open[fd]
            self.gone(fd)

    def spoke(self, fd: int, size: int) -> None:
        """A connection has said something."""
        self.silent.pop(fd, None)

    def look(self, total_max: int) -> list[int]:
        """Nobody is ahead."""
        return []

    def superfluous(self, limit: int) -> list[int]:
        """Connections beyond the limit, the silent ones first."""
        over = max(0, len(self.open) - limit)
        return [*self.silent, *(fd for fd in self.open if fd not in self.silent)][:over]

    def close(self) -> None:
        """Stop watching."""
        self._events.clear()


class Listener:
    """A bound socket with any number of connections; its users say what a message means."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.door: Door | None = None
        self.open: dict[Connection, None] = {}
        self._network = machine.network
        self._addresses: list[str] = []

    def listen(self, address: str) -> str:
        """Listen; returns the real address."""
        real = self._network.listen(address, self)
        self._addresses.append(real)
        return real

    def watched(self, limits: Limits) -> Door:
        """Watch who is connected, and return what tells."""
        self.door = Door(self._network)
        return self.door

    def on_accepted(self, connection: Connection) -> None:
        """See `Acceptor`."""
        self.open[connection] = None
        if self.door is not None:
            self.door.note(True, connection.number)

    def on_gone(self, connection: Connection) -> None:
        """See `End`."""
        self.open.pop(connection, None)
        if self.door is not None:
            self.door.note(False, connection.number)

    def on_message(self, connection: Connection, message: Any) -> None:
        """See `End`."""
        raise NotImplementedError

    def shut(self) -> None:
        """Listen no more; what was sent still arrives."""
        for address in self._addresses:
            self.machine.listeners.pop(address, None)
        for connection in list(self.open):
            connection.finish(self)
        self.open.clear()


class _Sent:
    """A large message that was sent: whether it has left."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._at = connection.unread[1]

    @property
    def done(self) -> bool:
        return not self._connection.is_open or self._connection.unread[1] < self._at


class ControlServer(Listener):
    """Listens for the control messages of those who dial."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.unsent = Unsent()
        self.addresses: list[str] = []
        self._requests: deque[Request] = deque()
        self._by_identity: dict[bytes, Connection] = {}
        self.pollable = Signal(self._network.scheduler, lambda: bool(self._requests))

    def bind(self, address: str) -> str:
        """Listen; returns the real address."""
        real = self.listen(address)
        self.addresses.append(real)
        return real

    def on_accepted(self, connection: Connection) -> None:
        """See `Acceptor`."""
        self._by_identity[_identity(connection)] = connection
        super().on_accepted(connection)

    def on_gone(self, connection: Connection) -> None:
        """See `End`."""
        self._by_identity.pop(_identity(connection), None)
        super().on_gone(connection)

    def on_message(self, connection: Connection, message: Any) -> None:
        """See `End`."""
        connection.taken(self)
        size = sum(map(len, message)) + MESSAGE_COST
        host = host_of(self.addresses[0])
        identity, number = _identity(connection), connection.number
        self._requests.append(Request(identity, host, b"", number, message, size))
        self.pollable.notify()

    def recv(self) -> Request | None:
        """The next request; `None` for nothing now."""
        return self._requests.popleft() if self._requests else None

    def wait(self, timeout_s: float) -> None:
        """Wait for a request."""
        wait_for(self._network.scheduler, [self.pollable], timeout_s)

    def may_queue(self, to: bytes, parts: list[bytes]) -> bool:
        """Count what is about to be sent, from any thread; `False` if too much waits already."""
        size = sum(map(len, parts))
        return size < LARGE_BYTES or self.unsent.queue(to, size)

    def send(self, to: bytes, parts: list[bytes]) -> bool:
        """Send what `may_queue` has counted; `False` if nobody is there or its queue is full."""
        size = sum(map(len, parts))
        connection = self._by_identity.get(to)
        fits = connection is not None and connection.unread[1] < 2 * QUEUE_MESSAGES
        sent: Any = None
        if connection is not None and fits:
            connection.send(self, parts, size)
            sent = _Sent(connection)
        if size >= LARGE_BYTES:
            self.unsent.leave(to, size, sent)
        return fits

    def close(self, linger_s: float) -> None:
        """Close."""
        self.shut()
        self._requests.clear()


def _identity(connection: Connection) -> bytes:
    return b"\0" + connection.number.to_bytes(7, "big")


class Monitor:
    """Tells when a connection comes and goes; see `zmq.context.Monitor`."""

    def __init__(self, network: Network) -> None:
        self._scheduler = network.scheduler
        self._events: deque[bool] = deque()
        self.failure = ""
        self.failures = 0
        self.ended_at: float | None = None
        self.pollable = Signal(network.scheduler, lambda: bool(self._events))

    def note(self, came: bool) -> None:
        """A connection was made or lost."""
        self.ended_at = None if came else self._scheduler.now
        self._events.append(came)
        self.pollable.notify()

    def read(self) -> Iterator[bool]:
        """`True` for each connection made, `False` for each one lost."""
        while self._events:
            yield self._events.popleft()

    def look(self) -> int:
        """Nobody sends what is not asked for."""
        return 0

    def close(self) -> None:
        """Stop watching."""
        self._events.clear()


class ControlClient:
    """One dialled connection."""

    def __init__(self, machine: Machine, address: str) -> None:
        self.monitor = Monitor(machine.network)
        self._messages: deque[list[bytes]] = deque()
        self.pollable = Signal(machine.network.scheduler, lambda: bool(self._messages))
        note = self.monitor.note
        self._dialler = Dialler(
            machine, address, lambda: note(True), self._on_message, lambda: note(False)
        )

    def _on_message(self, connection: Connection, message: Any) -> None:
        connection.taken(self._dialler)
        self._messages.append(message)
        self.pollable.notify()

    def recv(self) -> list[bytes] | None:
        """The next message's parts, or `None` when there is none now."""
        return self._messages.popleft() if self._messages else None

    def look(self) -> int:
        """Nobody is ahead."""
        return 0

    def send(self, parts: list[bytes]) -> bool:
        """`False` if there is no connection now."""
        return self._dialler.send(parts, sum(map(len, parts)))

    def close(self, linger_s: float = 0.0) -> None:
        """Close."""
        self.monitor.close()
        self._dialler.close()
        self._messages.clear()
