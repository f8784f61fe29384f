"""Recorders as further sources of a subscription's streams: history, and the rung before a loss.

What is missing is asked of the publisher; what that does not have, or if it is not there, of the
recorders that are connected; only what none of them has is lost.  Where a subscription starts in
the past, or its publisher comes back in another epoch, recorders are asked first what they have:
the history of a stream is all that its sources have together.  Called by whoever drives the
subscription, with its lock held.

Authority: what a recorder says of how far a stream is counts only while its publisher cannot be
asked, or for an epoch that this has left behind (`follow`).  Even then it is a claim: it is asked
of that recorder and forgotten if nothing comes of it (`meshmsg.recovery.stream.receiver`).  An
epoch of a recorder is entered on the same terms (`may_enter`).  Its word that events are gone
counts for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._model.topics import TopicFilter
from meshmsg._receive.incoming_stream import Lend, Source, TailHint
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._receive.ready_queue import ReadyQueue
from meshmsg._wire.control import (
    Gone,
    Nack,
    Start,
    StreamInfo,
    Subscribe,
    Subscribed,
)
from meshmsg.recovery.stream.receiver import StreamReceiver

log = logging.getLogger("meshmsg.peer")

Range = tuple[int, int]
#: For so long the first epoch waits for what recorders have to say.
ASK_S = 3.0
#: ... and, for so long, for peers that the user named and that have not answered yet.
PATIENCE_S = 1.0
#: A recorder that is behind its publisher is asked again after this long.
ASK_AGAIN_S = 0.1
#: ... for so long: then what it has is all that it will have.
BEHIND_S = 0.5
LENDERS_MAX = 100
#: Stands for peers that have yet to answer.
SOMEBODY = "somebody"


class Lending:
    """What a subscription does with recorders."""

    def __init__(
        self,
        sub: int,
        topics: TopicFilter,
        incoming: IncomingStreams,
        ready: ReadyQueue,
        post: Callable[[Any, Any], None],
        offered: Callable[[StreamInfo, Any], Source],
        follows_recorders: bool,
    ) -> None:
        self._sub = sub
        self._topics = topics
        self._incoming = incoming
        self._ready = ready
        self._post = post
        self._offered = offered  # has a stream that is new to us
        self._follows_recorders = follows_recorders

    # --- who there is ---

    def on_lend(self, notice: Lend, now: float) -> None:
        """A recorder has streams of ours."""
        incoming = self._incoming
        for info in notice.streams:
            source = incoming.by_name.get(info.name)
            if source is None:
                source = self._offered(info, notice.link)
            source.ladder.forget(notice.link)
            source.lenders = [link for link in source.lenders if link.state != "left"]
            if notice.link not in source.lenders and len(source.lenders) < LENDERS_MAX:
                source.lenders.append(notice.link)
                if info.name in notice.asked:  # once: coming again must not put anything off
                    source.asked[notice.link] = now
                    source.asked_until = max(source.asked_until, now + ASK_S)
                    self._await_others(source, notice.more, now)
            incoming.wake_at(source, now)
        incoming.settled = False

    def on_attach(self, source: Source, more: bool, now: float) -> None:
        """The publisher of a stream is there; `more` peers may be soon."""
        source.ladder.forget(source.link)
        known = [one for one in source.admissions if self.may_enter(source, one)]
        source.admissions.clear()
        source.admissions.extend(known)
        self._await_others(source, more, now)

    def _await_others(self, source: Source, more: bool, now: float) -> None:
        """They may have what was before, the publisher or recorders."""
        if more and source.receiver is None and self._incoming.reaches_back(source.info.name):
            source.asked[SOMEBODY] = now

    def on_complete(self, now: float) -> None:
        """No further peers are expected."""
        for source in self._incoming.by_name.values():
            source.asked.pop(SOMEBODY, None)
        self._incoming.timer_due = now

    def on_claim(self, source: Source, hint: TailHint, now: float) -> None:
        """A recorder says how far it is."""
        receiver, link = source.receiver, hint.lender
        if receiver is None or link not in source.lenders:
            return
        source.ladder.claim(link, hint.epoch, hint.next, now=now)
        if hint.epoch == receiver.epoch:
            self.follow(source, now)
            return
        # It may be in a later epoch, and the publisher is not there to tell us of it.
        later = hint.epoch > receiver.epoch and not source.admissions
        if later and self._is_led(source) and link not in source.asked:
            source.asked_until = now + ASK_S
            self._ask_for_history(source, link, now)
            self._incoming.settled = False

    def follow(self, source: Source, now: float) -> None:
        """Ask for what recorders claim to have beyond what is proved, if that counts now."""
        receiver = source.receiver
        assert receiver is not None
        if self._is_led(source) or source.info.epoch > receiver.epoch:
            receiver.on_claim(source.ladder.claimed(self._up(source.lenders)), now=now)
            self._incoming.wake_at(source, receiver.deadline())
        else:
            receiver.retract(now=now)

    def _is_led(self, source: Source) -> bool:
        """Whether recorders may lead on: the publisher is not there.

        What is written to a log cannot be taken back: a recorder follows publishers only.
        """
        return self._follows_recorders and not source.has_publisher

    def is_asking(self, source: Source, now: float) -> bool:
        """Whether a recorder has yet to say what it has of epochs before the next."""
        asked = source.asked
        if now - asked.get(SOMEBODY, now) >= PATIENCE_S:
            del asked[SOMEBODY]
        recorders = [link for link in asked if link is not SOMEBODY]
        if recorders and now >= source.asked_until:
            self._incoming.counters["lender_timeouts"] += 1
            log.warning("%s: no answer from a recorder", source.info.name)
            asked.clear()
            return False
        for link in recorders:
            if link.state != "up":
                del asked[link]
            elif now - asked[link] >= ASK_AGAIN_S and source.receiver:
                self._ask_for_history(source, link, now)
        return bool(asked)

    def _ask_for_history(self, source: Source, link: Any, now: float) -> None:
        receiver = source.receiver
        assert receiver is not None
        source.asked[link] = now
        start = Start(source.info.name, "resume", receiver.next, receiver.epoch)
        patterns = [pattern.text for pattern in self._topics.patterns]
        self._post(link, Subscribe(self._sub, patterns, [start]))

    # --- epochs ---

    def on_admission(
        self, source: Source, link: Any, admission: Subscribed, now: float
    ) -> Subscribed | None:
        """A source says what it has of an epoch; returns what there is to enter, if anything."""
        if admission.recorded:
            return self._on_lent_epoch(source, link, admission, now)
        receiver = source.receiver
        if receiver is None or source.said < receiver.epoch:
            return admission
        if admission.over and admission.epoch < receiver.epoch:
            self._incoming.counters["stale_admissions"] += 1
            return None
        # Where the publisher has a log, that has the end of the old one.
        is_new = not admission.over and receiver.epoch not in source.overs
        if is_new and admission.epoch > receiver.epoch:
            for lender in self._up(source.lenders):
                # It may have what the process had that ended.
                source.asked_until = max(source.asked_until, now + ASK_S)
                if lender not in source.asked:
                    self._ask_for_history(source, lender, now)
        return admission

    def _on_lent_epoch(
        self, source: Source, link: Any, admission: Subscribed, now: float
    ) -> Subscribed | None:
        """A recorder says what it has of an epoch: a start, and a claim."""
        receiver = source.receiver
        if not admission.over:
            newest = max((known.epoch for known in source.admissions), default=0)
            behind = admission.epoch < newest  # it has not heard of the new epoch yet
            if receiver is None or not behind or now - (source.asked_until - ASK_S) >= BEHIND_S:
                source.asked.pop(link, None)
        if link not in source.lenders:
            return None
        if source.link is not None and not self.may_enter(source, admission):
            self._incoming.counters["unproved_epochs"] += 1
            return None
        source.ladder.claim(link, admission.epoch, admission.next, now=now)
        if receiver is not None and admission.epoch <= receiver.epoch:
            if admission.epoch == receiver.epoch:
                self.follow(source, now)
            return None
        wanted = self._wanted(source)
        start = min(admission.start, admission.next)
        if receiver is None and wanted.kind == "resume" and admission.epoch <= wanted.epoch:
            if admission.epoch < wanted.epoch:
                return None
            start = wanted.value  # what it does not have is missing, and not passed over
        elif any(books.epoch == admission.epoch for books in source.old_books):
            return None  # we have been there
        return replace(admission, first=min(admission.first, start), start=start, next=start)

    def _wanted(self, source: Source) -> Start:
        """Where to go on in a stream that was forgotten, or as the user said."""
        name, left = source.info.name, source.left(led=self._is_led(source))
        if left is None:
            return self._incoming.start.for_stream(name)
        return Start(name, "resume", left.consumed, left.epoch)

    def may_enter(self, source: Source, admission: Subscribed) -> bool:
        """Whether an epoch is vouched for: by the publisher, or, where that is away, by anybody."""
        if not admission.recorded or self._is_led(source):
            return True
        return source.link is not None and bool(admission.epoch <= source.info.epoch)

    def awaits_publisher(self, source: Source) -> bool:
        """Return True while a publisher that is there has yet to say where the stream begins."""
        if source.receiver is not None or not source.has_publisher:
            return False
        return all(known.recorded for known in source.admissions)

    def put(self, source: Source, admission: Subscribed) -> None:
        """Have an epoch wait for its turn: one entry for all that its sources have."""
        waiting = source.admissions
        for at, known in enumerate(waiting):
            if known.epoch == admission.epoch:
                if known.recorded != admission.recorded:
                    mine, lent = sorted((known, admission), key=lambda one: one.recorded)
                    waiting[at] = replace(mine, start=self._joint_start(source, mine, lent))
                elif known.recorded:
                    waiting[at] = _joined(known, admission)
                elif admission.over or not known.over:  # how it ended was said since
                    waiting[at] = admission
                    if source.lenders:
                        start = self._joint_start(source, admission, known)
                        waiting[at] = replace(admission, start=start)
                return
        waiting.append(admission)
        if source.lenders or source.info.durable:  # the epochs of a log only grow
            ordered = sorted(waiting, key=lambda known: known.epoch)
            waiting.clear()
            waiting.extend(ordered)

    def _joint_start(self, source: Source, mine: Subscribed, lent: Subscribed) -> int:
        """Where to begin in an epoch of which the publisher and a recorder have something."""
        if source.receiver is None and not self._incoming.reaches_back(mine.stream):
            return mine.start
        start = max(mine.origin, min(mine.start, lent.start))
        if self._incoming.start.kind == "last" and not mine.over:
            start = max(start, min(mine.start, mine.next - self._incoming.start.value))
        return start

    # --- repair ---

    def is_away(self, source: Source) -> bool:
        """Whether nobody can be asked now who will be back, with a log."""
        return source.info.durable and not self._up([source.link, *source.lenders])

    def may_have(self, source: Source) -> bool:
        """Whether somebody may have what a publisher that has left does not."""
        return any(link.state in ("up", "dialling", "greeting") for link in source.lenders)

    def _up(self, links: list[Any]) -> list[Any]:
        return [k for k in dict.fromkeys(links) if k is not None and k.state == "up"]

    def ask(
        self, source: Source, receiver: StreamReceiver, ranges: list[Range], now: float
    ) -> None:
        """Ask for what is missing, of the first in order who has not refused it."""
        if not source.lenders:
            if source.link is not None:
                self._nack(source, receiver, source.link, ranges)
            return
        asks, left = self._route(source, receiver, ranges, now)
        for link, some in asks.items():
            self._nack(source, receiver, link, some)
            if link is not source.link:
                self._incoming.counters["lender_nacks"] += 1
        if left:
            self._give_up(source, receiver, left, now)

    def _route(
        self, source: Source, receiver: StreamReceiver, ranges: list[Range], now: float
    ) -> tuple[dict[Any, list[Range]], list[Range]]:
        return source.ladder.route(
            ranges,
            self._up([source.link]),
            self._up(source.lenders),
            proved=receiver.proved,
            now=now,
        )

    def _nack(
        self, source: Source, receiver: StreamReceiver, link: Any, ranges: list[Range]
    ) -> None:
        self._incoming.counters["nacks"] += 1
        some = ranges[:NACK_RANGES_MAX]
        request = Nack(self._sub, source.info.name, receiver.epoch, some, receiver.request)
        self._post(link, request)

    def _give_up(
        self, source: Source, receiver: StreamReceiver, ranges: list[Range], now: float
    ) -> None:
        """Nobody who is there has these."""
        if source.link is None and now - source.seen_at < PATIENCE_S:
            receiver.hold(now=now)  # its publisher may be found in a moment
            return
        claimed = receiver.claimed
        if claimed and not self._route(source, receiver, claimed, now)[0]:
            is_over = source.admissions and source.admissions[0].epoch > receiver.epoch
            # A publisher that is there, and a recorder that serves nothing, have no such epoch.
            is_known = receiver.proved > receiver.start or not source.has_publisher
            noted = source.ladder.noted(claimed) if is_over and is_known else 0
            if noted:
                receiver.on_claim_noted(noted)  # nothing after these events will show the gap
                self.ask(source, receiver, ranges, now)  # of those who have claimed nothing, too
                return
            receiver.retract(now=now)
            source.ladder.withdraw(receiver.proved, now=now)
        if source.info.durable and source.link is not None and source.link.state != "up":
            receiver.hold(now=now)  # its log has it, or knows why not
            return
        if any(link.state in ("dialling", "greeting") for link in source.lenders):
            return  # until the deadline: it may be back in time
        for reason, lost in source.ladder.by_reason(ranges).items():
            self._ready.put(source, receiver.on_gone(lost, reason, now=now))

    def on_gone(
        self, source: Source, receiver: StreamReceiver, link: Any, gone: Gone, now: float
    ) -> None:
        """A source does not have what it was asked for: ask the next, or it is lost."""
        if link is not source.link and link not in source.lenders:
            self._incoming.counters["bad_messages"] += 1
            return
        if source.lenders:
            missing = receiver.missing_of(gone.ranges)
            source.ladder.refuse(link, missing, gone.reason)
            if missing:
                self.ask(source, receiver, missing, now)
            source.ladder.discard_before(receiver.next)
        else:
            self._ready.put(source, receiver.on_gone(gone.ranges, gone.reason, now=now))
        receiver.on_answered(gone.answers, now=now)


def _joined(one: Subscribed, other: Subscribed) -> Subscribed:
    """What two recorders have of an epoch together."""
    return replace(
        one,
        origin=min(one.origin, other.origin),
        first=min(one.first, other.first),
        next=min(one.next, other.next),
        start=min(one.start, other.start),
        over=one.over and other.over,
    )
