"""The simulated member: gets work, handles it slowly, says what became of it, dies."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from meshmsg._wire.subframe import decode_work
from tests.simulation.group_options import TICK_S

if TYPE_CHECKING:
    from tests.simulation.group_publisher import GroupPublisher
    from tests.simulation.group_world import GroupWorld


class SimMember:
    """One process with one membership, at all publishers."""

    def __init__(self, world: GroupWorld, number: int, group: int) -> None:
        self.world = world
        self.number = number
        self.group = group
        self.alive = True
        self.cut_until = 0.0
        self.life: dict[int, int] = {}  #: by publisher: connections made so far
        self.joined: set[int] = set()
        self.queue: deque[tuple[GroupPublisher, int, int]] = deque()
        self.said_at = 0.0
        for publisher in world.publishers:
            self.join(publisher)
        world.clock.at(world.clock.now, self.work)
        world.clock.at(world.clock.now + TICK_S, self.sign)

    def join(self, publisher: GroupPublisher) -> None:
        if not self.alive or publisher.number in self.joined:
            return
        life = self.life[publisher.number] = self.life.get(publisher.number, 0) + 1
        self.joined.add(publisher.number)

        def arrive() -> None:
            if self.alive and life == self.life[publisher.number]:
                publisher.on_join(self)

        self.world.clock.at(max(self.world.clock.now, self.cut_until) + 0.01, arrive)

    def on_unjoined(self, publisher: GroupPublisher) -> None:
        """The publisher gave our work to others: forget it, and come again."""
        if publisher.number in self.joined:
            self.joined.discard(publisher.number)
            self.queue = deque(item for item in self.queue if item[0] is not publisher)
            self.join(publisher)

    # --- the network ---

    def _delay(self) -> float:
        world = self.world
        return world.options.delay_s * world.rng.uniform(0.5, 2)

    def send_work(self, publisher: GroupPublisher, data: bytes) -> None:
        life = self.life[publisher.number]

        def arrive() -> None:
            if self.alive and life == self.life[publisher.number]:
                frame, work = decode_work(self.number, data)
                places = range(work.lo, work.hi) if work.chosen is None else work.chosen
                attempts = work.attempts or [work.attempt] * len(places)
                for place, attempt in zip(places, attempts, strict=True):
                    self.queue.append((publisher, frame.first + place, attempt))

        self.world.clock.at(max(self.world.clock.now, self.cut_until) + self._delay(), arrive)

    def settle(
        self,
        publisher: GroupPublisher,
        acks: list[tuple[int, int, int]],
        nacks: list[tuple[int, int]],
        returned: list[tuple[int, int, int]],
        *,
        closed: bool = False,
    ) -> None:
        world = self.world
        if (acks or nacks) and not closed and world.rng.random() < world.options.ack_drop:
            seqs = {seq for a, b, _ in acks for seq in range(a, b)} | {seq for seq, _ in nacks}
            world.suspect(publisher.number, self.group, seqs)
            world.counters["acks_lost"] += 1
            return
        at = max(world.clock.now, self.cut_until) + self._delay()
        arrive = partial(publisher.on_settle, self, acks, nacks, returned, closed)
        world.clock.at(at, arrive)
        if world.rng.random() < world.options.repeat and not closed:
            world.clock.at(at + world.rng.random(), arrive)  # twice, and the second time late

    def sign(self) -> None:
        if not self.alive:
            return
        for publisher in self.world.publishers:
            if publisher.number in self.joined:
                self.settle(publisher, [], [], [])
        self.world.clock.at(self.world.clock.now + TICK_S * 2, self.sign)

    # --- working ---

    def work(self) -> None:
        """Handle the next event."""
        world = self.world
        if not self.alive:
            return
        pause = max(world.options.handling_s, 0.0005) if self.queue else 0.01
        if self.queue:
            publisher, seq, attempt = self.queue.popleft()
            world.on_handled(self, publisher, seq, attempt)
            if world.rng.random() < world.options.hang and world.naps:
                world.naps -= 1  # it is never heard of again
            elif world.rng.random() < world.options.nack:
                world.nacked.add((publisher.number, self.group, seq))
                self.settle(publisher, [], [(seq, attempt)], [])
            else:
                self.settle(publisher, [(seq, seq + 1, attempt)], [], [])
        world.clock.at(world.clock.now + pause, self.work)

    def kill(self) -> None:
        """SIGKILL: the connections break, and nothing more is heard."""
        self.alive = False
        for publisher in self.world.publishers:
            delay = 0.001 if self.world.rng.random() < 0.7 else self.world.options.suspect_s
            self.world.clock.at(
                self.world.clock.now + delay, partial(publisher.drop, self.number, "killed")
            )

    def leave(self) -> None:
        """Orderly: what was not handled goes back."""
        self.alive = False
        for publisher in self.world.publishers:
            mine = [(s, s + 1, a) for p, s, a in self.queue if p is publisher]
            if publisher.number in self.joined:
                back = {seq for seq, _, _ in mine}
                self.world.returned[publisher.number, self.group] |= back
                self.settle(publisher, [], [], mine, closed=True)
        self.queue.clear()
