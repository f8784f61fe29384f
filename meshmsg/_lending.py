"""Recorders as further sources of a subscription's streams: history, and the rung before a loss.

What is missing is asked of the publisher; what that does not have, or if it is not there, of the
recorders that are connected; only what none of them has is lost.  Where a subscription starts in
the past, or its publisher comes back in another epoch, recorders are asked first what they have:
the history of a stream is all that its sources have together.  Driven by the `Intake`, with its
lock held.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshmsg._control import (
    Gone,
    Nack,
    Start,
    Subscribe,
    Subscribed,
)
from meshmsg._message_fields import NACK_RANGES_MAX
from meshmsg._source import Lend, Source, TailHint
from meshmsg.recovery.receiver import StreamReceiver

if TYPE_CHECKING:
    from meshmsg._intake import Intake

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
    """What an intake does with recorders."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    # --- who there is ---

    def on_lend(self, notice: Lend, now: float) -> None:
        """A recorder has streams of ours."""
        intake = self._intake
        for info in notice.streams:
            source = intake._by_name.get(info.name)
            if source is None:
                source = intake._offered(info, notice.link)
            if notice.link not in source.lenders and len(source.lenders) < LENDERS_MAX:
                source.lenders.append(notice.link)
            source.ladder.forget(notice.link)
            if info.name in notice.asked:
                self._expect(source, notice.link, now, ASK_S)
        intake._settled = False
        intake._timer_due = now

    def _expect(self, source: Source, who: Any, now: float, patience_s: float) -> None:
        source.asked[who] = now
        source.asked_until = max(source.asked_until, now + patience_s)

    def on_attach(self, source: Source, more: bool, now: float) -> None:
        """The publisher of a stream is there; `more` peers may be soon."""
        source.ladder.forget(source.link)
        if more and source.receiver is None and self._intake.start.reaches_back(source.info.name):
            self._expect(source, SOMEBODY, now, PATIENCE_S)

    def on_complete(self, now: float) -> None:
        """No further peers are expected."""
        for source in self._intake._by_name.values():
            source.asked.pop(SOMEBODY, None)
        self._intake._timer_due = now

    def on_strange_tail(self, source: Source, hint: TailHint, now: float) -> None:
        """A recorder is in a later epoch, and the publisher is not there to tell us of it."""
        receiver, link = source.receiver, hint.lender
        if receiver is None or link is None or hint.epoch < receiver.epoch or source.admissions:
            return
        if not self._up([source.link]) and link in source.lenders and link not in source.asked:
            source.asked_until = now + ASK_S
            self._ask_for_history(source, link, now)
            self._intake._settled = False

    def is_asking(self, source: Source, now: float) -> bool:
        """Whether a recorder has yet to say what it has of epochs before the next."""
        if source.asked and now >= source.asked_until:
            if SOMEBODY not in source.asked:
                self._intake.counters["lender_timeouts"] += 1
                log.warning("%s: no answer from a recorder", source.info.name)
            source.asked.clear()
        for link, since in list(source.asked.items()):
            if link is not SOMEBODY and link.state != "up":
                del source.asked[link]
            elif link is not SOMEBODY and now - since >= ASK_AGAIN_S and source.receiver:
                self._ask_for_history(source, link, now)
        return bool(source.asked)

    def _ask_for_history(self, source: Source, link: Any, now: float) -> None:
        receiver = source.receiver
        assert receiver is not None
        source.asked[link] = now
        start = Start(source.info.name, "resume", receiver.next, receiver.epoch)
        patterns = [pattern.text for pattern in self._intake.filter.patterns]
        self._intake._post(link, Subscribe(self._intake.sub, patterns, [start]))

    # --- epochs ---

    def on_admission(self, source: Source, link: Any, admission: Subscribed, now: float) -> bool:
        """A source says what it has of an epoch; `False` if that is of no use any more."""
        receiver = source.receiver
        if admission.over and receiver is not None and admission.epoch < receiver.epoch:
            if not admission.recorded:  # of a recorder: we had not left it when we asked
                self._intake.counters["stale_admissions"] += 1
            return False
        if not admission.recorded:
            is_new = receiver is not None and not admission.over
            # Where the publisher has a log, that has the end of the old one.
            is_new = is_new and receiver is not None and receiver.epoch not in source.overs
            if is_new and receiver is not None and admission.epoch > receiver.epoch:
                for lender in self._up(source.lenders):
                    # It may have what the process had that ended.
                    source.asked_until = max(source.asked_until, now + ASK_S)
                    if lender not in source.asked:
                        self._ask_for_history(source, lender, now)
            return True
        if not admission.over:
            newest = max((known.epoch for known in source.admissions), default=0)
            behind = admission.epoch < newest
            if not behind or now - (source.asked_until - ASK_S) >= BEHIND_S:
                source.asked.pop(link, None)
            if behind:  # it has not heard of the new epoch, and may yet read on in the old one
                known = source.overs.get(admission.epoch, 0)
                source.overs[admission.epoch] = max(known, admission.next)
        if receiver is not None and any(b.epoch == admission.epoch for b in source.old_books):
            return False  # we have been there
        return receiver is None or admission.epoch >= receiver.epoch

    def put(self, source: Source, admission: Subscribed) -> None:
        """Have an epoch wait for its turn: one entry for all that its sources have."""
        waiting = source.admissions
        for at, known in enumerate(waiting):
            if known.epoch == admission.epoch:
                if source.lenders:
                    waiting[at] = _joined(known, admission)
                elif admission.over or not known.over:  # how it ended was said since
                    waiting[at] = admission
                return
        waiting.append(admission)
        if source.lenders or source.info.durable:  # the epochs of a log only grow
            ordered = sorted(waiting, key=lambda known: known.epoch)
            waiting.clear()
            waiting.extend(ordered)

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
        intake = self._intake
        if not source.lenders:
            if source.link is not None:
                self._nack(source, receiver, source.link, ranges)
            return
        asks, left = source.ladder.route(ranges, self._up([source.link, *source.lenders]))
        for link, some in asks.items():
            self._nack(source, receiver, link, some)
            if link is not source.link:
                intake.counters["lender_nacks"] += 1
        if left:
            self._give_up(source, receiver, left, now)

    def _nack(
        self, source: Source, receiver: StreamReceiver, link: Any, ranges: list[Range]
    ) -> None:
        intake = self._intake
        intake.counters["nacks"] += 1
        some = ranges[:NACK_RANGES_MAX]
        request = Nack(intake.sub, source.info.name, receiver.epoch, some, receiver.request)
        intake._post(link, request)

    def _give_up(
        self, source: Source, receiver: StreamReceiver, ranges: list[Range], now: float
    ) -> None:
        """Nobody who is there has these."""
        if source.info.durable and source.link is not None and source.link.state != "up":
            receiver.hold(now=now)  # its log has it, or knows why not
            return
        if any(link.state in ("dialling", "greeting") for link in source.lenders):
            return  # until the deadline: it may be back in time
        for reason, lost in source.ladder.by_reason(ranges).items():
            self._intake._deliver(source, receiver.on_gone(lost, reason, now=now))

    def on_gone(
        self, source: Source, receiver: StreamReceiver, link: Any, gone: Gone, now: float
    ) -> None:
        """A source does not have what it was asked for: ask the next, or it is lost."""
        intake = self._intake
        if source.lenders:
            missing = receiver.missing_of(gone.ranges)
            source.ladder.refuse(link, missing, gone.reason)
            if missing:
                self.ask(source, receiver, missing, now)
            source.ladder.discard_before(receiver.next)
        else:
            intake._deliver(source, receiver.on_gone(gone.ranges, gone.reason, now=now))
        receiver.on_answered(gone.answers, now=now)


def _joined(one: Subscribed, other: Subscribed) -> Subscribed:
    """What two sources have of an epoch together."""
    return replace(
        one,
        origin=min(one.origin, other.origin),
        first=min(one.first, other.first),
        next=max(one.next, other.next),
        start=min(one.start, other.start),
        packet=max(one.packet, other.packet),
        over=one.over and other.over,
        recorded=one.recorded and other.recorded,
    )
