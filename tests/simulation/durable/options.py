"""What a world of one durable stream is made of, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

STREAM, MESH = "p/a.**", "default"
TICK_S = 0.05
Place = tuple[int, int]


@dataclass(frozen=True)
class Options:
    """One world: everything that chance decides beforehand."""

    fsync: str
    lives: int
    events: int
    segment_bytes: int
    allocate_bytes: int
    retention_bytes: int | None
    buffer_bytes: int
    crash_point: float
    """The chance of a crash at each point between append, sync, send and ack."""
    crash_calls: int
    """About so many calls to the disk until one of them crashes."""
    power: float
    """How many of the crashes are the machine's: then what was not synced may be gone."""
    disk_errors: float
    drop: float
    delay_s: float
    repair_bytes_max: int
    subscribers: int
    consumer_crash: float

    @classmethod
    def draw(cls, rng: random.Random) -> Options:
        return cls(
            fsync=rng.choice(("always", "always", "batch", "never")),
            lives=rng.choice((2, 3, 5)),
            events=rng.choice((20, 50, 100)),
            segment_bytes=rng.choice((4096 + 600, 9000, 40_000)),
            allocate_bytes=rng.choice((0, 4096)),
            retention_bytes=rng.choice((None, None, 20_000)),
            buffer_bytes=rng.choice((500, 5000, 100_000)),
            crash_point=rng.choice((0.0, 0.01, 0.05)),
            crash_calls=rng.choice((20, 60, 200)),
            power=rng.choice((0.0, 0.5, 1.0)),
            disk_errors=rng.choice((0.0, 0.0, 0.02)),
            drop=rng.choice((0.0, 0.1, 1.0)),
            delay_s=rng.choice((0.0, 0.01)),
            repair_bytes_max=rng.choice((1, 2000, 100_000)),
            subscribers=rng.choice((1, 2, 4)),
            consumer_crash=rng.choice((0.0, 0.02, 0.1)),
        )
