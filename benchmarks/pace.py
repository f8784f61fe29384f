"""`Pace`: events at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from benchmarks.task import STAMP_BYTES, Task


class Pace:
    """Gives each payload when it is due, with the time of that moment in it.

    Sleeping takes 50 us longer than asked for, so above 10,000 events a second they come in small
    clumps, as they do from a program that works on something in between.
    """

    def __init__(self, task: Task) -> None:
        self._count = task.count
        self._period_ns = 1e9 / task.rate
        self._filler = bytes(task.size_bytes - STAMP_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        began = time.monotonic_ns()
        for n in range(self._count):
            left_s = self._left_s(began, n)
            if left_s > 0:
                time.sleep(left_s)
            yield self._stamped()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        began = time.monotonic_ns()
        for n in range(self._count):
            left_s = self._left_s(began, n)
            if left_s > 0:
                await asyncio.sleep(left_s)
            yield self._stamped()

    def _left_s(self, began_ns: int, n: int) -> float:
        return (began_ns + n * self._period_ns - time.monotonic_ns()) / 1e9

    def _stamped(self) -> bytes:
        return time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + self._filler


def age_ns(payload: bytes) -> int:
    """How long ago a payload was made, by the one clock of this machine."""
    return time.monotonic_ns() - int.from_bytes(payload[:STAMP_BYTES], "little")
