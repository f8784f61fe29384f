"""A recorder that lies, in a world: it says every number wrongly, to one subscriber, by a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from meshmsg._wire.frame import Frame, encode_frame

if TYPE_CHECKING:
    from meshmsg.recovery.stream.receiver import StreamReceiver
    from tests.simulation.subscriber import Subscriber

FAR = 1 << 62
PAUSE_S = 0.05


class Liar:
    """Claims what is not there, and serves what nobody has spoken of."""

    def __init__(self, victim: Subscriber, seed: int) -> None:
        self.victim = victim
        self.rng = random.Random(seed)  # the world goes its way as without it
        victim.world.clock.at(self.rng.random(), self.lie)

    def lie(self) -> None:
        victim, clock, rng = self.victim, self.victim.world.clock, self.rng
        receiver = victim.receiver
        if receiver is not None and clock.now >= victim.frozen_until:
            ahead = rng.choice((1, 7, 1000, FAR))
            choice = rng.randrange(4)
            if choice == 0:
                receiver.on_claim(min(receiver.high + ahead, FAR), now=clock.now)
                victim.world.counters["lies"] += 1
            elif choice == 1:
                self.invent(receiver, ahead)
            elif choice == 2:
                victim.hand_on(
                    receiver.on_gone([(receiver.proved, FAR), (9, 3)], "gone", now=clock.now)
                )
            else:
                receiver.retract(now=clock.now)
            assert receiver.next <= receiver.proved <= receiver.high
        clock.at(clock.now + rng.random() * PAUSE_S, self.lie)

    def invent(self, receiver: StreamReceiver, ahead: int) -> None:
        """Events beyond all that anybody has spoken of."""
        first = receiver.high + self.rng.randrange(min(ahead, 1 << 40))
        data = encode_frame(7, receiver.epoch, first, "a.odd", [b"invented"] * 5, 1)
        frame = Frame(data)
        now = self.victim.world.clock.now
        assert receiver.on_frame(frame, now=now, repair=True, lent=True) == []
