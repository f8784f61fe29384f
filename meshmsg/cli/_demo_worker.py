"""A subscriber of `meshmsg demo`, a process of its own, which checks what it gets.

Every event carries its number in its data, so the check does not rest on the library's own
sequence numbers: what is missing, doubled or out of order is found here too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from meshmsg._model.batch import Event
from meshmsg._model.config import Tuning
from meshmsg._model.event import Loss
from meshmsg._peer.peer import Peer
from meshmsg._receive.subscription import Subscription
from meshmsg.cli._workers import say, stop_asked

KINDS = ("quotes", "orders")
REPORT_S = 0.02


class Checker:
    """Counts the events of one stream by the numbers in their data."""

    def __init__(self) -> None:
        self.received = 0
        self.next = 0
        self.skipped = 0
        self.wrong = 0
        self.lost = 0
        self.losses = 0

    def on_event(self, number: int) -> None:
        """The event with this number came."""
        self.received += 1
        if number < self.next:
            self.wrong += 1  # doubled, or out of order
            return
        self.skipped += number - self.next
        self.next = number + 1

    def on_loss(self, loss: Loss) -> None:
        """Events were declared lost."""
        self.lost += loss.count
        self.losses += 1
        self.skipped += max(0, loss.stop - self.next)
        self.next = max(self.next, loss.stop)


class Consumer:
    """One subscriber of both streams."""

    def __init__(self) -> None:
        self.checks = {kind: Checker() for kind in KINDS}

    def on_events(self, events: list[Event]) -> None:
        """Check events."""
        for event in events:
            kind = event.topic.partition(".")[0]
            self.checks[kind].on_event(event.data["n"])

    def on_loss(self, loss: Loss) -> None:
        """Note a loss."""
        self.checks[loss.stream.partition("/")[2].partition(".")[0]].on_loss(loss)

    def report(self, events: Subscription) -> dict[str, Any]:
        """Where we are."""
        repaired = {source["stream"]: source.get("repaired", 0) for source in _sources(events)}
        return {
            "streams": {kind: vars(check) for kind, check in self.checks.items()},
            "repaired": sum(repaired.values()),
            "requests": sum(source.get("nacks", 0) for source in _sources(events)),
        }


def _sources(events: Subscription) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = events.stats()["sources"]
    return found


def main(settings: Mapping[str, Any]) -> None:
    """Subscribe, check, report, until asked to stop."""
    stop = stop_asked()
    consumer = Consumer()
    tuning = Tuning(**settings["tuning"])
    patterns = [f"{kind}.**" for kind in KINDS]
    with (
        Peer(
            settings["name"], connect=settings["connect"], discovery="none", tuning=tuning
        ) as peer,
        peer.subscribe(*patterns, on_loss=consumer.on_loss, name="demo") as events,
    ):
        events.wait_for_publishers(len(KINDS), timeout=60)
        reported = 0.0
        while not stop.is_set():
            found = events.get_many(1000, timeout=REPORT_S)
            consumer.on_events(found)
            now = time.monotonic()
            if not found or now - reported > REPORT_S:
                reported = now
                say(consumer.report(events))
