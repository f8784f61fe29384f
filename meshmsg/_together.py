"""Single events of a stream with `fsync="always"`: many threads' events in one frame and one sync.

No event waits in an open frame here: each is on the disk before `publish` returns.  A thread that
finds nobody writing writes its event itself.  One that finds somebody queues its event and waits;
whoever writes takes all that wait into the next frame (group commit).

Where nobody waits for the disk this does not pay: to hand an event to another thread and to be
woken costs more than to write it (measured with 8 threads: half the events a second).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from meshmsg._errors import EventTooLarge
from meshmsg._event import Position
from meshmsg._frame import FRAME_EVENTS_MAX, Note

if TYPE_CHECKING:
    from meshmsg._outlet import Outlet
    from meshmsg._publisher import PublisherSide

#: A thread writes so many frames of others behind its own; then one of those who wait goes on.
FRAMES_MAX = 16
#: What an event costs in a frame beside its payload.
EVENT_COST = 14


class _Waiting:
    """An event of a thread that waits for somebody else to write it."""

    __slots__ = (
        "data",
        "done",
        "error",
        "gated",
        "key",
        "packed",
        "raw",
        "safe",
        "seq",
        "time_ns",
        "topic",
        "woken",
    )

    def __init__(
        self, topic: str, data: bytes, raw: bool, key: str | None, packed: bytes | None
    ) -> None:
        self.topic = topic
        self.data = data
        self.raw = raw
        self.key = key
        self.packed = packed
        self.time_ns = time_ns()
        self.seq = -1  #: its number, once it is written
        self.gated = False  #: it has to wait for subscribers first
        self.error: BaseException | None = None  #: why it was not written
        self.safe = True  #: as far as `fsync` promises it
        self.woken = False
        self.done = threading.Lock()
        self.done.acquire()

    def is_settled(self) -> bool:
        """Whether it has an answer."""
        return self.seq >= 0 or self.gated or self.error is not None

    def wake(self) -> None:
        """By who writes: there is an answer, or it is the thread's turn to write."""
        if not self.woken:
            self.woken = True
            self.done.release()

    def wait(self) -> None:
        """Wait for that."""
        self.done.acquire()
        self.woken = False


