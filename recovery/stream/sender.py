"""The sending half of a stream: numbers, the open frame, what is kept, and who claims it.

Events are added to the open frame; `seal` closes it, numbers it for good and keeps it in the
retransmit buffer.  Subscribers are admitted, report, ask for repair; the answers come from here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from meshmsg._wire.frame import Frame, FrameBuilder, Heartbeat, encode_frame
from meshmsg.recovery.stream.flow_control import Claim, FlowControl
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer, Spill

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SenderPolicy:
    """What a sender needs to know of its stream's configuration."""

    overflow: str
    buffer_bytes: int
    window_bytes: int
    evict_after_s: float | None
    frame_bytes: int
    heartbeat_min_s: float
    heartbeat_max_s: float
    queue_frames: int | None = None
    """Frames that may be on their way to one subscriber before some would be dropped."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a subscription: what there is and where it starts."""

    epoch: int
    origin: int
    first: int
    next: int
    start: int


@dataclass(frozen=True, slots=True)
class RepairAnswer:
    """Frames to send again, and ranges that are gone by reason."""

    frames: list[bytes]
    gone: dict[str, list[Range]]
    in_log: bool = False
    """Memory does not have all of it: the log has, or the spill."""
    stored: list[Range] = field(default_factory=list)
    """What the spill has of it."""


class DurableLog(Protocol):
    """Where events are written before they count as published.

    An event is added to the open frame and to the log's tail at once, by who publishes it.
    """

    @property
    def next(self) -> int:
        """One past the last event that was written."""

    @property
    def frame(self) -> AbstractContextManager[object]:
        """The tail, which keeps everybody else from adding events to it in a `with` block."""

    def write(self, frame: bytes, first: int, stop: int) -> int:
        """Write a frame; if this raises, nothing was written."""


