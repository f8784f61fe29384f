"""Whom a stream waits for: the claims of its subscribers, the gate, and eviction.

Subscribers report how far they are.  Under `block` and `buffer` the gate closes while one of them
is further behind than the window; under `spill` while the disk takes no more; under the other words
it never closes.  And it closes for a moment behind a subscriber that is reading as fast as it can,
before more frames are on their way than queues have room for: they would only be dropped, asked for
and sent again.  A subscriber that holds the gate shut without progress for `evict_after_s` loses
its claim until it has caught up.

One that is absent (see `absence`) holds nobody up.  What the buffer has for it stays there as long
as there is room, what was spilled for it until the spill is full.  Back again, it is waited for at
once, so that nobody runs away from it while it catches up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.ranges import RangeSet
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

#: Behind one that has taken nothing for so long nobody waits before the window is full.
BRAKE_S = 0.02
#: Less than this on its way is no flood, however small its frames are.
BRAKE_BYTES = 4 * 1024 * 1024
#: Of the events that were gone when a subscriber asked, so many separate ranges are known; the
#: lowest are forgotten, and count again if they are asked for again.
GONE_RANGES_MAX = 1000


@dataclass(slots=True)
class Claim:
    """One subscription's place in one stream, as the publisher knows it."""

    sub: int
    label: str
    start: int
    received: int
    consumed: int
    progress_at: float
    delivered: int = 0
    filtered: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    evicted: bool = False
    evictions: int = 0
    blocked_since: float | None = None
    repaired: int = 0
    gone: int = 0  # events that it asked for and that were not kept any more
    gone_ranges: RangeSet = field(default_factory=RangeSet)
    expired_before: int = 0  # what was not kept any more when it came
    away: bool = False  # reads from the log, and nobody waits for it until it has caught up
    attached: bool = True
    reported: bool = False
    away_since: float | None = None  # silent, or its connection closed
    absent: bool = False  # away, and not waited for
    kept: bool = True  # while it is absent, what is spilled stays for it
    missed_before: int = 0  # what was not kept any more when it came back

    def note_gone(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Count what is not kept any more, each event once: requests are repeated."""
        known = self.gone_ranges
        before = known.count
        for first, stop in ranges:
            known.add(first, stop)
        self.gone += known.count - before
        while len(known) > GONE_RANGES_MAX:
            known.pop_first()

    @property
    def state(self) -> str:
        """How it stands with the stream, in a word."""
        if self.evicted:
            return "evicted"
        return "live" if self.away_since is None else "away"


class FlowControl:
    """The claims on one stream."""

    def __init__(
        self,
        buffer: RetransmitBuffer,
        window_bytes: int | None,
        evict_after_s: float | None,
        queue_frames: int | None = None,
    ) -> None:
        self.claims: dict[int, Claim] = {}
        self._buffer = buffer
        self._window_bytes = window_bytes
        self._evict_after_s = evict_after_s
        self._queue_frames = queue_frames  # that may be on their way to somebody; None: any number
        self._floor_bytes: float = NEVER
        self._floor_frames = 0
        self._moved_at = -NEVER  # when the one furthest behind last took anything

    def admit(
        self, sub: int, label: str, start: int, patterns: Iterable[str] = (), *, now: float
    ) -> Claim:
        """Take a subscriber in, or back in; events from `start` on are its."""
        claim = self.claims.get(sub)
        if claim is None:
            claim = Claim(sub, label, start, start, start, now, patterns=tuple(patterns))
            self.claims[sub] = claim
        self.come_back(claim, now=now)
        return claim

    def leave(
        self, claim: Claim, since: float, *, attached: bool, waited: bool, now: float
    ) -> None:
        """A subscriber is away; unless it is `waited` for, nobody is held up for it."""
        claim.away_since = since
        claim.attached = attached
        if claim.absent == waited:
            claim.absent = not waited
            self._settle(now)

    def come_back(self, claim: Claim, *, now: float) -> None:
        """A subscriber is there: it goes on where it was, and is waited for."""
        self.note_missed(claim)
        claim.away_since = None
        claim.absent = False
        claim.attached = claim.kept = True
        self._settle(now)

    def note_missed(self, claim: Claim) -> None:
        """What an absent subscriber has not taken and nobody has any more is lost to its absence.

        Under words that drop it is an overflow as ever.
        """
        buffer = self._buffer
        lossless = buffer.hold or buffer.spill is not None
        if claim.absent and lossless and not claim.evicted and buffer.first is not None:
            claim.missed_before = buffer.first

    def release(self, sub: int, *, now: float) -> Claim | None:
        """A subscriber has gone; what it claimed is free."""
        claim = self.claims.pop(sub, None)
        self._settle(now)
        return claim

    def report(
        self,
        sub: int,
        *,
        received: int,
        consumed: int,
        delivered: int,
        filtered: int,
        lost: Mapping[str, int],
        stop: int,
        now: float,
    ) -> Claim | None:
        """A subscriber's figures; the impossible (a stranger, the future) is refused."""
        claim = self.claims.get(sub)
        if claim is None or not claim.start <= consumed <= received <= stop:
            return None
        if consumed > claim.consumed:
            claim.progress_at = now
        claim.received = max(claim.received, received)
        claim.consumed = max(claim.consumed, consumed)
        claim.delivered, claim.filtered, claim.lost = delivered, filtered, dict(lost)
        claim.reported = True
        if (claim.evicted or claim.away) and self._has_caught_up(claim):
            claim.evicted = claim.away = False
        self._settle(now)
        return claim

    def is_shut(self) -> bool:
        """Whether the publisher has to wait now."""
        if self._window_bytes is None:
            spill = self._buffer.spill
            return spill is not None and spill.is_full()
        return self._buffer.total_bytes - self._floor_bytes > self._window_bytes

    def is_crowded(self, now: float) -> bool:
        """Whether to wait a moment: queues fill, and the one furthest behind is reading."""
        buffer = self._buffer
        return (
            self._queue_frames is not None
            and now - self._moved_at < BRAKE_S
            and buffer.total_frames - self._floor_frames > self._queue_frames
            and buffer.total_bytes - self._floor_bytes > BRAKE_BYTES
        )

    def blockers(self) -> list[Claim]:
        """The subscribers that hold the gate shut, or would."""
        window = self._window_bytes
        if window is None:
            if not self.is_shut():
                return []
            first = self._buffer.first or 0
            return [c for c in self._waiting() if c.received < first]  # theirs is what is on disk
        return [c for c in self._waiting() if self._behind_bytes(c) > window]

    def on_deadline(self, *, now: float) -> list[Claim]:
        """Mark who blocks since when; returns those evicted now."""
        if self._buffer.spill is not None:
            self._buffer.trim()  # there may be space again
            self._give_up_absent(now)
        blocking = {claim.sub for claim in self.blockers()}
        limit = self._evict_after_s
        evicted = []
        for claim in self.claims.values():
            if claim.sub not in blocking:
                claim.blocked_since = None
                continue
            if claim.blocked_since is None:
                claim.blocked_since = now
            stalled_from = max(claim.blocked_since, claim.progress_at)
            if limit is not None and now - stalled_from >= limit:
                claim.evicted = True
                claim.evictions += 1
                evicted.append(claim)
        if evicted:
            self._settle(now)
        return evicted

    def evict(self, sub: int, *, now: float) -> Claim | None:
        """Its packets were waited for too long: nor is it waited for here; `None` if it was not."""
        claim = self.claims.get(sub)
        if claim is None or claim.evicted:
            return None
        claim.evicted = True
        claim.evictions += 1
        self._settle(now)
        return claim

    def aside(self) -> list[int]:
        """Subscribers that are not waited for."""
        return [c.sub for c in self.claims.values() if c.evicted or c.away or c.absent]

    def behind(self, stop: int) -> list[Claim]:
        """Subscribers in touch that have not received everything before `stop`."""
        return [c for c in self._waiting() if c.received < stop]

    def let_go(self, claim: Claim, *, now: float) -> None:
        """It reads from the log for now: wait for it again when it has caught up."""
        claim.away = True
        self._settle(now)

    def take_back(self, claim: Claim, *, now: float) -> None:
        """Wait for it from now on, if it has caught up."""
        if claim.away and self._has_caught_up(claim):
            claim.away = False
            self._settle(now)

    def _waiting(self) -> list[Claim]:
        return [c for c in self.claims.values() if not (c.evicted or c.away or c.absent)]

    def _kept_for(self) -> list[Claim]:
        """Those for whom the spill, or a backlog, keeps what memory has no room for."""
        if self._buffer.hold:  # the ring alone, for those who are waited for
            return self._waiting()
        return [c for c in self.claims.values() if c.kept and not (c.evicted or c.away)]

    def _give_up_absent(self, now: float) -> None:
        """Nobody waits for room that those have who are not there: it is free."""
        while self.is_shut():
            last = min(self._kept_for(), key=_received, default=None)
            if last is None or not last.absent:
                return
            last.kept = False
            self._settle(now)

    def _has_caught_up(self, claim: Claim) -> bool:
        # What fell out of the buffer is not counted as behind, and is still to be reported.
        first = self._buffer.first
        if first is not None and claim.consumed < first:
            return False
        if self._buffer.spill is not None:
            return True
        return self._behind_bytes(claim) <= (self._window_bytes or 0)

    def _behind_bytes(self, claim: Claim) -> int:
        return self._buffer.bytes_since(claim.consumed)

    def _settle(self, now: float) -> None:
        # Kept for those who have yet to receive it; waited for until it is consumed.
        self._buffer.claim(min((c.received for c in self._kept_for()), default=None))
        waiting = self._waiting()
        if not waiting:
            self._floor_bytes = NEVER
            self._moved_at = -NEVER
            return
        last = min(waiting, key=_received)
        self._moved_at = last.progress_at
        self._floor_frames = self._buffer.total_frames - self._buffer.frames_since(last.received)
        behind = self._buffer.bytes_since(min(c.consumed for c in waiting))
        self._floor_bytes = self._buffer.total_bytes - behind


def _received(claim: Claim) -> int:
    return claim.received
