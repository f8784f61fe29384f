"""A durable stream through the lives of its publisher, its consumers, and what was promised."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from meshmsg._model.errors import LogError
from meshmsg.recovery.log.faults import Crashed, Faults, FaultyFiles
from tests.simulation.durable.options import Options, Place
from tests.simulation.durable.publisher import Publisher
from tests.simulation.durable.subscriber import Subscriber
from tests.simulation.network import Clock

QUIET_AFTER_S = 200.0


class DurableWorld:
    """All of it, from a seed."""

    def __init__(self, seed: int, **chosen: Any) -> None:
        self.rng = random.Random(seed)
        self.options = replace(Options.draw(self.rng), **chosen)
        self.clock = Clock()
        self.counters: Counter[str] = Counter()
        self.files = FaultyFiles(self.rng)
        self.left = self.options.events
        self.lives = self.options.lives
        self.known: dict[Place, bytes] = {}  #: all that may be there
        self.promised: set[Place] = set()  #: acknowledged, and not lost with the machine's memory
        self.safe: set[Place] = set()  #: of these, what is on the disk
        self.epochs: list[int] = []
        self.publisher: Publisher | None = None
        self.subscribers = [Subscriber(self, n) for n in range(self.options.subscribers)]
        self.start()

    @property
    def may_crash(self) -> bool:
        return self.lives > 0

    # --- lives of the publisher ---

    def start(self) -> None:
        options, rng = self.options, self.rng
        crashes = self.may_crash and rng.random() < 0.8
        self.files.faults = Faults(
            crash_after=rng.randrange(2 * options.crash_calls) if crashes else None,
            write_error=options.disk_errors if self.may_crash else 0.0,
            sync_error=options.disk_errors if self.may_crash else 0.0,
        )
        if self.may_crash:
            self.clock.at(self.clock.now + rng.uniform(0.2, 4), self.kill)
        try:
            publisher = Publisher(self)
        except (Crashed, LogError):
            self.crash(None)
            return
        assert all(publisher.epoch > old for old in self.epochs), "an epoch was used twice"
        self.epochs.append(publisher.epoch)
        self.publisher = publisher
        for subscriber in self.subscribers:
            self.clock.at(self.clock.now + rng.choice((0.0, 0.1)), subscriber.connect)

    def kill(self) -> None:
        if self.publisher is not None and self.may_crash:
            self.crash(self.publisher)

    def crash(self, publisher: Publisher | None) -> None:
        """The process or the whole machine ends; it comes back in a while."""
        self.lives -= 1
        self.counters["crashes"] += 1
        if publisher is not None:
            publisher.alive = False
            self.note_safe(publisher)
        self.publisher = None
        power = self.rng.random() < self.options.power
        self.files = self.files.survivor(power=power)
        if power:
            self.counters["power_failures"] += 1
            self.promised &= self.safe
        for subscriber in self.subscribers:
            subscriber.on_down()
        self.clock.at(self.clock.now + self.rng.uniform(0.1, 0.5), self.start)

    # --- promises ---

    def try_places(self, places: dict[Place, bytes]) -> None:
        self.known |= places

    def forget_places(self, places: Iterable[Place]) -> None:
        for place in places:
            del self.known[place]

    def acknowledge(self, places: Iterable[Place]) -> None:
        """`publish` has returned."""
        self.promised.update(places)
        if self.options.fsync == "always":
            self.safe.update(places)

    def note_safe(self, publisher: Publisher) -> None:
        """What `flush` would have promised by now."""
        if self.options.fsync != "never":
            epoch, durable = publisher.epoch, publisher.writer.durable
            self.safe |= {place for place in self.known if place[0] == epoch and place[1] < durable}

    # --- to the end ---

    def is_quiet(self) -> bool:
        publisher = self.publisher
        if publisher is None or self.left or self.may_crash:
            return False
        return all(
            s.present
            and s.receiver is not None
            and s.receiver.epoch == publisher.epoch
            and s.receiver.next == publisher.sender.sealed == publisher.writer.next
            for s in self.subscribers
        )

    def run(self) -> DurableWorld:
        while not self.is_quiet():
            before = int(self.clock.now * 4)
            while int(self.clock.now * 4) == before:
                self.clock.step()
            if self.left == 0 and self.clock.now > 10:
                self.lives = 0
            assert self.clock.now < QUIET_AFTER_S, f"not quiet after {QUIET_AFTER_S:g} s"
        for subscriber in self.subscribers:
            subscriber.check_end()
        self.counters["promised"] += len(self.promised)
        return self


World = DurableWorld


def simulate(seed: int, **chosen: Any) -> DurableWorld:
    """One world; a failure names the seed that brings it back."""
    world = DurableWorld(seed, **chosen)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"seed {seed}: {world.options}")
        raise
