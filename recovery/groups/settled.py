"""What of a work group's events is settled: its floor, what lies beyond it, and what is lost.

The half of a group that outlives its publisher: `state` is what a restart needs, `restore` goes on
with it.  Who has an event, and who gets it, is `group`'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from meshmsg.recovery.groups.fates import Fate, Outcomes
from meshmsg.recovery.groups.key_order import KeyOrder
from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.numbering import Shelf
from meshmsg.recovery.groups.policy import DeadLetter, Trouble
from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
#: Dead letters that could not be published and are kept to be tried again.
LETTERS_MAX = 10_000


class GroupLedger:
    """The books of one group on one stream."""

    def __init__(self, name: str, start: int, shelf: Shelf) -> None:
        self.name = name
        self.start = start
        self.cursor = start  #: events from here on have not been looked at
        self.floor = start  #: all events before are settled
        self.members: dict[int, GroupMember] = {}
        self.filtered = self.acked = self.dead = 0
        self.lost: Counter[str] = Counter()
        self.losses: list[tuple[int, int, str]] = []  #: not yet told to the members
        self.dead_letters: list[DeadLetter] = []  #: not yet published
        self.changes = 0  #: grows with whatever `state` tells
        self.loss_reason = "overflow"
        self.generation = 0  #: rises when the group is reset
        self.redriven = (0, 0)  #: of its dead letters, those before this place were sent again
        self.shelf = shelf
        self._settled = RangeSet()
        self._trouble: dict[int, Trouble] = {}
        self._done = RangeSet()  # settled before a restart, and not passed by the cursor yet
        self._owed = RangeSet()  # given up, and too many to be kept: come again at the next start
        self._restored = RangeSet()  # tried before a restart, and not passed yet either
        self._doubtful = RangeSet()  # of these, what a member may have had that is not back
        self._keys = KeyOrder(self.members)
        self._outcomes = Outcomes()

    # --- across restarts ---

    def restore(
        self,
        settled: Iterable[Range],
        attempts: Mapping[int, int],
        spared: Mapping[int, int] | None = None,
        doubtful: Iterable[Range] = (),
    ) -> None:
        """Before anybody has come: what was settled by an earlier start, and tried by it."""
        for first, stop in settled:
            self._settled.add(max(first, self.start), max(stop, self.start))
        self._done = self._settled.copy()
        if self._settled:
            self._outcomes.forget_before(self._settled.bounds[1])
        self.acked = self._settled.count  # they were, or else filtered or given up
        self._advance()
        self.cursor = max(self.cursor, self.floor)
        for seq, attempt in sorted(attempts.items()):
            if attempt > 1 and seq >= self.cursor and seq not in self._done:
                uncounted = min(attempt, (spared or {}).get(seq, 0))
                self._trouble[seq] = Trouble(attempt, uncounted, reason="restart")
                self._restored.add(seq, seq + 1)
        for first, stop in doubtful:
            self._doubt(first, stop)

    def state(self) -> tuple[int, list[Range], dict[int, int]]:
        """For `restore`: the floor, what is settled beyond it, and attempts that are not 1.

        An event whose dead letter is not published counts as not settled.
        """
        attempts = {seq: trouble.attempt for seq, trouble in self._trouble.items()}
        if not self.dead_letters and not self._owed:
            return self.floor, list(self._settled), attempts
        owed = self._owed.copy()
        for letter in self.dead_letters:
            seq = self._number(letter)
            attempts[seq] = letter.trouble.attempt
            owed.add(seq, seq + 1)
        floor = min(self.floor, owed.bounds[0])
        settled = self._settled.copy()
        settled.add(floor, self.floor)
        for first, stop in owed:
            settled.remove(first, stop)
        return floor, list(settled), attempts

    @property
    def spared(self) -> dict[int, int]:
        """For `restore`: attempts that do not count."""
        return {seq: trouble.spared for seq, trouble in self._trouble.items() if trouble.spared}

    @property
    def doubtful(self) -> list[Range]:
        """For `restore`: what may have been given to members that are not back."""
        return list(self._doubtful)

    def _doubt(self, first: int, stop: int) -> None:
        for a, b in self._done.missing(max(first, self.cursor), max(stop, self.cursor)):
            self._doubtful.add(a, b)
            self._restored.add(a, b)

    def _pass(self, seq: int) -> None:
        """The cursor passes an event: if somebody may have had it, it comes again."""
        self._restored.discard_before(seq + 1)
        if seq in self._doubtful:
            self._doubtful.discard_before(seq + 1)
            self._trouble.setdefault(seq, Trouble(reason="restart")).spare()

    def owe(self, letters: list[DeadLetter]) -> None:
        """These could not be published; they are kept, within a bound, to be tried again."""
        self.dead_letters = letters[:LETTERS_MAX] + self.dead_letters
        for letter in letters[LETTERS_MAX:]:
            self._owed.add(self._number(letter), self._number(letter) + 1)

    def _number(self, letter: DeadLetter) -> int:
        number = self.shelf.line.number(letter.frame.epoch, letter.seq)
        assert number is not None
        return number

    def _forget(self, seq: int) -> None:
        self._restored.remove(seq, seq + 1)
        self._doubtful.remove(seq, seq + 1)
        self._trouble.pop(seq, None)

    def fate(self, seq: int) -> Fate:
        """What has become of an event so far, by its number on the line."""
        if seq < self.start:
            return Fate("before")
        if seq < self.floor or seq in self._settled:
            return self._outcomes.of(seq)
        for member in self.members.values():
            if held := member.attempt_of(seq):
                return Fate("held", member.label, held)
        trouble = self._trouble.get(seq)
        if trouble is None:
            return Fate("waits", attempt=1)
        return Fate("waits", attempt=trouble.attempt, reason=trouble.error or trouble.reason)

    # --- settling ---

    def is_settled(self, number: int) -> bool:
        """Return True for an event that is done with, of before the group began too."""
        return number < self.floor or number in self._settled

    def unsettled_before(self, number: int) -> int:
        """Return how many events before a number are not settled."""
        gaps = self._settled.missing(self.floor, max(self.floor, number))
        return sum(stop - first for first, stop in gaps)

    def _reopen(self, number: int) -> None:
        """A dead letter is an event again that is not settled."""
        self.changes += 1
        if number < self.start:  # of before this start: what lies between was settled then
            self._settled.add(number, self.start)
            self.acked += self.start - number
            self.start = number
        if self.dead:
            self.dead -= 1
        else:  # given up by an earlier start
            self.acked -= 1
        self._settled.add(min(number, self.floor), self.floor)
        self._settled.remove(number, number + 1)
        self.floor = min(self.floor, number)

    def _settle(self, first: int, stop: int) -> None:
        self.changes += 1
        self._settled.add(first, stop)
        if self._keys:
            self._keys.settle_all(first, stop)

    def _lose(self, first: int, stop: int) -> None:
        """Nobody can have these any more."""
        for low, high, reason in self.shelf.reasons(first, stop, self.loss_reason):
            self.lost[reason] += high - low
            self._outcomes.note_lost(low, high, reason)
            last = self.losses[-1] if self.losses else None
            if last is not None and last[1] == low and last[2] == reason:
                self.losses[-1] = (last[0], high, reason)
            else:
                self.losses.append((low, high, reason))
        self._settle(first, stop)

    def _advance(self) -> None:
        settled = self._settled
        if settled and settled.bounds[0] <= self.floor:
            self.floor = settled.pop_first()[1]
            if self.shelf.is_used:
                self.shelf.forget(self.floor)
