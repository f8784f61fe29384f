"""A mesh without sockets and sleeps: real peers in a simulated world, under a seed.

>>> with MemoryMesh(seed=7, loss=0.1) as mesh:                            # doctest: +SKIP
...     with Peer("shop") as shop, Peer("billing", connect=shop.address) as billing:
...         ...
...         mesh.kill("shop")
...         mesh.sleep(10)                        # takes no time
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Self

from meshmsg import _platform
from meshmsg._model.errors import ConfigError, WaitTimeout
from meshmsg._peer.forks import bury
from meshmsg.recovery.log.faults import Faults
from meshmsg.transports.memory.network import Way
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.memory.scheduler import Task

#: How often `wait_until` looks.
LOOK_S = 0.01


class MemoryMesh:
    """Peers that are opened within the block run in one simulated world, on a clock of its own.

    The clock stands still while anybody works, and jumps while all wait.  The same seed gives the
    same run.  What fails in a task (`start`) is raised when the block ends.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: float = 0.0002,
        jitter: float = 0.0,
        loss: float = 0.0,
        duplication: float = 0.0,
        bytes_per_s: float = float("inf"),
    ) -> None:
        for name, part in (("loss", loss), ("duplication", duplication)):
            if not 0 <= part < 1:
                raise ConfigError(name, f"{part!r} is not a part of all: at least 0, less than 1")
        self.seed = seed
        self.platform = MemoryPlatform(
            seed, Way(delay, jitter, loss, duplication, bytes_per_s=bytes_per_s)
        )
        self._scheduler = self.platform.scheduler
        self._network = self.platform.network
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(_platform.entered(self.platform))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        self.platform.close()
        if kind is not None:  # what a test leaves open that has failed is no failure of its own
            for name in self._network.machines:
                bury(name)
            return
        for failure in self._scheduler.failures:
            raise failure

    # --- time ---

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        """Let time pass for everybody."""
        self._scheduler.sleep(seconds)

    def wait_until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Let time pass until something holds.  Raises `WaitTimeout`."""
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline:
                raise WaitTimeout(f"not within {timeout:g} s of the mesh")
            self.sleep(LOOK_S)

    def start(self, function: Callable[..., object], *args: object, on: str) -> Task:
        """Run a function on the machine of a peer, beside all else; `join` waits for its end."""
        task = Task(
            self._scheduler, partial(function, *args), function.__name__, self.platform.machine(on)
        )
        task.start()
        return task

    # --- what goes wrong ---

    def link(self, source: str, target: str) -> Way:
        """The way from one peer to another, to be changed apart from the others."""
        return self._network.own_way(source, target)

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Let nothing through from one peer to another, and back unless that is left open."""
        self.link(source, target).is_cut = True
        if not one_way:
            self.link(target, source).is_cut = True

    def heal(self) -> None:
        """Let everything through again that was cut."""
        for way in self._network.ways():
            way.is_cut = False

    def drop_connections(self, *names: str) -> int:
        """Break the connections of these peers, or all; what is on its way is lost."""
        broken = 0
        for connection in self._network.connections():
            if not names or {end.machine.name for end in connection.ends} & set(names):
                connection.break_off()
                broken += 1
        return broken

    def kill(self, name: str, *, power: bool = False, disk: bool = True) -> None:
        """End a peer where it stands, as SIGKILL does; a new one of its name may be opened then.

        With `power` its machine goes down: nobody is told, and of the disk there is what was
        synced.  Without `disk` the next one finds an empty one.
        """
        if name not in self._network.machines:
            raise ConfigError("name", f"{name!r} has not been here")
        self.platform.kill(name, power=power, disk=disk)
        bury(name)

    def disk(self, name: str) -> Faults:
        """What goes wrong with the disk of a peer: to be changed at any time."""
        faults: Faults = self.platform.machine(name).files.faults
        return faults
