"""Those who take events in a simulated mesh, and what must hold of what they got."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from meshmsg import ClosedError, Event, Loss, Peer

#: (epoch, number) of an event, and its data.
Published = dict[tuple[int, int], int]


class Reader:
    """A subscriber: each epoch's numbers come once and in order, or are told to be lost."""

    def __init__(self, name: str, address: str, start: str) -> None:
        self.name = name
        self.address = address
        self.start = start
        self.got: list[tuple[int, int, int]] = []  #: epoch, first, stop
        self.data: Published = {}
        self.lost: list[Loss] = []
        self.next: dict[int, int] = {}
        self.is_ready = False
        self.stopping = False
        self.errors = 0

    def run(self) -> None:
        """Take what comes, until told to stop."""
        with (
            Peer(self.name, connect=self.address) as peer,
            peer.subscribe("q.**", start=self.start, on_loss=self.on_loss) as events,
        ):
            self.is_ready = True
            while not self.stopping:
                event = events.get(timeout=0.2)
                if event is not None:
                    self.on_event(event)
            self.errors = peer.stats()["counters"].get("io_errors", 0)

    def on_event(self, event: Event) -> None:
        """Check that it is the next one."""
        position = event.position
        self._take(position.epoch, position.seq, position.seq + 1)
        self.data[position.epoch, position.seq] = event.data

    def on_loss(self, loss: Loss) -> None:
        """Check that it begins where the events ended."""
        self._take(loss.epoch, loss.first, loss.stop)
        self.lost.append(loss)

    def _take(self, epoch: int, first: int, stop: int) -> None:
        expected = self.next.get(epoch)
        assert expected is None or first == expected, f"{self.name}: {first} after {expected}"
        assert not self.next or epoch >= max(self.next), f"{self.name}: back to epoch {epoch}"
        assert stop > first, f"{self.name}: a loss of nothing"
        self.next[epoch] = stop

    def check(self, published: Published) -> None:
        """What it got is what was published."""
        for at, data in self.data.items():
            assert published.get(at, data) == data, f"{self.name}: {at} is {data}"


class Member:
    """A member of a work group: of each key, events come in order the first time."""

    def __init__(
        self, name: str, address: str, order: str, seen: dict[tuple[int, int], int]
    ) -> None:
        self.name = name
        self.address = address
        self.order = order
        self.seen = seen  #: by all members together: data by position
        self.is_ready = False
        self.stopping = False
        self.keys: dict[str, tuple[int, int]] = {}

    def run(self, rng: Random, on_first: Callable[[Event], None]) -> None:
        """Do the work, and now and then give it back."""
        with (
            Peer(self.name, connect=self.address) as peer,
            peer.subscribe(
                "q.**",
                group="g",
                order=self.order,
                start="earliest",
                ack_timeout=2.0,
                max_attempts=1000,
            ) as work,
        ):
            self.is_ready = True
            while not self.stopping:
                event = work.get(timeout=0.2)
                if event is None:
                    continue
                if rng.random() < 0.05:
                    work.nack(event)
                    continue
                position = event.position
                if (position.epoch, position.seq) not in self.seen:
                    on_first(event)
                    self.seen[position.epoch, position.seq] = event.data
                work.ack(event)


__all__ = ["ClosedError", "Member", "Published", "Reader"]
