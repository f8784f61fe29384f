"""What a simulated mesh is like, and what goes wrong in it: all drawn by its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Options:
    """One world."""

    multicast: bool = False
    durable: bool = True
    fsync: str = "always"
    events: int = 60
    """That the publisher is asked for."""
    subscribers: int = 2
    members: int = 2
    """Of the work group; 0 for no group."""
    order: str = "none"
    recorder: bool = False
    loss: float = 0.0
    jitter_s: float = 0.0
    duplication: float = 0.0
    drops: int = 0
    """How often connections break."""
    cuts: int = 0
    """How often the network is cut between two peers, for a moment."""
    kills: int = 0
    """How often the publisher is killed, and comes back."""
    power: bool = False
    """Whether it loses its power then, and not its process only."""
    disk: bool = True
    """Whether it comes back with its disk."""

    @property
    def keeps_all(self) -> bool:
        """Whether what was published must reach everybody: it is on a disk that stays."""
        safe = self.durable and (self.fsync == "always" or not self.power) and self.disk
        return safe or not (self.kills or self.drops or self.cuts or self.loss)


def draw(seed: int) -> Options:
    """The world of a seed."""
    rng = Random(f"mesh {seed}")
    durable = rng.random() < 0.7
    return Options(
        multicast=rng.random() < 0.4,
        durable=durable,
        fsync=rng.choice(("always", "batch", "never")) if durable else "always",
        events=rng.randrange(20, 120),
        subscribers=rng.randrange(1, 3),
        members=rng.choice((0, 0, 1, 2)),
        order=rng.choice(("none", "key")),
        recorder=rng.random() < 0.3,
        loss=rng.choice((0.0, 0.01, 0.1)),
        jitter_s=rng.choice((0.0, 0.001, 0.02)),
        duplication=rng.choice((0.0, 0.05)),
        drops=rng.choice((0, 0, 1, 3)),
        cuts=rng.choice((0, 0, 1, 2)),
        kills=rng.choice((0, 0, 1, 2)),
        power=rng.random() < 0.5,
        disk=rng.random() < 0.8,
    )
