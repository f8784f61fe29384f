"""Members of a work group that come back, and what they say that they have done or have in hand.

A publisher that was killed goes on with what the disk knows, and that is a moment old.  The members
know the rest: an event that one of them has done is settled, and one that it has in hand stays with
it, under the attempt that it had.  So that nobody gets an event that another one is about to name,
the group is `recalling` until all have spoken who may have something.

A member whose connection broke while the publisher lives speaks likewise, of what was taken from it
then.  What others have by then is theirs; of two who name an event, the one with the later attempt
has it.  What a member may speak of is `trust`: it may lie, and its ranges may be anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from meshmsg.recovery.groups.deliveries import Parcels
from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.numbering import Shelf
from meshmsg.recovery.groups.policy import Trouble
from meshmsg.recovery.groups.settled import GroupLedger
from meshmsg.recovery.groups.trust import Departed, Trust, by_attempt, common
from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
AckRange = tuple[int, int, int]
#: Attempts that ended so have failed: a member that comes back does not get the event back.
FAILED = ("nack", "timeout")
#: Events that a member can have in hand for another time than the first: each has its own entry.
AGAIN_MAX = 10_000
#: Events in hand whose keys are read in one turn.
KEYS_A_TURN = 10_000
#: A group without a mark on disk deals out whatever there is.
NO_LIMIT = 1 << 63
#: Events that may be dealt out between two saves, at least.
AHEAD_MIN = 256
#: So many times as many as between the last two: work that sets in is not held up for long.
AHEAD_TIMES = 8


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
        self.recalling = False  #: members of an earlier start have yet to speak
        self.paused = False  #: by an operator: nothing is dealt out
        self.recalled = 0  #: events that members had, or had done, when they came back
        self.stale = 0  #: events that members spoke of, and that were not theirs
        self.dealt = start  #: an earlier start has dealt out nothing from here on
        self.is_marked = False  #: and the disk knew how far that was
        self.limit = NO_LIMIT  #: nothing from here on is dealt out before the disk has a later mark
        self._ahead = AHEAD_MIN
        self._marked_at = start
        self._departed = Departed()
        self._returned = RangeSet()
        self._retries: dict[int, float] = {}
        self._due: deque[int] = deque()
        self._suspects: deque[int] = deque()  # as `_due`: one of a lot has ended its member
        self._absent: list[int] = []  # on disk; to be sent again when they are here
        self._parcels = Parcels(shelf)
        self._keyed = False
        self._unkeyed = RangeSet()  # in hand, and of a key that is yet to be read
        self._keys_left = False  # some of them can be read at once
        self._early: set[int] = set()  # in hand, and in line behind another one of their key

    # --- what was dealt out, on disk ---

    def mark(self, credit: int = 0) -> int:
        """Up to where events may be dealt out once this is saved: members may claim those.

        Far enough for what members can have at once, those included that are about to come and
        have so much `credit`, and for more than they took since the last save: so nobody waits for
        the disk in the long run.
        """
        taken = self.cursor - self._marked_at
        self._marked_at = self.cursor
        credit += sum(member.prefetch for member in self.members.values())
        self._ahead = max(AHEAD_MIN, credit, AHEAD_TIMES * taken)
        limit = 0 if self.limit == NO_LIMIT else self.limit
        return max(limit, self.dealt, self.cursor + self._ahead)

    def needs_mark(self, sealed: int) -> bool:
        """Return True when dealing out comes near the mark that the disk has."""
        return self.limit < sealed and self.limit - self.cursor <= self._ahead // 2

    def stands(self, sealed: int) -> bool:
        """Return True when it has come to the mark, and there is more."""
        return self.cursor >= self.limit < sealed

    def doubt(self) -> None:
        """Not all are back who may have had work: what may have been theirs says that it may be."""
        if self.is_marked:
            self._doubt(self.floor, self.dealt)

    # --- claims ---

    def recall(
        self,
        number: int,
        done: Iterable[AckRange],
        held: Iterable[AckRange],
        failed: Iterable[Failure] = (),
        *,
        awaited: bool,
        most: int,
        sealed: int,
        now: float,
    ) -> int:
        """A member is back: what it has done, has in hand, and has refused, that nobody else has.

        Saying it again is harmless: what is settled stays so.  It can have `most` events in hand.
        Believed is a member that was `awaited` after a restart, of what may have been dealt out
        then; any other only of what it had when it was lost.  Returns how many events that it
        names are neither.
        """
        member = self.members[number]
        finished, failures = list(done), list(failed)
        in_hand = [*held, *((f.seq, f.seq + 1, f.attempt) for f in failures)]
        named, beyond = self._named([*finished, *in_hand], sealed)
        before = self.recalled
        departed = self._departed.take(number)
        trust = Trust(self._settled.missing(self.floor, self.dealt)) if awaited else departed
        self._finish(by_attempt(finished), trust, take_over=awaited)
        self._take_back(member, by_attempt(in_hand), trust, most, now, take_over=awaited)
        for failure in failures:
            self._refuse(member, failure, now)
        self._advance()
        stale = named - (self.recalled - before) + beyond
        self.stale += stale
        return stale

    def held_by(self, number: int) -> int:
        """Return how many events a member has, or had when it was lost."""
        member = self.members.get(number)
        return (0 if member is None else member.in_flight) + self._departed.events(number).count

    def has_had(self, number: int, first: int, stop: int) -> bool:
        """Return True when a member has one of these events, or had it when it was lost."""
        member = self.members.get(number)
        held = [] if member is None else [member.first_time, *member.again.values()]
        return any(events.touches(first, stop) for events in (self._departed.events(number), *held))

    def _refuse(self, member: GroupMember, failure: Failure, now: float) -> bool:
        raise NotImplementedError

    def _part_with(self, member: GroupMember) -> list[AckRange]:
        """A member is gone: all that it held is nobody's, and it may speak of it later."""
        held = member.holdings()
        member.first_time, member.again = RangeSet(), {}
        self._departed.add(member.number, held)
        return held

    def _named(self, ranges: list[AckRange], sealed: int) -> tuple[int, int]:
        """How many events of the stream are named and not settled, and how often others are."""
        events = RangeSet()
        beyond = 0
        for first, stop, _ in sorted(ranges):
            low, high = max(first, self.floor), min(stop, sealed)
            beyond += stop > max(first, sealed)
            if low < high:
                events.add(low, high)
        unsettled = [piece for a, b in events for piece in self._settled.missing(a, b)]
        return sum(b - a for a, b in unsettled), beyond

    def _finish(
        self, finished: list[tuple[int, RangeSet]], trust: Trust, *, take_over: bool
    ) -> None:
        """What a member has done is settled, unless somebody else has it."""
        wanted = RangeSet()
        for attempt, ranges in finished:
            pieces = trust.take(ranges, attempt)
            if take_over:
                self._take_over(RangeSet(pieces), attempt)
            for piece in pieces:
                wanted.add(*piece)
        for a, b in self._free(wanted):
            for seq in self._troubled(a, b):
                self._forget(seq)
            self._settle(a, b)
            self.acked += b - a
            self.recalled += b - a

    def _take_back(
        self,
        member: GroupMember,
        held: list[tuple[int, RangeSet]],
        trust: Trust,
        most: int,
        now: float,
        *,
        take_over: bool,
    ) -> None:
        """What a member has in hand stays with it: the newest first, if it is too much."""
        wanted = RangeSet()
        attempts: dict[int, int] = {}
        for attempt, ranges in held:  # of an event that it had more than once, the last counts
            room = most if attempt == 1 else min(most, AGAIN_MAX - len(attempts))
            pieces = newest(trust.take(ranges, attempt), room)
            if take_over:
                self._take_over(RangeSet(pieces), attempt)
            for a, b in pieces:
                wanted.add(a, b)
                most -= b - a
                if attempt > 1:
                    attempts.update(dict.fromkeys(range(a, b), attempt))
        free = self._free(wanted, member, attempts)
        for seq, attempt in sorted(attempts.items()):
            if seq in free:
                free.remove(seq, seq + 1)
                self._give(member, seq, seq + 1, attempt, now)
        for a, b in free:
            self._give(member, a, b, 1, now)

    def _give(self, member: GroupMember, first: int, stop: int, attempt: int, now: float) -> None:
        before = {seq: self._trouble[seq] for seq in self._troubled(first, stop)}
        for seq in before:
            self._forget(seq)
        for seq in range(first, stop) if attempt > 1 else ():
            spared = min(attempt - 1, before[seq].spared if seq in before else 0)
            self._trouble[seq] = Trouble(attempt, spared, reason="restart")
        self.recalled += stop - first
        member.regain(range(first, stop), attempt, now=now)
        if self._keyed and stop > self.cursor:
            self._unkeyed.add(first, stop)

    def _take_over(self, events: RangeSet, attempt: int) -> None:
        """Who has named an event under an earlier attempt has it no more."""
        for member in self.members.values() if attempt > 1 else ():
            for n, held in [(1, member.first_time), *member.again.items()]:
                for piece in common(events, held) if n < attempt else ():
                    member.release(*piece, n)
                    self._returned.add(*piece)

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
        for seqs in (self._retries, self._due, self._suspects, self._absent, withdrawn):
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
        self._suspects = deque(seq for seq in self._suspects if seq not in gone)
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
        """Put what members have in hand at the head of its key; `False` if that takes longer."""
        seqs = islice((n for a, b in self._unkeyed for n in range(a, b)), KEYS_A_TURN)
        turn = list(seqs)
        away = [seq for seq in turn if not self._find_key(seq)]
        for seq in away:
            self._unkeyed.add(seq, seq + 1)
        self._keys_left = bool(self._unkeyed) and not away
        return not self._unkeyed

    def _find_key(self, seq: int) -> bool:
        """Read the key of an event in hand; `False` if its frame has to come from disk."""
        self._unkeyed.remove(seq, seq + 1)
        if seq < self.floor or seq in self._settled or seq in self._keys:
            return True
        found = self._parcels.frame(seq)
        if found is None and self.shelf.stored(seq, seq + 1):
            self.shelf.wanted.add(seq, seq + 1)
            return False
        key = None if found is None else found[1].key_at(seq - found[0])
        if key is not None:
            self._hold_key(key, seq)
        return True

    def _hold_key(self, key: str, seq: int) -> None:
        if not self._keys.hold(key, seq):
            self._early.add(seq)
        if seq in self._due or seq in self._suspects or seq in self._returned:  # back meanwhile
            self._leave_lines(RangeSet([(seq, seq + 1)]))
            self._again(seq)

    def _again(self, seq: int, *, ahead: bool = False) -> None:
        """An event with a key is in nobody's hand any more, and goes out when its turn comes."""
        self._early.discard(seq)
        self._keys.again(seq, ahead=ahead)

    def _is_out(self, seq: int) -> bool:
        """Whether a head whose turn has come is with a member already."""
        self._early.discard(seq)
        if any(member.attempt_of(seq) for member in self.members.values()):
            return True
        self._retries.pop(seq, None)
        return False


def newest(pieces: list[Range], most: int) -> list[Range]:
    """The highest numbers of rising ranges, so many of them."""
    found = []
    for first, stop in reversed(pieces):
        if most <= 0:
            break
        found.append((max(first, stop - most), stop))
        most -= stop - first
    return found[::-1]
