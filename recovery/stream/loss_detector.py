"""When to ask for what is missing, and when to give up: the timing of NACKs.

Tracks any number of gaps at once.  Each is asked for after `delay_s` (plus a random part of
`spread_s`, so that many receivers do not ask together), again after `retry_s` with a growing delay,
and given up `deadline_s` after the last sign of progress.  What arrives trims its gap.

Whoever asks asks for all that is about to be asked for: the random part of a delay is there to keep
receivers apart, not the gaps of one.

Progress in any gap is progress for all: the sender answers the lowest first and only so much at a
time, so the others wait their turn.  Time in which the receiver itself did not run (a stopped
process, a suspended laptop) does not count either: answers may lie unread.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

Range = tuple[int, int]
NEVER = float("inf")
#: Ranges in one request; the control message takes no more.
RANGES_MAX = 256
#: A gap is held back for others for this part of the deadline: they may be lying.
HOLD_SHARE = 0.25
#: The random addition of a lone receiver: nobody has to hear it before he asks too, but what is
#: found missing within that time is asked for together.
LONE_SHARE = 0.1
#: Answers whose times are remembered, and how much longer than usual one may take.
ANSWERS_MAX = 15
ANSWER_MARGIN = 2.0
#: Gaps are not cut finer than this many for the sake of what others ask for.
SPLITS_MAX = 4096


@dataclass(frozen=True, slots=True)
class NackTiming:
    """The constants of one transport, in seconds."""

    delay_s: float = 0.0
    """Wait before the first request: what is only late may still come."""
    spread_s: float = 0.0
    """Random addition to each delay, drawn anew each time: more in a larger group."""
    retry_s: float = 0.2
    """Wait before the second request."""
    retry_growth: float = 2.0
    """Each further wait is this much longer."""
    retry_max_s: float = 2.0
    """But never longer than this."""
    deadline_s: float = 5.0
    """Without any progress for this long, a gap is lost."""
    learns: bool = False
    """Whether answers that take longer than `retry_s` make the waits longer, too."""


class _Gap:
    __slots__ = ("asked_at", "due", "first", "first_asked_at", "since", "stop", "tries")

    def __init__(self, first: int, stop: int, since: float, due: float, asked_at: float) -> None:
        self.first = first
        self.stop = stop
        self.since = since
        self.due = due
        self.asked_at = asked_at  # or found
        self.first_asked_at = asked_at
        self.tries = 0

    def part(self, first: int, stop: int) -> _Gap:
        """A piece of it."""
        part = _Gap(first, stop, self.since, self.due, self.asked_at)
        part.first_asked_at = self.first_asked_at
        part.tries = self.tries
        return part


def _first(gap: _Gap) -> int:
    return gap.first


class LossDetector:
    """Gaps of one stream, and the requests and verdicts that they lead to."""

    __slots__ = (
        "_answer_s",
        "_answers_s",
        "_due",
        "_free_at",
        "_gaps",
        "_moved",
        "_progress_at",
        "_random",
        "_slept_s",
        "_timing",
        "group_size",
        "missing",
        "nacks",
        "unasked",
        "waited_s",
    )

    def __init__(self, timing: NackTiming, rng: random.Random | None = None) -> None:
        self._timing = timing
        self._random = rng
        self.group_size = 1
        self._gaps: list[_Gap] = []
        self._due = NEVER
        self._free_at = -NEVER  # before that nothing is asked for
        self._slept_s = 0.0  # how late `on_deadline` was called, all together
        self._progress_at = -NEVER
        self._moved = False  # since the last `rearm`
        self._answers_s: deque[float] = deque(maxlen=ANSWERS_MAX)
        self._answer_s = 0.0  # how long an answer takes: the median of them
        self.missing = 0  #: events in all gaps
        self.nacks = 0  #: ranges asked for, repeats included
        self.unasked = 0  #: events that arrived before they were asked for
        self.waited_s = 0.0  #: from the first request to the last event that arrived after one

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def __len__(self) -> int:
        return len(self._gaps)

    def __contains__(self, number: int) -> bool:
        index = self._find(number)
        return index >= 0 and number < self._gaps[index].stop

    def _find(self, number: int) -> int:
        """The last gap that does not begin behind a number; -1 if there is none."""
        gaps = self._gaps
        # Mostly the first is asked for, and comes first.
        if gaps and gaps[0].first <= number and (len(gaps) == 1 or number < gaps[1].first):
            return 0
        return bisect_right(gaps, number, key=_first) - 1

    @property
    def first(self) -> float:
        """The first that is missing; `NEVER` if none is."""
        return self._gaps[0].first if self._gaps else NEVER

    def ranges(self, *, before: float = NEVER) -> list[Range]:
        """The gaps, in order; only those found before a time."""
        return [(gap.first, gap.stop) for gap in self._gaps if gap.since < before]

    def add(self, first: int, stop: int, *, now: float) -> None:
        """Events `first` to `stop` are missing; they must not be in a gap already."""
        due = max(now + self._jitter(self._timing.delay_s), self._free_at)
        gap = _Gap(first, stop, now - self._slept_s, due, now)
        if not self._gaps:
            self._due = NEVER  # of a gap that is closed
        if not self._gaps or self._gaps[-1].stop <= first:
            self._gaps.append(gap)
        else:
            self._gaps.insert(bisect_right(self._gaps, first, key=_first), gap)
        self.missing += stop - first
        self._due = min(self._due, due)

    def arrived(self, first: int, stop: int, *, now: float) -> int:
        """Events arrived or were answered for; returns how many of them were missing."""
        gaps = self._gaps
        found = 0
        index = max(0, self._find(first))
        while index < len(gaps) and gaps[index].first < stop:
            gap = gaps[index]
            low, high = max(first, gap.first), min(stop, gap.stop)
            if low >= high:
                index += 1
                continue
            found += high - low
            if not gap.tries:
                self.unasked += high - low
            else:
                self.waited_s = now - gap.first_asked_at
                if self._timing.learns:
                    self._learn(self.waited_s)
            rest = []
            if gap.first < low:
                rest.append(gap.part(gap.first, low))
            if high < gap.stop:
                rest.append(gap.part(high, gap.stop))
            gaps[index : index + 1] = rest
            index += len(rest)
        if found:
            self.missing -= found
            self._progress_at = now - self._slept_s
            self._moved = True
        return found

    def rearm(self, *, now: float) -> None:
        """The last request was answered in full: what is still missing may be asked for at once.

        Only if the answer brought something.  Otherwise two requests under way would each be
        followed by one more for the same events, for as long as anything is missing.
        """
        if not self._moved:
            return
        self._moved = False
        for gap in self._gaps:
            if gap.tries:
                gap.tries = 0
                gap.due = now
                self._due = min(self._due, now)

    def suppress(self, first: int, stop: int, *, now: float) -> int:
        """Somebody has asked for these already: wait as if it had been us; returns how many."""
        gaps = self._gaps
        held = 0
        asked_since = now - self._timing.deadline_s * HOLD_SHARE
        index = max(0, bisect_right(gaps, first, key=_first) - 1)
        while index < len(gaps) and gaps[index].first < stop:
            gap = gaps[index]
            low, high = max(first, gap.first), min(stop, gap.stop)
            if low < high and gap.asked_at >= asked_since:
                if len(gaps) < SPLITS_MAX:
                    index += self._cut_out(index, low, high)
                gap = gaps[index]
                due = now + self._jitter(self._wait(gap))
                if due > gap.due:
                    gap.due = due
                    held += high - low
            index += 1
        return held

    def _cut_out(self, index: int, low: int, high: int) -> int:
        """Make a part of a gap one of its own; returns how many gaps it moved back by that."""
        gap = self._gaps[index]
        parts = [(gap.first, low), (low, high), (high, gap.stop)]
        self._gaps[index : index + 1] = [gap.part(a, b) for a, b in parts if a < b]
        return int(gap.first < low)

    def _learn(self, took_s: float) -> None:
        """An answer came, so long after it was asked for first.

        Too long by a repeat if the request or the answer was lost, but most are not.
        """
        answers = self._answers_s
        answers.append(took_s)
        self._answer_s = sorted(answers)[len(answers) // 2]

    def _wait(self, gap: _Gap) -> float:
        timing = self._timing
        first = max(timing.retry_s, self._answer_s * ANSWER_MARGIN)
        try:
            return min(first * timing.retry_growth**gap.tries, timing.retry_max_s)
        except OverflowError:  # after hundreds of tries
            return timing.retry_max_s

    def in_group_of(self, size: int) -> None:
        """How many receivers there are: the more, the longer the random part of a delay."""
        self.group_size = max(1, size)

    def hold(self, *, now: float) -> None:
        """Nothing is asked for on purpose (there is no room): that time does not count."""
        self._progress_at = now - self._slept_s
        self._due = max(self._due, now)

    def deadline(self) -> float:
        """When `on_deadline` has something to do, at the earliest."""
        return self._due if self._gaps else NEVER

    def on_deadline(
        self, *, now: float, ranges_max: int = RANGES_MAX
    ) -> tuple[list[Range], list[Range]]:
        """Ranges to ask for now, and ranges that are lost now."""
        if now < self._free_at:
            self._due = self._free_at
            return [], []
        timing = self._timing
        ask: list[Range] = []
        lost: list[Range] = []
        kept: list[_Gap] = []
        due = NEVER
        self._slept_s += max(0.0, now - self.deadline())
        soon, ripe = self._soon(now)
        for gap in self._gaps:
            given_up = max(gap.since, self._progress_at) + self._slept_s + timing.deadline_s
            if given_up <= now:
                lost.append((gap.first, gap.stop))
                self.missing -= gap.stop - gap.first
                continue
            joins = bool(ask) and ask[-1][1] == gap.first
            if (gap.due <= now or (gap.due <= soon and gap.since <= ripe)) and (
                joins or len(ask) < ranges_max
            ):
                if joins:
                    ask[-1] = (ask[-1][0], gap.stop)
                else:
                    ask.append((gap.first, gap.stop))
                gap.due = now + self._jitter(self._wait(gap))
                if not gap.tries:
                    gap.first_asked_at = now
                gap.tries += 1
                gap.asked_at = now
            kept.append(gap)
            due = min(due, gap.due, given_up)
        self._gaps = kept
        self._due = due
        self.nacks += len(ask)
        if ask:
            # Where much is lost, requests of several gaps each: to send one costs both sides as
            # much as to repair several.
            self._free_at = now + timing.spread_s
        return ask, lost

    def _soon(self, now: float) -> tuple[float, float]:
        """If one gap is asked for: those due before the one time and found before the other, too.

        What was found just now has to wait all the same: it may only be late.
        """
        timing = self._timing
        if not timing.spread_s or not any(gap.due <= now for gap in self._gaps):
            return now, -NEVER
        return now + self._spread_s, now - self._slept_s - timing.delay_s

    @property
    def _spread_s(self) -> float:
        """The longest random addition."""
        size = self.group_size
        return self._timing.spread_s * (LONE_SHARE if size == 1 else math.log1p(size))

    def _jitter(self, wait: float) -> float:
        if self._random is None or not self._timing.spread_s:
            return wait
        size = self.group_size
        if size == 1:
            return wait + self._random.random() * self._spread_s
        # Truncated exponential (as RFC 5401 has it): a few draw short waits, most long ones, so
        # that the first to ask is heard before the others would.
        shape = math.log(size) + 1.0
        drawn = math.log1p(self._random.random() * math.expm1(shape)) / shape
        return wait + self._spread_s * drawn
