"""The receiving half of a stream: order, no duplicates, and an account of every number.

Frames, heartbeats and answers to repair requests go in; runs of events in order and `Loss` reports
come out, each number exactly once in one of the two.  One receiver serves one epoch of one stream
for one subscription.

Authority: a number is believed only from who can know it.

| who says that events before `n` exist | call | believed |
|---|---|---|
| the publisher, in the order of its data | `on_frame`, `on_tail` | at once: the number is proved |
| the publisher, beside its data | `on_tail_hint` | when the data path was empty for a while |
| a repair source that is not the publisher | `on_claim` | never: the number is claimed |
| a frame of such a source | `on_frame(lent=True)` | below `high`; it proves what it holds |
| such a source, of an epoch that is over: its claim is lost | `on_claim_noted` | at once |

`high` is one past the highest number heard of, `proved` one past the highest that is proved; they
differ while a claim stands.  Claimed numbers are asked for like missing ones, but they are never
lost: when nobody serves them, or the publisher speaks again, `retract` forgets them.  So a source
that lies about how far a stream is costs a few requests, and no event and no report.  An epoch that
is left for good is the exception: a log that has lost the end of it, or all of it, says so, and no
later number would show the gap.  With one frame of its own such a source could cause as much.

Where connections are not bound to peers, whoever a subscriber reads from can send a heartbeat or a
frame with another publisher's stream in it.  The publisher's own connection is the judge: a number
that was heard of before its word before (`on_word`) and that it has not come to is false, and
what rests on it is forgotten.

The caller takes claims only while the publisher cannot be asked.  Events that were served beyond
what the publisher had said (`lent`) were believed for want of anybody better; if it comes back in
the same epoch and has not come that far, they were false, and the caller begins anew at its number.
"""

from __future__ import annotations

import random
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from meshmsg._model.event import Loss
from meshmsg._wire.frame import Frame
from meshmsg._wire.subframe import cut
from meshmsg.recovery.stream.histogram import Histogram
from meshmsg.recovery.stream.loss_detector import NEVER, LossDetector, NackTiming
from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
#: A tail heard of beside the data path is believed when the data path was empty for this long.
HINT_GRACE_S = 0.25


class Run(NamedTuple):
    """Events `lo` to `hi` (places in the frame) are next in order."""

    frame: Frame
    lo: int
    hi: int


Delivery = Run | Loss


def _first(frame: Frame) -> int:
    return frame.first


