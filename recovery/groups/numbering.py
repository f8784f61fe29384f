"""The events of a work group in one row, whatever epoch they are of, and the frames they are in.

A group that outlives its publisher has work of earlier epochs before that of the current one.  On
its `Line` the events of the current epoch have their own numbers, and those of earlier ones lie
below, in order and without a hole; so order, acknowledgements and redelivery need not know of
epochs at all.

A `Shelf` gives the frames: from memory, or from what was fetched from disk.  What is on disk only
is asked for (`wanted`), and is there some time later (`put`).  No I/O: somebody else fetches.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshmsg.recovery.stream.ranges import RangeSet
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

Range = tuple[int, int]
#: What is kept of that which was fetched, beside the newest that was.
SHELF_BYTES_MAX = 8 * 1024 * 1024


class Past(NamedTuple):
    """An epoch that is over, as far as a group has work of it."""

    epoch: int
    first: int
    stop: int


class Part(NamedTuple):
    """A piece of a line that lies in one epoch: its numbers there, and what to add to them."""

    epoch: int
    first: int
    stop: int
    offset: int


class Line:
    """Numbers of a group's events."""

    def __init__(self, epoch: int, origin: int = 0, past: Sequence[Past] = ()) -> None:
        self.epoch = epoch
        parts = []
        top = origin
        for old in reversed(past):
            parts.append(Part(old.epoch, old.first, old.stop, top - old.stop))
            top -= old.stop - old.first
        self.past: list[Part] = parts[::-1]
        self.start = top  #: the lowest number, unless it is in the current epoch

    def number(self, epoch: int, seq: int) -> int | None:
        """The place of an event; `None` if it has none."""
        offset = self.offset(epoch)
        return None if offset is None else seq + offset

    def offset(self, epoch: int) -> int | None:
        """What to add to an epoch's numbers; `None` if the line has none of it."""
        if epoch == self.epoch:
            return 0
        return next((part.offset for part in self.past if part.epoch == epoch), None)

    def clip(self, epoch: int, first: int, stop: int) -> Range:
        """The part of an epoch's range that is on the line; empty if none is."""
        if epoch == self.epoch:
            return first, stop
        for part in self.past:
            if part.epoch == epoch:
                low, high = max(first, part.first), min(stop, part.stop)
                return (low + part.offset, max(low, high) + part.offset)
        return self.start, self.start

    @property
    def end(self) -> int:
        """Where the current epoch begins, and all earlier ones have ended."""
        return self.past[-1].stop + self.past[-1].offset if self.past else self.start

    def locate(self, epoch: int, seq: int) -> int:
        """Where an event is or would be: all that came before it has lower numbers."""
        if epoch == self.epoch:
            return seq
        at = self.start
        for part in self.past:
            if part.epoch < epoch:
                at = part.stop + part.offset
            elif part.epoch == epoch:
                at = min(max(seq, part.first), part.stop) + part.offset
        return at

    def place(self, number: int) -> tuple[int, int]:
        """The epoch and number of the event at a place."""
        for part in self.past:
            if number < part.stop + part.offset:
                return part.epoch, number - part.offset
        return self.epoch, number

    def split(self, first: int, stop: int) -> list[Part]:
        """A range of the line, by epoch."""
        parts = []
        for old in self.past:
            low, high = max(first, old.first + old.offset), min(stop, old.stop + old.offset)
            if low < high:
                parts.append(Part(old.epoch, low - old.offset, high - old.offset, old.offset))
                first = high
        if first < stop:
            parts.append(Part(self.epoch, first, stop, 0))
        return parts


class Shelf:
    """The frames of a line, as far as they are at hand."""

    def __init__(
        self, buffer: RetransmitBuffer, line: Line | None = None, *, durable: bool = False
    ) -> None:
        self.line = Line(0) if line is None else line
        self.wanted = RangeSet()  #: on disk, and needed
        self.is_used = False  #: something was fetched, ever
        self.brought = 0  #: how often
        self._buffer = buffer
        self._durable = durable  # all that memory does not have is in the log
        self._firsts: list[int] = []
        self._frames: dict[int, tuple[int, bytes]] = {}  # in the order in which they came
        self._bytes = 0
        self._gone: dict[str, RangeSet] = {}

    def held(self, first: int, stop: int) -> Iterable[tuple[int, int, bytes]]:
        """The frames at hand that have any of these events, in order, with their ranges."""
        if not self._firsts:
            return self._buffer.held(first, stop)
        return self._held(first, stop)

    def _held(self, first: int, stop: int) -> Iterable[tuple[int, int, bytes]]:
        firsts = self._firsts
        at = max(0, bisect_right(firsts, first) - 1)
        while at < len(firsts) and (start := firsts[at]) < stop:
            end, data = self._frames[start]
            if end > first:
                yield start, end, data
                first = end
                at = bisect_right(firsts, start)  # some may have been forgotten meanwhile
            else:
                at += 1
        if first < stop:
            yield from self._buffer.held(first, stop)

    def stored(self, first: int, stop: int) -> list[Range]:
        """What the disk has of a range that is not at hand."""
        spill = self._buffer.spill
        if self._durable:
            pieces = [(first, stop)]
        elif spill is not None:
            pieces = spill.stored.overlap(first, stop)
        else:
            return []
        for ranges in self._gone.values():
            pieces = [rest for low, high in pieces for rest in ranges.missing(low, high)]
        return pieces

    def reasons(self, first: int, stop: int, reason: str) -> list[tuple[int, int, str]]:
        """Why events are gone: what was found when they were looked for, else `reason`."""
        found = [
            (low, high, why)
            for why, ranges in self._gone.items()
            for low, high in ranges.overlap(first, stop)
        ]
        rest = RangeSet([(first, stop)])
        for low, high, _ in found:
            rest.remove(low, high)
        return sorted([*found, *((low, high, reason) for low, high in rest)])

    def put(
        self, frames: Iterable[tuple[int, int, bytes]], gone: Iterable[tuple[int, int, str]]
    ) -> None:
        """What was wanted is here, as far as it goes; some of it was found to be gone."""
        self.wanted.clear()
        self.is_used = True
        self.brought += 1
        fresh = 0
        for first, stop, data in frames:
            if self._make_place(first, stop):
                insort(self._firsts, first)
                self._frames[first] = (stop, data)
                self._bytes += len(data)
                fresh += len(data)
        for first, stop, reason in gone:
            self._gone.setdefault(reason, RangeSet()).add(first, stop)
        limit = max(SHELF_BYTES_MAX, fresh)
        while self._bytes > limit:
            oldest = next(iter(self._frames))
            self._bytes -= len(self._frames.pop(oldest)[1])
            self._firsts.remove(oldest)

    def _make_place(self, first: int, stop: int) -> bool:
        """Drop the frames that a new one contains; `False` if one of them contains it.

        The log joins small frames: what was read from its tail comes again as a part of a larger
        one.  Without one in another, the frames' ends rise with their beginnings.
        """
        firsts = self._firsts
        at = bisect_right(firsts, first) - 1
        if at >= 0 and self._frames[firsts[at]][0] >= stop:
            return False
        at += at < 0 or firsts[at] < first
        while at < len(firsts) and self._frames[firsts[at]][0] <= stop:
            self._bytes -= len(self._frames.pop(firsts.pop(at))[1])
        return True

    def forget(self, floor: int) -> None:
        """Events before `floor` are settled."""
        for ranges in self._gone.values():
            ranges.discard_before(floor)
        while self._firsts and self._frames[self._firsts[0]][0] <= floor:
            self._bytes -= len(self._frames.pop(self._firsts.pop(0))[1])
