"""The publisher's memory of what it sent: bounded by bytes, asked by ranges.

The ring holds the most recent frames.  With `backlog_bytes_max` (the `drop_newest` policy) a frame
that falls out of the ring while somebody has yet to take it goes to a second, equally bounded place
that keeps what came first: there the oldest stay and the newest are refused.

With `hold` (the `block` and `buffer` policies) nothing that somebody has yet to take falls out at
all.  The bound is then the gate's business: it lets at most one more frame in past the window.

With a `spill` what falls out while somebody has yet to take it goes there first.  While the spill
does not take it, it stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol

from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
#: Frames in one answer, however small: more than a control queue takes would be lost on the way.
ANSWER_FRAMES_MAX = 1000
Data = bytes  # below, `bytes` is how many a buffer holds


class Spill(Protocol):
    """Another place for what somebody has yet to take."""

    stored: RangeSet

    def take(self, first: int, stop: int, frame: Data) -> bool:
        """Keep a frame; `False` if that is not possible now."""

    def release(self, floor: int | None) -> None:
        """Events before this number are not wanted any more; `None`: no events are."""

    def is_full(self) -> bool:
        """Whether it takes no more."""


class _Frames:
    """Frames in order of sequence, with running byte sums; cheap at both ends."""

    __slots__ = ("_data", "_ends", "_firsts", "_head", "_stops", "bytes")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        self._data: list[Data | None] = []
        self._ends: list[int] = []  # bytes of the stream up to and with this frame
        self._head = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._firsts) - self._head

    @property
    def first(self) -> int:
        return self._firsts[self._head]

    @property
    def first_stop(self) -> int:
        return self._stops[self._head]

    def peek(self) -> tuple[int, int, Data]:
        head = self._head
        return self._firsts[head], self._stops[head], self._data[head] or b""

    def append(self, first: int, stop: int, data: Data, end: int) -> None:
        self.bytes += len(data)
        self._firsts.append(first)
        self._stops.append(stop)
        self._data.append(data)
        self._ends.append(end)

    def pop_first(self) -> tuple[int, int, Data, int]:
        head = self._head
        data = self._data[head]
        assert data is not None
        taken = (self._firsts[head], self._stops[head], data, self._ends[head])
        self._data[head] = None
        self.bytes -= len(data)
        self._head += 1
        if self._head > 1024 and self._head * 2 > len(self._firsts):
            for column in (self._firsts, self._stops, self._data, self._ends):
                del column[: self._head]
            self._head = 0
        return taken

    def overlapping(self, first: int, stop: int) -> Iterable[tuple[int, int, Data]]:
        index = max(self._head, bisect_right(self._firsts, first) - 1)
        while index < len(self._firsts) and self._firsts[index] < stop:
            data = self._data[index]
            if self._stops[index] > first and data is not None:
                yield self._firsts[index], self._stops[index], data
            index += 1

    def since(self, seq: int) -> int:
        """Frames from the one that holds `seq` on."""
        return len(self._stops) - max(self._head, bisect_right(self._stops, seq))

    def end_before(self, seq: int) -> int | None:
        """Bytes of the stream before the frame that holds `seq`; `None` if it is newer than all."""
        index = max(self._head, bisect_right(self._firsts, seq) - 1)
        if index >= len(self._firsts) or seq >= self._stops[-1]:
            return None
        return self._ends[index] - len(self._data[index] or b"")


class RetransmitBuffer:
    """Frames that can still be asked for."""

    __slots__ = (
        "_backlog",
        "_full",
        "_ring",
        "backlog_bytes_max",
        "claimed_from",
        "discarded",
        "discarded_claimed",
        "hold",
        "ring_bytes_max",
        "spill",
        "total_bytes",
        "total_frames",
    )

    def __init__(
        self,
        ring_bytes_max: int,
        backlog_bytes_max: int = 0,
        *,
        hold: bool = False,
        spill: Spill | None = None,
    ) -> None:
        self.ring_bytes_max = ring_bytes_max
        self.backlog_bytes_max = backlog_bytes_max
        self.hold = hold
        self.spill = spill
        self._ring = _Frames()
        self._backlog = _Frames()
        self._full = False  # the backlog refused a frame, and nothing was taken from it since
        self.claimed_from: int | None = None  #: somebody has yet to take events from here on
        self.total_bytes = 0  #: bytes ever appended
        self.total_frames = 0  #: frames ever appended
        self.discarded = 0  #: events that left the buffer
        self.discarded_claimed = 0  #: of those, events that somebody had yet to take

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self._ring.bytes + self._backlog.bytes

    @property
    def first(self) -> int | None:
        """The oldest event that is still there; `None` if there is none."""
        if len(self._backlog):
            return self._backlog.first
        return self._ring.first if len(self._ring) else None

    def append(self, first: int, stop: int, frame: Data) -> None:
        """Keep a frame, and let go of the oldest that the bound has no room for."""
        self.total_bytes += len(frame)
        self.total_frames += 1
        self._ring.append(first, stop, frame, self.total_bytes)
        self.trim()

    def claim(self, seq: int | None) -> None:
        """Somebody has yet to take events from `seq` on (`None`: nobody waits for anything)."""
        self.claimed_from = seq
        backlog = self._backlog
        while len(backlog) and (seq is None or backlog.first_stop <= seq):
            first, stop, _, _ = backlog.pop_first()
            self.discarded += stop - first
            self._full = False
        self._full = self._full and len(backlog) > 0
        if self.spill is not None:
            self.spill.release(seq)
        self.trim()

    def trim(self) -> None:
        """Let go of the oldest that the bound has no room for; again, if a spill refused them."""
        ring = self._ring
        while ring.bytes > self.ring_bytes_max and len(ring) > 1:
            spilled = False
            if self._is_claimed(ring.first_stop):
                if self.hold:
                    return
                if self.spill is not None:
                    if not self.spill.take(*ring.peek()):
                        return
                    spilled = True
            self._let_go(*ring.pop_first(), spilled=spilled)

    def _is_claimed(self, stop: int) -> bool:
        return self.claimed_from is not None and self.claimed_from < stop

    def _let_go(self, first: int, stop: int, frame: Data, end: int, *, spilled: bool) -> None:
        if spilled:
            self.discarded += stop - first
            return
        claimed = self._is_claimed(stop)
        fits = self._backlog.bytes + len(frame) <= self.backlog_bytes_max
        # Once one was refused, smaller ones that would fit are too: one hole, not a sieve.
        self._full = self._full or (claimed and not fits)
        if claimed and not self._full:
            self._backlog.append(first, stop, frame, end)
            return
        self.discarded += stop - first
        if claimed:
            self.discarded_claimed += stop - max(first, self.claimed_from or 0)

    def bytes_since(self, seq: int) -> int:
        """Bytes appended from the frame that holds `seq` on."""
        before = self._backlog.end_before(seq)
        if before is None:
            before = self._ring.end_before(seq)
        return 0 if before is None else self.total_bytes - before

    def frames_since(self, seq: int) -> int:
        """Frames of the ring from the one that holds `seq` on."""
        return self._ring.since(seq)

    def find(
        self, ranges: Iterable[Range], *, stop: int, bytes_max: int
    ) -> tuple[list[Data], list[Range], bool]:
        """Frames for the ranges, each once, ranges that are gone, and whether that is all.

        `stop` is the number that the next event will get: nothing from there on is gone, it is
        yet to come.  At least one frame is given if there is one, however large.
        """
        frames: list[Data] = []
        gone = RangeSet()
        size = sent_stop = 0
        for first, last in RangeSet(ranges):  # in order, whatever a peer asked for
            last = min(last, stop)
            at = first
            for start, end, data in self.held(first, last):
                if start > at:
                    gone.add(at, start)
                if end > sent_stop:
                    if size and (size + len(data) > bytes_max or len(frames) >= ANSWER_FRAMES_MAX):
                        return frames, list(gone), False
                    frames.append(data)
                    size += len(data)
                    sent_stop = end
                at = end
            if at < last:
                gone.add(at, last)
        return frames, list(gone), True

    def held(self, first: int, stop: int) -> Iterable[tuple[int, int, Data]]:
        """The frames that have any of these events, in order, with their ranges."""
        yield from self._backlog.overlapping(first, stop)
        yield from self._ring.overlapping(first, stop)
