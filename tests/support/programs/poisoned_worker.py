"""A program that works for a group, and dies of one event the moment it opens it.

    python tests/support/programs/poisoned_worker.py ADDRESS WAY ORDER ATTEMPTS POISON JOURNAL

WAY is how it takes events: iterate, get, batches, asyncio or threads.  POISON is the number of the
event that kills it; all others it writes to JOURNAL, with their attempt, before it acknowledges.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from meshmsg import AsyncPeer, Event, Peer, Subscription


class Worker:
    """Handles events, whichever way they come."""

    def __init__(self, poison: int, journal: str) -> None:
        self._poison = poison
        self._file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle(self, event: Event) -> None:
        if event.data == self._poison:
            os.write(self._file, f"poison {event.attempt}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, events: Sequence[Event]) -> None:
        lines = "".join(f"{event.data} {event.attempt}\n" for event in events)
        os.write(self._file, lines.encode())

    def batches(self, events: Subscription) -> None:
        for batch in events.batches():
            some = batch.events()
            for event in some:
                self.handle(event)
            self.note(some)
            events.ack(batch)

    def get(self, events: Subscription) -> None:
        while True:
            event = events.get()
            assert event is not None
            self.handle(event)
            self.note([event])
            events.ack(event)

    def iterate(self, events: Subscription) -> None:
        for event in events:
            with event:
                self.handle(event)
                self.note([event])

    def threads(self, events: Subscription) -> None:
        threads = [threading.Thread(target=self.iterate, args=(events,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def in_a_loop(self, address: str, options: dict[str, Any]) -> None:
        async with (
            AsyncPeer("worker", connect=address) as peer,
            peer.subscribe("jobs.**", **options) as events,
        ):
            async for event in events:
                self.handle(event)
                self.note([event])
                events.ack(event)


def main() -> None:
    address, way, order, attempts, poison, journal = sys.argv[1:]
    options: dict[str, Any] = {"group": "workers", "order": order, "prefetch": 64}
    options["max_attempts"] = int(attempts)
    worker = Worker(int(poison), journal)
    if way == "asyncio":
        asyncio.run(worker.in_a_loop(address, options))
        return
    with Peer("worker", connect=address) as peer, peer.subscribe("jobs.**", **options) as events:
        getattr(worker, way)(events)


if __name__ == "__main__":
    main()
