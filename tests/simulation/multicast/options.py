"""What a simulated multicast world is made of, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

LOSSES = (0.0, 0.0, 0.01, 0.05, 0.1, 0.2, 0.3)
FOREVER_S = 1e6
AMPLE_BYTES = 1 << 26


@dataclass(frozen=True)
class MulticastOptions:
    """One world: everything that chance decides beforehand.  The simplest value comes first."""

    receivers: int = 1
    events: int = 10
    batch_max: int = 1
    event_bytes: int = 20
    large_bytes: int = 0
    """Now and then an event is this large."""
    pause_s: float = 0.001
    """Between two batches, on average."""
    packet_bytes: int = 1400
    lines: int = 1
    parity: tuple[int, int] | None = None
    flow: str = "fastest"
    rate: float | None = None
    overflow: str = "drop_oldest"
    loss: float = 0.0
    """At each receiver for itself."""
    bursty: bool = False
    """Whether loss comes in runs (Gilbert-Elliott), at the same average."""
    shared_loss: float = 0.0
    """At the sender's side: nobody gets it."""
    back_loss: float = 0.0
    """Of requests and status reports."""
    duplicate: float = 0.0
    jitter_s: float = 0.0
    """Random delay of each packet for itself, which reorders."""
    delay_s: float = 0.0002
    cut_s: float = 0.0
    """Some receivers hear and say nothing for so long, once."""
    freeze_s: float = 0.0
    """Some receivers' processes stand still for so long, once."""
    socket_bytes: int = AMPLE_BYTES
    one_way: float = 0.0
    """Share of receivers without a control channel."""
    warm_up_s: float = 0.0
    """How long the sender waits before it publishes."""
    late_join: float = 0.0
    """Share of receivers that come when the stream is running."""
    sender_restarts: int = 0
    receiver_restarts: int = 0
    buffer_bytes: int = AMPLE_BYTES
    """Of packets, and as much of events."""
    buffer_age_s: float = FOREVER_S
    held_bytes: int = AMPLE_BYTES
    window_bytes: int = 1 << 20
    repair_rate: float = 1e7
    repair_burst_bytes: int = 1 << 17
    consume_s: float = 0.0
    """What a consumer takes for each delivery."""
    deadline_s: float = 5.0
    control_drop: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> MulticastOptions:
        pick = rng.choice
        receivers = pick((1, 1, 1, 2, 2, 2, 3, 3, 4, 6))
        if rng.random() < 0.02:
            receivers = pick((15, 30, 100))
        events = pick((10, 30, 80)) if receivers < 6 else 160 // receivers + 4
        flow = pick(("fastest", "fastest", "rate", "slowest"))
        large = pick((0, 0, 0, 3000, 20_000)) if receivers < 10 else 0
        tight = rng.random() < 0.35
        return cls(
            receivers=receivers,
            events=events,
            batch_max=pick((1, 3, 12)),
            event_bytes=pick((20, 60, 300)),
            large_bytes=large,
            pause_s=pick((0.0001, 0.001, 0.02)),
            packet_bytes=pick((300, 1400)) if large < 20_000 else 1400,
            lines=pick((1, 1, 1, 2)),
            parity=pick((None, None, None, (4, 1), (8, 2))),
            flow=flow,
            rate=pick((20_000.0, 200_000.0)) if flow == "rate" else None,
            overflow="block" if flow == "slowest" else pick(("drop_oldest", "block")),
            loss=pick(LOSSES),
            bursty=rng.random() < 0.4,
            shared_loss=pick((0.0, *LOSSES)),
            back_loss=pick(LOSSES),
            duplicate=pick((0.0, 0.0, 0.05, 0.3)),
            jitter_s=pick((0.0, 0.0, 0.0002, 0.005)),
            delay_s=pick((0.0001, 0.0005, 0.01)),
            cut_s=pick((0.0, 0.0, 0.0, 0.1, 1.0, 7.0)),
            freeze_s=pick((0.0, 0.0, 0.0, 0.0, 0.3, 6.0)),
            socket_bytes=pick((AMPLE_BYTES, 3000, 30_000)),
            one_way=pick((0.0, 0.0, 0.5, 1.0)),
            late_join=pick((0.0, 0.3)),
            sender_restarts=pick((0, 0, 0, 1)),
            receiver_restarts=pick((0, 0, 0, 1)),
            buffer_bytes=pick((1500, 6000)) if tight else AMPLE_BYTES,
            buffer_age_s=pick((FOREVER_S, 0.05)) if tight else FOREVER_S,
            held_bytes=pick((AMPLE_BYTES, 1 << 17, 1500)),
            window_bytes=pick((3000, 30_000, 1 << 20)),
            repair_rate=pick((1e7, 20_000.0)),
            repair_burst_bytes=pick((1 << 17, 1500)),
            consume_s=pick((0.0, 0.0, 0.0, 0.002)),
            deadline_s=pick((5.0, 5.0, 5.0, 0.2)),
            control_drop=pick((0.0, 0.0, 0.05)),
        )

    @property
    def is_ample(self) -> bool:
        """Whether nothing may be lost: all is kept, and deadlines suffice."""
        return (
            self.buffer_bytes == AMPLE_BYTES
            and self.buffer_age_s == FOREVER_S
            and self.deadline_s >= 5.0
            and self.cut_s < 5.0
            and self.freeze_s < 5.0
            # At 20 kB a second what is asked for last may wait for longer than a deadline.
            and (self.repair_rate > 1e6 or not self.large_bytes)
        )
