"""The subscribers of a peer's streams: who they are, what they are told, and what they report."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from meshmsg import _platform
from meshmsg._model.config import Tuning
from meshmsg._model.errors import ClosedError
from meshmsg._model.message_fields import as_text
from meshmsg._model.topics import TopicFilter
from meshmsg._publish.backpressure import StreamGates
from meshmsg._publish.durable_streams import DurableSide
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.stream_counts import claim_row
from meshmsg._publish.streams import Streams
from meshmsg._replay.log_reads import Chapter
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire.control import (
    Commit,
    Evicted,
    Figures,
    Nack,
    Rekey,
    Start,
    Status,
    StatusPlease,
    Subscribe,
    Subscribed,
    Unsubscribed,
    subscription_token,
)
from meshmsg.recovery.stream.absence import Absence
from meshmsg.recovery.stream.ledger import LedgerRow
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.quotas import Owner, Quota

log = logging.getLogger("meshmsg.peer")

FINISHED_MAX = 1000
#: Of all who dial, and of one of them.
SUBSCRIPTIONS_MAX = 10_000
SUBSCRIPTIONS_EACH_MAX = 2000


class RemoteSubscription:
    """A subscription of another peer, as the publisher knows it."""

    def __init__(
        self, request: Subscribe, link: bytes, peer: str, instance: int, owner: Owner
    ) -> None:
        self.sub = request.sub
        self.instance = instance
        self.owner = owner
        self.link = link
        self.peer = peer
        self.label = f"{peer}/{request.name or '-'}#{request.sub & 0xFFFFFF:06x}"
        self.holder = self.holder_of(request)  #: by which a log knows what it keeps for it
        self.filter = TopicFilter(request.patterns)
        self.starts: dict[str, Start] = {}
        self.admitted: set[str] = set()
        self.confirmed: set[str] = set()  #: streams of which it has heard that it is
        self.absence = Absence()
        self.waited = True  #: while it is away
        self.resumed: set[str] = set()  #: streams on which it was here, until it was forgotten
        self.answered = 0

    def holder_of(self, request: Subscribe) -> str:
        """Return under which name logs are kept for the subscription; empty if they are not."""
        return f"{self.peer}/{request.name}" if request.hold and request.name else ""


class Subscribers:
    """All subscriptions of other peers; they share the publishing side's lock."""

    def __init__(
        self,
        streams: Streams,
        gates: StreamGates,
        control: ControlSender,
        durable: DurableSide,
        tuning: Tuning,
        find: Callable[[str], Outlet],
        members: Callable[[Outlet, str], int],
    ) -> None:
        self._streams = streams
        self._lock = streams.lock
        self._changed = streams.changed
        self._outlets = streams.outlets
        self._gates = gates
        self._control = control
        self._durable = durable
        self._tuning = tuning
        self._find = find  # the stream of a topic
        self._members = members  # how many members of groups take a topic of a stream
        self.counters = streams.counters
        self._notes = streams.guard.notes
        self.subs: dict[int, RemoteSubscription] = {}
        self.away: dict[int, RemoteSubscription] = {}  #: of these, who left first comes first
        self.quota = Quota(SUBSCRIPTIONS_EACH_MAX, SUBSCRIPTIONS_MAX)
        self.tokens: set[int] = set()  #: of those whose pipes are there
        self.finished: deque[LedgerRow] = deque(maxlen=FINISHED_MAX)  #: of those who left
        self.called = True  #: the data socket may have something to tell
        self.called_in_vain = False  #: it had nothing to tell the last time
        self._asked = 0

    # --- what they say: the I/O thread ---

    def on_subscribe(
        self, link: bytes, peer: str, instance: int, request: Subscribe, now: float
    ) -> None:
        """A subscription asks to be taken; it is as soon as its pipe is seen too."""
        owner = self._control.owner_of(link)
        # Of streams that are not here nothing is kept: whoever asks heard of them from us.
        starts = {start.stream: start for start in request.starts if start.stream in self._outlets}
        with self._changed:
            remote = self.subs.get(request.sub)
            if remote is None:
                self._replace(peer, instance, owner, now)
                reason = "no such stream here" if not starts else self._make_room(owner, now)
                if reason:
                    self.counters["subscriptions_refused"] += 1
                    self.refuse(link, request, reason)
                    return
                remote = RemoteSubscription(request, link, peer, instance, owner)
                self.subs[request.sub] = remote
                self.quota.take(owner)
                for row in [r for r in self.finished if r.subscription == remote.label]:
                    self.finished.remove(row)  # it is back, and goes on with its books
                    remote.resumed.add(row.stream)
            else:
                self.quota.free(remote.owner)
                self.quota.take(owner)
                remote.link, remote.owner = link, owner
                remote.absence.silent_since = None
                remote.holder = remote.holder_of(request)
            remote.starts.update(starts)
            self.drain_tokens(now)
            if request.sub in self.tokens:
                self._admit(remote, now)

    def _replace(self, peer: str, instance: int, owner: Owner, now: float) -> None:
        """A peer that was started again does not come back for its old subscriptions."""
        for old in list(self.away.values()):
            same = (old.peer, old.owner.host) == (peer, owner.host)
            if same and old.instance != instance:
                self._forget(old.sub, "gone", now)

    def _make_room(self, owner: Owner, now: float) -> str:
        """Return why there is no place for another subscription; empty if there is."""
        giver = self.quota.giver(owner)
        if giver != owner and self._displace_away(owner, giver, now):
            return ""
        if giver is None:
            self.counters["subscriptions_full"] += 1
            return f"no room: you have {self.quota.owners[owner]:,} subscriptions here already"
        if giver != owner:
            last = next(r for r in reversed(self.subs.values()) if r.owner == giver)
            self.counters["subscriptions_displaced"] += 1
            text = "%s gives its place to others: its peer has most of them"
            self._notes.warning(text, last.label, by=giver.host)
            self._tell(last.link, last.sub, [*last.admitted, *last.starts], "others need the room")
            self._forget(last.sub, "gone", now)
        return ""

    def _displace_away(self, owner: Owner, giver: Owner | None, now: float) -> bool:
        """Forget who is longest away of those who have to give a place; False if all are there."""
        host = (giver or owner).host
        for remote in self.away.values():
            if remote.owner == owner or (
                remote.owner.host == host and not self.quota.is_over(owner)
            ):
                self.counters["subscriptions_displaced"] += 1
                self._forget(remote.sub, "gone", now)
                return True
        return False

    def refuse(self, link: bytes, request: Subscribe, reason: str, *, final: bool = False) -> None:
        """Tell a subscription that it was not taken, and why."""
        self._tell(link, request.sub, [s.stream for s in request.starts], reason, final=final)

    def _tell(
        self, link: bytes, sub: int, streams: list[str], reason: str, *, final: bool = False
    ) -> None:
        text = as_text(reason)
        self._control.post_pages(
            link, lambda some, _: Unsubscribed(sub, some, text, refused=final), streams
        )

    def _admit(self, remote: RemoteSubscription, now: float) -> None:
        remote.absence = Absence()
        if self.away.pop(remote.sub, None) is not None:
            for name in remote.admitted:
                flow = self._outlets[name].sender.flow
                claim = flow.claims.get(remote.sub)
                if claim is not None:
                    flow.come_back(claim, now=now)
        starts, remote.starts = remote.starts, {}
        for name, start in starts.items():
            outlet = self._outlets.get(name)
            if outlet is None:
                continue
            if outlet.log is not None and (remote.holder or outlet.reaches_back(start)):
                self._durable.look_up(
                    (remote.sub, name),
                    remote.label,
                    partial(self._admit_from_log, remote, outlet, start),
                    partial(self._put_off, remote, outlet),
                )
            else:
                self._admit_to(remote, outlet, start, (), now)
        self._changed.notify_all()

    def _admit_from_log(self, remote: RemoteSubscription, outlet: Outlet, start: Start) -> None:
        """On the replay's thread: find where a start lies in the log, then admit."""
        begin, chapters = self._durable.find(outlet, start, remote.holder)
        with self._changed:
            if self.subs.get(remote.sub) is remote and self._streams.fanout is not None:
                self._admit_to(remote, outlet, begin, chapters, _platform.monotonic())
                self._changed.notify_all()

    def _put_off(self, remote: RemoteSubscription, outlet: Outlet, reason: str) -> bool:
        """Tell a subscription that it has to wait for a stream; `False` if it is gone."""
        if self.subs.get(remote.sub) is not remote:
            return False
        self._tell(remote.link, remote.sub, [outlet.stream], f"not yet: {reason}")
        return True

    def _admit_to(
        self,
        remote: RemoteSubscription,
        outlet: Outlet,
        start: Start,
        past: Sequence[Chapter],
        now: float,
    ) -> None:
        """Tell a subscription what is its: epochs that are over, oldest first, then this one."""
        sub, name, sender = remote.sub, outlet.stream, outlet.sender
        for epoch, origin, first, stop in past:
            over = Subscribed(sub, name, epoch, origin, first, stop, first, over=True)
            self._control.post(remote.link, over)
        known = sub in sender.flow.claims
        given = sender.admit(
            sub,
            remote.label,
            [pattern.text for pattern in remote.filter.patterns],
            start.kind,
            start.value,
            start.epoch,
            returns=name in remote.resumed,
            now=now,
        )
        behind = bool(past) or (given.start < given.next and not known)
        if outlet.log is not None and behind:
            sender.flow.let_go(sender.flow.claims[sub], now=now)
            self._gates.reopen(outlet)
        remote.admitted.add(name)
        packets = outlet.packets
        self._control.post(
            remote.link,
            Subscribed(
                sub,
                name,
                given.epoch,
                given.origin,
                given.first,
                given.next,
                given.start,
                0 if packets is None else packets.admit(sub, now),
                seal=None if packets is None else packets.seal_info(),
            ),
        )

    def give_key(self, stream: str, generation: int, key: bytes) -> None:
        """Hand out a key of a multicast stream; who is cut off is not in `subs` any more."""
        for remote in self.subs.values():
            if stream in remote.admitted and remote.absence.since is None:
                self._control.post(remote.link, Rekey(remote.sub, stream, [(generation, key)]))

    def on_nack(self, link: bytes, message: Nack) -> None:
        """Send again what was asked for, as far as it is there."""
        sub, stream = message.sub, message.stream
        if not self._control.may_repair(link):
            return
        outlet = self._outlets.get(stream)
        with self._lock:
            known = self.subs.get(message.sub)
            if outlet is None or known is None or known.link != link:
                self.counters["strange_nacks"] += 1
                return
            self.counters["nacks"] += 1
            answer = outlet.sender.repair(
                sub, message.epoch, message.ranges, self._tuning.repair_bytes_max
            )
        if answer.in_log:
            if answer.stored:
                message = msgspec.structs.replace(message, ranges=answer.stored)
            self._durable.answer(link, outlet, message)
        else:
            self._control.answer_nack(link, message, answer.frames, answer.gone)

    def on_status(self, link: bytes, message: Status, now: float) -> None:
        """A subscription tells how far it is."""
        with self._changed:
            remote = self.subs.get(message.sub)
            if remote is None or remote.link != link:
                self.counters["strange_status"] += 1
                return
            remote.answered = max(remote.answered, message.answers)
            for figures in message.figures:
                if figures.stream in remote.admitted:
                    remote.confirmed.add(figures.stream)
                    self._note_holder(remote, figures.stream)
                self._on_figures(message.sub, figures, now)
            if message.closed:
                self._forget(remote.sub, "closed", now)
            self._changed.notify_all()

    def _note_holder(self, remote: RemoteSubscription, stream: str) -> None:
        outlet = self._outlets.get(stream)
        if remote.holder and outlet is not None and outlet.log is not None:
            outlet.log.holds.heard(remote.holder)

    def _on_figures(self, sub: int, figures: Figures, now: float) -> None:
        outlet = self._outlets.get(figures.stream)
        if outlet is None or figures.epoch != outlet.epoch:
            return
        claim = outlet.sender.flow.claims.get(sub)
        if claim is not None and figures.start < claim.start:
            claim.start = figures.start  # it was here before, and counts from there
        taken = outlet.sender.flow.report(
            sub,
            received=figures.received,
            consumed=figures.consumed,
            delivered=figures.delivered,
            filtered=figures.filtered,
            lost=figures.lost,
            stop=outlet.sender.next,
            now=now,
        )
        if taken is None:
            self.counters["strange_figures"] += 1
        self._gates.reopen(outlet)

    def on_commit(self, link: bytes, message: Commit) -> None:
        """A subscription that holds a log back says what it is done with."""
        with self._lock:
            remote = self.subs.get(message.sub)
            if remote is None or remote.link != link:
                self.counters["strange_commits"] += 1
            else:
                self._durable.on_commit(remote.holder, message)

    # --- their coming and going: with the lock held ---

    def drain_tokens(self, now: float) -> float:
        """See whose pipes have come or gone.

        Whoever sends takes ZeroMQ's call, too: a publisher looks without being called.
        """
        fanout = self._streams.fanout
        assert fanout is not None
        if not (self.called or self._outlets):
            return NEVER
        seen = fanout.drain()
        self.called_in_vain = self.called and not seen
        for came, topic in seen:
            if len(topic) != 12 or topic[:4] != subscription_token(0)[:4]:
                continue
            sub = int.from_bytes(topic[4:], "little")
            remote = self.subs.get(sub)
            if came:
                self.tokens.add(sub)
                if remote is not None:
                    remote.absence.detached_at = None
                    if remote.absence.since is None:  # else it has yet to say who it is
                        self._admit(remote, now)
            else:
                self.tokens.discard(sub)
                if remote is not None:
                    remote.absence.detached_at = now
                    self._set_aside(remote, now)
        self.called = not fanout.drained
        return now if self.called else NEVER

    def _set_aside(self, remote: RemoteSubscription, now: float) -> None:
        """One is away: wait for it as long as it is waited for, and no longer."""
        absence, sub = remote.absence, remote.sub
        assert absence.since is not None
        self.away[sub] = remote
        attached = absence.detached_at is None
        waited = absence.is_waited_for(self._tuning.subscriber_wait_s, now=now)
        remote.waited = waited
        for outlet in self._outlets.values():
            flow = outlet.sender.flow
            claim = flow.claims.get(sub)
            if claim is not None and outlet.log is not None:
                # The log has what it missed: nobody need wait for it meanwhile.
                flow.let_go(claim, now=now)
            if claim is not None:
                flow.leave(claim, absence.since, attached=attached, waited=waited, now=now)
            if outlet.packets is not None and not waited:
                # Nobody waits for packets of a process that has ended; one that lives reports
                # again.
                outlet.packets.sender.release(sub)
            self._gates.reopen(outlet)
        self._changed.notify_all()

    def tend_away(self, now: float) -> float:
        """Those who have been away for too long are not waited for, and then forgotten."""
        tuning = self._tuning
        for remote in list(self.away.values()):
            absence = remote.absence
            if absence.is_over(tuning.subscriber_return_s, now=now):
                text = "%s has not come back: nothing is kept for it any more"
                self._notes.info(text, remote.label, by=remote.owner.host)
                self._forget(remote.sub, "gone", now)
            elif remote.waited and not absence.is_waited_for(tuning.subscriber_wait_s, now=now):
                self._set_aside(remote, now)
        return NEVER

    def lose_link(self, link: bytes, last_seen: float, now: float) -> None:
        """A peer fell silent: its subscriptions are away."""
        for remote in [r for r in self.subs.values() if r.link == link]:
            if remote.admitted:
                remote.absence.silent_since = last_seen
                self._set_aside(remote, now)
            else:
                self._forget(remote.sub, "gone", now)

    def forget_link(self, link: bytes, now: float) -> None:
        """A peer left: its subscriptions with it."""
        for remote in [r for r in self.subs.values() if r.link == link]:
            self._forget(remote.sub, "gone", now)

    def _forget(self, sub: int, state: str, now: float) -> None:
        remote = self.subs.pop(sub, None)
        if remote is None:
            return
        self.away.pop(sub, None)
        self.quota.free(remote.owner)
        for outlet in self._outlets.values():
            claim = outlet.sender.flow.release(sub, now=now)
            if outlet.packets is not None:
                outlet.packets.sender.forget(sub)
            if claim is not None and claim.reported:
                self.finished.append(claim_row(outlet, claim, claim.consumed, state))
            self._gates.reopen(outlet)
        self._changed.notify_all()

    def named(self, is_meant: Callable[[str], bool]) -> list[RemoteSubscription]:
        """The subscriptions of these names."""
        with self._changed:
            return [remote for remote in self.subs.values() if is_meant(remote.label)]

    def put_out(self, remote: RemoteSubscription, reason: str, now: float) -> None:
        """End a subscription, which is told not to ask again."""
        with self._changed:
            self._tell(remote.link, remote.sub, sorted(remote.admitted), reason, final=True)
            self.counters["subscriptions_evicted"] += 1
            self._forget(remote.sub, "evicted", now)

    def evict(self, outlet: Outlet, sub: int, label: str, count: int = 1) -> None:
        """Say whom a stream does not wait for any more, and tell it."""
        waited = outlet.config.evict_after
        reason = f"blocked {outlet.stream} for {waited:g} s without reading"
        remote = self.subs.get(sub)
        by = None if remote is None else remote.owner.host
        self._notes.warning("evicted %s: it %s", label, reason, by=by)
        self.counters["evictions"] += count
        if remote is not None:
            self._control.post(remote.link, Evicted(sub, outlet.stream, f"you {reason}"))

    # --- waiting for them: any thread ---

    def wait_for(self, topic: str, count: int, timeout: float | None) -> int:
        """How many subscribers take the topic, once there are `count` or the time is up."""
        outlet = self._find(topic)
        with self._changed:
            gates = self._gates
            self._changed.wait_for(
                lambda: (
                    gates.closed
                    or outlet.stream in gates.rivals
                    or self._takers(outlet, topic) >= count
                ),
                timeout,
            )
            if gates.closed:
                raise ClosedError(gates.closed_text)
            gates.check_name(outlet)
            return self._takers(outlet, topic)

    def _takers(self, outlet: Outlet, topic: str) -> int:
        # Of a durable stream only those count who know it: after a crash they ask for what they
        # missed, while one whose answer was lost with the process would start anew.  And of
        # packets a receiver takes none before it knows with which one it begins.
        name, knows = outlet.stream, outlet.log is not None or outlet.packets is not None
        known = sum(
            sub.absence.since is None
            and name in (sub.confirmed if knows else sub.admitted)
            and sub.filter.matches(topic)
            for sub in self.subs.values()
        )
        # What multicast receivers without a connection take of the stream is their own affair.
        known += self._members(outlet, topic)
        return known + (outlet.packets.strangers(self.subs) if outlet.packets is not None else 0)

    def refresh(self, timeout: float) -> None:
        """Have all subscribers report and wait for their answers, as long as the time allows."""
        deadline = _platform.monotonic() + timeout
        with self._changed:
            number = self.ask_status(set(self.subs))
            self._changed.wait_for(
                lambda: self._answered(number), max(0.0, deadline - _platform.monotonic())
            )

    def start_refresh(self) -> int:
        """Ask every subscriber for its status; `is_fresh` tells when they answered."""
        with self._lock:
            return self.ask_status(set(self.subs))

    def is_fresh(self, number: int) -> bool:
        """Whether every subscriber that is there has answered this question."""
        with self._lock:
            return self._answered(number)

    def _answered(self, number: int) -> bool:
        present = [r for r in self.subs.values() if r.absence.since is None]
        return all(r.answered >= number for r in present)

    def ask_status(self, subs: set[int]) -> int:
        """With the lock held: have subscribers report; the number comes back in their answer."""
        self._asked += 1
        for sub in subs:
            remote = self.subs.get(sub)
            if remote is not None:
                self._control.post(remote.link, StatusPlease(sub, self._asked))
        return self._asked