class Together:
    """The way into one durable stream's log for single events."""

    def __init__(self, side: PublisherSide, outlet: Outlet) -> None:
        self._side = side
        self._outlet = outlet
        self._queue: deque[_Waiting] = deque()
        # Held by who writes.  Not the side's lock: who lets go of this one looks at the queue
        # after that, and who queues tries to get it after that, so that nobody is left waiting.
        self._writing = threading.Lock()
        self._first = -1  # the number of the first event that was just written

    def publish(
        self,
        topic: str,
        data: bytes,
        raw: bool,
        note: Note | None,
        timeout: float | None,
        on_gate: Callable[[], None] | None,
    ) -> Position | None:
        """As `PublisherSide.publish`, for an event that is encoded."""
        outlet = self._outlet
        key, packed = note or (None, None)
        size = len(data) + 4 * len(key or "") + len(packed or b"")
        if size > outlet.event_bytes_max:
            raise EventTooLarge(topic, size, outlet.event_bytes_max)
        while True:
            if outlet.gated and not self._side.gates.wait(outlet, timeout, on_gate):
                return None
            if not self._queue and self._writing.acquire(blocking=False):
                seq = self._write_own(topic, data, raw, key, packed)
            else:
                seq = self._write_along(_Waiting(topic, data, raw, key, packed))
            if seq >= 0:
                return Position(outlet.stream, outlet.epoch, seq)

    def _write_own(
        self, topic: str, data: bytes, raw: bool, key: str | None, packed: bytes | None
    ) -> int:
        """Nobody else is there: the shortest way.  -1 if the gate was shut meanwhile."""
        try:
            keys = None if key is None else {0: key}
            headers = None if packed is None else {0: packed}
            return self._write(topic, (data,), time_ns(), raw, keys, headers, len(data))
        finally:
            self._writing.release()
            if self._queue:
                self._hand_on()

    def _write_along(self, mine: _Waiting) -> int:
        """Have it written with what else waits, by whoever writes.  -1 if the gate was shut."""
        self._queue.append(mine)
        try:
            while not mine.is_settled():
                if self._writing.acquire(blocking=False):
                    self._lead()
                else:
                    mine.wait()
        except BaseException:  # Ctrl-C; others may have counted on us
            with contextlib.suppress(ValueError):
                self._queue.remove(mine)
            self._hand_on()
            raise
        if mine.error is not None:
            raise mine.error
        if not mine.safe:
            self._make_safe(mine.seq)  # who wrote it was interrupted while it waited for the disk
        return mine.seq

    def _lead(self) -> None:
        """As the one who writes: frame after frame while events wait, but not for ever."""
        try:
            for _ in range(FRAMES_MAX):
                if not self._queue:
                    break
                self._write_queued()
        finally:
            self._writing.release()
            if self._queue:
                self._hand_on()

    def _hand_on(self) -> None:
        """Have the thread that waits longest see to the queue."""
        with contextlib.suppress(IndexError):
            self._queue[0].wake()

    def _take(self) -> list[_Waiting]:
        """As much of the queue as makes a frame."""
        queue, size_max = self._queue, self._outlet.size_max
        batch = [queue.popleft()]
        size = len(batch[0].data)
        while queue and len(batch) < FRAME_EVENTS_MAX:
            size += len(queue[0].data) + EVENT_COST
            if size > size_max:
                break
            batch.append(queue.popleft())
        return batch

    def _write_queued(self) -> None:
        """Write one frame of what waits, and tell those whose events were in it."""
        batch = self._take()
        self._first = -1
        try:
            first = self._write(*_columns(batch))
        except Exception as error:
            for waiting in batch:
                waiting.error = error
                waiting.wake()
            return
        except BaseException:  # Ctrl-C in our thread is no reason for the others to fail
            if self._first < 0:
                self._queue.extendleft(reversed(batch))
            else:
                for waiting in batch:
                    waiting.safe = not self._outlet.sender.holds
                _settle(batch, self._first)
            raise
        _settle(batch, first)

    def _write(
        self,
        topic: str | Sequence[str],
        payloads: Sequence[bytes],
        times: int | Sequence[int],
        raw: bool | bytes,
        keys: Mapping[int, str] | None,
        headers: Mapping[int, bytes] | None,
        length: int,
    ) -> int:
        """Write a frame and send it; the number of its first event, -1 if the gate is shut."""
        side, outlet = self._side, self._outlet
        sender, log = outlet.sender, outlet.log
        assert log is not None
        with side._lock:
            if outlet.gated:
                return -1
            first = log.next
            try:
                frame = sender.seal_run(
                    topic,
                    payloads,
                    times,
                    raw=raw,
                    keys=keys,
                    headers=headers,
                    length=length,
                    now=time.monotonic(),
                )
            finally:
                self._first = first if log.next > first else -1
            assert frame is not None, "nothing is added to the open frame of a durable stream"
            if not sender.holds:
                side._send_frame(outlet, frame)
                return first
        self._make_safe(first + len(payloads) - 1)
        return first

    def _make_safe(self, seq: int) -> None:
        """Return when an event is on the disk, and was sent."""
        outlet = self._outlet
        assert outlet.log is not None
        if outlet.log.durable <= seq:
            outlet.log.sync(outlet.log.written)  # together with all who wait for the disk now
        if outlet.sender.sealed <= seq:
            with self._side._lock:
                self._side.durable.send_safe(outlet)


def _columns(batch: Sequence[_Waiting]) -> tuple[Any, ...]:
    """What `_write` takes, of several events."""
    topics = [waiting.topic for waiting in batch]
    raws = bytes(waiting.raw for waiting in batch)
    keys = {n: waiting.key for n, waiting in enumerate(batch) if waiting.key is not None}
    headers = {n: waiting.packed for n, waiting in enumerate(batch) if waiting.packed is not None}
    return (
        topics[0] if topics.count(topics[0]) == len(topics) else topics,
        [waiting.data for waiting in batch],
        [waiting.time_ns for waiting in batch],
        bool(raws[0]) if raws.count(raws[0]) == len(raws) else raws,
        keys or None,
        headers or None,
        -1,
    )


def _settle(batch: Iterable[_Waiting], first: int) -> None:
    for n, waiting in enumerate(batch):
        if first < 0:
            waiting.gated = True
        else:
            waiting.seq = first + n
        waiting.wake()
