"""What a member has of a durable group's work, and what it has said of it and may have to repeat.

A publisher that is killed has forgotten what was said in the moment before, and what it had dealt
out.  Its members have not: what they hold, and what they have said and nobody has confirmed to be
kept, they say again to the next start of it.  One of these for each stream and epoch.

In ranges, one entry a message: nothing here is paid once an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from meshmsg.recovery.stream.ranges import RangeSet

#: Ranges said and not confirmed, before they are joined; if they are more then, the lowest go.
RANGES_MAX = 65_536
#: Refusals likewise: of those that go, an attempt is not counted.
NACKS_MAX = 1000

AckRange = tuple[int, int, int]
T = TypeVar("T")


class Words(NamedTuple):
    """What was said in one message."""

    number: int
    acks: list[AckRange]
    nacks: list[Any]  #: refusals, as the messages have them


class WorkClaims:
    """A member's side of one stream and epoch."""

    def __init__(self) -> None:
        self.forgotten = 0  #: ranges and refusals that were too many to be kept
        self._first_time = RangeSet()
        self._again: dict[int, int] = {}
        self._words: deque[Words] = deque()
        self._ranges = self._nacks = 0
        self._join_at = RANGES_MAX

    def __bool__(self) -> bool:
        return bool(self._first_time or self._again or self._words)

    def take(self, ranges: Iterable[AckRange]) -> None:
        """Work has come."""
        for first, stop, attempt in ranges:
            if attempt == 1:
                self._first_time.add(first, stop)
            else:
                self._again.update(dict.fromkeys(range(first, stop), attempt))

    def let_go(self, ranges: Iterable[AckRange]) -> None:
        """It is settled, or for others: held no more."""
        again = self._again
        for first, stop, attempt in ranges:
            if attempt == 1:
                self._first_time.remove(first, stop)
            elif again:
                for seq in range(first, stop):
                    if again.get(seq) == attempt:
                        del again[seq]

    def say(self, number: int, acks: list[AckRange], nacks: list[Any]) -> None:
        """This was said, in a message of that number or one that has it last."""
        self.let_go(acks)
        for nack in nacks:
            self.let_go([(nack.seq, nack.seq + 1, nack.attempt)])
        self._words.append(Words(number, acks, nacks))
        self._ranges += len(acks)
        self._nacks += len(nacks)
        if self._ranges > self._join_at or self._nacks > 2 * NACKS_MAX:
            self._join()

    def confirm(self, number: int) -> None:
        """All that was said up to that message is kept."""
        words = self._words
        while words and words[0].number <= number:
            gone = words.popleft()
            self._ranges -= len(gone.acks)
            self._nacks -= len(gone.nacks)
        if not words:
            self._join_at = RANGES_MAX

    def held(self) -> list[AckRange]:
        """What it has and has not settled."""
        found = [(first, stop, 1) for first, stop in self._first_time]
        return sorted(found + [(seq, seq + 1, n) for seq, n in self._again.items()])

    def done(self) -> list[AckRange]:
        """What it has acknowledged, and may have to acknowledge again."""
        by_attempt: dict[int, RangeSet] = {}
        said = sorted(ack for words in self._words for ack in words.acks)  # each goes to the end
        for first, stop, attempt in said:
            by_attempt.setdefault(attempt, RangeSet()).add(first, stop)
        return sorted(
            (*piece, attempt) for attempt, ranges in by_attempt.items() for piece in ranges
        )

    def failed(self) -> list[Any]:
        """What it has refused, likewise."""
        return [nack for words in self._words for nack in words.nacks]

    def _join(self) -> None:
        """Make one of all that was said, within bounds: the newest is what is kept last."""
        acks, nacks = self.done(), self.failed()
        self.forgotten += max(0, len(acks) - RANGES_MAX) + max(0, len(nacks) - NACKS_MAX)
        acks, nacks = acks[-RANGES_MAX:], nacks[-NACKS_MAX:]
        last = self._words[-1].number
        self._words = deque([Words(last, acks, nacks)])
        self._ranges, self._nacks = len(acks), len(nacks)
        self._join_at = max(RANGES_MAX, 2 * len(acks))


def pieces_of(entries: list[T], most: int) -> Iterator[list[T]]:
    """As many lists as it takes, none longer than `most`."""
    for at in range(0, len(entries), most):
        yield entries[at : at + most]