class StreamSender:
    """Numbers, keeps and resends the events of one stream in one epoch."""

    def __init__(
        self,
        stream: str,
        wire_id: int,
        epoch: int,
        policy: SenderPolicy,
        *,
        builder: FrameBuilder | None = None,
        log: DurableLog | None = None,
        holds: bool = False,
        spill: Spill | None = None,
    ) -> None:
        self.stream = stream
        self.wire_id = wire_id
        self.epoch = epoch
        self.builder = FrameBuilder() if builder is None else builder  #: the open frame
        self.origin = self.builder.first
        self.policy = policy
        self.sealed = self.origin  #: events before this number are in sealed frames
        self.log = log
        self.holds = holds  #: what is written to the log waits for `release`
        self._held: deque[tuple[int, int, bytes]] = deque()
        self.frames = 0
        self.published_bytes = 0
        slack = policy.frame_bytes * 2
        window = {"block": min(policy.window_bytes, policy.buffer_bytes)}.get(
            policy.overflow, policy.buffer_bytes if policy.overflow == "buffer" else None
        )
        backlog = policy.buffer_bytes if policy.overflow == "drop_newest" else 0
        hold = window is not None
        self.buffer = RetransmitBuffer(policy.buffer_bytes + slack, backlog, hold=hold, spill=spill)
        queue = None if window is None else policy.queue_frames
        self.flow = FlowControl(self.buffer, window, policy.evict_after_s, queue)
        self._beat_due = NEVER
        self._beat_wait_s = policy.heartbeat_min_s

    # --- publishing ---

    @property
    def next(self) -> int:
        """The number that the next event gets."""
        return self.builder.next

    @property
    def open_events(self) -> int:
        """Events in the open frame."""
        return len(self.builder)

    def seal(self, *, now: float) -> bytes | None:
        """Close the open frame; returns its bytes, `None` if it is empty."""
        builder = self.builder
        first, count = builder.begin()
        frame = None
        # Interrupted (Ctrl-C, no memory) in between, the same events are sealed the next time, or,
        # once they are kept, found missing by subscribers and sent again from the buffer.
        if count and first >= self._sealed_or_held:
            frame = builder.encode(self.wire_id, self.epoch)
            self._hold(frame, first, first + count, now)
        builder.finish()
        return frame

    def seal_run(
        self,
        topic: str | Sequence[str],
        payloads: Sequence[bytes],
        time_ns: int | Sequence[int],
        *,
        raw: bool | bytes,
        keys: Mapping[int, str] | None = None,
        headers: Mapping[int, bytes] | None = None,
        length: int = -1,
        now: float,
    ) -> bytes | None:
        """Make a frame of many events; `None` if the open frame has to be sealed.

        Raises what the log does; then nothing has happened.
        """
        words = (topic, payloads, time_ns, raw, keys, headers, length, now)
        if self.log is None:
            return self._seal_run(None, *words)
        with self.log.frame:  # a `return` within would leave a moment for an interrupt
            frame = self._seal_run(self.log, *words)
        return frame

    def _seal_run(
        self,
        log: DurableLog | None,
        topic: str | Sequence[str],
        payloads: Sequence[bytes],
        time_ns: int | Sequence[int],
        raw: bool | bytes,
        keys: Mapping[int, str] | None,
        headers: Mapping[int, bytes] | None,
        length: int,
        now: float,
    ) -> bytes | None:
        if self.builder.is_open():
            return None
        if log is not None:
            self.builder.reserve(log.next - self.builder.first)  # interrupted below
        first, stop = self.builder.first, self.builder.first + len(payloads)
        frame = encode_frame(
            self.wire_id,
            self.epoch,
            first,
            topic,
            payloads,
            time_ns,
            raw=raw,
            keys=keys,
            headers=headers,
            length=length,
        )
        try:
            if log is not None:
                log.write(frame, first, stop)
            elif not self.builder.reserve(len(payloads)):
                return None  # somebody added an event meanwhile
        finally:
            # Also if it was interrupted (Ctrl-C): what the log has is published.
            if log is not None:
                self.builder.reserve(log.next - first)
        self._hold(frame, first, stop, now)
        return frame

    def _hold(self, frame: bytes, first: int, stop: int, now: float) -> None:
        if self.holds:
            self._held.append((first, stop, frame))
        else:
            self._keep(frame, first, stop, now)

    @property
    def _sealed_or_held(self) -> int:
        return self._held[-1][1] if self._held else self.sealed

    def release(self, durable: int, *, now: float) -> list[bytes]:
        """Events before `durable` are safe: the frames that may be sent now."""
        if self.builder.is_open() and self._sealed_or_held < durable:
            self.seal(now=now)
        frames = []
        while self._held and self._held[0][1] <= durable:
            first, end, frame = self._held.popleft()
            self._keep(frame, first, end, now)
            frames.append(frame)
        return frames

    def _keep(self, frame: bytes, first: int, stop: int, now: float) -> None:
        self.sealed = stop
        self.frames += 1
        self.published_bytes += len(frame)
        self.buffer.append(first, self.sealed, frame)
        self._beat_wait_s = self.policy.heartbeat_min_s
        self._beat_due = now + self._beat_wait_s

    # --- heartbeats ---

    def heartbeat_due(self) -> float:
        """When the next heartbeat is due."""
        return self._beat_due

    def heartbeat(self, *, now: float) -> Heartbeat:
        """What is available; the next one comes twice as late unless there is data."""
        self._beat_wait_s = min(self._beat_wait_s * 2, self.policy.heartbeat_max_s)
        self._beat_due = now + self._beat_wait_s
        return self.tail()

    def tail(self) -> Heartbeat:
        """What is available now."""
        return Heartbeat(self.wire_id, self.epoch, self.first_available, self.sealed)

    @property
    def first_available(self) -> int:
        """The oldest event that can still be asked for."""
        first = self.buffer.first
        return self.sealed if first is None else first

    # --- subscribers ---

    def admit(
        self,
        sub: int,
        label: str,
        patterns: Iterable[str],
        kind: str,
        value: int,
        epoch: int,
        *,
        returns: bool = False,
        now: float,
    ) -> Admission:
        """Take a subscriber; `kind` says where it starts (see docs/wire-format.md).

        One that `returns` was here before and has been forgotten since.
        """
        known = self.flow.claims.get(sub)
        start = known.start if known else self.start_of(kind, value, epoch)
        claim = self.flow.admit(sub, label, start, patterns, now=now)
        if known is None and returns:
            claim.missed_before = self.first_available
        elif known is None:
            claim.expired_before = self.first_available
        if self._beat_due == NEVER:
            self._beat_due = now + self._beat_wait_s
        return Admission(self.epoch, self.origin, self.first_available, self.sealed, start)

    def start_of(self, kind: str, value: int, epoch: int) -> int:
        """The number that a start means in this epoch."""
        if kind == "earliest":
            return self.first_available
        if kind == "last":
            return max(self.first_available, self.next - value)
        if kind == "time":
            return self._first_at(value)
        if kind == "resume":
            # Of an epoch that is not ours the subscriber has nothing: it gets all of this one.
            return min(max(value, self.origin), self.next) if epoch == self.epoch else self.origin
        return self.origin if kind == "origin" else self.next

    def _first_at(self, time_ns: int) -> int:
        """The first event at or after a time, as far as it is kept."""
        for _, _, data in self.buffer.held(self.first_available, self.sealed):
            frame = Frame(data)
            index = frame.first_at(time_ns)
            if index < frame.count:
                return frame.first + index
        return self.sealed + self.builder.first_at(time_ns)

    def repair(self, sub: int, epoch: int, ranges: Iterable[Range], bytes_max: int) -> RepairAnswer:
        """Answer a repair request."""
        asked = [(first, stop) for first, stop in ranges if first < stop]
        if epoch != self.epoch:
            if self.log is not None:
                return RepairAnswer([], {}, in_log=True)
            return RepairAnswer([], {"gone": asked})
        claim = self.flow.claims.get(sub)
        frames, gone, _ = self.buffer.find(asked, stop=self.sealed, bytes_max=bytes_max)
        if gone and self.log is not None:
            return RepairAnswer([], {}, in_log=True)
        if gone and self.buffer.spill is not None:
            overlap = self.buffer.spill.stored.overlap
            stored = [piece for first, stop in gone for piece in overlap(first, stop)]
            if stored:  # the rest is asked for again
                return RepairAnswer([], {}, in_log=True, stored=stored)
        if claim is not None:
            self.flow.note_missed(claim)
            claim.repaired += len(frames)
            claim.note_gone(gone)
        return RepairAnswer(frames, _by_reason(claim, gone))


def _by_reason(claim: Claim | None, gone: list[Range]) -> dict[str, list[Range]]:
    """Why events are gone for a subscriber: it came late, was away, evicted, or too slow."""
    if claim is None:
        return {"overflow": gone} if gone else {}
    expired, missed = claim.expired_before, max(claim.expired_before, claim.missed_before)
    reasons = {
        "expired": _between(gone, 0, expired),
        "away": _between(gone, expired, missed),
        "evicted" if claim.evicted else "overflow": _between(gone, missed, None),
    }
    return {why: ranges for why, ranges in reasons.items() if ranges}


def _between(ranges: list[Range], low: int, high: int | None) -> list[Range]:
    """Return what of the ranges lies from `low` on and before `high`."""
    cut = [(max(first, low), stop if high is None else min(stop, high)) for first, stop in ranges]
    return [(first, stop) for first, stop in cut if first < stop]
