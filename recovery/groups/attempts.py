"""What did not go well in a work group: attempts, suspicion, and events that are given up.

Of what a lost member held, one event may have ended it, and nobody knows which: none of them counts
as tried, and each is tried apart from others, until it is settled or known to be the one.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.numbering import Shelf
from meshmsg.recovery.groups.policy import DeadLetter, GroupPolicy, Trouble
from meshmsg.recovery.groups.recall import GroupRecall

#: What a member had that was lost comes again in so many lots at most.
LOTS_MAX = 64
ERROR_CHARS_MAX = 2000
MEMBERS_NAMED_MAX = 100


class Revival(NamedTuple):
    """A dead letter that is to come again."""

    number: int
    attempt: int  #: the last one that it had
    key: str | None


class GroupTrouble(GroupRecall):
    """The part of a work group that sees to what has to come again."""

    def __init__(self, name: str, start: int, shelf: Shelf) -> None:
        super().__init__(name, start, shelf)
        self.policy = GroupPolicy()
        self._heap: list[tuple[float, int]] = []
        self._graves: dict[int, Trouble] = {}  # on disk; given up when they are here
        self._wary = False  # some events may have to be tried apart from others
        self._revived: dict[int, str | None] = {}  # with their keys; in line when members are here

    def _take_away(
        self,
        seqs: list[int],
        member: GroupMember,
        reason: str,
        now: float,
        tried: set[int],
        *,
        counts: bool = True,
    ) -> None:
        """A member did not end these well, and they come again.

        One that it had alone, or that was tried there, has had its attempt.  Of several one may
        have ended the member, and nobody knows which, nor what it had opened: none of them counts,
        and each is tried apart, in lots that are smaller than what was lost.  So one that ends
        every member is alone soon, and dies alone.  Where it did not end the member at all
        (`counts`), no attempt counts.
        """
        lot = -(-len(seqs) // LOTS_MAX)
        self._wary = self._wary or bool(seqs)
        for seq in seqs:
            trouble = self._note(seq, member, reason)
            trouble.lot = lot
            if counts and (len(seqs) == 1 or tried == {seq}):
                self._count(seq, trouble, 0.0, now)
            else:
                trouble.spare()
                self._retry(seq, now)

    def _fail(
        self, seq: int, member: GroupMember, reason: str, error: str, delay_s: float, *, now: float
    ) -> None:
        trouble = self._note(seq, member, reason)
        trouble.error = error[:ERROR_CHARS_MAX] or trouble.error
        trouble.lot = 0
        self._count(seq, trouble, delay_s, now)

    def _note(self, seq: int, member: GroupMember, reason: str) -> Trouble:
        """Write down who had an event that did not go well."""
        trouble = self._trouble.get(seq)
        if trouble is None:
            trouble = self._trouble[seq] = Trouble()
        if len(trouble.members) < MEMBERS_NAMED_MAX:
            trouble.members.append(member.label)
        trouble.reason, trouble.last = reason, member.number
        return trouble

    def _count(self, seq: int, trouble: Trouble, delay_s: float, now: float) -> None:
        """An attempt has failed: there is another one, or it was the last."""
        if trouble.counted >= self.policy.max_attempts:
            self._bury(seq, trouble)
            return
        trouble.attempt += 1
        self._retry(seq, now + delay_s)

    def _retry(self, seq: int, due: float) -> None:
        self.changes += 1
        self._retries[seq] = due
        heappush(self._heap, (due, seq))

    def _bury(self, seq: int, trouble: Trouble) -> None:
        found = self._parcels.frame(seq)
        if found is None and self.shelf.stored(seq, seq + 1):
            self.shelf.wanted.add(seq, seq + 1)
            self._graves[seq] = trouble
            return
        self._trouble.pop(seq, None)
        if found is None:
            self._lose(seq, seq + 1)
        else:
            base, frame = found
            self.dead += 1
            self._outcomes.note_dead(seq)
            self.dead_letters.append(DeadLetter(frame, seq - base, trouble))
            self._settle(seq, seq + 1)
        self._advance()

    def revive(self, letters: Iterable[Revival]) -> int:
        """Dead letters come again, each with all its attempts; returns how many of them.

        An event that is not settled is nobody's dead letter any more.
        """
        revived = 0
        for number, attempt, key in letters:
            if not self.is_settled(number):
                continue
            self._reopen(number)
            # Under a later attempt than any before: whoever still has it is refused.
            self._trouble[number] = Trouble(attempt + 1, attempt, reason="redriven")
            self._revived[number] = key if self._keyed else None
            revived += 1
        return revived

    def _send_revived(self) -> None:
        """Put dead letters that come again in line, behind what is there of their key."""
        revived, self._revived = self._revived, {}
        for number, key in revived.items():
            if key is None:
                self._line_up(number)
            else:
                self._keys.add(key, number)

    def _ripen(self, now: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, seq = heappop(heap)
            if self._retries.get(seq) != due:
                continue
            del self._retries[seq]
            self._line_up(seq)

    def _line_up(self, seq: int, *, ahead: bool = False) -> None:
        """An event goes out when its turn comes, under the attempt that it has."""
        if seq in self._keys:
            self._again(seq, ahead=ahead)
            return
        line = self._suspects if self._trouble[seq].lot else self._due
        if ahead:
            line.appendleft(seq)
        else:
            line.append(seq)
