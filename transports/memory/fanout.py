"""Fan-out in a simulated world: the verbs of `zmq.fanout`.

As there, a publisher is told of the first that subscribes to a prefix, and of the last that stops.
What finds a subscriber's queue full is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from meshmsg.recovery.stream.quotas import Quota
from meshmsg.transports.memory.control import Listener
from meshmsg.transports.memory.network import Connection, Dialler, Machine, Signal, wait_for
from meshmsg.transports.memory.wakeup import Wakeup
from meshmsg.transports.zmq.context import companion
from meshmsg.transports.zmq.fanout import (
    PREFIXES_EACH_MAX,
    PREFIXES_MAX,
    READS_PER_DRAIN_MAX,
    STREAM_BYTES,
)
from meshmsg.transports.zmq.receive_socket import SOON_S


class FanoutServer(Listener):
    """The publisher's side."""

    def __init__(self, machine: Machine, queue_frames: int) -> None:
        super().__init__(machine)
        self.strayed: Callable[[bytes], None] = lambda user: None
        self.prefixes = Quota(PREFIXES_EACH_MAX, PREFIXES_MAX)
        self.drained = False  #: the last `drain` left nothing
        self.addresses: list[tuple[str, str]] = []
        self.counters: Counter[str] = Counter()
        #: A test or a demo may lose messages here: called with each, true means dropped.
        self.fault: Callable[[bytes], bool] | None = None
        self.overflows = 0  #: messages that found a queue full
        self._queue_frames = queue_frames
        self._seen: deque[tuple[bool, bytes]] = deque()
        self._wanted: Counter[bytes] = Counter()
        self._by_connection: dict[Connection, set[bytes]] = {}
        self.pollable = self.fd = Signal(machine.network.scheduler, lambda: bool(self._seen))

    def bind(self, control_address: str) -> None:
        """Listen beside a control address."""
        self.addresses.append((control_address, self.listen(companion(control_address))))

    def on_accepted(self, connection: Connection) -> None:
        """See `Acceptor`."""
        self._by_connection[connection] = set()
        super().on_accepted(connection)

    def on_message(self, connection: Connection, message: Any) -> None:
        """See `End`."""
        connection.taken(self)
        came, prefix = message
        wants = self._by_connection[connection]
        if came and prefix not in wants:
            wants.add(prefix)
            self._wanted[prefix] += 1
            if self._wanted[prefix] == 1:
                self._note(True, prefix)
        elif not came and prefix in wants:
            wants.discard(prefix)
            self._drop(prefix)
        if self.door is not None:
            self.door.spoke(connection.number, len(prefix))

    def _drop(self, prefix: bytes) -> None:
        self._wanted[prefix] -= 1
        if not self._wanted[prefix]:
            del self._wanted[prefix]
            self._note(False, prefix)

    def _note(self, came: bool, prefix: bytes) -> None:
        self._seen.append((came, prefix))
        self.pollable.notify()

    def on_gone(self, connection: Connection) -> None:
        """See `End`."""
        for prefix in sorted(self._by_connection.pop(connection, ())):
            self._drop(prefix)
        super().on_gone(connection)

    def send(self, message: bytes) -> None:
        """To everyone who subscribed; a full queue loses it and the loss is found."""
        self.machine.check()
        if self.fault is not None and self.fault(message):
            self.counters["injected_drops"] += 1
            return
        prefix = message[:STREAM_BYTES]
        for connection, wants in self._by_connection.items():
            if prefix in wants:
                if connection.unread[1] < 2 * self._queue_frames:  # at either end
                    connection.send(self, bytes(message), len(message))
                else:
                    self.overflows += 1

    def drain(self) -> list[tuple[bool, bytes]]:
        """Subscriptions (`True`) and their ends (`False`) seen since the last call."""
        seen = [self._seen.popleft() for _ in range(min(len(self._seen), READS_PER_DRAIN_MAX))]
        self.drained = not self._seen
        return seen

    def forget(self, fd: int) -> None:
        """A connection is gone: nothing more is known of it."""

    def close(self, linger_s: float) -> None:
        """Close."""
        self.shut()
        self._by_connection.clear()


class Inlet:
    """Messages in, over any number of connections that this side makes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._scheduler = scheduler = machine.network.scheduler
        self._messages: deque[tuple[Connection, Dialler, Any]] = deque()
        self._diallers: dict[str, Dialler] = {}
        self._data = Signal(scheduler, lambda: bool(self._messages))
        self._others: dict[Signal, None] = {}
        self.wakeup = Wakeup(scheduler)
        self.fds: tuple[Any, ...] = (self._data,)
        self.foreign = 0
        self.came_from = ""

    def connect(self, address: str, key: bytes = b"", streams: Iterable[bytes] = ()) -> None:
        """Connect to a publisher; a second call for the same address does nothing."""
        if address in self._diallers:
            return
        self._diallers[address] = Dialler(
            self.machine,
            address,
            lambda: self._greet(address),
            lambda connection, data: self._on_message(address, connection, data),
            lambda: None,
        )

    def _greet(self, address: str) -> None:
        pass

    def _on_message(self, address: str, connection: Connection, data: Any) -> None:
        dialler = self._diallers.get(address)
        if dialler is not None:
            self._messages.append((connection, dialler, data))
            self._data.notify()

    def disconnect(self, address: str) -> None:
        """Leave a publisher; what it sent and is not yet read is lost."""
        dialler = self._diallers.pop(address, None)
        if dialler is not None:
            dialler.close()
            kept = [message for message in self._messages if message[1] is not dialler]
            self._messages = deque(kept)

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""
        if not self._messages:
            return None
        connection, dialler, data = self._messages.popleft()
        connection.taken(dialler)
        return data  # type: ignore[no-any-return]

    def recv_soon(self) -> bytes | None:
        """The next message, if it comes within `SOON_S`; deaf to wake-up calls meanwhile."""
        self.machine.check()
        wait_for(self._scheduler, [self._data], SOON_S)
        return self.recv()

    def look(self) -> int:
        """Nobody is ahead."""
        return 0

    def wait(self, timeout_s: float) -> None:
        """Until there is a message, a wake-up call, or the time is up."""
        self.machine.check()
        signals = [self._data, self.wakeup.fd, *self._others]
        if self.wakeup.fd in wait_for(self._scheduler, signals, max(0.0, timeout_s)):
            self.wakeup.clear()

    def close(self) -> None:
        """Close at once."""
        for dialler in self._diallers.values():
            dialler.close()
        self._diallers.clear()
        self._messages.clear()
        self.wakeup.close()


class FanoutClient(Inlet):
    """Takes frames for one subscription, of any number of publishers."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._prefixes: dict[bytes, None] = {}

    def watch(self, fd: Signal) -> None:
        """Have `wait` end for this one, too."""
        self._others[fd] = None

    def unwatch(self, fd: Signal) -> None:
        """It is about to be closed."""
        self._others.pop(fd, None)

    def _greet(self, address: str) -> None:
        for prefix in self._prefixes:
            self._diallers[address].send((True, prefix), len(prefix))

    def subscribe(self, prefix: bytes) -> None:
        """Take messages that start with the prefix."""
        self._say(True, prefix)
        self._prefixes[prefix] = None

    def unsubscribe(self, prefix: bytes) -> None:
        """Take them no more."""
        self._say(False, prefix)
        self._prefixes.pop(prefix, None)

    def _say(self, wanted: bool, prefix: bytes) -> None:
        for dialler in self._diallers.values():
            dialler.send((wanted, prefix), len(prefix))
