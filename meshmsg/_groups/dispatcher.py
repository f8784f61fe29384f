"""The work groups of a publisher: joins `WorkGroup` cores to PUSH sockets and control messages.

Most of it is called with the publishing side's lock held; members come and go on the I/O thread
only, which also watches their connections.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from meshmsg import _platform
from meshmsg._groups.backlog_reader import GroupDisk
from meshmsg._groups.dead_letters import DeadLetters, Publish
from meshmsg._groups.group_messages import on_line, policy_of, takes_all_of
from meshmsg._groups.group_operator import GroupOperator
from meshmsg._groups.progress_store import GroupKeeper, Saved
from meshmsg._groups.redrive import Redriver
from meshmsg._groups.roster import GroupRoll, RemoteMember
from meshmsg._groups.seat import Seat, Seats, group_stats, live_row, reset_row, row_of
from meshmsg._model.config import PeerConfig, Stream, check_group
from meshmsg._model.errors import BindError, LogError, MeshError
from meshmsg._model.event import Position
from meshmsg._model.message_fields import NACK_RANGES_MAX, as_text
from meshmsg._model.topics import TopicFilter
from meshmsg._publish.durable_streams import DurableSide
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.streams import Streams
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire.control import (
    Gone,
    Join,
    Joined,
    Page,
    Settle,
    Settlement,
    Start,
    Tail,
    Unjoined,
)
from meshmsg._wire.subframe import encode_work
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.resume import resume
from meshmsg.recovery.stream.flow_control import Claim
from meshmsg.recovery.stream.ledger import LedgerRow
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.quotas import Owner, Quota
from meshmsg.transports.zmq.connection_monitor import connections_allowed
from meshmsg.transports.zmq.sockets import ZmqSockets

log = logging.getLogger("meshmsg.peer")

#: Of all who dial, and of one of them.
MEMBERS_MAX = 10_000
MEMBERS_EACH_MAX = 2000
GROUPS_MAX = 1000
GROUPS_EACH_MAX = 250
FINISHED_MAX = 1000
#: Members that were answered and have yet to connect, of all peers and of one: each has a socket
#: that listens for it, which takes so many files.
WAITING_MAX = 1024
WAITING_PER_PEER_MAX = 64
FILES_PER_MEMBER = 5
#: Members that there is no room for now are told after this time, so many of them.
PUT_OFF_S = 0.5
PUT_OFF_MAX = 10_000
#: A member that was answered and never fetched its work is forgotten after this time.
CONNECT_S = 10.0
#: After a member's connection broke, an orderly good-bye has this long to arrive.
LAST_WORDS_S = 0.05
TICK_S = 0.2

Places = dict[str, Line]


class GroupSide:
    """All groups of a peer's streams, and their members."""

    def __init__(
        self,
        config: PeerConfig,
        streams: Streams,
        control: ControlSender,
        durable: DurableSide,
        wake: Callable[[], None],
        reopen: Callable[[Outlet], None],
        declare: Callable[[Stream], Outlet],
        publish: Publish,
    ) -> None:
        self._tuning = config.tuning
        self._streams = streams
        self._counters = streams.counters
        self._reopen = reopen  # a stream that was shut, if nobody is in the way any more
        self._control = control
        self._dead = DeadLetters(config.name, streams.outlets, streams.counters, declare, publish)
        self._wake = wake
        self.members: dict[int, RemoteMember] = {}
        self.seats = Seats()
        self.quota = Quota(MEMBERS_EACH_MAX, MEMBERS_MAX)
        self._founders: dict[int, Owner] = {}  # of groups, by the seat's id
        self._by_monitor: dict[int, RemoteMember] = {}
        self._notes = LogLimit(log, streams.counters)
        self.keeper = GroupKeeper(
            f"meshmsg-{config.name}", streams.lock, streams.counters, self._on_saved
        )
        self._roll = GroupRoll(
            self.seats,
            self.members,
            self.keeper,
            control,
            config.tuning.member_return_s,
            streams.counters,
            self._take_in,
        )
        self._disk = GroupDisk(streams, self.seats, durable, self._dispatch)
        self.operator = GroupOperator(
            streams.changed,
            self.seats,
            self.members,
            self.keeper,
            self._disk,
            self._dispatch,
            self._restart,
            self._put_out,
            wake,
        )
        self.redriver = Redriver(
            streams.changed,
            streams.counters,
            self.seats,
            durable.replay.submit,
            lambda: streams.fanout is not None,
            self.keeper,
            self._dispatch,
        )
        self._finished: deque[LedgerRow] = deque(maxlen=FINISHED_MAX)
        self._resolved: list[tuple[bytes, str, Join, Places]] = []
        self._later: deque[tuple[float, bytes, int]] = deque()
        self._waiting_max = connections_allowed(WAITING_MAX * FILES_PER_MEMBER) // FILES_PER_MEMBER
        self._numbers = 0
        self._context: ZmqSockets | None = None
        self._addresses: list[str] = []
        self._watch: Callable[[Any], None] = lambda owner: None
        self._unwatch: Callable[[Any], None] = lambda owner: None

    def open(
        self,
        context: ZmqSockets,
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
        """The groups that an earlier start has left, and those that the configuration names."""
        declared = outlet.config.groups
        for record, line in self.keeper.load(outlet):
            policy = GroupPolicy(record.order, record.max_attempts, record.patterns)
            known = record.name in declared
            seat = self._new_seat(outlet, record.name, line.start, policy, line, declared=known)
            resume(seat.group, record)
            seat.proven = True
            self._roll.wait_for(seat, record.members)
            self.keeper.save_now(seat)
        for name in declared:
            if self.seats.find(outlet.stream, name) is None:
                start = outlet.sender.origin
                seat = self._new_seat(outlet, name, start, GroupPolicy(), declared=True)
                self.keeper.save_now(seat)

    def _new_seat(
        self,
        outlet: Outlet,
        name: str,
        start: int,
        policy: GroupPolicy,
        line: Line | None = None,
        *,
        declared: bool = False,
    ) -> Seat:
        now = _platform.monotonic()
        dead = self._dead.outlet_for(name, outlet)  # first: where it fails, nothing is left behind
        durable = outlet.log is not None
        shelf = Shelf(outlet.sender.buffer, line or Line(outlet.epoch), durable=durable)
        self._numbers -= 1
        claim = outlet.sender.flow.admit(
            self._numbers, f"group {name}", start, policy.patterns, now=now
        )
        takes_all = takes_all_of(policy, outlet.config.topics)
        group = WorkGroup(
            name, outlet.sender.buffer, start, policy, takes_all=takes_all, shelf=shelf
        )
        if durable:
            group.limit = start  # until the disk has a mark
        seat = Seat(outlet, group, claim, declared=declared)
        seat.dead, seat.empty_since = dead, now
        self.seats.add(seat)
        if durable:
            # Until members have caught up, the log is what they work from: nobody waits for them.
            outlet.sender.flow.let_go(claim, now=now)
        return seat

    def _retire(self, seat: Seat, now: float) -> None:
        """Nobody came back in time: give the group and its events up."""
        outlet, group = seat.outlet, seat.group
        left = group.pending(outlet.sender.next)
        log.warning("gave up group %s of %s with %d events", group.name, outlet.stream, left)
        self._counters["groups_given_up"] += 1
        group.retire(outlet.sender.next, "expired")
        self._finished.append(row_of(seat, outlet.sender.next, "expired", in_flight=0))
        self.seats.remove(seat)
        self._founders.pop(id(seat), None)
        self.keeper.forget(seat)
        outlet.sender.flow.release(seat.claim.sub, now=now)
        self._reopen(outlet)

    def _restart(self, old: Seat, start: int, line: Line | None, now: float) -> Seat:
        """A group begins anew elsewhere: what its members have is not theirs any more."""
        outlet, group = old.outlet, old.group
        place = (line or Line(outlet.epoch)).place(start)
        skipped = group.unsettled_before(group.shelf.line.locate(*place))
        self._finished.append(reset_row(old, skipped))
        redriven = group.redriven
        if old.dead is not None and place < group.shelf.line.place(group.floor):
            # Events that were given up come again by this: their letters must not bring them too.
            redriven = old.dead.epoch, old.dead.sender.next
        for member in [m for m in self.members.values() if m.seats.get(outlet.stream) is old]:
            del member.seats[outlet.stream]
            self._drop(member, "the group was reset", now, put_out=True)
        self.keeper.replace(old)
        self.seats.remove(old)
        outlet.sender.flow.release(old.claim.sub, now=now)
        seat = self._new_seat(outlet, group.name, start, group.policy, line, declared=old.declared)
        seat.proven = old.proven
        seat.group.generation = group.generation + 1
        seat.group.paused, seat.group.redriven = group.paused, redriven
        if (founder := self._founders.pop(id(old), None)) is not None:
            self._founders[id(seat)] = founder
        self.keeper.save_now(seat)
        self._reopen(outlet)
        self._streams.changed.notify_all()
        return seat

    def _put_out(self, member: RemoteMember, reason: str, now: float) -> None:
        """A member is to go, and not to ask again."""
        self._drop(member, reason, now, tell=False, put_out=True)
        self._counters["members_evicted"] += 1
        self._control.post(member.link, Unjoined(member.sub, reason, refused=True))

    # --- members ---

    def on_join(
        self, link: bytes, peer: str, join: Join, now: float, places: Places | None = None
    ) -> None:
        """A member asks to be taken; it gets work as soon as its connection is seen.

        `places` is where new groups start whose starts lie in the log, once that was looked up.
        """
        if join.more:
            self._roll.note_claims(link, join)
            return
        try:
            reason = self._unfit(join, peer) or self._no_room(link, join, now)
        except MeshError as error:
            reason = str(error)
        if reason:
            self._refuse(link, peer, join, reason)
            return
        if places is None and (far := self._far_starts(join)):
            resolved = partial(self._on_places, link, peer, join)
            self._disk.find_places(join.sub, join.group, far, resolved)
            return
        member = self.members.get(join.sub)
        before: RemoteMember | None = None
        anew = member is None or member.link != link or member.ticket != join.ticket
        if member is not None and anew:
            # Its control connection broke, and acknowledgements with it: it says which it knows.
            for seat in member.seats.values():
                if seat.kept:
                    seat.group.detach(join.sub, now=now)
            self._drop(member, "came back", now, tell=False, again=True)
            before, member = member, None
        if member is None:
            member = None if self._is_crowded(link) else self._new_member(join, link, peer, now)
            if member is None:
                for seat in [] if before is None else before.seats.values():
                    self._roll.strike(seat, join.sub)
                self._put_off(link, join.sub, now)
                return
        member.link, member.prefetch = link, join.prefetch
        member.ack_timeout_s = join.ack_timeout_s
        known = set(member.seats)
        try:
            self._take_seats(member, join, places or {})
        except MeshError as error:
            self._drop(member, str(error), now, tell=False)
            self._refuse(link, peer, join, str(error), final=not isinstance(error, LogError))
            return
        seats = [seat for stream, seat in member.seats.items() if stream not in known]
        self._roll.recall(member, join, seats, now)
        tails = [
            Tail(name, seat.outlet.epoch, min(max(0, seat.group.floor), sealed), sealed)
            for name, seat in member.seats.items()
            for sealed in [seat.outlet.sender.sealed]
        ]
        addresses = member.work.addresses
        generations = {name: seat.group.generation for name, seat in member.seats.items()}

        def joined(some: list[Tail], _: Page) -> Joined:
            eras = {tail.stream: era for tail in some if (era := generations[tail.stream])}
            return Joined(join.sub, some, addresses, eras)

        self._control.post_pages(link, joined, tails)
        if member.work.connected and member.lost_at is None:
            self._enter(member, now)

    def _refuse(
        self, link: bytes, peer: str, join: Join, reason: str, *, final: bool = True
    ) -> None:
        """Tell a member why it is not taken; one that may ask again is told in a while."""
        reason = as_text(reason)
        self._counters["members_refused"] += 1
        text = "refused %s as a member of group %s: %s"
        self._notes.error(text, peer, join.group, reason, by=self._control.owner_of(link).host)
        if final:
            self._control.post(link, Unjoined(join.sub, reason, refused=True))
        else:
            self._put_off(link, join.sub, _platform.monotonic())

    def _unfit(self, join: Join, peer: str) -> str:
        """Why a member cannot be taken; empty if it can."""
        check_group("group", join.group)
        known = self.members.get(join.sub)
        if known is not None and (known.peer, known.group) != (peer, join.group):
            return "another member has its number"
        if not TopicFilter(join.patterns).patterns:
            return "it names no topics"
        policy = policy_of(join)
        for start in join.starts:
            seat = self.seats.find(start.stream, join.group)
            if seat is None or not set(self._present(seat)) - {join.sub}:
                continue
            difference = seat.group.policy.difference(policy)
            if difference:
                return f"a member of group {join.group!r} asks for {difference}"
        if len(self.seats) + len(join.starts) > GROUPS_MAX:
            return f"{GROUPS_MAX} groups are there already"
        return ""

    def _no_room(self, link: bytes, join: Join, now: float) -> str:
        """Why there is no place for a member, or for its groups; empty if there is."""
        owner = self._control.owner_of(link)
        begun = sum(self._begins(start, join) for start in join.starts)
        if begun and begun + list(self._founders.values()).count(owner) > GROUPS_EACH_MAX:
            return f"you have begun {GROUPS_EACH_MAX} groups already"
        if join.sub in self.members:
            return ""
        giver = self.quota.giver(owner)
        if giver is None:
            return f"no room: you have {self.quota.owners[owner]:,} members here already"
        if giver != owner:
            last = next(m for m in reversed(self.members.values()) if m.owner == giver)
            self._drop(last, "others need the room", now)
        return ""

    def _present(self, seat: Seat) -> list[int]:
        """Members of a group on a stream, those included that have yet to connect."""
        name, stream = seat.group.name, seat.outlet.stream
        return [m.sub for m in self.members.values() if m.group == name and stream in m.seats]

    def _new_member(self, join: Join, link: bytes, peer: str, now: float) -> RemoteMember | None:
        assert self._context is not None
        try:
            work = self._context.work_outlet(join.sub, self._addresses, self._context.user_of(link))
        except BindError as error:
            host = self._control.owner_of(link).host
            self._notes.error("no socket for %s: %s", peer, error, by=host)
            return None
        member = RemoteMember(join, link, peer, self._control.owner_of(link), work, now)
        self.quota.take(member.owner)
        self.members[join.sub] = member
        self._by_monitor[id(work.monitor)] = member
        self._watch(work.monitor)
        return member

    def _is_crowded(self, link: bytes) -> bool:
        """Whether too many were answered and do not come for their work."""
        waiting = [m.link for m in self.members.values() if not m.work.connected]
        return len(waiting) >= self._waiting_max or waiting.count(link) >= WAITING_PER_PEER_MAX

    def _put_off(self, link: bytes, sub: int, now: float) -> None:
        """There is no room for a member now: it is told in a while, and asks again then."""
        self._counters["members_put_off"] += 1
        if len(self._later) < PUT_OFF_MAX:
            self._later.append((now + PUT_OFF_S, link, sub))

    def _on_places(self, link: bytes, peer: str, join: Join, places: Places) -> None:
        self._resolved.append((link, peer, join, places))

    def _far_starts(self, join: Join) -> list[Start]:
        """Starts of groups that are new, which only a log can tell."""
        outlets = self._streams.outlets
        return [
            start
            for start in join.starts
            if self._begins(start, join) and outlets[start.stream].reaches_back(start)
        ]

    def _begins(self, start: Start, join: Join) -> bool:
        """Whether a start is that of a new group, on a stream that is here."""
        known = start.stream in self._streams.outlets
        return known and self.seats.find(start.stream, join.group) is None

    def _take_seats(self, member: RemoteMember, join: Join, places: Places) -> None:
        policy = policy_of(join)
        for start in join.starts:
            outlet = self._streams.outlets.get(start.stream)
            # Its own dead letters would come back to it for ever.
            if outlet is None or self._dead.is_of(outlet, join.group):
                continue
            seat = self.seats.find(outlet.stream, join.group)
            if seat is None:
                line = places.get(start.stream)
                if line is not None:
                    begin = line.start
                else:
                    begin = outlet.sender.start_of(start.kind, start.value, start.epoch)
                seat = self._new_seat(outlet, join.group, begin, policy, line)
                self._founders[id(seat)] = member.owner
                self.keeper.save_now(seat)
            elif not self._present(seat):
                seat.group.set_policy(policy, takes_all=takes_all_of(policy, outlet.config.topics))
            member.seats[outlet.stream] = seat

    def _enter(self, member: RemoteMember, now: float) -> None:
        """Its connection is there: give it work."""
        for seat in member.seats.values():
            self._roll.admit(seat, member, now)

    def _take_in(self, seat: Seat, member: RemoteMember, now: float) -> None:
        seat.empty_since = None
        seat.proven = True
        if not seat.is_set_aside:
            seat.outlet.sender.flow.take_back(seat.claim, now=now)
        seat.group.join(member.sub, member.label, member.prefetch, member.ack_timeout_s, now=now)
        self._dispatch(seat, now)
        self._streams.changed.notify_all()

    def _on_saved(self, saved: Saved) -> None:
        group = saved.seat.group
        # Where nothing can be saved, work goes on: what is done may then come again.
        group.limit = max(group.limit, saved.mark)
        self._roll.on_saved(saved)
        if group.members:
            self._dispatch(saved.seat, _platform.monotonic())

    def look(self) -> int:
        """Cut whoever sends to a socket of a member; return how many were."""
        return sum(member.work.monitor.look() for member in list(self.members.values()))

    def on_readable(self, monitor: Any, now: float) -> bool:
        """A member's connection came or went; `False` if this is not a member's monitor."""
        member = self._by_monitor.get(id(monitor))
        if member is None:
            return False
        with self._streams.changed:
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
        member = self.members.get(message.sub)
        if member is None or member.link != link:
            self._counters["stale_acks"] += sum(map(self._stale_of, message.settlements))
            if not message.closed or message.number:
                self._control.post(link, Unjoined(message.sub, "not a member here"))
            return
        if message.closed:
            for seat in member.seats.values():
                seat.group.pause(member.sub)  # what it gives back is for others
        places = {}
        for settlement in message.settlements:
            place = member.seats.get(settlement.stream)
            if place is None or place.group.shelf.line.offset(settlement.epoch) is None:
                self._counters["strange_settlements"] += 1
                continue
            places[settlement.stream] = place
            self._settle(place, member.sub, settlement, now)
        for place in places.values():
            self._roll.hear(place, member, message.number)
            self._dispatch(place, now)
        for stream, count in message.received.items():
            if stream in member.seats:
                group = member.seats[stream].group
                group.pause(member.sub)
                group.give_back_after(member.sub, count, now=now)
        if message.closed:
            self._drop(member, "left", now, tell=False)
            self._roll.part(member, message.number)

    def _settle(self, seat: Seat, sub: int, settlement: Settlement, now: float) -> None:
        group = seat.group
        stale = group.stale
        line = group.shelf.line
        offset = line.offset(settlement.epoch) or 0
        if settlement.acks:
            group.ack(sub, on_line(line, settlement.epoch, settlement.acks), now=now)
        for nack in settlement.nacks:
            group.nack(sub, nack.seq + offset, nack.attempt, nack.delay_s, nack.error, now=now)
        if settlement.returned:
            group.give_back(sub, on_line(line, settlement.epoch, settlement.returned), now=now)
        if group.stale > stale:
            self._counters["stale_acks"] += group.stale - stale

    def _stale_of(self, settlement: Settlement) -> int:
        """How many events somebody spoke of that has none: at most what the stream has."""
        outlet = self._streams.outlets.get(settlement.stream)
        most = 1 if outlet is None else max(1, outlet.sender.next - outlet.sender.origin)
        acked = sum(min(max(0, stop - first), most) for first, stop, _ in settlement.acks)
        return min(acked, most) + len(settlement.nacks)

    def _drop(
        self,
        member: RemoteMember,
        reason: str,
        now: float,
        *,
        tell: bool = True,
        again: bool = False,
        put_out: bool = False,
    ) -> None:
        """A member is gone: its work goes to the others; `again`: it is about to speak of it.

        `put_out` is for one that an operator sends away: what it had counts as no failure.
        """
        if self.members.pop(member.sub, None) is None:
            return
        self.quota.free(member.owner)
        self._by_monitor.pop(id(member.work.monitor), None)
        self._unwatch(member.work.monitor)
        member.work.close(0.0)
        if tell:
            text = "%s of group %s: %s"
            self._notes.info(text, member.label, member.group, reason, by=member.owner.host)
            self._counters["members_lost"] += 1
            self._control.post(member.link, Unjoined(member.sub, reason))
        for seat in member.seats.values():
            in_order = reason == "left"
            seat.group.leave(member.sub, reason, now=now, in_order=in_order, put_out=put_out)
            if again and seat.kept:
                seat.entering.pop(member.sub, None)
                continue
            self._roll.strike(seat, member.sub)
            if not seat.group.members and seat.empty_since is None:
                seat.empty_since = now
                if seat.kept:
                    seat.outlet.sender.flow.let_go(seat.claim, now=now)
                    self._reopen(seat.outlet)
            if seat.proven or seat.declared or self._present(seat):
                self._dispatch(seat, now)
            else:
                self._retire(seat, now)  # nobody ever came for its work
        self._streams.changed.notify_all()

    def forget_link(self, link: bytes, reason: str, now: float) -> None:
        """A peer left or fell silent: its members with it."""
        for member in [m for m in self.members.values() if m.link == link]:
            self._drop(member, reason, now)
        self._roll.forget_claims(link)

    def forget_silent(self, last_seen: Mapping[bytes, float], now: float) -> None:
        """Members whose peers gave no sign for too long."""
        tuning = self._tuning
        silent_s = max(tuning.member_timeout_s, 2 * tuning.ping_interval_s)
        with self._streams.changed:
            for member in list(self.members.values()):
                if last_seen.get(member.link, 0.0) < now - silent_s:
                    self._drop(member, f"silent for {silent_s:g} s", now)

    # --- work ---

    def on_frame(self, outlet: Outlet) -> None:
        """A frame was sealed: its events go to the groups."""
        now = _platform.monotonic()
        for seat in self.seats.of(outlet.stream):
            self._dispatch(seat, now)

    def _dispatch(self, seat: Seat, now: float) -> None:
        outlet, group = seat.outlet, seat.group
        group.loss_reason = "evicted" if seat.claim.evicted else "overflow"
        for number, work in group.dispatch(outlet.sender.sealed, now=now):
            member = self.members[number]
            if member.lost_at is None and not member.work.send(
                encode_work(member.ticket or number, work)
            ):
                self._suspend(member, now)  # and what it was to get comes again, to others
                self._wake()
        if group.dead_letters:
            self._dead.bury_all(seat, now)
        if group.losses:
            losses, group.losses = group.losses, []
            self._tell_losses(seat, losses)
        if group.shelf.wanted:
            self._disk.fetch(seat)
        if group.changes != seat.noted_changes or group.needs_mark(outlet.sender.sealed):
            seat.noted_changes = group.changes
            self.keeper.want(seat, at_once=group.stands(outlet.sender.sealed))
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
        if seat.is_set_aside and not claim.away:  # caught up by what its members still had in hand
            sender.flow.let_go(claim, now=now)
        if seat.outlet.gated:
            self._reopen(seat.outlet)
        self._streams.changed.notify_all()

    def _tell_losses(self, seat: Seat, losses: list[tuple[int, int, str]]) -> None:
        outlet = seat.outlet
        total = sum(stop - first for first, stop, _ in losses)
        log.warning("group %s lost %d events of %s", seat.group.name, total, outlet.stream)
        for first, stop, reason in losses[:NACK_RANGES_MAX]:
            for part in seat.group.shelf.line.split(first, stop):
                for number in seat.group.members:
                    ranges = [(part.first, part.stop)]
                    gone = Gone(number, outlet.stream, part.epoch, ranges, reason, 0)
                    self._control.post(self.members[number].link, gone)

    # --- time ---

    def on_tick(self, now: float) -> float:
        """Take back what is overdue, forget groups that nobody came back to."""
        self.operator.on_tick(now)
        resolved, self._resolved = self._resolved, []
        for link, peer, join, places in resolved:
            try:
                self.on_join(link, peer, join, now, places)
            except Exception:
                self._streams.guard.failed("a join that was looked up in a log")
        while self._later and self._later[0][0] <= now:
            _, link, sub = self._later.popleft()
            if sub not in self.members:
                self._control.post(link, Unjoined(sub, "there was no room for it"))
        for member in list(self.members.values()):
            if member.lost_at is not None and now >= member.lost_at + LAST_WORDS_S:
                # On a busy machine its last words may lie here, unread, for longer than that.
                if member.last_look:
                    self._drop(member, "connection lost", now)
                member.last_look = True
            elif not member.work.connected and now - member.joined_at > CONNECT_S:
                self._drop(member, "did not connect", now)
        lost = [m.lost_at for m in self.members.values() if m.lost_at is not None]
        busy = self.members or self.seats or self._later
        due = min([now + TICK_S if busy else NEVER, *(at + LAST_WORDS_S for at in lost)])
        for seat in list(self.seats):
            group = seat.group
            if (back_by := self._roll.on_tick(seat, now)) is not None:
                due = min(due, back_by)
            if group.deadline() <= now:
                group.on_deadline(now=now)
            self._dispatch(seat, now)
            due = min(due, group.deadline())
            if seat.dropped and self.keeper.may_drop(seat, wanted=bool(self._present(seat))):
                self._retire(seat, now)
                continue
            since, keep_s = seat.empty_since, seat.keep_s
            if seat.declared or seat.awaited:
                continue
            if since is None or keep_s is None or now - since <= keep_s:
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
            for member in self.members.values()
        )

    def away(self, outlet: Outlet, stop: int) -> list[Claim]:
        """Groups that work from the log, and have members that have yet to come this far.

        A member of an earlier start that is expected back is one of them, and so is one that has
        joined and has yet to get work: its group is without members only for that moment.
        """
        return [
            seat.claim
            for seat in self.seats.of(outlet.stream)
            if seat.claim.away
            and seat.group.floor < stop
            and not seat.is_set_aside
            and (seat.awaited or self._present(seat))
        ]

    def rows(self) -> list[LedgerRow]:
        """A row for each group on each stream."""
        return [*self._finished, *map(live_row, self.seats)]

    def fates(self, outlet: Outlet, place: Position) -> list[dict[str, Any]]:
        """What became of an event in each of the groups of its stream, as plain data."""
        found = []
        for seat in self.seats.of(outlet.stream):
            group = seat.group
            number = group.shelf.line.number(place.epoch, place.seq)
            if number is not None:
                patterns = list(group.policy.patterns)
                fate = group.fate(number)._asdict()
                found.append({"group": group.name, "patterns": patterns, **fate})
        return found

    def stats(self, outlet: Outlet) -> list[dict[str, Any]]:
        """Figures of the groups of a stream, as plain data."""
        return [group_stats(seat) for seat in self.seats.of(outlet.stream)]

    def close(self) -> None:
        """Close the sockets of all members."""
        for member in self.members.values():
            member.work.close(0.2)
        self.members.clear()
