"""From a failing world to a short one that fails in the same way, and its trace.

First the options: fewer events and receivers, and every fault that can go is switched off, as long
as the world still fails.  Then the single faults: every path draws from its own chance, so a fault
can be taken back without moving the others, and halves, quarters ... of them are, until each one
left is needed.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, fields, replace
from time import monotonic
from typing import Any

from tests.simulation.multicast.network import Fault
from tests.simulation.multicast.options import MulticastOptions
from tests.simulation.multicast.world import MulticastWorld

#: Seeds tried near the failing one with simpler options: chance falls otherwise in each.
NEIGHBOURS = 6
TRACE_LINES_MAX = 200


@dataclass(frozen=True)
class Failure:
    """A world that fails, as short as it could be made."""

    seed: int
    options: MulticastOptions
    error: str
    kind: str
    only: frozenset[Fault] | None
    trace: list[str]

    def text(self) -> str:
        """For a person to read."""
        simplest = MulticastOptions()
        differ = [f for f in fields(simplest) if self.value(f.name) != getattr(simplest, f.name)]
        chosen = " ".join(f"{f.name}={self.value(f.name)!r}" for f in differ)
        lines = self.trace
        if len(lines) > TRACE_LINES_MAX:
            lines = [f"({len(lines) - TRACE_LINES_MAX} lines before)", *lines[-TRACE_LINES_MAX:]]
        faults = "all" if self.only is None else ", ".join(map(str, sorted(self.only))) or "none"
        return "\n".join(
            [
                f"seed {self.seed} with {chosen}",
                f"faults: {faults}",
                *lines,
                self.error,
            ]
        )

    def value(self, name: str) -> Any:
        return getattr(self.options, name)


def attempt(
    seed: int, options: MulticastOptions | None, only: frozenset[Fault] | None = None
) -> tuple[Failure | None, MulticastWorld]:
    """Run a world; the failure, if it fails."""
    world = MulticastWorld(seed, options, only=only, trace=True)
    try:
        world.run()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {where.name}"
        text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return Failure(seed, world.options, text, kind, only, world.trace or []), world
    return None, world


def shrink(
    seed: int, *, budget_s: float = 20.0, options: MulticastOptions | None = None
) -> Failure:
    """The shortest failure found in the time; raises `ValueError` if the seed does not fail."""
    stop = monotonic() + budget_s
    found, _ = attempt(seed, options)
    if found is None:
        raise ValueError(f"seed {seed} does not fail")
    found = _shrink_options(found, stop)
    return _shrink_faults(found, stop)


def _simpler(options: MulticastOptions) -> list[MulticastOptions]:
    """Worlds with one thing less, the largest steps first."""
    simplest = MulticastOptions(receivers=1, events=1)
    tries = []
    for name in ("events", "receivers", "large_bytes", "batch_max"):
        value, low = getattr(options, name), getattr(simplest, name)
        steps = {low, low + (value - low) // 2, value - 1}
        tries += [replace(options, **{name: step}) for step in sorted(steps) if low <= step < value]
    for item in fields(options):
        if getattr(options, item.name) != getattr(simplest, item.name):
            tries.append(replace(options, **{item.name: getattr(simplest, item.name)}))
    return tries


def _shrink_options(found: Failure, stop: float) -> Failure:
    again = True
    while again and monotonic() < stop:
        again = False
        for options in _simpler(found.options):
            for seed in (found.seed, *range(NEIGHBOURS)):
                if monotonic() >= stop:
                    return found
                other, _ = attempt(seed, options)
                if other is not None and other.kind == found.kind:
                    found, again = other, True
                    break
            if again:
                break
    return found


def _shrink_faults(found: Failure, stop: float) -> Failure:
    _, world = attempt(found.seed, found.options)
    needed = list(world.faults.happened)
    size = max(1, len(needed) // 2)
    while needed and monotonic() < stop:
        for at in range(0, len(needed), size):
            rest = needed[:at] + needed[at + size :]
            other, _ = attempt(found.seed, found.options, frozenset(rest))
            if other is not None and other.kind == found.kind:
                found, needed = other, rest
                break
            if monotonic() >= stop:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return found
