"""Members of a work group that come back, and what they say that they have done or have in hand.

A publisher that was killed goes on with what the disk knows, and that is a moment old.  The members
know the rest: an event that one of them has done is settled, and one that it has in hand stays with
it, under the attempt that it had.  So that nobody gets an event that another one is about to name,
the group is `paused` until all have spoken who may have something.

A member whose connection broke while the publisher lives speaks likewise.  What others have by then
is theirs; of two who name an event, the one with the later attempt has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshmsg.recovery.group_ledger import GroupLedger
from meshmsg.recovery.group_member import GroupMember
from meshmsg.recovery.group_policy import Trouble
from meshmsg.recovery.parcels import Parcels
from meshmsg.recovery.ranges import RangeSet
from meshmsg.recovery.work_line import Shelf

Range = tuple[int, int]
AckRange = tuple[int, int, int]
#: Attempts that ended so have failed: a member that comes back does not get the event back.
FAILED = ("nack", "timeout")
#: Events that a member can have in hand, and attempts that it can tell apart: it may lie.
HELD_MAX = 1_000_000
ATTEMPTS_MAX = 100


class Failure(NamedTuple):
    """An event that a member has refused."""

    seq: int
    attempt: int
    delay_s: float
    error: str


class GroupRecall(GroupLedger):
    """The part of a work group that takes back what members had before."""

    def __init__(self, name: str, start: int, shelf: Shelf) -> None:
        super().__init__(name, start, shelf)
        self.paused = False  #: nothing is dealt out
        self.recalled = 0  #: events that members had, or had done, when they came back
        self._returned = RangeSet()
        self._retries: dict[int, float] = {}
        self._due: deque[int] = deque()
        self._absent: list[int] = []  # on disk; to be sent again when they are here
        self._parcels = Parcels(shelf)
        self._keyed = False
        self._unkeyed: set[int] = set()  # in hand, and of a key that is yet to be read
        self._early: set[int] = set()  # in hand, and in line behind another one of their key

    def recall(
        self,
        number: int,
        done: Iterable[AckRange],
        held: Iterable[AckRange],
        failed: Iterable[Failure] = (),
        *,
        most: int = HELD_MAX,
        sealed: int,
        now: float,
    ) -> None:
        """A member is back: what it has done, has in hand, and has refused, that nobody else has.

        Saying it again is harmless: what is settled stays so.  It can have `most` events in hand.
        """
        member = self.members[number]
        finished = list(done)
        self._take_over(finished)
        wanted = RangeSet(
            piece for first, stop, _ in finished for piece in self._open(first, stop, sealed)
        )
        for a, b in self._free(wanted):
            for seq in self._troubled(a, b):
                self._forget(seq)
            self._settle(a, b)
            self.acked += b - a
            self.recalled += b - a
        failures = list(failed)
        refused = [(failure.seq, failure.seq + 1, failure.attempt) for failure in failures]
        self._take_back(member, [*held, *refused], most, sealed, now)
        for failure in failures:
            self._refuse(member, failure, now)
        self._advance()

    def _refuse(self, member: GroupMember, failure: Failure, now: float) -> None:
        raise NotImplementedError

    def _open(self, first: int, stop: int, sealed: int) -> list[Range]:
        """What of a range is not settled; it comes from the network, and may be anything."""
        first, stop = max(first, self.floor), min(stop, sealed)
        return self._settled.missing(first, stop) if first < stop else []

    def _take_back(
        self, member: GroupMember, held: list[AckRange], most: int, sealed: int, now: float
    ) -> None:
        """What a member has in hand stays with it."""
        self._take_over(held)
        wanted = RangeSet()
        attempts: dict[int, int] = {}
        for first, stop, attempt in held:
            for a, b in self._open(first, stop, sealed):
                end = min(b, a + most)
                wanted.add(a, end)
                most -= end - a
                if attempt > 1:  # of an event that it had more than once, the last counts
                    attempts |= {n: max(attempts.get(n, 1), attempt) for n in range(a, end)}
        free = self._free(wanted, member, attempts)
        for seq, attempt in sorted(attempts.items()):
            if seq in free:
                free.remove(seq, seq + 1)
                self._give(member, seq, seq + 1, attempt, now)
        for a, b in free:
            self._give(member, a, b, 1, now)

    def _give(self, member: GroupMember, first: int, stop: int, attempt: int, now: float) -> None:
        for seq in self._troubled(first, stop):
            self._forget(seq)
        if attempt > 1:
            for seq in range(first, stop):
                self._trouble[seq] = Trouble(attempt, reason="restart")
        self.recalled += stop - first
        member.regain(range(first, stop), attempt, now=now)
        if self._keyed and stop > self.cursor:
            self._unkeyed.update(seq for seq in range(first, stop) if seq not in self._keys)

    def _take_over(self, ranges: Iterable[AckRange]) -> None:
        """Who has named an event under an earlier attempt has it no more."""
        later: dict[int, RangeSet] = {}
        if self.paused:
            for first, stop, attempt in ranges:
                if first < stop and attempt > 1 and len(later) < ATTEMPTS_MAX:
                    later.setdefault(attempt, RangeSet()).add(first, stop)
        for attempt, events in later.items():
            for member in self.members.values():
                again = member.again
                for seq in [seq for seq, n in again.items() if n < attempt and seq in events]:
                    del again[seq]
                    self._returned.add(seq, seq + 1)
                if not member.first_time:
                    continue
                for first, stop in events:
                    for a, b in member.first_time.overlap(first, stop):
                        member.first_time.remove(a, b)
                        self._returned.add(a, b)

    def _free(
        self,
        wanted: RangeSet,
        member: GroupMember | None = None,
        attempts: Mapping[int, int] | None = None,
    ) -> RangeSet:
        """Those of some events that nobody has, taken out of wherever they wait.

        With a `member`, only those that it may have in hand under their attempt, else 1.
        """
        if not wanted:
            return RangeSet()
        ahead, waiting = RangeSet(), RangeSet()
        for first, stop in wanted:
            for a, b in self._done.missing(max(first, self.cursor), max(stop, self.cursor)):
                ahead.add(a, b)
            for a, b in self._returned.overlap(first, stop):
                waiting.add(a, b)
        withdrawn = self._keys.withdraw(wanted)
        for seqs in (self._retries, self._due, self._absent, withdrawn):
            for seq in seqs:
                if seq in wanted:
                    waiting.add(seq, seq + 1)
        for seq in [] if member is None else self._over(wanted, member, attempts or {}):
            ahead.remove(seq, seq + 1)
            waiting.remove(seq, seq + 1)
            if seq in withdrawn:
                self._again(seq)
        self._leave_lines(waiting)
        for a, b in ahead:
            self._done.add(a, b)
            waiting.add(a, b)
        return waiting

    def _leave_lines(self, gone: RangeSet) -> None:
        if not gone:
            return
        for a, b in gone:
            self._returned.remove(a, b)
        for seq in [seq for seq in self._retries if seq in gone]:
            del self._retries[seq]
        self._due = deque(seq for seq in self._due if seq not in gone)
        self._absent = [seq for seq in self._absent if seq not in gone]

    def _over(
        self, wanted: RangeSet, member: GroupMember, attempts: Mapping[int, int]
    ) -> list[int]:
        """Events of which a later attempt has begun, because this one had failed."""
        found = []
        for seq, trouble in self._trouble.items():
            cut_off = trouble.last == member.number and trouble.reason not in FAILED
            if seq in wanted and trouble.attempt > attempts.get(seq, 1) + cut_off:
                found.append(seq)
        return found

    def _troubled(self, first: int, stop: int) -> list[int]:
        if stop - first < len(self._trouble):
            return [seq for seq in range(first, stop) if seq in self._trouble]
        return [seq for seq in self._trouble if first <= seq < stop]

    # --- keys ---

    def _settle(self, first: int, stop: int) -> None:
        if self._early:
            self._early -= {seq for seq in self._early if first <= seq < stop}
        super()._settle(first, stop)

    def _find_keys(self) -> bool:
        """Put what members have in hand at the head of its key; `False` if a frame has to come."""
        for seq in sorted(self._unkeyed):
            if seq < self.floor or seq in self._settled:
                self._unkeyed.discard(seq)
                continue
            found = self._parcels.frame(seq)
            if found is None and self.shelf.stored(seq, seq + 1):
                self.shelf.wanted.add(seq, seq + 1)
                continue
            self._unkeyed.discard(seq)
            key = None if found is None else found[1].key_at(seq - found[0])
            if key is not None:
                self._hold_key(key, seq)
        return not self._unkeyed

    def _hold_key(self, key: str, seq: int) -> None:
        if not self._keys.hold(key, seq):
            self._early.add(seq)
        if seq in self._due or seq in self._returned:  # given back meanwhile
            self._leave_lines(RangeSet([(seq, seq + 1)]))
            self._again(seq)

    def _again(self, seq: int, *, ahead: bool = False) -> None:
        """An event with a key is in nobody's hand any more, and goes out when its turn comes."""
        self._early.discard(seq)
        self._keys.again(seq, ahead=ahead)

    def _is_out(self, seq: int) -> bool:
        """Whether a head whose turn has come is with a member already."""
        self._early.discard(seq)
        if any(seq in m.first_time or seq in m.again for m in self.members.values()):
            return True
        self._retries.pop(seq, None)
        return False
