"""What a simulated world is made of, drawn from its seed, and what its events carry."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

STREAM, WIRE_ID = "p/a.**", 7
TICK_S = 0.05


def payload_of(epoch: int, seq: int) -> bytes:
    """What event `seq` must carry: mostly small, now and then larger than a whole frame."""
    mixed = (seq * 2_654_435_761 + epoch * 97) % 1009
    size = 1500 if mixed < 8 else mixed % 40
    return struct.pack("<QQ", epoch, seq) + bytes(size)


def topic_of(seq: int) -> str:
    return "a.odd" if seq % 3 else "a.even"


@dataclass(frozen=True)
class Options:
    """One world: everything that chance decides beforehand."""

    overflow: str
    subscribers: int
    events: int
    buffer_bytes: int
    window_bytes: int
    frame_bytes: int
    evict_after_s: float | None
    queue_frames: int
    drop: float
    swap: float
    control_drop: float
    cut_s: float
    delay_s: float
    repair_bytes_max: int
    pending_bytes_max: int
    inbox_bytes_max: int
    pause_s: float
    stall: float
    freeze: float
    restarts: int
    liar: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Options:
        overflow = rng.choice(("block", "buffer", "drop_oldest", "drop_newest"))
        holds = overflow in ("block", "buffer")
        return cls(
            overflow=overflow,
            subscribers=rng.choice((1, 1, 2, 3, 5)),
            events=rng.choice((50, 150, 300)),
            buffer_bytes=rng.choice((1000, 3000, 20_000)),
            window_bytes=rng.choice((300, 1000, 5000)),
            frame_bytes=rng.choice((64, 300, 800)),
            evict_after_s=rng.choice((0.3, 1.0)) if holds and rng.random() < 0.4 else None,
            queue_frames=rng.choice((1, 3, 10, 50)),
            drop=rng.choice((0.0, 0.02, 0.2, 0.6, 1.0)),
            swap=rng.choice((0.0, 0.0, 0.0, 0.2)),
            control_drop=rng.choice((0.0, 0.0, 0.03)),
            cut_s=rng.choice((0.0, 0.0, 0.0, 7.0)),
            delay_s=rng.choice((0.0, 0.001, 0.05)),
            repair_bytes_max=rng.choice((1, 1000, 100_000)),
            pending_bytes_max=rng.choice((200, 2000, 100_000)),
            inbox_bytes_max=rng.choice((1, 1000, 100_000)),
            pause_s=rng.choice((0.0, 0.002, 0.01)),
            stall=rng.choice((0.0, 0.01, 0.05)),
            freeze=rng.choice((0.0, 0.0, 0.01)),
            restarts=rng.choice((0, 0, 0, 1, 2)),
        )
