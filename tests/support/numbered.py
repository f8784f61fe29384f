"""Events that say which one they are, and a reader that checks each: order, content, losses.

Used in a test's own process and, by its bare name, in the processes of `tests.support.remote`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

WORDS = 8  # of 8 bytes each: 64 bytes


def payloads(first: int, stop: int, salt: int = 0) -> list[bytes]:
    """Payloads of 64 bytes of events `first` to `stop`, no two alike."""
    words = np.repeat(np.arange(first, stop, dtype=np.uint64), WORDS).reshape(-1, WORDS)
    words[:, 1:] = (words[:, 1:] + np.uint64(salt)) * np.arange(
        3, 2 * WORDS + 1, 2, dtype=np.uint64
    )
    data = words.tobytes()
    size = WORDS * 8
    return [data[at : at + size] for at in range(0, len(data), size)]


def publish(peer: Any, topic: str, first: int, stop: int, *, salt: int = 0, rate: int = 0) -> float:
    """Publish events `first` to `stop`, at most so many a second; returns the seconds it took."""
    began = time.monotonic()
    step = 2000 if not rate else max(1, rate // 200)
    for at in range(first, stop, step):
        peer.publish_many(topic, payloads(at, min(at + step, stop), salt))
        if rate:
            ahead = (at + step - first) / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
    return time.monotonic() - began


class Reader:
    """Reads a subscription of one stream; every event must be what its number says."""

    def __init__(self, events: Any, salt: int = 0) -> None:
        self.events = events
        self.first: int | None = None
        self.next = 0
        self.delivered = 0
        self.lost = 0
        self.epochs: list[int] = []
        self._losses = 0
        self._salt = salt

    def read(self, stop: int, timeout: float = 60.0) -> dict[str, Any]:
        """Read until event `stop` would be next; raises if anything else than the next comes."""
        began = time.monotonic()
        while self.next < stop:
            left = began + timeout - time.monotonic()
            batch = next(self.events.batches(timeout=max(0.0, left)), None)
            self._take_losses()
            if batch is None:
                if self.next >= stop:
                    break
                raise AssertionError(f"only {self.next} of {stop}: {self.events.stats()}")
            self._take(batch)
        return self.result(time.monotonic() - began)

    def result(self, seconds: float = 0.0) -> dict[str, Any]:
        return {
            "first": self.first,
            "next": self.next,
            "delivered": self.delivered,
            "lost": self.lost,
            "losses": [(x.epoch, x.first, x.stop, x.reason) for x in self.events.losses],
            "epochs": self.epochs,
            "seconds": seconds,
        }

    def _take_losses(self) -> None:
        losses = self.events.losses
        for loss in losses[self._losses :]:
            self._enter(loss.epoch, loss.first)
            assert loss.first == self.next, (loss, self.next)
            self.lost += loss.count
            self.next = loss.stop
        self._losses = len(losses)

    def _enter(self, epoch: int, first: int) -> None:
        if not self.epochs or epoch != self.epochs[-1]:
            self.epochs.append(epoch)
            self.next = first
        if self.first is None:
            self.first = first

    def _take(self, batch: Any) -> None:
        self._enter(batch.epoch, batch.first)
        stop = self.next + len(batch)
        assert (batch.first, batch.stop) == (self.next, stop), (
            batch,
            self.next,
            self.events.losses,
        )
        assert batch.payloads == payloads(self.next, stop, self._salt), f"content of {batch}"
        self.delivered += len(batch)
        self.next = stop
