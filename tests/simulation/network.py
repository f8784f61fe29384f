"""Virtual time, and the control path.  The live path is a queue of the subscriber's."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


class Clock:
    """Virtual time: what is due runs in order, and nothing else happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def at(self, time: float, run: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._due, (max(time, self.now), self._made, run))

    def step(self) -> None:
        self.now, _, run = heapq.heappop(self._due)
        run()


class Link:
    """The control path in one direction: keeps order, takes time, may lose."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = 0.0
        self._life = 0
        self.cut_until = 0.0

    def post(self, run: Callable[[], None], *, sure: bool = False) -> None:
        """Send; what is `sure` is repeated until it arrives, as the peer does with a hello."""
        world, now = self._world, self._world.clock.now
        if not sure and (now < self.cut_until or world.rng.random() < world.options.control_drop):
            return
        delay = world.options.delay_s * world.rng.uniform(0.5, 2)
        self._last = max(self._last, now + delay, self.cut_until)
        life = self._life
        world.clock.at(self._last, lambda: run() if life == self._life else None)

    def lose_all(self) -> None:
        """Nothing that is under way arrives."""
        self._life += 1
