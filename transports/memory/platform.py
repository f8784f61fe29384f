"""A simulated world as the platform of peers: see `meshmsg._platform`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from meshmsg import _platform
from meshmsg._model.multicast_config import Multicast
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.transports.discovery.mdns import Listener
from meshmsg.transports.memory.discovery import Beacon
from meshmsg.transports.memory.fanout import FanoutClient
from meshmsg.transports.memory.locks import Condition, Event, Lock, RLock
from meshmsg.transports.memory.multicast import MulticastClient, MulticastServer
from meshmsg.transports.memory.network import Machine, Network, Way
from meshmsg.transports.memory.scheduler import Scheduler, Task
from meshmsg.transports.memory.sockets import MemorySockets
from meshmsg.transports.udp.multicast import Group

#: When every world begins, in ns since 1970.
EPOCH_NS = 1_800_000_000 * 10**9
#: Where the one who made the world runs, and what peers begin that are opened nowhere else.
OUTSIDE = "outside"


class MemoryPlatform(_platform.Platform):
    """One world: its clock, tasks, dice, network and disks."""

    def __init__(self, seed: int = 0, way: Way | None = None) -> None:
        self.scheduler = scheduler = Scheduler(seed)
        self.network = Network(scheduler, way)
        self.sockets = self
        self.monotonic = self.thread_time = scheduler.look
        self.own_clock_ns = self.time_ns
        self.sleep = scheduler.sleep
        self.randbits = scheduler.rng.getrandbits
        self.lock = lambda: Lock(scheduler)
        self.rlock = lambda: RLock(scheduler)
        self.condition = partial(Condition, scheduler)
        self.event = lambda: Event(scheduler)
        self.current_thread = lambda: scheduler.current
        scheduler.adopt(self.machine(OUTSIDE))

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return EPOCH_NS + int(self.scheduler.look() * 1e9)

    def random(self) -> random.Random:
        """A generator with a seed of its own."""
        return random.Random(self.scheduler.rng.getrandbits(64))

    def thread(self, *, target: Callable[[], object], name: str, daemon: bool = True) -> Task:
        """A task on the machine of who asks."""
        return Task(self.scheduler, target, name, self.network.here())

    @property
    def files(self) -> Any:
        """The disk of the machine of who asks."""
        disk: FaultyFiles = self.network.here().files
        disk.now_ns = EPOCH_NS + int(self.scheduler.now * 1e9)
        return disk

    def machine(self, name: str) -> Machine:
        """The machine of this name, a new one if it is dead."""
        machine = self.network.machines.get(name)
        if machine is None or machine.dead:
            disk = FaultyFiles(self.random()) if machine is None else machine.files
            machine = self.network.machines[name] = Machine(name, self.network, disk)
        return machine

    @contextlib.contextmanager
    def at(self, name: str) -> Iterator[None]:
        """What the peer of this name begins within the block is on one machine."""
        task = self.scheduler.current
        before = task.place
        if before.name != OUTSIDE:
            yield
            return
        task.place = self.machine(name)
        try:
            yield
        finally:
            task.place = before

    # --- sockets ---

    def context(self, curve: object | None) -> MemorySockets:
        """Makes the sockets of one peer."""
        return MemorySockets(self.network.here(), curve)

    def multicast_server(self, config: Multicast, interface: str) -> MulticastServer:
        """A publisher's side of one stream."""
        return MulticastServer(self.network.here(), config, interface)

    def multicast_client(
        self, group: Group, buffer_bytes: int, beside: FanoutClient
    ) -> MulticastClient:
        """A subscription's side for one group."""
        return MulticastClient(beside.machine, group, buffer_bytes)

    def beacon(self, listener: Listener) -> Beacon:
        """A peer's use of zeroconf."""
        return Beacon(self.network.here(), listener)

    def why_unreachable(self, address: str) -> str:
        """What is the matter with an address at which nobody answers."""
        there = self.network.acceptor(address)
        return "nobody listens there" if there is None else "nothing gets through"

    # --- the end ---

    def kill(self, name: str, *, power: bool = False, disk: bool = True) -> None:
        """End what runs on a machine where it stands, as SIGKILL does.

        With `power` the machine loses its power: nobody is told, and of its disk only what was
        synced is sure to be there.  Without `disk`, the next of that name begins with an empty one.
        """
        machine = self.network.machines[name]
        self.network.stop(machine, power=power)
        self.scheduler.release(machine)
        files: FaultyFiles = machine.files
        machine.files = files.survivor(power=power) if disk else FaultyFiles(self.random())

    def close(self) -> None:
        """End all tasks."""
        for machine in self.network.machines.values():
            if machine.name != OUTSIDE:
                machine.dead = True
        self.scheduler.close()
