"""One member of a work group, as a publisher knows it: credit, what it holds, and for how long.

What it holds for the first time are ranges; what it got again are single events, each with its
attempt.  A lease is what was sent at once.  It ends when all of it is settled, or when the member
lets too much time pass: see `overdue`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from meshmsg.recovery.loss_detector import NEVER
from meshmsg.recovery.ranges import RangeSet

#: Leases kept beyond those that can hold anything, before the others are thrown out.
LEASES_SLACK = 64
#: A member with less than this part of its credit free waits until it has more.
PIECE_SHARE = 4


class Lease:
    """Events that were sent to a member at once."""

    __slots__ = ("attempts", "before", "mark", "sent_at", "seqs", "started_at")

    def __init__(
        self,
        seqs: range | Sequence[int],
        attempts: Sequence[int],
        sent_at: float,
        mark: int,
        before: int,
    ) -> None:
        self.seqs = seqs  #: rising; a range if all are in a row and of attempt 1
        self.attempts = attempts  #: of each, for others than ranges
        self.sent_at = sent_at
        self.mark = mark  #: events that the member had settled by then
        self.before = before  #: events that were sent to it before
        self.started_at: float | None = None  #: since when it is known to have been begun


class GroupMember:
    """What one member holds."""

    def __init__(
        self, number: int, label: str, prefetch: int, ack_timeout_s: float, *, now: float
    ) -> None:
        self.number = number
        self.label = label
        self.prefetch = prefetch
        self.piece = max(1, prefetch // PIECE_SHARE)  #: of a backlog, it gets at least so much
        self.ack_timeout_s = ack_timeout_s
        self.joined_at = self.progress_at = self.served_at = now
        self.first_time = RangeSet()  #: held, attempt 1
        self.again: dict[int, int] = {}  #: held, attempt by number
        self.settled = 0
        self.acked = 0
        self.delivered = 0
        self.waiting: deque[str] = deque()  #: keys whose next event waits for credit here
        self._leases: deque[Lease] = deque()

    @property
    def in_flight(self) -> int:
        """Events that it holds."""
        return self.first_time.count + len(self.again)

    @property
    def free(self) -> int:
        """Events that it may get."""
        return self.prefetch - self.first_time.count - len(self.again)

    def is_better(self, best: GroupMember, avoid: int) -> bool:
        """Whether to give an event to it rather than to another one; to `avoid` only if need be."""
        if (self.number == avoid) != (best.number == avoid):
            return best.number == avoid
        if self.free != best.free:
            return self.free > best.free
        return self.served_at < best.served_at

    def change(self, prefetch: int, ack_timeout_s: float) -> None:
        """It asks for something else than before."""
        self.prefetch, self.ack_timeout_s = prefetch, ack_timeout_s
        self.piece = max(1, prefetch // PIECE_SHARE)

    def lend(
        self, seqs: range | Sequence[int], attempts: Sequence[int] = (), *, now: float
    ) -> None:
        """These are sent to it now (`first_time` and `again` know them already)."""
        self.served_at = now
        self._leases.append(Lease(seqs, attempts, now, self.settled, self.delivered))
        self.delivered += len(seqs)
        if len(self._leases) > self.prefetch + LEASES_SLACK:
            self._leases = deque(lease for lease in self._leases if self._held(lease))

    def regain(self, seqs: range, attempt: int, *, now: float) -> None:
        """These it has had since before it joined: nothing is sent."""
        if attempt == 1:
            self.first_time.add(seqs.start, seqs.stop)
            self._leases.append(Lease(seqs, (), now, self.settled, -1))
        else:
            self.again.update(dict.fromkeys(seqs, attempt))
            self._leases.append(Lease(list(seqs), [attempt] * len(seqs), now, self.settled, -1))

    def note_settled(self, count: int, *, now: float) -> None:
        """It has acknowledged or given back this many."""
        self.settled += count
        self.progress_at = now

    def overdue(self, *, now: float) -> list[int]:
        """Events whose time is up.

        Members work in the order in which events were sent.  So a lease that was not begun waits
        for those before it, and its time runs from the member's last settlement; once the member
        has settled a whole prefetch of others, it must have begun this one, and time runs out.
        """
        found: list[int] = []
        for lease in list(self._leases):
            if lease.started_at is None and self.settled - lease.mark >= self.prefetch:
                lease.started_at = now
            if now < self._due(lease):
                if lease.started_at is None:
                    break
                continue
            found += self._held(lease)
            self._leases.remove(lease)
        self._prune()
        return found

    def deadline(self) -> float:
        """When `overdue` may have something."""
        self._prune()
        due = NEVER
        for lease in self._leases:
            due = min(due, self._due(lease))
            if lease.started_at is None:
                break
        return due

    def _due(self, lease: Lease) -> float:
        since = lease.started_at
        if since is None:
            since = max(lease.sent_at, self.progress_at)
        return since + self.ack_timeout_s

    def _prune(self) -> None:
        leases = self._leases
        while leases and not self._held(leases[0]):
            leases.popleft()

    def _held(self, lease: Lease) -> list[int]:
        """Which of a lease's events it holds since then, and not since a later one."""
        seqs = lease.seqs
        if isinstance(seqs, range):
            pieces = self.first_time.overlap(seqs.start, seqs.stop)
            return [seq for first, stop in pieces for seq in range(first, stop)]
        return [
            seq
            for seq, attempt in zip(seqs, lease.attempts, strict=True)
            if (self.again.get(seq) == attempt if attempt > 1 else seq in self.first_time)
        ]

    def unreceived(self, received: int) -> list[tuple[int, int, int]]:
        """What was sent after so many events, and it holds since: ranges with their attempts."""
        leases = [lease for lease in self._leases if lease.before >= received]
        return [
            (seq, seq + 1, self.again.get(seq, 1)) for lease in leases for seq in self._held(lease)
        ]

    def holdings(self) -> Iterable[tuple[int, int]]:
        """All that it holds: number and attempt, in order."""
        firsts = [(seq, 1) for first, stop in self.first_time for seq in range(first, stop)]
        return sorted([*firsts, *self.again.items()])
