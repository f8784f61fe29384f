"""One publisher, its subscribers, and all that happens to them, from a seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.liar import Liar
from tests.simulation.network import Clock
from tests.simulation.options import Options
from tests.simulation.publisher import Publisher
from tests.simulation.subscriber import Subscriber

QUIET_AFTER_S = 400.0


class World:
    """All of it, from a seed."""

    def __init__(self, seed: int, **chosen: Any) -> None:
        self.rng = random.Random(seed)
        self.options = replace(Options.draw(self.rng), **chosen)
        self.clock = Clock()
        self.counters: Counter[str] = Counter()
        self.left = self.options.events
        self.subscribers: list[Subscriber] = []
        self.publisher = Publisher(self, epoch=1)
        self.subscribers += [Subscriber(self, n) for n in range(self.options.subscribers)]
        if self.options.liar:
            self.liars = [Liar(subscriber, seed) for subscriber in self.subscribers]
        for n in range(self.options.restarts):
            self.clock.at(0.5 + n + self.rng.random(), self.restart)

    def restart(self) -> None:
        """The publisher's process ends, orderly or not, and another takes its place."""
        old = self.publisher
        old.alive = False
        orderly = self.rng.random() < 0.5
        if orderly:
            old.send_open()
        self.publisher = Publisher(self, epoch=old.sender.epoch + 1)
        for subscriber in self.subscribers:
            if orderly:
                bye = partial(subscriber.on_bye, old.sender.epoch, old.sender.sealed)
                subscriber.inward.post(bye, sure=True)
            else:
                subscriber.inward.lose_all()
                while subscriber.pipe and self.rng.random() < 0.3:
                    subscriber.pipe.pop()
            if subscriber.connected:
                position = subscriber.receiver.next if subscriber.receiver else 0
                subscriber.subscribe("resume", position, old.sender.epoch)

    def is_quiet(self) -> bool:
        """Everything published was taken, and the publisher knows it."""
        sender = self.publisher.sender
        if self.left or sender.open_events or len(sender.flow.claims) < len(self.subscribers):
            return False
        return all(
            s.receiver is not None
            and s.receiver.epoch == sender.epoch
            and not s.ready
            and sender.flow.claims[s.sub].consumed == s.receiver.next == sender.sealed
            for s in self.subscribers
        )

    def run(self) -> World:
        restarts_over = self.options.restarts + 1.0
        while not (self.is_quiet() and self.clock.now > restarts_over):
            before = int(self.clock.now)
            while int(self.clock.now) == before:
                self.clock.step()
            assert self.clock.now < QUIET_AFTER_S, f"not quiet after {QUIET_AFTER_S:g} s"
        for subscriber in self.subscribers:
            self.check_books(subscriber)
        return self

    def check_books(self, subscriber: Subscriber) -> None:
        sender = self.publisher.sender
        assert subscriber.books is not None
        self.publisher.check_row(subscriber.sub)
        for books in (*subscriber.closed_books, subscriber.books):
            over = books.epoch != sender.epoch
            told = books.delivered + books.filtered + books.lost.total()
            assert told == books.consumed - books.start
            if over:
                heard = subscriber.ended_at.get(books.epoch, 0)
                assert books.consumed >= heard, "an orderly end left a tail out"
            self.counters.update(books.lost)


def simulate(seed: int, **chosen: Any) -> World:
    """One world; a failure names the seed that brings it back."""
    world = World(seed, **chosen)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"seed {seed}: {world.options}")
        raise
