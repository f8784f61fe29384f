"""The open frame of a stream, which events are added to until it is sealed."""

from __future__ import annotations

import sys
from typing import Any

from meshmsg._wire.frame_encoder import encode_frame

Note = tuple[str | None, bytes | None]
Columns = tuple[list[str], list[bytes], list[int], list[bool]]


class FrameBuilder:
    """The open frame of a stream: events that have their numbers, and are not encoded yet.

    Adding is safe from any thread without a lock.  `add`, `reserve` and `take` move numbers and
    columns in runs of bytecode that call nothing and allocate no container, and CPython switches
    threads, collects garbage and runs signal handlers only at calls, backward jumps and such
    allocations.  So a number is never given twice, nor given and then lost to Ctrl-C.  (A lock
    would cost a third of what publishing an event costs.)  Where that does not hold, without a GIL
    or on another Python, the caller holds a lock: see `NEEDS_LOCK`.  A test reads the bytecode of
    the three, and of the publishing path that has `add` written out.
    """

    __slots__ = (
        "_capacity",
        "_columns",
        "_spare",
        "_taken",
        "_taken_count",
        "_taken_first",
        "count",
        "first",
        "notes",
        "payloads",
        "raws",
        "size",
        "times",
        "topics",
    )

    #: Events that fit at first and at most; adding one more than fit raises `IndexError`.  A
    #: thousand quiet streams should not cost a thousand large frames.
    CAPACITY_MIN = 64
    CAPACITY_MAX = 4096
    #: Whether adding must be guarded by a lock on this interpreter.
    NEEDS_LOCK = (
        sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)()
    )

    topics: list[str]
    payloads: list[bytes]
    times: list[int]
    raws: list[bool]

    def __init__(self, first: int = 0) -> None:
        self.first = first  #: the number of the first event
        self.count = 0  #: events in the frame
        self.size = 0  #: about how many bytes the frame will have
        self.notes: dict[int, Note] = {}  #: keys and headers by number
        self._capacity = self.CAPACITY_MIN
        self._columns = _blank_columns(self._capacity)
        self.topics, self.payloads, self.times, self.raws = self._columns
        self._spare: Columns | None = None  # for the next `take`
        self._taken: Columns | None = None  # what is to be sealed
        self._taken_first = self._taken_count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def next(self) -> int:
        """The number that the next event gets."""
        return self.first + self.count

    def add(self, topic: str, payload: bytes, time_ns: int, *, raw: bool = True) -> int:
        """Append an event; returns its number."""
        index = self.count
        self.topics[index] = topic
        self.payloads[index] = payload
        self.times[index] = time_ns
        self.raws[index] = raw
        self.count = index + 1
        return self.first + index

    def annotate(self, key: str | None, headers: bytes | None) -> None:
        """Give the event just added a key, headers or both."""
        self.notes[self.next - 1] = (key, headers)

    def reserve(self, count: int) -> bool:
        """Pass over numbers for events that are encoded elsewhere; `False` if there are events."""
        if self.count:
            return False
        self.first += count
        return True

    def is_open(self) -> bool:
        """Whether there are events to be sealed."""
        return self.count > 0 or self._taken is not None

    def take(self) -> tuple[int, int, Columns]:
        """First number, count and columns; the frame is empty afterwards.  One thread at a time.

        Only the first `count` items of the columns are of this frame.  `give_back` them.
        """
        if self._spare is None:
            self._spare = _blank_columns(self._capacity)
        spare = self._spare
        topics, payloads, times, raws = spare
        first = self.first
        count = self.count
        self._taken_first = first
        self._taken_count = count
        self._taken = columns = self._columns
        self._spare = None
        self._columns = spare
        self.topics = topics
        self.payloads = payloads
        self.times = times
        self.raws = raws
        self.first = first + count
        self.count = 0
        self.size = 0
        return first, count, columns

    def give_back(self, columns: Columns, count: int) -> None:
        """The columns are free for the next `take`; what they hold is let go."""
        if count == self._capacity < self.CAPACITY_MAX:
            self._capacity *= 4  # it was full: the next ones are larger
        if len(columns[1]) >= self._capacity:
            columns[1][:count] = _NOTHING[:count]
            self._spare = columns

    def first_at(self, time_ns: int) -> int:
        """Index of the first event at or after a time; the number of events if there is none."""
        times = self.times[: self.count]
        return next((i for i, t in enumerate(times) if t >= time_ns), len(times))

    def begin(self) -> tuple[int, int]:
        """Take what is to be sealed; first number and count.  One thread at a time.

        Until `finish`, it stays to be sealed: an interrupted attempt is made again.
        """
        if self._taken is None:
            self.take()
        return self._taken_first, self._taken_count

    def encode(self, stream: int, epoch: int, first: int | None = None) -> bytes:
        """The bytes of what `begin` took."""
        assert self._taken is not None
        base, count = self._taken_first, self._taken_count
        topics = self._taken[0][:count]
        payloads = self._taken[1][:count]
        times = self._taken[2][:count]
        raws = self._taken[3][:count]
        same = topics.count(topics[0]) == count
        mixed = raws.count(raws[0]) != count
        every, own = list(self.notes.items()), range(base, base + count)
        notes = {seq - base: note for seq, note in every if seq in own}
        return encode_frame(
            stream,
            epoch,
            base if first is None else first,
            topics[0] if same else topics,
            payloads,
            times,
            raw=bytes(raws) if mixed else raws[0],
            keys={i: key for i, (key, _) in notes.items() if key is not None},
            headers={i: packed for i, (_, packed) in notes.items() if packed is not None},
        )

    def finish(self) -> None:
        """What `begin` took is sealed: let it go."""
        columns = self._taken
        if columns is not None:
            self._taken = None  # first: what is let go must not be sealed again
            stop = self._taken_first + self._taken_count
            self.give_back(columns, self._taken_count)
            for seq in [seq for seq in list(self.notes) if seq < stop]:
                del self.notes[seq]

    def seal(self, stream: int, epoch: int, first: int | None = None) -> bytes:
        """All in one: the frame's bytes; the frame is empty afterwards."""
        self.begin()
        frame = self.encode(stream, epoch, first)
        self.finish()
        return frame


_NOTHING: list[Any] = [None] * FrameBuilder.CAPACITY_MAX


def _blank_columns(capacity: int) -> Columns:
    return [""] * capacity, [b""] * capacity, [0] * capacity, [True] * capacity
