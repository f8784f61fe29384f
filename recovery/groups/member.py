"""One member of a work group, as a publisher knows it: credit, what it holds, and for how long.

What it holds are ranges, by attempt.  A lease is what was sent at once.  It ends when all of it is
settled, or when the member lets too much time pass: see `overdue`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.ranges import RangeSet

#: Leases kept beyond those that can hold anything, before the others are thrown out.
LEASES_SLACK = 64
#: A member with less than this part of its credit free waits until it has more.
PIECE_SHARE = 4
#: Events that are tried apart wait so long until their member has done with all others, and it
#: gets no others for so long after them: whoever gathers events before it works gets on.
APART_S = 1.0

Range = tuple[int, int]
AckRange = tuple[int, int, int]


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
        self.again: dict[int, RangeSet] = {}  #: held, by later attempts; none of them is empty
        self.settled = 0
        self.acked = 0
        self.delivered = 0
        self.waiting: deque[str] = deque()  #: keys whose next event waits for credit here
        self.lot: set[int] = set()  #: events in hand that are tried apart from others
        self.lot_max = 0  #: so many of them at once
        self.lot_at = 0.0  #: when it got the first of them
        self.is_kept_free = False  #: it gets nothing else, so that some can be tried
        self.kept_free_since: float | None = None
        self._leases: deque[Lease] = deque()

    @property
    def in_flight(self) -> int:
        """Events that it holds."""
        count = self.first_time.count
        if self.again:
            count += sum(ranges.count for ranges in self.again.values())
        return count

    @property
    def free(self) -> int:
        """Events that it may get."""
        if self.is_kept_free:
            return 0
        return self.prefetch - self.in_flight

    def hold(self, first: int, stop: int, attempt: int) -> None:
        """It has these from now on."""
        held = self.first_time
        if attempt > 1:
            held = self.again.setdefault(attempt, RangeSet())
        held.add(first, stop)

    def release(self, first: int, stop: int, attempt: int) -> list[Range]:
        """Take away what it holds of a range under that attempt."""
        held = self.first_time if attempt == 1 else self.again.get(attempt)
        if not held or first >= stop:
            return []
        pieces = held.overlap(first, stop)
        for piece in pieces:
            held.remove(*piece)
        if attempt > 1:
            self.lot.difference_update(*(range(*piece) for piece in pieces))
            if not held:
                del self.again[attempt]
        return pieces

    def may_try(self, lot: int, *, now: float) -> bool:
        """Return True when it can get an event that is one of a lot.

        What it has beside is waited for, but not for ever: some work takes hours.
        """
        if self.lot:
            return len(self.lot) < min(self.lot_max, lot) and self.in_flight < self.prefetch
        if not self.in_flight:
            return True
        self.is_kept_free = True
        if self.kept_free_since is None:
            self.kept_free_since = now
        return now - self.kept_free_since >= APART_S and self.in_flight < self.prefetch

    def try_apart(self, seq: int, lot: int, *, now: float) -> None:
        """It holds this event, one of a lot, from now on, and gets no others for a while."""
        if not self.lot:
            self.lot_max, self.lot_at = lot, now
        self.lot_max = min(self.lot_max, lot)
        self.lot.add(seq)
        self.is_kept_free = True

    def attempt_of(self, seq: int) -> int:
        """The attempt under which it holds an event; 0 if it does not."""
        if seq in self.first_time:
            return 1
        return next((n for n, ranges in self.again.items() if seq in ranges), 0)

    def holdings(self) -> list[AckRange]:
        """All that it holds."""
        found = [(*piece, 1) for piece in self.first_time]
        return found + [(*piece, n) for n, ranges in self.again.items() for piece in ranges]

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
            self._leases = deque(lease for lease in self._leases if self._holds(lease))

    def regain(self, seqs: range, attempt: int, *, now: float) -> None:
        """These it has had since before it joined: nothing is sent."""
        self.hold(seqs.start, seqs.stop, attempt)
        if attempt == 1:
            self._leases.append(Lease(seqs, (), now, self.settled, -1))
        else:
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
        while leases and not self._holds(leases[0]):
            leases.popleft()

    def _holds(self, lease: Lease) -> bool:
        """Tell whether anything of a lease is still held since then."""
        return next(iter(self._pieces(lease)), None) is not None

    def _held(self, lease: Lease) -> list[int]:
        """Which of a lease's events it holds since then, and not since a later one."""
        return [seq for first, stop, _ in self._pieces(lease) for seq in range(first, stop)]

    def _pieces(self, lease: Lease) -> Iterator[AckRange]:
        seqs = lease.seqs
        if isinstance(seqs, range):
            for first, stop in self.first_time.overlap(seqs.start, seqs.stop):
                yield first, stop, 1
            return
        for seq, attempt in zip(seqs, lease.attempts, strict=True):
            held = self.first_time if attempt == 1 else self.again.get(attempt, ())
            if seq in held:
                yield seq, seq + 1, attempt

    def unreceived(self, received: int) -> list[AckRange]:
        """What was sent after so many events, and it holds since."""
        leases = [lease for lease in self._leases if lease.before >= received]
        return [piece for lease in leases for piece in self._pieces(lease)]