class StreamReceiver:
    """Order and completeness for one epoch of one stream."""

    __slots__ = (
        "_claimed",
        "_doubted",
        "_detector",
        "_have",
        "_hint",
        "_hint_since",
        "_lost",
        "_pending",
        "_pending_bytes_max",
        "counters",
        "repairs",
        "epoch",
        "high",
        "lent",
        "next",
        "pending_bytes",
        "request",
        "start",
        "stream",
    )

    def __init__(
        self,
        stream: str,
        epoch: int,
        start: int,
        *,
        timing: NackTiming,
        pending_bytes_max: int,
        rng: random.Random | None = None,
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.start = start
        self.next = start  #: the next number to hand on
        self.high = start  #: one past the highest number heard of
        self.lent = 0  #: one past the highest number that only other repair sources served
        self.pending_bytes = 0
        self.request = 0  #: the number of the last repair request
        self.counters: Counter[str] = Counter()
        self.repairs: Histogram | None = None  #: how long they took, once there was one
        self._claimed: int | None = None  # gaps from here on are only claimed
        self._doubted = 0  # what had been heard of when the publisher spoke last
        self._detector = LossDetector(timing, rng)
        self._pending: list[Frame] = []
        self._pending_bytes_max = pending_bytes_max
        self._have = RangeSet()
        self._lost: dict[int, tuple[int, str]] = {}
        self._hint = start
        self._hint_since = NEVER

    # --- in ---

    def on_frame(
        self, frame: Frame, *, now: float, repair: bool = False, lent: bool = False
    ) -> list[Delivery]:
        """A frame came, live or as a repair; returns what is in order now.

        A `lent` one is of a repair source that is not the publisher.
        """
        first, stop = frame.first, frame.stop
        if first == self.next == self.high and not (self._pending or lent):
            self.next = self.high = stop  # all is well: the path of nearly every frame
            self._hint_since = NEVER if self._hint <= stop else now
            return [Run(frame, 0, frame.count)]
        if lent and stop > self.high:
            # It may have more than it was asked for, and nobody has spoken of that yet.
            self.counters["unproved_events"] += stop - max(first, self.high)
            if first >= self.high:
                return []
            frame, stop = Frame(cut(frame, 0, self.high - first)), self.high
        return self._on_frame(frame, first, stop, now, repair, lent)

    def is_next(self, frame: Frame) -> bool:
        """Return True if a frame of the publisher is next, and nothing else waits or is missing."""
        return frame.first == self.next == self.high and not (
            self._pending or self._hint > frame.stop
        )

    def pass_on(self, frame: Frame) -> None:
        """A frame that is next goes to the consumer at once."""
        self.next = self.high = frame.stop
        self._hint_since = NEVER

    def on_tail(self, next_: int, *, now: float) -> None:
        """The publisher says in the order of the data that events before `next_` exist."""
        self._prove(next_)
        if next_ > self.high:
            self._detector.add(self.high, next_, now=now)
            self.high = next_

    def on_claim(self, next_: int, *, now: float) -> None:
        """A repair source that is not the publisher says that it has events before `next_`."""
        if next_ > self.high:
            if self._claimed is None:
                self._claimed = self.high
            self._detector.add(self.high, next_, now=now)
            self.high = next_

    def retract(self, *, now: float) -> None:
        """Forget what is only claimed: nobody serves it, or the publisher can be asked again."""
        if self._claimed is None:
            return
        for first, stop in self._detector_overlap(self._claimed, self.high):
            self._detector.arrived(first, stop, now=now)
        self.counters["retracted"] += 1
        self.high = self._claimed
        self._claimed = None

    def on_claim_noted(self, stop: int) -> None:
        """Who claims numbers has noted that events up to `stop` are gone: they are missing, too."""
        self.lent = max(self.lent, stop)
        self._prove(stop)

    def on_tail_hint(self, next_: int, *, now: float) -> None:
        """The publisher says beside the data path that events before `next_` exist.

        They may be on their way.
        """
        self.retract(now=now)
        if next_ > self._hint:
            self._hint = next_
        if self._hint > self.high and self._hint_since == NEVER:
            self._hint_since = now

    def on_word(self, next_: int, *, now: float) -> bool:
        """The publisher says over its own connection how far it is; return True for a set-back."""
        false = self._doubted > max(next_, self.next)
        if false:
            self._set_back(max(next_, self.next), now)
        self._doubted = self.high
        return false

    def on_gone(self, ranges: Iterable[Range], reason: str, *, now: float) -> list[Delivery]:
        """Nobody can send these again."""
        for first, stop in ranges:
            self._declare(max(first, self.next), min(stop, self.proved), reason, now)
        return self._drain()

    def on_answered(self, request: int, *, now: float) -> None:
        """A repair request was answered, in full or up to its limit: ask on for the rest.

        Answers to earlier requests, and 0 for an answer that goes on, change nothing.
        """
        if request and request == self.request:
            self._detector.rearm(now=now)

    def on_end(self, stop: int, reason: str, *, now: float) -> list[Delivery]:
        """The epoch ended at `stop` and nothing more of it will come."""
        self.retract(now=now)
        if stop > self.high:
            self._detector.add(self.high, stop, now=now)
            self.high = stop
        for first, last in self._detector.ranges():
            self._declare(first, last, reason, now)
        return self._drain()

    # --- time ---

    def deadline(self) -> float:
        """When `on_deadline` has something to do."""
        return min(self._detector.deadline(), self._hint_since + HINT_GRACE_S)

    def on_deadline(
        self, *, now: float, drained: bool = True
    ) -> tuple[list[Range], list[Delivery]]:
        """Ranges to ask for, and what becomes deliverable because something is given up.

        `drained` says that nothing waits unread on the data path.
        """
        if drained and now >= self._hint_since + HINT_GRACE_S:
            if self._detector:  # first what comes before
                self._hint_since = now
            else:
                self._hint_since = NEVER
                self.on_tail(self._hint, now=now)
        if self._detector.deadline() > now:
            return [], []
        ask, lost = self._detector.on_deadline(now=now)
        self.request += bool(ask)
        for first, stop in lost:
            if first < self.proved:
                self._mark_lost(first, min(stop, self.proved), "deadline")
        if lost and lost[-1][1] > self.proved:
            self.retract(now=now)
        return ask, self._drain() if lost else []

    def hold(self, *, now: float) -> None:
        """There is no room for what would come: ask for nothing, and give nothing up."""
        self._detector.hold(now=now)

    # --- state ---

    @property
    def proved(self) -> int:
        """One past the highest number that a frame or the publisher has proved."""
        return self.high if self._claimed is None else self._claimed

    @property
    def claimed(self) -> list[Range]:
        """What is asked for on the word of repair sources alone."""
        return [] if self._claimed is None else self.missing_of([(self._claimed, self.high)])

    @property
    def missing(self) -> int:
        """Events heard of that have not come."""
        return self._detector.missing

    def missing_of(self, ranges: Iterable[Range]) -> list[Range]:
        """The parts of ranges that were heard of and have not come."""
        return [part for first, stop in ranges for part in self._detector_overlap(first, stop)]

    @property
    def nacks(self) -> int:
        """Ranges asked for so far, repeats included."""
        return self._detector.nacks

    @property
    def pending(self) -> int:
        """Frames held behind a gap."""
        return len(self._pending)

    # --- inside ---

    def _on_frame(
        self, frame: Frame, first: int, stop: int, now: float, repair: bool, lent: bool
    ) -> list[Delivery]:
        first = max(first, self.next)
        if first >= stop or self._have.covers(first, stop):
            self.counters["duplicate_frames"] += 1
            return []
        if first > self.next and self.pending_bytes + len(frame.data) > self._pending_bytes_max:
            # It is asked for when there is room: sooner, it would only be refused again.
            self.counters["pending_full"] += 1
            if not lent:
                self.on_tail_hint(stop, now=now)
            return []
        if lent and stop > self.proved:
            self.lent = max(self.lent, stop)
        self._prove(stop)
        if first > self.high:
            self._detector.add(self.high, first, now=now)
        found = self._detector.arrived(first, stop, now=now)
        self.counters["repaired" if repair else "late"] += found
        if repair and found:
            self.repairs = self.repairs or Histogram()
            self.repairs.add(self._detector.waited_s)
        self.high = max(self.high, stop)
        self._hint_since = NEVER if self._hint <= self.high else now
        self._unlose(first, stop)
        self._have.add(first, stop)
        insort(self._pending, frame, key=_first)
        self.pending_bytes += len(frame.data)
        return self._drain()

    def _prove(self, next_: int) -> None:
        """Events before `next_` exist: what lies below is not only claimed any more."""
        if self._claimed is not None and next_ > self._claimed:
            self._claimed = next_ if next_ < self.high else None

    def _set_back(self, high: int, now: float) -> None:
        """Forget all from `high` on: the publisher has not come that far."""
        for first, stop in self._detector_overlap(high, self.high):
            self._detector.arrived(first, stop, now=now)
        kept = [frame for frame in self._pending if frame.stop <= high]
        self.pending_bytes = sum(len(frame.data) for frame in kept)
        had, self._have = self._have, RangeSet((frame.first, frame.stop) for frame in kept)
        self._pending = kept
        for low, stop in had.overlap(self.next, high):
            for first, last in self._have.missing(low, stop):
                self._detector.add(first, last, now=now)
        self._lost = {at: lost for at, lost in self._lost.items() if lost[0] <= high}
        self.high, self._claimed, self._hint = high, None, min(self._hint, high)
        self.counters["set_back"] += 1

    def _unlose(self, first: int, stop: int) -> None:
        """What was given up but not yet reported, and came after all, is not lost."""
        for at, (end, reason) in list(self._lost.items()):
            if at < stop and first < end:
                del self._lost[at]
                if at < first:
                    self._lost[at] = (first, reason)
                if stop < end:
                    self._lost[stop] = (end, reason)

    def _declare(self, first: int, stop: int, reason: str, now: float) -> None:
        if first >= stop:
            return
        for low, high in self._detector_overlap(first, stop):
            self._detector.arrived(low, high, now=now)
            self._mark_lost(low, high, reason)

    def _detector_overlap(self, first: int, stop: int) -> list[Range]:
        return [
            (max(first, low), min(stop, high))
            for low, high in self._detector.ranges()
            if low < stop and first < high and first < stop
        ]

    def _mark_lost(self, first: int, stop: int, reason: str) -> None:
        self._lost[first] = (stop, reason)

    def _drain(self) -> list[Delivery]:
        out: list[Delivery] = []
        taken = 0
        pending = self._pending
        while True:
            lost = self._lost.pop(self.next, None) if self._lost else None
            if lost is not None:
                self._report(out, *lost)
                continue
            if taken < len(pending) and pending[taken].first <= self.next:
                frame = pending[taken]
                taken += 1
                self.pending_bytes -= len(frame.data)
                if frame.stop > self.next:
                    stop = frame.stop
                    out.append(Run(frame, self.next - frame.first, stop - frame.first))
                    self.next = stop
                continue
            break
        del pending[:taken]
        self._have.discard_before(self.next)
        return out

    def _report(self, out: list[Delivery], stop: int, reason: str) -> None:
        last = out[-1] if out else None
        if isinstance(last, Loss) and last.stop == self.next and last.reason == reason:
            out[-1] = Loss(self.stream, self.epoch, last.first, stop, reason)
        else:
            out.append(Loss(self.stream, self.epoch, self.next, stop, reason))
        self.counters["lost"] += stop - self.next
        self.next = stop
