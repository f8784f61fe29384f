"""What a simulated world of work groups is made of, drawn from its seed."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

WIRE_ID = 9
TICK_S = 0.05


def topic_of(seq: int) -> str:
    return "j.other" if seq % 11 == 3 else "j.work"


def key_of(seq: int, keys: int) -> str | None:
    mixed = (seq * 2_654_435_761) % 1013
    return f"k{mixed % keys}" if keys and mixed % 5 else None


def payload_of(publisher: int, seq: int) -> bytes:
    return struct.pack("<QQ", publisher, seq) + bytes(seq % 23)


@dataclass(frozen=True)
class GroupOptions:
    """One world: everything that chance decides beforehand."""

    publishers: int
    groups: int
    members: int
    events: int
    keys: int
    order: str
    prefetch: int
    max_attempts: int
    ack_timeout_s: float
    overflow: str
    buffer_bytes: int
    frame_events: int
    handling_s: float
    nack: float
    ack_drop: float
    repeat: float
    delay_s: float
    kills: int
    cuts: int
    leaves: int
    suspect_s: float
    hang: float

    @classmethod
    def draw(cls, rng: random.Random) -> GroupOptions:
        return cls(
            publishers=rng.choice((1, 1, 2)),
            groups=rng.choice((1, 1, 2)),
            members=rng.choice((1, 2, 4)),
            events=rng.choice((60, 200, 400)),
            keys=rng.choice((0, 1, 5, 40)),
            order=rng.choice(("key", "key", "none")),
            prefetch=rng.choice((1, 3, 16, 100)),
            max_attempts=rng.choice((1, 3, 1000)),
            ack_timeout_s=rng.choice((1.0, 5.0)),
            overflow=rng.choice(("buffer", "buffer", "block", "drop_oldest", "drop_newest")),
            buffer_bytes=rng.choice((2000, 20_000, 1_000_000)),
            frame_events=rng.choice((1, 7, 50)),
            handling_s=rng.choice((0.0, 0.002, 0.02)),
            nack=rng.choice((0.0, 0.02, 0.2)),
            ack_drop=rng.choice((0.0, 0.0, 0.05)),
            repeat=rng.choice((0.0, 0.0, 0.1)),
            delay_s=rng.choice((0.0, 0.001, 0.02)),
            kills=rng.choice((0, 0, 1, 4)),
            cuts=rng.choice((0, 0, 1, 3)),
            leaves=rng.choice((0, 0, 2)),
            suspect_s=rng.choice((0.3, 1.0)),
            hang=rng.choice((0.0, 0.0, 0.01)),
        )
