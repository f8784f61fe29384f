"""The network of a simulated world: machines, and what the ways between them do to bytes.

A connection carries messages both ways, in order, like TCP below ZeroMQ: what a bad network loses
comes later, until the connection breaks and takes with it all that was on its way.  Datagrams are
lost, doubled and overtaken one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from meshmsg._model.errors import BindError, ClosedError
from meshmsg.transports.memory.scheduler import NEVER, Scheduler, Task

#: Numbers of connections are above those of all descriptors, so that nobody takes them for such.
FIRST_NUMBER = 1 << 40
FIRST_PORT = 20_000
#: Someone who dials and is refused tries again after this long, then after twice as long ...
REDIAL_S = 0.05
#: ... up to this.
REDIAL_MAX_S = 1.0
#: A dialler gives up on a silent way after this long, and tries again.
CONNECT_S = 5.0
#: A connection breaks whose bytes have not got through for so long.
BREAKS_AFTER_S = 15.0
#: A sender whose bytes were not answered tries again after about this long.
RETRANSMIT_S = 0.2


@dataclass(slots=True)
class Way:
    """What a way from one machine to another does; may be changed at any time."""

    delay_s: float = 0.0002
    jitter_s: float = 0.0
    """Up to so much more, drawn for each message: it makes datagrams overtake each other."""
    loss: float = 0.0
    """Part of the packets that is lost; a connection sends them again, which takes time."""
    duplication: float = 0.0
    """Part of the datagrams that comes twice."""
    bytes_per_s: float = NEVER
    is_cut: bool = False
    """Nothing comes through."""


class Machine:
    """Where one peer runs."""

    def __init__(self, name: str, network: Network, files: Any = None) -> None:
        self.name = name
        self.network = network
        self.dead = False
        self.files = files
        self.silent = False  #: it lost its power: nobody is told that it is gone
        self.connections: dict[Connection, None] = {}
        self.listeners: dict[str, Acceptor] = {}
        self.datagrams: dict[DatagramPort, None] = {}
        self.ears: dict[Any, None] = {}  #: who listens for announcements

    def check(self) -> None:
        """Raise `ClosedError` for who asks something of a machine that is dead from elsewhere."""
        if self.dead:
            raise ClosedError(f"{self.name} was killed")


class Signal:
    """Something that a task can wait for: what a descriptor is to a poller."""

    def __init__(self, scheduler: Scheduler, is_ready: Callable[[], bool]) -> None:
        self.is_ready = is_ready
        self._scheduler = scheduler
        self._waiters: list[Task] = []

    def notify(self) -> None:
        """It may be ready: have those look who wait."""
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._scheduler.wake(task)

    def add(self, task: Task) -> None:
        """Wake this task with the next call."""
        self._waiters.append(task)

    def discard(self, task: Task) -> None:
        """It does not wait any more."""
        if task in self._waiters:
            self._waiters.remove(task)


def wait_for(scheduler: Scheduler, signals: Iterable[Signal], timeout_s: float) -> list[Signal]:
    """Wait until one of them is ready, or the time is up; return those that are."""
    deadline, some = scheduler.now + timeout_s, list(signals)
    scheduler.give_way()
    while True:
        ready = [signal for signal in some if signal.is_ready()]
        if ready or scheduler.now >= deadline:
            return ready
        for signal in some:
            signal.add(scheduler.current)
        try:
            scheduler.park(deadline)
        finally:
            for signal in some:
                signal.discard(scheduler.current)


class End(Protocol):
    """Who has one end of a connection."""

    machine: Machine

    def on_message(self, connection: Connection, message: Any) -> None:
        """A message came."""

    def on_gone(self, connection: Connection) -> None:
        """The connection is over."""


class Acceptor(End, Protocol):
    """Who listens."""

    def on_accepted(self, connection: Connection) -> None:
        """Somebody has dialled."""


class Connection:
    """Between who has dialled and who has accepted."""

    def __init__(self, network: Network, dialler: Dialler, acceptor: Acceptor) -> None:
        self.number = network.new_number()
        self.ends: tuple[End, End] = (dialler, acceptor)
        self.is_open = True
        self.unread = [0, 0]  #: messages that each end has sent and the other has not taken
        self._network = network
        self._free_at = [0.0, 0.0]  # when what each end sent before has arrived
        self._told: set[int] = set()
        for end in self.ends:
            end.machine.connections[self] = None

    def side_of(self, end: End) -> int:
        """Which of the two ends this is."""
        return 0 if self.ends[0] is end else 1

    def send(self, end: End, message: Any, size: int) -> None:
        """Carry a message to the other end; whoever takes it calls `taken`."""
        self.unread[self.side_of(end)] += 1
        self._carry(end, size, lambda to: to.on_message(self, message))

    def taken(self, end: End) -> None:
        """The end has taken a message that came."""
        self.unread[1 - self.side_of(end)] -= 1

    def _carry(self, end: End, size: int, deliver: Callable[[End], None]) -> None:
        side = self.side_of(end)
        to = self.ends[1 - side]
        network = self._network
        way, now = network.way(end.machine, to.machine), network.scheduler.now
        took = way.delay_s + size / way.bytes_per_s + network.jitter(way)
        while network.chance(way.loss):
            took += RETRANSMIT_S
        when = self._free_at[side] = max(self._free_at[side], now + took)
        network.scheduler.at(when, lambda: self._arrive(side, now, deliver))

    def _arrive(self, side: int, sent_at: float, deliver: Callable[[End], None]) -> None:
        network, to = self._network, self.ends[1 - side]
        if (1 - side) in self._told or to.machine.dead:
            return
        if self._is_stuck(side):  # and with it all that comes behind, in order
            now = network.scheduler.now
            if now - sent_at > BREAKS_AFTER_S:
                self.break_off()
            else:
                again = self._free_at[side] = max(now + RETRANSMIT_S, self._free_at[side])
                network.scheduler.at(again, lambda: self._arrive(side, sent_at, deliver))
            return
        deliver(to)

    def _is_stuck(self, side: int) -> bool:
        here, there = self.ends[side].machine, self.ends[1 - side].machine
        ways = (self._network.way(here, there), self._network.way(there, here))
        return any(way.is_cut for way in ways) or here.silent

    def finish(self, end: End) -> None:
        """The end closes: what it has sent still arrives, and what comes is not for it any more."""
        if not self.is_open:
            return
        self.is_open = False
        self._forget(self.side_of(end))
        self._carry(end, 0, lambda to: self._tell(to))

    def break_off(self) -> None:
        """Lose all that is on its way; both ends are told."""
        self.is_open = False
        for end in self.ends:
            self._tell(end)

    def _forget(self, side: int) -> None:
        self._told.add(side)
        self.ends[side].machine.connections.pop(self, None)

    def _tell(self, end: End) -> None:
        side = self.side_of(end)
        if side not in self._told:
            self.is_open = False
            self._forget(side)
            if not end.machine.dead:
                end.on_gone(self)

    def lose(self, side: int) -> None:
        """The machine of one end has died, and its system says so, or it is silent."""
        self._told.add(side)
        self.is_open = False
        other = self.ends[1 - side]
        if not self.ends[side].machine.silent:
            network = self._network
            when = network.scheduler.now + network.scheduler.rng.random() * 0.01
            network.scheduler.at(when, lambda: self._tell(other))
        else:  # found out by who sends, after a while
            when = self._network.scheduler.now + BREAKS_AFTER_S
            self._network.scheduler.at(when, lambda: self._tell(other))


class Dialler:
    """Keeps a connection to an address, as ZeroMQ does: dials again and again."""

    def __init__(
        self,
        machine: Machine,
        address: str,
        opened: Callable[[], None],
        message: Callable[[Connection, Any], None],
        gone: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.address = address
        self.connection: Connection | None = None
        self._network = machine.network
        self._opened = opened
        self._message = message
        self._gone = gone
        self._closed = False
        self._pause_s = REDIAL_S
        self._dial()

    def _dial(self) -> None:
        """Knock: it takes a way there and back."""
        if self._closed or self.machine.dead:
            return
        network = self._network
        acceptor = network.acceptor(self.address)
        if acceptor is None:
            self._again()
            return
        way = network.way(self.machine, acceptor.machine)
        back = network.way(acceptor.machine, self.machine)
        if way.is_cut or back.is_cut:
            network.scheduler.at(network.scheduler.now + CONNECT_S, self._dial)
            return
        took = 2 * (way.delay_s + back.delay_s) + network.jitter(way) + network.jitter(back)
        network.scheduler.at(network.scheduler.now + took, self._accepted)

    def _accepted(self) -> None:
        acceptor = self._network.acceptor(self.address)
        if self._closed or self.machine.dead:
            return
        if acceptor is None:
            self._again()
            return
        self._pause_s = REDIAL_S
        self.connection = Connection(self._network, self, acceptor)
        acceptor.on_accepted(self.connection)
        self._opened()

    def _again(self) -> None:
        scheduler = self._network.scheduler
        scheduler.at(scheduler.now + self._pause_s, self._dial)
        self._pause_s = min(2 * self._pause_s, REDIAL_MAX_S)

    def on_message(self, connection: Connection, message: Any) -> None:
        """See `End`."""
        self._message(connection, message)

    def on_gone(self, connection: Connection) -> None:
        """See `End`."""
        if self.connection is connection:
            self.connection = None
            self._gone()
            self._again()

    def send(self, message: Any, size: int) -> bool:
        """`False` if there is no connection now."""
        if self.connection is None:
            return False
        self.connection.send(self, message, size)
        return True

    def close(self) -> None:
        """End the connection, and dial no more."""
        self._closed = True
        if self.connection is not None:
            connection, self.connection = self.connection, None
            connection.finish(self)


class DatagramPort(Protocol):
    """Who takes datagrams that are sent to an address."""

    machine: Machine
    address: tuple[str, int]

    def on_datagram(self, data: bytes, source: tuple[str, int]) -> None:
        """One came."""


class Network:
    """All machines, and the ways between them."""

    def __init__(self, scheduler: Scheduler, default: Way | None = None) -> None:
        self.scheduler = scheduler
        self.default = default or Way()
        self.machines: dict[str, Machine] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._numbers = count(FIRST_NUMBER)
        self._ports = count(FIRST_PORT)
        self.lost_datagrams = 0

    def here(self) -> Machine:
        """The machine of the calling task."""
        place = self.scheduler.current.place
        assert isinstance(place, Machine)
        return place

    def new_number(self) -> int:
        """A number for a connection."""
        return next(self._numbers)

    def new_port(self) -> int:
        """A port that nobody else has."""
        return next(self._ports)

    def way(self, source: Machine, target: Machine) -> Way:
        """The way from one machine to another; on the machine itself, a perfect one."""
        found = self._ways.get((source.name, target.name))
        return found or (LOCAL if source is target else self.default)

    def own_way(self, source: str, target: str) -> Way:
        """The way between these two, to be changed apart from the others."""
        d = self.default
        made = Way(d.delay_s, d.jitter_s, d.loss, d.duplication, d.bytes_per_s, d.is_cut)
        return self._ways.setdefault((source, target), made)

    def ways(self) -> list[Way]:
        """All that may be changed."""
        return [self.default, *self._ways.values()]

    def chance(self, part: float) -> bool:
        """Return True in this part of the calls."""
        return part > 0 and self.scheduler.rng.random() < part

    def jitter(self, way: Way) -> float:
        """How much longer than always this takes."""
        return self.scheduler.rng.random() * way.jitter_s if way.jitter_s else 0.0

    # --- connections ---

    def listen(self, address: str, acceptor: Acceptor) -> str:
        """Have who dials the address come to the acceptor; raises `BindError`."""
        if address.endswith((":*", ":0")):
            address = f"{address.rpartition(':')[0]}:{self.new_port()}"
        if self.acceptor(address) is not None:
            raise BindError(address, "the port is taken: choose another (':*' takes a free one)")
        acceptor.machine.listeners[address] = acceptor
        return address

    def acceptor(self, address: str) -> Acceptor | None:
        """Who listens there."""
        for machine in self.machines.values():
            if not machine.dead and address in machine.listeners:
                return machine.listeners[address]
        return None

    def connections(self) -> list[Connection]:
        """Those that are open, by their numbers."""
        every = {c for machine in self.machines.values() for c in machine.connections}
        return sorted(every, key=lambda connection: connection.number)

    # --- datagrams ---

    def datagram(
        self, data: bytes, source: tuple[str, int], target: tuple[str, int], sender: Machine
    ) -> None:
        """Send one to all that take what comes to the target."""
        for machine in list(self.machines.values()):
            for port in list(machine.datagrams):
                if port.address == target and not machine.dead:
                    self._send(data, source, port, sender)

    def _send(
        self, data: bytes, source: tuple[str, int], port: DatagramPort, sender: Machine
    ) -> None:
        way = self.way(sender, port.machine)
        if way.is_cut or self.chance(way.loss):
            self.lost_datagrams += 1
            return
        for _ in range(2 if self.chance(way.duplication) else 1):
            took = way.delay_s + len(data) / way.bytes_per_s + self.jitter(way)
            self.scheduler.at(self.scheduler.now + took, lambda: self._come(port, data, source))

    def _come(self, port: DatagramPort, data: bytes, source: tuple[str, int]) -> None:
        if not port.machine.dead and port in port.machine.datagrams:
            port.on_datagram(data, source)

    # --- machines ---

    def stop(self, machine: Machine, *, power: bool = False) -> None:
        """A machine runs no more: what it has sent may arrive or not."""
        machine.dead, machine.silent = True, power
        for connection in list(machine.connections):
            connection.lose(0 if connection.ends[0].machine is machine else 1)
        machine.connections.clear()
        machine.listeners.clear()
        machine.datagrams.clear()
        machine.ears.clear()


LOCAL = Way()
