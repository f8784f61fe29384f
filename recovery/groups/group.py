"""A work group on one stream: each event goes to one member, until it is settled.

Events are dealt from the retransmit buffer by credit, in the order of the stream.  An event is
settled when it was acknowledged, filtered, dead-lettered, or has fallen out of the buffer before
anybody could have it; until then it is pending, or in flight to exactly one member under one
attempt.  What a member gives back, holds for too long, or held when it was lost comes again, under
the next attempt: an acknowledgement of an earlier one is stale and refused.

With `order="key"` at most one event of a key is in flight, and the next one follows only when it is
settled: to the member that has the key by then.  Other keys go on meanwhile.

Frames come from a `Shelf`: what is on disk only waits until somebody has brought it.

No I/O: `dispatch` says what to send to whom, the shelf what to fetch.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg._wire.frame import KEYS, Frame
from meshmsg._wire.subframe import Work, flags_of
from meshmsg.recovery.groups.attempts import GroupTrouble
from meshmsg.recovery.groups.member import APART_S, GroupMember
from meshmsg.recovery.groups.numbering import Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.recall import Failure
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer
from meshmsg.recovery.stream.topic_cache import TopicJudge

#: Events whose key is busy that are remembered, before the group waits for some of them.
PARKED_MAX = 100_000
#: Pieces between what is settled and what is not, before the group waits for them to become fewer:
#: all of them are on disk, so that a restart knows what is done.
GAPS_MAX = 50_000
#: Events that are fetched from disk to be sent again, before others are looked at.
ABSENT_MAX = 1000
#: Pieces between what is done already that are brought from disk at once.
PIECES_AHEAD = 1000

Range = tuple[int, int]
AckRange = tuple[int, int, int]


class WorkGroup(GroupTrouble):
    """Assignment, credit, order and redelivery of one group on one stream."""

    def __init__(
        self,
        name: str,
        buffer: RetransmitBuffer,
        start: int,
        policy: GroupPolicy | None = None,
        *,
        takes_all: bool = False,
        shelf: Shelf | None = None,
    ) -> None:
        super().__init__(name, start, Shelf(buffer) if shelf is None else shelf)
        self.redelivered = self.timed_out = self.nacked = self.returned_count = 0
        self._shipments: list[tuple[int, Work]] = []
        self._looked_ahead: tuple[int, int] | None = None
        self._singles: dict[int, list[int]] = {}
        self.set_policy(policy or GroupPolicy(), takes_all=takes_all)

    def set_policy(self, policy: GroupPolicy, *, takes_all: bool) -> None:
        """What its members want, as long as it has none; `takes_all` saves looking at topics."""
        self.policy = policy
        self._topics = TopicJudge(policy.patterns)
        self._takes_all = takes_all
        self._keyed = policy.order == "key"

    # --- members ---

    def join(
        self, number: int, label: str, prefetch: int, ack_timeout_s: float, *, now: float
    ) -> None:
        """A member comes; `dispatch` then gives it work."""
        member = self.members.get(number)
        if member is not None:
            member.change(prefetch, ack_timeout_s)
            return
        self.members[number] = GroupMember(number, label, prefetch, ack_timeout_s, now=now)
        self._keys.on_members_changed()

    def pause(self, number: int) -> None:
        """A member gets nothing more, until it leaves or joins again."""
        member = self.members.get(number)
        if member is not None:
            member.prefetch = 0

    def leave(
        self,
        number: int,
        reason: str,
        *,
        now: float,
        in_order: bool = False,
        put_out: bool = False,
    ) -> int:
        """A member is gone; what it holds comes again.  Returns how many events those are.

        Who leaves in order has given back what it had not opened.  Who is put out has failed at
        nothing: no attempt counts.
        """
        member = self.members.pop(number, None)
        if member is None:
            return 0
        held = self._part_with(member)
        self._keys.on_members_changed(member.waiting)
        seqs = sorted(seq for first, stop, _ in held for seq in range(first, stop))
        if in_order:
            for seq in seqs:
                self._fail(seq, member, reason, "", 0.0, now=now)
        else:
            self._take_away(seqs, member, reason, now, tried=member.lot, counts=not put_out)
        return len(seqs)

    def detach(self, number: int, *, now: float) -> None:
        """A member begins anew; what it held waits, untouched, for what it says of it."""
        member = self.members.pop(number, None)
        if member is not None:
            self._keys.on_members_changed(member.waiting)
            for first, stop, attempt in self._part_with(member):
                self._return(first, stop, attempt)

    # --- what members say ---

    def ack(self, number: int, ranges: Iterable[AckRange], *, now: float) -> int:
        """Events that a member has done with; returns how many of them were stale."""
        member = self.members.get(number)
        # After a restart a member may hold what the cursor has yet to reach.
        stale, most = 0, max(1, max(self.cursor, self.dealt) - self.start)
        for first, stop, attempt in ranges:
            taken = 0
            if member is not None:
                for a, b in member.release(first, stop, attempt):
                    self._settle(a, b)
                    taken += b - a
                    for seq in range(a, b) if attempt > 1 else ():
                        del self._trouble[seq]
            # A range from the network may be as long as it likes: it counts by what there is.
            stale += min(max(0, stop - first), most) - taken
            self.acked += taken
            if member is not None and taken:
                member.acked += taken
                member.note_settled(taken, now=now)
        self.stale += stale
        self._advance()
        return stale

    def nack(
        self, number: int, seq: int, attempt: int, delay_s: float, error: str, *, now: float
    ) -> bool:
        """An event did not go well: it comes again after the delay; `False` if that is stale."""
        member = self.members.get(number)
        failure = Failure(seq, attempt, delay_s, error)
        if member is None or not self._refuse(member, failure, now):
            self.stale += 1
            return False
        return True

    def _refuse(self, member: GroupMember, failure: Failure, now: float) -> bool:
        seq, attempt, delay_s, error = failure
        if not member.release(seq, seq + 1, attempt):
            return False
        self.nacked += 1
        member.note_settled(1, now=now)
        self._fail(seq, member, "nack", error, delay_s, now=now)
        return True

    def give_back(self, number: int, ranges: Iterable[AckRange], *, now: float) -> None:
        """A member returns what it has not looked at: it comes again, under the same attempt."""
        member = self.members.get(number)
        if member is None:
            return
        for first, stop, attempt in ranges:
            for a, b in member.release(first, stop, attempt):
                self._return(a, b, attempt)

    def _return(self, first: int, stop: int, attempt: int) -> None:
        """Nobody has opened these: they go to whomever, under the attempt that they had."""
        self.returned_count += stop - first
        if attempt == 1 and not self._keys:
            self._returned.add(first, stop)
            return
        for seq in range(first, stop):
            if attempt > 1 or seq in self._keys:
                self._line_up(seq)
            else:
                self._returned.add(seq, seq + 1)

    def give_back_after(self, number: int, received: int, *, now: float) -> None:
        """A member leaves and has received so many events: nobody has opened the others."""
        member = self.members.get(number)
        if member is not None:
            self.give_back(number, member.unreceived(received), now=now)

    # --- time ---

    def on_deadline(self, *, now: float) -> None:
        """Take back what members hold for too long."""
        for member in list(self.members.values()):
            tried = set(member.lot)
            seqs = [
                seq  # or, of two leases, given back unopened in between
                for seq in member.overdue(now=now)
                if member.release(seq, seq + 1, member.attempt_of(seq))
            ]
            self.timed_out += len(seqs)
            self._take_away(seqs, member, "timeout", now, tried=tried)

    def deadline(self) -> float:
        """When `on_deadline` or `dispatch` has something to do."""
        if self._keys_left:
            return 0.0
        # `dispatch` does nothing before that is over.
        stands = self.recalling or self.paused or self._unkeyed
        due = self._heap[0][0] if self._heap and not stands else NEVER
        return min([due, *(member.deadline() for member in self.members.values())])

    # --- assignment ---

    def dispatch(self, sealed: int, *, now: float) -> list[tuple[int, Work]]:
        """What to send to whom now; events before `sealed` are at hand, on disk, or gone."""
        sealed = min(sealed, self.limit)
        if (self._unkeyed and not self._find_keys()) or self.recalling or self.paused:
            return []
        self._ripen(now)
        if self._absent or self._graves:
            self._take_up()
        if self.members:
            if self._revived:
                self._send_revived()
            if self._wary:
                self._send_suspects(now)
            self._send_due(now)
            for member in self.members.values():
                self._send_waiting_keys(member, now)
            if self._returned:
                self._send_returned(now)
            if self.cursor < sealed:
                self._send_fresh(sealed, now)
            self._ship_singles(now)
            if self._wary:
                self._calm_down()
        elif self.cursor < sealed and not self._done:
            self._skip_gone(sealed, fetch=False)
        self._advance()
        shipments, self._shipments = self._shipments, []
        return shipments

    def _take_up(self) -> None:
        """Go on with what was fetched from disk meanwhile; what was not is wanted still."""
        absent, self._absent = self._absent, []
        for seq in reversed(absent):
            if self._is_away(seq):
                self._absent.append(seq)
            else:
                # Behind others, which have to be fetched too, it would be gone before its turn.
                self._line_up(seq, ahead=True)
        graves, self._graves = self._graves, {}
        for seq, trouble in graves.items():
            self._bury(seq, trouble)

    def _is_away(self, seq: int) -> bool:
        """Whether an event is on disk only, and wanted from now on."""
        if self._parcels.frame(seq) is None and self.shelf.stored(seq, seq + 1):
            self.shelf.wanted.add(seq, seq + 1)
            return True
        return False

    def _send_due(self, now: float) -> None:
        while self._due and len(self._absent) < ABSENT_MAX:
            seq = self._due[0]
            member = self._freest(self._trouble[seq].last)
            if member is None:
                return
            self._due.popleft()
            self._assign(member, seq, now)

    def _send_suspects(self, now: float) -> None:
        """Events of which one may end its member go out a lot at a time, with no others."""
        for member in self.members.values():
            member.is_kept_free = bool(member.lot) and now - member.lot_at < APART_S
        while self._suspects and len(self._absent) < ABSENT_MAX:
            seq = self._suspects[0]
            trouble = self._trouble[seq]
            tester = self._emptiest(trouble.last)
            if tester is None or not tester.may_try(trouble.lot, now=now):
                return
            self._suspects.popleft()
            self._assign(tester, seq, now)

    def _calm_down(self) -> None:
        """Let members have everything again that nothing waits for."""
        self._wary = bool(self._trouble)
        for member in self.members.values():
            member.is_kept_free = member.is_kept_free and self._wary
            if not member.is_kept_free:
                member.kept_free_since = None

    def _emptiest(self, avoid: int) -> GroupMember | None:
        """The member to try events at: who has such already and takes more, or who has least."""
        ready = [m for m in self.members.values() if m.prefetch and len(m.lot) < (m.lot_max or 1)]
        return min(ready, key=lambda m: (m.number == avoid, not m.lot, m.in_flight), default=None)

    def _is_suspect(self, member: GroupMember) -> int:
        """The lot of the head that waits at a member; 0 if it need not be tried apart."""
        trouble = self._trouble.get(self._keys.next_at(member))
        return 0 if trouble is None else trouble.lot

    def _send_waiting_keys(self, member: GroupMember, now: float) -> int:
        """Heads of keys that wait for a member, as far as it has credit; returns how many."""
        sent = 0
        while member.waiting and len(self._absent) < ABSENT_MAX:
            lot = self._is_suspect(member) if self._wary else 0
            if not (member.may_try(lot, now=now) if lot and member.prefetch else member.free > 0):
                break
            seq = self._keys.take(member)
            if self._early and seq in self._early and self._is_out(seq):
                continue
            self._assign(member, seq, now)
            sent += 1
        return sent

    def _assign(self, member: GroupMember, seq: int, now: float) -> None:
        """One event, under the attempt that is its turn."""
        if self._is_away(seq):
            self._absent.append(seq)
            return
        trouble = self._trouble.get(seq)
        if self._parcels.frame(seq) is None:
            self._trouble.pop(seq, None)
            self._lose(seq, seq + 1)
            return
        member.hold(seq, seq + 1, 1 if trouble is None else trouble.attempt)
        if trouble is not None:
            self.redelivered += 1
            if trouble.lot:
                member.try_apart(seq, trouble.lot, now=now)
        self._singles.setdefault(member.number, []).append(seq)

    def _freest(self, avoid: int = -1) -> GroupMember | None:
        """The member with most credit; whoever was served longest ago where several have it."""
        best = None
        for member in self.members.values():
            if member.free > 0 and (best is None or member.is_better(best, avoid)):
                best = member
        return best

    def _send_returned(self, now: float) -> None:
        for first, stop in list(self._returned):
            at = self._send_range(first, stop, now)
            self._returned.remove(first, at)
            if at < stop:
                return

    def _send_fresh(self, sealed: int, now: float) -> None:
        if self._settled.begun_before(self.cursor) >= GAPS_MAX:
            return
        if not self._done:
            if self._takes_all and not self._keyed and not self._restored:
                self.cursor = self._send_range(self.cursor, sealed, now)
            else:
                self._send_piece(sealed, now)
            return
        for first, stop in self._done.missing(self.cursor, sealed):
            self.cursor = first
            self._send_piece(stop, now)
            if self.cursor < stop:
                if self.shelf.wanted and self._looked_ahead != (self.cursor, self.shelf.brought):
                    self._looked_ahead = (self.cursor, self.shelf.brought)
                    self._want_ahead(stop, sealed)
                return
        self.cursor = sealed
        self._done.discard_before(sealed)

    def _want_ahead(self, first: int, sealed: int) -> None:
        """Something has to be brought from disk: bring what comes next along."""
        for low, high in self._done.missing(first, sealed, most=PIECES_AHEAD):
            if not any(self.shelf.held(low, high)):
                for piece in self.shelf.stored(low, high):
                    self.shelf.wanted.add(*piece)

    def _send_piece(self, sealed: int, now: float) -> None:
        """Events from the cursor on, none of which is settled."""
        if not self._keyed and self._takes_all and not self._restored:
            self.cursor = self._send_range(self.cursor, sealed, now)
            return
        for first, end, data in self.shelf.held(self.cursor, sealed):
            stop = min(end, sealed)
            if not self._pass_hole(first):
                return
            again = bool(self._restored.overlap(self.cursor, stop))
            if self._takes_all and not again and not flags_of(data) & KEYS:
                at = self.cursor
                self.cursor = self._send_range(at, stop, now, pending=sealed - at)
                if self.cursor < stop:
                    return
                continue
            frame = self._parcels.parsed(first, data)
            verdict = self._topics.judge(frame.topics)
            at = self.cursor
            if verdict == "none":
                self.filtered += stop - at
                self._settle(at, stop)
                self.cursor = stop
            elif verdict == "all" and not again and (not self._keyed or frame.key_column is None):
                self.cursor = self._send_range(at, stop, now, pending=sealed - at)
            else:
                self.cursor = self._scan(frame, first, at, stop, now)
            if self.cursor < stop:
                return
        self._skip_gone(sealed)

    def _skip_gone(self, sealed: int, *, fetch: bool = True) -> None:
        """What has fallen out of the buffer before anybody could have it."""
        first = next(iter(self.shelf.held(self.cursor, sealed)), (sealed,))[0]
        self._pass_hole(min(first, sealed), fetch=fetch)

    def _pass_hole(self, stop: int, *, fetch: bool = True) -> bool:
        """Move the cursor over what is gone up to `stop`; `False` if some of it is on disk."""
        while self.cursor < stop:
            at = self._hole(self.cursor, stop, fetch=fetch)
            if at == self.cursor:
                return False
            self.cursor = at
        return True

    def _hole(self, first: int, stop: int, *, fetch: bool = True) -> int:
        """Events that are not at hand: wait for them, or lose them; returns where to go on."""
        stored = self.shelf.stored(first, stop)
        at = stored[0][0] if stored else stop
        if at > first:
            self._lose(first, at)
        elif fetch:
            self.shelf.wanted.add(first, stored[0][1])
        return at

    def _send_range(self, first: int, stop: int, now: float, pending: int = 0) -> int:
        """Deal events in a row, a share to each member that has credit; returns where it ended."""
        if self._singles:
            self._ship_singles(now)  # which come before these
        pending = max(pending, stop - first)
        ready = sum(member.free > 0 for member in self.members.values())
        share = -(-pending // max(1, ready))
        while first < stop:
            member = self._freest()
            # Work in slivers costs each side as much as work in good pieces: wait for more credit.
            if member is None or member.free < min(member.piece, pending):
                return first
            start, end, data = next(iter(self.shelf.held(first, stop)), (stop, stop, b""))
            if start > first:
                at = self._hole(first, min(start, stop))
                if at == first:
                    return first
                first = at
                continue
            size = min(member.free, share, end - first, stop - first)
            member.first_time.add(first, first + size)
            work = self._parcels.in_a_row(start, end, data, first, first + size)
            self._shipments.append((member.number, work))
            member.lend(range(first, first + size), now=now)
            first += size
            pending -= size
        return first

    def _scan(self, frame: Frame, base: int, first: int, stop: int, now: float) -> int:
        """Deal a frame's events one by one; returns where it ended."""
        matches = self._topics.matches
        free = sum(max(0, member.free) for member in self.members.values())
        for seq in range(first, stop):
            if not matches(frame.topic_at(seq - base)):
                self.filtered += 1
                self._forget(seq)
                self._settle(seq, seq + 1)
                continue
            name = frame.key_at(seq - base) if self._keyed else None
            member = self._freest() if name is None else None
            if free <= 0 or self._keys.parked >= PARKED_MAX or (name is None and member is None):
                return seq
            if self._restored:
                self._pass(seq)
            if member is not None:
                self._assign(member, seq, now)
                free -= 1
            elif name is not None:
                owner = self._keys.add(name, seq)
                if owner is not None:
                    free -= self._send_waiting_keys(owner, now)
        return stop

    # --- shipping ---

    def _ship_singles(self, now: float) -> None:
        singles, self._singles = self._singles, {}
        for number, seqs in singles.items():
            member = self.members[number]
            seqs.sort()
            again = {seq: self._trouble[seq].attempt for seq in seqs if seq in self._trouble}
            for work in self._parcels.chosen(seqs, again):
                self._shipments.append((number, work))
            member.lend(seqs, [again.get(seq, 1) for seq in seqs], now=now)

    # --- books ---

    @property
    def in_flight(self) -> int:
        """Events that members hold."""
        return sum(member.in_flight for member in self.members.values())

    @property
    def waiting(self) -> int:
        """Events that were looked at, and that no member holds."""
        retries = len(self._retries) + len(self._due) + len(self._suspects)
        retries += len(self._absent) + len(self._graves) + len(self._revived)
        in_line = self._keys.parked + self._keys.waiting - len(self._early)
        return self._returned.count + retries + in_line

    def pending(self, next: int) -> int:
        """Events that are neither settled nor held by a member; `next` is the stream's."""
        ahead = next - self.cursor
        if self._done:
            ahead -= sum(stop - first for first, stop in self._done.overlap(self.cursor, next))
        return self.waiting + ahead

    def retire(self, next: int, reason: str) -> None:
        """The group is given up: what is not settled is lost."""
        self.lost[reason] += self.pending(next) + self.in_flight
