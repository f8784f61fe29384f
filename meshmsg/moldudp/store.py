"""What a MoldUDP64 re-request server can send again: the newest messages, within a limit of bytes.

Pure: messages in; of a request, what is there of it out.  Answers have a budget of their own, so
that one who asks too much cannot take the network from the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice

#: Bytes of bookkeeping for a message that is kept, about.
OVERHEAD = 64


class MoldStore:
    """The messages of one session, by number."""

    def __init__(
        self,
        first: int = 1,
        *,
        bytes_max: int = 256 * 1024 * 1024,
        answer_messages_max: int = 2000,
        answer_rate_bytes: float = 50e6,
    ) -> None:
        self.first = first  #: the oldest number that is kept
        self.counters: Counter[str] = Counter()
        self._blocks: deque[tuple[int, Sequence[bytes], int]] = deque()
        self._next = first
        self._bytes = 0
        self._bytes_max = bytes_max
        self._answer_max = answer_messages_max
        self._rate = answer_rate_bytes
        self._budget = answer_rate_bytes
        self._filled_at: float | None = None

    @property
    def next(self) -> int:
        """The number that the next message gets."""
        return self._next

    def skip_to(self, number: int) -> None:
        """Messages up to this number were never here: asked for, they are unknown."""
        self._next = max(self._next, number)

    def add(self, messages: Sequence[bytes]) -> int:
        """Keep messages; returns the number of the first one."""
        first = self._next
        if not messages:
            return first
        size = sum(map(len, messages)) + OVERHEAD * len(messages)
        self._blocks.append((first, messages, size))
        self._next += len(messages)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._blocks) > 1:
            _, gone, size = self._blocks.popleft()
            self._bytes -= size
            self.counters["expired"] += len(gone)
        self.first = self._blocks[0][0]
        return first

    def answer(self, first: int, count: int, now: float) -> tuple[int, list[bytes]]:
        """Messages from `first` on, as many as there are and may be sent now."""
        self._refill(now)
        if not self.first <= first < self._next:
            self.counters["unknown"] += 1
            return first, []
        if self._budget <= 0:
            self.counters["over_budget"] += 1
            return first, []
        found: list[bytes] = []
        wanted = min(count, self._answer_max)
        for start, messages, _ in self._from(first):
            at = first + len(found)
            if not start <= at < start + len(messages):
                break  # a stretch that was skipped
            found += messages[at - start : at - start + wanted - len(found)]
            if len(found) == wanted:
                break
        self._budget -= sum(map(len, found))
        self.counters["requests"] += 1
        self.counters["resent"] += len(found)
        return first, found

    def _from(self, number: int) -> Sequence[tuple[int, Sequence[bytes], int]]:
        """The blocks from the one that holds this number on."""
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][0] <= number:
                low = middle + 1
            else:
                high = middle
        return list(islice(self._blocks, max(0, low - 1), low + self._answer_max))

    def _refill(self, now: float) -> None:
        if self._filled_at is not None:
            grown = self._budget + self._rate * (now - self._filled_at)
            self._budget = min(self._rate, grown)
        self._filled_at = now
