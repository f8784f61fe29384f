"""The order of keys in a work group: of each key one event is out, the others stand in line.

A key is busy from the first of its events that was looked at until the last is settled.  Its head
is out (with a member, or waiting to be tried again), or waits for credit at the key's member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.rendezvous import Owners
from meshmsg.recovery.stream.ranges import RangeSet


class _Line:
    """The events of a busy key."""

    __slots__ = ("head", "queue", "waits")

    def __init__(self, head: int) -> None:
        self.head = head
        self.waits = False  #: for credit, or for a member at all
        self.queue: deque[int] = deque()


class KeyOrder:
    """Keys that are busy, and who has them."""

    def __init__(self, members: dict[int, GroupMember]) -> None:
        self._members = members
        self._lines: dict[str, _Line] = {}
        self._key_of: dict[int, str] = {}
        self._orphans: deque[str] = deque()
        self._owners = Owners()
        self.parked = 0  #: events that stand in line behind the head of their key

    def __bool__(self) -> bool:
        return bool(self._key_of)

    def __contains__(self, seq: int) -> bool:
        return seq in self._key_of

    @property
    def waiting(self) -> int:
        """Heads that wait for credit, or for a member at all."""
        return len(self._orphans) + sum(len(m.waiting) for m in self._members.values())

    def on_members_changed(self, left: Iterable[str] = ()) -> None:
        """Heads that wait go to whom they belong now; those that are out move when settled."""
        self._owners.set_members(self._members)
        waiting = [*self._orphans, *left]
        self._orphans.clear()
        for member in self._members.values():
            waiting += member.waiting
            member.waiting.clear()
        for key in waiting:
            self._offer(key)

    def add(self, key: str, seq: int) -> GroupMember | None:
        """An event with a key; returns who is to have it, `None` if it stands in line."""
        self._key_of[seq] = key
        line = self._lines.get(key)
        if line is not None:
            line.queue.append(seq)
            self.parked += 1
            return None
        self._lines[key] = _Line(seq)
        return self._offer(key)

    def hold(self, key: str, seq: int) -> bool:
        """An event is out with a member that had it before anybody here knew of its key.

        `False` if it is not the only one: then its turn has to come, and it is out all the same.
        """
        self._key_of[seq] = key
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(seq)
            return True
        line.queue.append(seq)
        self.parked += 1
        return False

    def again(self, seq: int, *, ahead: bool = False) -> None:
        """A head that was out is to go out once more; `ahead` of others that wait."""
        key = self._key_of[seq]
        line = self._lines[key]
        if line.head == seq and not line.waits:
            member = self._offer(key)
            if ahead:
                lane = self._orphans if member is None else member.waiting
                lane.appendleft(lane.pop())

    def withdraw(self, events: RangeSet) -> set[int]:
        """Heads that wait for credit, of these events: they are out from now on."""
        waiting = [key for lane in self._lanes() for key in lane]
        gone = {key for key in waiting if self._lines[key].head in events}
        self._unlist(gone)
        return {self._lines[key].head for key in gone}

    def _lanes(self) -> list[deque[str]]:
        return [self._orphans, *(member.waiting for member in self._members.values())]

    def _unlist(self, gone: set[str]) -> None:
        """These keys do not wait any more."""
        for key in gone:
            self._lines[key].waits = False
        for lane in self._lanes() if gone else []:
            stay = [key for key in lane if key not in gone]
            lane.clear()
            lane.extend(stay)

    def next_at(self, member: GroupMember) -> int:
        """The next head that waits for a member's credit."""
        return self._lines[member.waiting[0]].head

    def take(self, member: GroupMember) -> int:
        """The next head that waits for a member's credit: it is out now."""
        line = self._lines[member.waiting.popleft()]
        line.waits = False
        return line.head

    def settle_all(self, first: int, stop: int) -> None:
        """A range is done with: it may be far longer than what has keys here."""
        seqs: Iterable[int] = range(first, stop)
        if stop - first > len(self._key_of):
            seqs = sorted(seq for seq in self._key_of if first <= seq < stop)
        for seq in seqs:
            self.settle(seq)

    def settle(self, seq: int) -> None:
        """An event is done with: the next one of its key may go."""
        key = self._key_of.pop(seq, None)
        if key is None:
            return
        line = self._lines[key]
        if line.waits and line.head == seq:
            self._unlist({key})  # somebody had it all the same
        if line.head != seq:
            line.queue.remove(seq)
            self.parked -= 1
        elif line.queue:
            line.head = line.queue.popleft()
            self.parked -= 1
            self._offer(key)
        else:
            del self._lines[key]

    def _offer(self, key: str) -> GroupMember | None:
        self._lines[key].waits = True
        owner = self._owners.owner(key)
        if owner is None:
            self._orphans.append(key)
            return None
        member = self._members[owner]
        member.waiting.append(key)
        return member
