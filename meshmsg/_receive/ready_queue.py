"""What is in order and waits for the consumer of a subscription, and how much room there is.

Whoever drives the subscription puts it in and takes it out.
"""

from __future__ import annotations

from collections import deque

from meshmsg._model.event import Loss
from meshmsg._receive.incoming_stream import Books, Source
from meshmsg.recovery.stream.receiver import Delivery, Run

Item = tuple[Source, Books, Delivery]


class ReadyQueue:
    """Deliveries of all streams, in the order in which they became ready."""

    def __init__(self, bytes_max: int) -> None:
        self.items: deque[Item] = deque()
        self.bytes = 0  #: of the frames in it
        self.backlog_bytes = 0  #: about as much has come, and has yet to be put together
        self.full_at = 0.0  #: when there was no room to read on
        self.starved = False  #: senders were told that there is none
        self._bytes_max = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether what is ready alone takes all the room."""
        return self.bytes >= self._bytes_max

    @property
    def room(self) -> int:
        """Bytes that may still be read ahead of the consumer."""
        return self._bytes_max - self.bytes - self.backlog_bytes

    def put(self, source: Source, deliveries: list[Delivery]) -> None:
        """Events of a stream are in order now, or lost."""
        for delivery in deliveries:
            if isinstance(delivery, Loss):
                delivery = self._joined(delivery)
            else:
                self.bytes += len(delivery.frame.data)
            self.items.append((source, source.books, delivery))

    def _joined(self, loss: Loss) -> Loss:
        """One report for what was found lost piece by piece."""
        last = self.items[-1][2] if self.items else None
        if isinstance(last, Loss) and last.stop == loss.first:
            same = (last.stream, last.epoch, last.reason) == (loss.stream, loss.epoch, loss.reason)
            if same:
                self.items.pop()
                return Loss(loss.stream, loss.epoch, last.first, loss.stop, loss.reason)
        return loss

    def take(self) -> Item:
        """Take out what comes next."""
        item = self.items.popleft()
        if not isinstance(item[2], Loss):
            self.bytes -= len(item[2].frame.data)
        return item

    def is_fed(self) -> bool:
        """Return True once for each time that there is room again after there was none."""
        if self.starved and self.room * 2 > self._bytes_max:
            self.starved = False
            return True
        return False

    def withdraw(self, source: Source, epoch: int, seq: int) -> None:
        """Take back what is ready of an epoch from an event on."""
        items, self.bytes = list(self.items), 0
        self.items.clear()
        for owner, books, delivery in items:
            rest: Delivery | None = delivery
            if owner is source and books.epoch == epoch:
                rest = _before(delivery, seq)
            if rest is not None:
                self.items.append((owner, books, rest))
                self.bytes += 0 if isinstance(rest, Loss) else len(rest.frame.data)


def _before(delivery: Delivery, seq: int) -> Delivery | None:
    """The part of a delivery that lies before an event."""
    if isinstance(delivery, Loss):
        stop = min(delivery.stop, seq)
        if delivery.first >= stop:
            return None
        return Loss(delivery.stream, delivery.epoch, delivery.first, stop, delivery.reason)
    hi = min(delivery.hi, seq - delivery.frame.first)
    return Run(delivery.frame, delivery.lo, hi) if delivery.lo < hi else None
