"""The work groups of a publisher: joins `WorkGroup` cores to PUSH sockets and control messages.

Everything here is called with the publishing side's lock held; members come and go on the I/O
thread only, which also watches their connections.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshmsg._config import DEAD_PREFIX, Stream, check_group
from meshmsg._control import (
    NACK_RANGES_MAX,
    Gone,
    Join,
    Joined,
    Settle,
    Settlement,
    Tail,
    Unjoined,
)
from meshmsg._errors import BindError, ClosedError, MeshError
from meshmsg._frame import encode_headers
from meshmsg._group_books import Seat, group_stats, row_of
from meshmsg._subframe import encode_work
from meshmsg._topics import TopicFilter
from meshmsg.recovery.group_policy import DeadLetter, GroupPolicy
from meshmsg.recovery.ledger import LedgerRow
from meshmsg.recovery.work_group import WorkGroup
from meshmsg.transports.workqueue import WorkOutlet
from meshmsg.transports.zmq_base import Context

if TYPE_CHECKING:
    from meshmsg._publisher import Outlet, PublisherSide

log = logging.getLogger("meshmsg.peer")

MEMBERS_MAX = 10_000
GROUPS_MAX = 1000
FINISHED_MAX = 1000
#: A member that was answered and never fetched its work is forgotten after this time.
CONNECT_S = 10.0
#: After a member's connection broke, an orderly good-bye has this long to arrive.
LAST_WORDS_S = 0.05
TICK_S = 0.2


class RemoteMember:
    """A member of a group in another peer, as the publisher knows it."""

    def __init__(self, join: Join, link: bytes, peer: str, work: WorkOutlet, now: float) -> None:
        self.sub = join.sub
        self.group = join.group
        self.link = link
        self.peer = peer
        self.label = f"{peer}/{join.name or '-'}#{join.sub & 0xFFFFFF:06x}"
        self.filter = TopicFilter(join.patterns)
        self.prefetch = join.prefetch
        self.ack_timeout_s = join.ack_timeout_s
        self.work = work
        self.seats: dict[str, Seat] = {}
        self.joined_at = now
        self.lost_at: float | None = None


class GroupSide:
    """All groups of a peer's streams, and their members."""

    def __init__(self, side: PublisherSide) -> None:
        self._side = side
        self._tuning = side._tuning
        self._members: dict[int, RemoteMember] = {}
        self._by_monitor: dict[int, RemoteMember] = {}
        self._dead_outlets: dict[tuple[str, str], Outlet] = {}
        self._finished: deque[LedgerRow] = deque(maxlen=FINISHED_MAX)
        self._numbers = 0
        self._seats: list[Seat] = []
        self._context: Context | None = None
        self._addresses: list[str] = []
        self._watch: Callable[[Any], None] = lambda owner: None
        self._unwatch: Callable[[Any], None] = lambda owner: None

    def open(
        self,
        context: Context,
        addresses: list[str],
        watch: Callable[[Any], None],
        unwatch: Callable[[Any], None],
    ) -> None:
        """Take the I/O thread's poller and context into use."""
        self._context = context
        self._addresses = addresses
        self._watch, self._unwatch = watch, unwatch

    # --- groups ---

    def declare(self, outlet: Outlet) -> None:
        """The groups that a stream's configuration names are there from the first event on."""
        for name in outlet.config.groups:
            self._new_seat(outlet, name, outlet.sender.origin, GroupPolicy(), declared=True)

    def _new_seat(
        self, outlet: Outlet, name: str, start: int, policy: GroupPolicy, *, declared: bool = False
    ) -> Seat:
        now = time.monotonic()
        self._numbers -= 1
        claim = outlet.sender.flow.admit(
            self._numbers, f"group {name}", start, policy.patterns, now=now
        )
        takes_all = _takes_all(policy, outlet)
        group = WorkGroup(name, outlet.sender.buffer, start, policy, takes_all=takes_all)
        seat = Seat(outlet, group, claim, declared=declared)
        seat.empty_since = now
        outlet.groups.append(seat)
        self._seats.append(seat)
        self._dead_outlet(name, outlet)
        return seat

    def _seat(self, outlet: Outlet, name: str) -> Seat | None:
        return next((seat for seat in outlet.groups if seat.group.name == name), None)

    def _retire(self, seat: Seat, now: float) -> None:
        """Nobody came back in time: give the group and its events up."""
        outlet, group = seat.outlet, seat.group
        left = group.pending(outlet.sender.next)
        log.warning("gave up group %s of %s with %d events", group.name, outlet.stream, left)
        self._side.counters["groups_given_up"] += 1
        group.retire(outlet.sender.next, "expired")
        self._finished.append(row_of(seat, outlet.sender.next, "expired", in_flight=0))
        outlet.groups.remove(seat)
        self._seats.remove(seat)
        outlet.sender.flow.release(seat.claim.sub, now=now)
        self._side._open_gate(outlet)

    # --- members ---

    def on_join(self, link: bytes, peer: str, join: Join, now: float) -> None:
        """A member asks to be taken; it gets work as soon as its connection is seen."""
        try:
            reason = self._unfit(join)
        except MeshError as error:
            reason = str(error)
        if reason:
            self._side.counters["members_refused"] += 1
            log.error("refused %s as a member of group %s: %s", peer, join.group, reason)
            self._side._post(link, Unjoined(join.sub, reason, refused=True))
            return
        member = self._members.get(join.sub)
        if member is not None and member.link != link:
            # Its control connection broke, and acknowledgements with it: nobody knows which.
            self._drop(member, "came back", now, tell=False)
            member = None
        if member is None:
            member = self._new_member(join, link, peer, now)
            if member is None:
                return
        member.link, member.prefetch = link, join.prefetch
        member.ack_timeout_s = join.ack_timeout_s
        self._take_seats(member, join, now)
        tails = [
            Tail(name, seat.outlet.epoch, seat.group.floor, seat.outlet.sender.sealed)
            for name, seat in member.seats.items()
        ]
        self._side._post(link, Joined(join.sub, tails, member.work.addresses))
        if member.work.connected and member.lost_at is None:
            self._enter(member, now)

    def _unfit(self, join: Join) -> str:
        """Why a member cannot be taken; empty if it can."""
        check_group("group", join.group)
        if not TopicFilter(join.patterns).patterns:
            return "it names no topics"
        policy = _policy(join)
        for start in join.starts:
            outlet = self._side._outlets.get(start.stream)
            seat = None if outlet is None else self._seat(outlet, join.group)
            if seat is None or not set(self._present(seat)) - {join.sub}:
                continue
            difference = seat.group.policy.difference(policy)
            if difference:
                return f"a member of group {join.group!r} asks for {difference}"
        if len(self._members) >= MEMBERS_MAX:
            return f"{MEMBERS_MAX} members are connected already"
        if len(self._seats) + len(join.starts) > GROUPS_MAX:
            return f"{GROUPS_MAX} groups are there already"
        return ""

    def _present(self, seat: Seat) -> list[int]:
        """Members of a group on a stream, those included that have yet to connect."""
        name, stream = seat.group.name, seat.outlet.stream
        return [m.sub for m in self._members.values() if m.group == name and stream in m.seats]

    def _new_member(self, join: Join, link: bytes, peer: str, now: float) -> RemoteMember | None:
        assert self._context is not None
        try:
            work = WorkOutlet(self._context, join.sub, self._addresses)
        except BindError as error:
            log.error("no socket for %s: %s", peer, error)
            self._side.counters["members_refused"] += 1
            return None
        member = RemoteMember(join, link, peer, work, now)
        self._members[join.sub] = member
        self._by_monitor[id(work.monitor)] = member
        self._watch(work.monitor)
        return member

    def _take_seats(self, member: RemoteMember, join: Join, now: float) -> None:
        policy = _policy(join)
        for start in join.starts:
            outlet = self._side._outlets.get(start.stream)
            # Its own dead letters would come back to it for ever.
            if outlet is None or outlet is self._dead_outlets.get((join.group, outlet.codec.name)):
                continue
            seat = self._seat(outlet, join.group)
            if seat is None:
                begin = outlet.sender._start(start.kind, start.value, start.epoch)
                seat = self._new_seat(outlet, join.group, begin, policy)
            elif not self._present(seat):
                seat.group.set_policy(policy, takes_all=_takes_all(policy, outlet))
            member.seats[outlet.stream] = seat

    def _enter(self, member: RemoteMember, now: float) -> None:
        """Its connection is there: give it work."""
        for seat in member.seats.values():
            seat.empty_since = None
            seat.proven = True
            seat.group.join(
                member.sub, member.label, member.prefetch, member.ack_timeout_s, now=now
            )
            self._dispatch(seat, now)
        self._side._changed.notify_all()

    def watches(self, monitor: Any) -> bool:
        """Whether this is a member's monitor; without the lock, on the I/O thread."""
        return id(monitor) in self._by_monitor

    def on_readable(self, monitor: Any, now: float) -> bool:
        """A member's connection came or went; `False` if this is not a member's monitor."""
        member = self._by_monitor.get(id(monitor))
        if member is None:
            return False
        for connected in monitor.read():
            if connected and member.lost_at is None and not member.work.connected:
                member.work.connected = True
                self._enter(member, now)
            else:
                # Lost; or a second connection, which would get a share of the member's work.
                self._suspend(member, now)
        return True

    def _suspend(self, member: RemoteMember, now: float) -> None:
        """Its connection broke: no more work, and what it has goes to others in a moment.

        A member that leaves in order closes its connection too, and its last words come by
        another one: they have `LAST_WORDS_S` to arrive.
        """
        if member.lost_at is None:
            member.lost_at = now
            for seat in member.seats.values():
                seat.group.pause(member.sub)

    def on_settle(self, link: bytes, message: Settle, now: float) -> None:
        """What a member says of its work."""
        member = self._members.get(message.sub)
        if member is None or member.link != link:
            stale = sum(b - a for s in message.settlements for a, b, _ in s.acks if b > a)
            self._side.counters["stale_acks"] += stale + sum(
                len(s.nacks) for s in message.settlements
            )
            if not message.closed:
                self._side._post(link, Unjoined(message.sub, "not a member here"))
            return
        if message.closed:
            for seat in member.seats.values():
                seat.group.pause(member.sub)  # what it gives back is for others
        for settlement in message.settlements:
            place = member.seats.get(settlement.stream)
            if place is None or settlement.epoch != place.outlet.epoch:
                self._side.counters["strange_settlements"] += 1
                continue
            self._settle(place, member.sub, settlement, now)
        if message.closed:
            self._drop(member, "left", now, tell=False)

    def _settle(self, seat: Seat, sub: int, settlement: Settlement, now: float) -> None:
        group = seat.group
        stale = group.stale
        if settlement.acks:
            group.ack(sub, settlement.acks, now=now)
        for nack in settlement.nacks:
            group.nack(sub, nack.seq, nack.attempt, nack.delay_s, nack.error, now=now)
        if settlement.returned:
            group.give_back(sub, settlement.returned, now=now)
        if group.stale > stale:
            self._side.counters["stale_acks"] += group.stale - stale
        self._dispatch(seat, now)

    def _drop(self, member: RemoteMember, reason: str, now: float, *, tell: bool = True) -> None:
        """A member is gone: its work goes to the others."""
        if self._members.pop(member.sub, None) is None:
            return
        self._by_monitor.pop(id(member.work.monitor), None)
        self._unwatch(member.work.monitor)
        member.work.close(0.0)
        if tell:
            log.info("%s of group %s: %s", member.label, member.group, reason)
            self._side.counters["members_lost"] += 1
            self._side._post(member.link, Unjoined(member.sub, reason))
        for seat in member.seats.values():
            seat.group.leave(member.sub, reason, now=now)
            if not seat.group.members and seat.empty_since is None:
                seat.empty_since = now
            if seat.proven or seat.declared or self._present(seat):
                self._dispatch(seat, now)
            else:
                self._retire(seat, now)  # nobody ever came for its work
        self._side._changed.notify_all()

    def forget_link(self, link: bytes, reason: str, now: float) -> None:
        """A peer left or fell silent: its members with it."""
        for member in [m for m in self._members.values() if m.link == link]:
            self._drop(member, reason, now)

    def forget_silent(self, last_seen: Mapping[bytes, float], now: float) -> None:
        """Members whose peers gave no sign for too long."""
        tuning = self._tuning
        silent_s = max(tuning.member_timeout_s, 2 * tuning.ping_interval_s)
        for member in list(self._members.values()):
            if last_seen.get(member.link, 0.0) < now - silent_s:
                self._drop(member, f"silent for {silent_s:g} s", now)

    # --- work ---

    def on_frame(self, outlet: Outlet) -> None:
        """A frame was sealed: its events go to the groups."""
        now = time.monotonic()
        for seat in outlet.groups:
            self._dispatch(seat, now)

    def _dispatch(self, seat: Seat, now: float) -> None:
        outlet, group = seat.outlet, seat.group
        group.loss_reason = "evicted" if seat.claim.evicted else "overflow"
        for number, work in group.dispatch(outlet.sender.sealed, now=now):
            member = self._members[number]
            if member.lost_at is None and not member.work.send(encode_work(number, work)):
                self._suspend(member, now)  # and what it was to get comes again, to others
                self._side._wake()
        if group.dead_letters:
            letters, group.dead_letters = group.dead_letters, []
            for letter in letters:
                self._bury(seat, letter)
        if group.losses:
            losses, group.losses = group.losses, []
            self._tell_losses(seat, losses)
        self._report(seat, now)

    def _report(self, seat: Seat, now: float) -> None:
        """The oldest event that is not settled is what the group claims."""
        group, claim, sender = seat.group, seat.claim, seat.outlet.sender
        if group.floor == claim.consumed:
            return
        sender.flow.report(
            claim.sub,
            received=group.floor,
            consumed=group.floor,
            delivered=group.acked,
            filtered=group.filtered,
            lost=group.lost,
            stop=sender.next,
            now=now,
        )
        if seat.outlet.gated:
            self._side._open_gate(seat.outlet)
        self._side._changed.notify_all()

    def _tell_losses(self, seat: Seat, losses: list[tuple[int, int, str]]) -> None:
        outlet = seat.outlet
        total = sum(stop - first for first, stop, _ in losses)
        log.warning("group %s lost %d events of %s", seat.group.name, total, outlet.stream)
        for first, stop, reason in losses[:NACK_RANGES_MAX]:
            for number in seat.group.members:
                gone = Gone(number, outlet.stream, outlet.epoch, [(first, stop)], reason, 0)
                self._side._post(self._members[number].link, gone)

    def _dead_outlet(self, name: str, origin: Outlet) -> Outlet:
        """The stream `dead.<group>`; one more where payloads are encoded in another way."""
        codec = origin.codec
        found = self._dead_outlets.get((name, codec.name))
        if found is None:
            others = any(group == name for group, _ in self._dead_outlets)
            label = f"{DEAD_PREFIX}{name}" + (f"+{codec.name}" if others else "")
            stream = f"{self._side._config.name}/{label}"
            found = self._side._outlets.get(stream)
            if found is None:
                found = self._side._declare(
                    Stream(
                        f"{DEAD_PREFIX}{name}",
                        name=label,
                        overflow="drop_oldest",
                        codec=codec,
                        event_bytes_max=origin.config.event_bytes_max,
                    )
                )
                self._side.announce()
            self._dead_outlets[name, codec.name] = found
        return found

    def _bury(self, seat: Seat, letter: DeadLetter) -> None:
        frame, index = letter.frame, letter.index
        outlet = self._dead_outlet(seat.group.name, seat.outlet)
        trouble = letter.trouble
        history = {
            "dead.stream": seat.outlet.stream,
            "dead.epoch": seat.outlet.epoch,
            "dead.seq": letter.seq,
            "dead.topic": frame.topic_at(index),
            "dead.attempts": trouble.attempt,
            "dead.members": trouble.members,
            "dead.reason": trouble.reason,
            "dead.error": trouble.error,
        }
        key = frame.key_at(index)
        headers = encode_headers({**frame.headers_at(index), **history})
        try:
            self._side.publish_sealed(
                outlet,
                f"{DEAD_PREFIX}{seat.group.name}",
                frame.payload_at(index),
                raw=frame.is_raw(index),
                key=key,
                headers=headers,
            )
        except ClosedError:  # the peer is on its way down, with all its streams
            self._side.counters["dead_unpublished"] += 1
        log.warning(
            "group %s gave up %s@%d:%d after %d attempts: %s",
            seat.group.name,
            seat.outlet.stream,
            seat.outlet.epoch,
            letter.seq,
            trouble.attempt,
            trouble.error or trouble.reason,
        )

    # --- time ---

    def on_tick(self, now: float) -> float:
        """Take back what is overdue, forget groups that nobody came back to."""
        for member in list(self._members.values()):
            if member.lost_at is not None and now >= member.lost_at + LAST_WORDS_S:
                self._drop(member, "connection lost", now)
            elif not member.work.connected and now - member.joined_at > CONNECT_S:
                self._drop(member, "did not connect", now)
        due = now + TICK_S
        for member in self._members.values():
            if member.lost_at is not None:
                due = min(due, member.lost_at + LAST_WORDS_S)
        for seat in list(self._seats):
            group = seat.group
            if group.deadline() <= now:
                group.on_deadline(now=now)
            self._dispatch(seat, now)
            due = min(due, group.deadline())
            since, keep = seat.empty_since, seat.outlet.config.group_keep
            if since is None or seat.declared or now - since <= float(keep):
                continue
            if not self._present(seat):  # nor on its way: it would be left with a group of the past
                self._retire(seat, now)
        return due

    # --- books ---

    def takers(self, outlet: Outlet, topic: str) -> int:
        """How many members take a topic of a stream."""
        return sum(
            member.work.connected
            and member.lost_at is None
            and outlet.stream in member.seats
            and member.filter.matches(topic)
            for member in self._members.values()
        )

    def rows(self) -> list[LedgerRow]:
        """A row for each group on each stream."""
        rows = list(self._finished)
        for seat in self._seats:
            state = "live" if seat.group.members else "no members"
            next_ = seat.outlet.sender.next
            rows.append(
                row_of(
                    seat, next_, state, in_flight=seat.group.pending(next_) + seat.group.in_flight
                )
            )
        return rows

    def stats(self, outlet: Outlet) -> list[dict[str, Any]]:
        """Figures of the groups of a stream, as plain data."""
        return [group_stats(seat) for seat in outlet.groups]

    def close(self) -> None:
        """Close the sockets of all members."""
        for member in self._members.values():
            member.work.close(0.2)
        self._members.clear()


def _policy(join: Join) -> GroupPolicy:
    return GroupPolicy(join.order, join.max_attempts, tuple(join.patterns))


def _takes_all(policy: GroupPolicy, outlet: Outlet) -> bool:
    return "**" in policy.patterns or outlet.config.topics in policy.patterns
