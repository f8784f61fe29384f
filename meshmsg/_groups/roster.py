"""Who is a member of a durable work group, on disk too: a restart waits until they have spoken.

A member is named on disk before it gets its first work, and is taken off when it has left or is
given up.  So whoever may have work of a publisher that was killed, or have done it since the last
save, is known to its next start.  That deals nothing out until each of them has joined and said
what it had (`WorkGroup.recall`), or is not back in time.

Everything here is called with the publishing side's lock held.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from meshmsg import _platform
from meshmsg._groups.group_messages import failures_on_line, had_by, on_line
from meshmsg._groups.progress_store import GroupKeeper, Saved
from meshmsg._groups.seat import Seat, Seats
from meshmsg._model.message_fields import CLAIMED_PIECES_MAX, PIECES_MAX
from meshmsg._model.topics import TopicFilter
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire.control import Claimed, Join, Kept
from meshmsg.recovery.log.format import NUMBER_MAX
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.work_queue import WorkOutlet

log = logging.getLogger("meshmsg.peer")


class RemoteMember:
    """A member of a group in another peer, as the publisher knows it."""

    def __init__(
        self, join: Join, link: bytes, peer: str, owner: Owner, work: WorkOutlet, now: float
    ) -> None:
        self.sub = join.sub
        self.group = join.group
        self.ticket = join.ticket  #: its work begins with this
        self.link = link
        self.peer = peer
        self.owner = owner  #: whose places it takes
        self.label = f"{peer}/{join.name or '-'}#{join.sub & 0xFFFFFF:06x}"
        self.filter = TopicFilter(join.patterns)
        self.prefetch = join.prefetch
        self.ack_timeout_s = join.ack_timeout_s
        self.work = work
        self.seats: dict[str, Seat] = {}
        self.joined_at = now
        self.lost_at: float | None = None
        self.last_look = False  #: its time is up; what has come by now is read first


class GroupRoll:
    """The rolls of all durable groups of a peer."""

    def __init__(
        self,
        seats: Seats,
        members: Mapping[int, RemoteMember],
        keeper: GroupKeeper,
        control: ControlSender,
        return_s: float,
        counters: Counter[str],
        enter: Callable[[Seat, RemoteMember, float], None],
    ) -> None:
        self._seats = seats
        self._members = members
        self._keeper = keeper
        self._control = control
        self._return_s = return_s  # how long members of an earlier start are waited for
        self._counters = counters
        self._enter = enter
        # By link and number: of who has more to claim than a message holds, what it said so far.
        self._claims: dict[tuple[bytes, int], list[Claimed]] = {}

    def wait_for(self, seat: Seat, names: Iterable[int]) -> None:
        """An earlier start has left a group with these members."""
        seat.names = set(names)
        seat.awaited = set(names)
        seat.group.recalling = bool(seat.awaited)

    def note_claims(self, link: bytes, join: Join) -> None:
        """A member says a part of what it had; of one that can have had nothing, nothing is kept.

        What is kept is no more than there can be: all of it is gone through when the member joins.
        """
        known = self._claims.get((link, join.sub), [])
        most, found = PIECES_MAX, []
        for claim in join.claims:
            seat = self._seats.find(claim.stream, join.group)
            if seat is None:
                continue
            if join.sub in seat.awaited:
                most = CLAIMED_PIECES_MAX
                found.append(claim)
            elif seat.group.held_by(join.sub):
                most += seat.group.held_by(join.sub)
                found.append(had_by(seat.group, join.sub, claim))
        claims = [*known, *(claim for claim in found if claim.pieces)]
        if sum(claim.pieces for claim in claims) > most:
            self._counters["stale_acks"] += sum(claim.pieces for claim in found)
        elif claims:
            self._claims[link, join.sub] = claims

    def forget_claims(self, link: bytes) -> None:
        """A connection is gone."""
        for key in [key for key in self._claims if key[0] == link]:
            del self._claims[key]

    def recall(self, member: RemoteMember, join: Join, seats: list[Seat], now: float) -> None:
        """A member has joined on some streams, and says what it had of them before."""
        noted = self._claims.pop((member.link, member.sub), [])
        streams = {seat.outlet.stream for seat in seats}
        if left := [claim for claim in noted if claim.stream not in streams]:
            self._claims[member.link, member.sub] = left  # it asks for those in its next message
        claims = [*noted, *join.claims]
        for seat in seats:
            if not seat.kept:
                continue
            stream = seat.outlet.stream
            self._recall(seat, member, [c for c in claims if c.stream == stream], now)
            self.hear(seat, member, join.number)
            seat.awaited.discard(member.sub)
            self._resume(seat)

    def hear(self, seat: Seat, member: RemoteMember, number: int) -> None:
        """A member has said something: it is told when that is on disk."""
        if number and seat.kept:
            seat.heard[member.sub] = (member.link, number)
            self._keeper.want(seat)

    def part(self, member: RemoteMember, number: int) -> None:
        """A member has left in order, and waits for our answer."""
        for seat in member.seats.values():
            if seat.kept:
                self.hear(seat, member, number)
            elif number:  # volatile, or the group is gone with it
                self._tell_kept(seat, {member.sub: (member.link, number)})

    def _recall(self, seat: Seat, member: RemoteMember, claims: list[Claimed], now: float) -> None:
        if not claims:
            return
        group = seat.group
        group.join(member.sub, member.label, member.prefetch, member.ack_timeout_s, now=now)
        group.pause(member.sub)  # it gets more when it is connected
        line = group.shelf.line
        # Of other epochs all is settled; of before a reset nothing is the member's.
        others = [claim for claim in claims if claim.generation != group.generation]
        self._counters["stale_acks"] += sum(claim.pieces for claim in others)
        claims = [
            claim
            for claim in claims
            if claim.generation == group.generation and line.offset(claim.epoch) is not None
        ]
        stale = group.recall(
            member.sub,
            [ack for c in claims for ack in on_line(line, c.epoch, c.acks)],
            [one for c in claims for one in on_line(line, c.epoch, c.held)],
            [nack for c in claims for nack in failures_on_line(line, c.epoch, c.nacks)],
            awaited=member.sub in seat.awaited,
            most=member.prefetch,
            sealed=seat.outlet.sender.sealed,
            now=now,
        )
        if stale:
            self._counters["stale_acks"] += stale

    def _resume(self, seat: Seat) -> None:
        if seat.group.recalling and not seat.awaited:
            log.info("group %s of %s goes on", seat.group.name, seat.outlet.stream)
            seat.group.recalling = False

    def admit(self, seat: Seat, member: RemoteMember, now: float) -> None:
        """A member is connected: it gets work as soon as the disk knows of it."""
        if not seat.kept or member.sub in seat.saved_names or member.sub > NUMBER_MAX:
            self._enter(seat, member, now)
            return
        seat.names.add(member.sub)
        seat.entering[member.sub] = member.prefetch
        self._keeper.want(seat)

    def strike(self, seat: Seat, sub: int) -> None:
        """A member is gone, and what it had is for others."""
        seat.entering.pop(sub, None)
        seat.heard.pop(sub, None)
        if sub in seat.names and sub not in seat.awaited:
            self._cross_out(seat, {sub})

    def _cross_out(self, seat: Seat, names: set[int]) -> None:
        """Should they join again, they get no work before the disk knows of them once more."""
        seat.names -= names
        seat.saved_names -= names
        self._keeper.want(seat)

    def on_saved(self, saved: Saved) -> None:
        """A group is on disk as it was: tell its members what is kept, and let new ones in."""
        seat, now = saved.seat, _platform.monotonic()
        if saved.good:
            seat.saved_names = saved.names & seat.names
            if saved.whole:
                self._tell_kept(seat, saved.heard)
        elif seat.kept:
            for sub in saved.heard.keys() & self._members.keys():
                seat.heard.setdefault(sub, saved.heard[sub])
            if seat.heard:
                self._keeper.want(seat)
        # Where nothing can be saved, work goes on: what is done may then come again.
        for sub in [sub for sub in seat.entering if sub in saved.names]:
            del seat.entering[sub]
            member = self._members.get(sub)
            if member is not None and member.work.connected and member.lost_at is None:
                self._enter(seat, member, now)

    def _tell_kept(self, seat: Seat, heard: Mapping[int, tuple[bytes, int]]) -> None:
        for sub, (link, number) in heard.items():
            self._control.post(link, Kept(sub, seat.outlet.stream, number))

    def on_tick(self, seat: Seat, now: float) -> float | None:
        """Whoever is not back in time is given up; returns when that is."""
        if not seat.awaited:
            return None
        if seat.awaited_until is None:
            seat.awaited_until = now + self._return_s
        if now < seat.awaited_until:
            return seat.awaited_until
        count = len(seat.awaited)
        self._counters["members_not_back"] += count
        log.warning(
            "%d members of group %s are not back: what they had comes again",
            count,
            seat.group.name,
        )
        seat.group.doubt()
        self._cross_out(seat, seat.awaited)
        seat.awaited.clear()
        self._resume(seat)
        return None
