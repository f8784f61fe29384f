"""Worlds tried one after the other, each under a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class Stepped(Protocol):
    """A world that is told how many steps to go."""

    def run(self, steps: int) -> None:
        """Raises if what must hold does not."""


class Counted(Protocol):
    """A world that ends by itself, and counts what happens in it."""

    counters: Counter[str]

    def run(self) -> None:
        """Raises if what must hold does not."""


World = TypeVar("World", bound=Stepped)


def run_worlds(make: Callable[[int], World], seeds: range, steps: int) -> Iterator[World]:
    """Each world after its run; a failure says which seed it was."""
    for seed in seeds:
        world = make(seed)
        try:
            world.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        yield world


def try_worlds(make: Callable[[int], Counted], seeds: range) -> tuple[Counter[str], list[int]]:
    """What happened in all worlds together, and the seeds that failed."""
    counters: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        world = make(seed)
        try:
            world.run()
        except Exception:
            failed.append(seed)
        counters.update(world.counters)
        counters["worlds"] += 1
    return counters, failed
