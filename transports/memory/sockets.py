"""What a peer makes its sockets with in a simulated world; the verbs of `zmq.sockets`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshmsg._model.errors import ConfigError
from meshmsg.transports.memory.control import ControlClient, ControlServer
from meshmsg.transports.memory.fanout import FanoutClient, FanoutServer
from meshmsg.transports.memory.network import Machine, Network, Signal, wait_for
from meshmsg.transports.memory.wakeup import Wakeup
from meshmsg.transports.memory.work import WorkInlet, WorkOutlet


class Poller:
    """Waits for any of a changing set of things; see `zmq.context.Poller`."""

    def __init__(self, network: Network) -> None:
        self._scheduler = network.scheduler
        self._owners: dict[Signal, Any] = {}

    def add(self, owner: Any) -> None:
        """Wait for this one too."""
        self._owners[owner.pollable] = owner

    def remove(self, owner: Any) -> None:
        """Do not wait for it any more."""
        signal = owner.pollable
        if self._owners.get(signal) is owner:
            del self._owners[signal]

    def wait(self, timeout_s: float) -> list[Any]:
        """Those that are readable; empty when the time is up."""
        ready = wait_for(self._scheduler, self._owners, max(0.0, timeout_s))
        return [self._owners[signal] for signal in ready]


class MemorySockets:
    """Makes the sockets of one peer."""

    #: Nobody sends bytes that never make a message.
    measured = False

    def __init__(self, machine: Machine, curve: object | None) -> None:
        if curve is not None:
            raise ConfigError("security", "a simulated mesh has no keys: leave it out")
        self.curve: None = None
        #: Who somebody is that dialled us: nobody shows a key.
        self.user_of: Callable[[bytes], bytes] = lambda identity: b""
        self._machine = machine

    def poller(self) -> Poller:
        """Waits for several of them."""
        return Poller(self._machine.network)

    def wakeup(self) -> Wakeup:
        """A call that a poller can wait for."""
        return Wakeup(self._machine.network.scheduler)

    def control_server(self) -> ControlServer:
        """Listens for control messages."""
        return ControlServer(self._machine)

    def control_client(self, address: str, key: bytes = b"") -> ControlClient:
        """Dials a peer."""
        return ControlClient(self._machine, address)

    def fanout_server(
        self, queue_frames: int, may: Callable[[bytes, bytes], bool] | None = None
    ) -> FanoutServer:
        """Sends frames to subscribers."""
        return FanoutServer(self._machine, queue_frames)

    def fanout_client(self, queue_frames: int, *, apart: bool = False) -> FanoutClient:
        """Takes frames for a subscription."""
        return FanoutClient(self._machine)

    def work_outlet(self, member: int, addresses: Sequence[str], user: bytes = b"") -> WorkOutlet:
        """Sends work to one member of a group."""
        return WorkOutlet(self._machine, member, addresses)

    def work_inlet(self, credit: int, *, apart: bool = False) -> WorkInlet:
        """Takes work for a member."""
        return WorkInlet(self._machine)

    def close(self) -> None:
        """Nothing is left to free."""
