"""The epochs of a subscription's streams: being admitted to one, entering it, closing its books.

An epoch is entered when all of the one before has been read.  What comes of it earlier waits.
Called by whoever drives the subscription, with its lock held.

Authority: the publisher opens its epochs.  A recorder's epoch is entered if the publisher cannot be
asked, or has come as far itself (`Lending.on_admission` sees to that), and what a recorder says of
its end is a claim; so is the place where it begins, until something of it has come.  A publisher
that comes back and knows nothing of what only recorders vouched for, a later epoch or further
events of this one, is right: what is left of that is withdrawn, and the subscription goes on where
it was with the publisher.  No epoch is begun before the place where it was left, so that no order
of messages has an event come twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from meshmsg._model.config import Tuning
from meshmsg._receive.incoming_stream import Books, Source, TailHint, heard_next
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._receive.multicast_groups import Tuner
from meshmsg._receive.multicast_reading import PacketReading
from meshmsg._receive.ready_queue import ReadyQueue
from meshmsg._receive.repair_sources import Lending
from meshmsg._wire.control import Subscribed
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.loss_detector import NEVER, NackTiming
from meshmsg.recovery.stream.receiver import HINT_GRACE_S, StreamReceiver

log = logging.getLogger("meshmsg.peer")

STASH_BYTES_MAX = 16 * 1024 * 1024
#: Streams whose next epoch is looked at in one go.
SOURCES_A_TURN = 256
#: How often to see whether recorders have answered.
ASKING_S = 0.05


class Epochs:
    """What a subscription does with epochs."""

    def __init__(
        self,
        incoming: IncomingStreams,
        ready: ReadyQueue,
        lending: Lending,
        reading: PacketReading,
        tuner: Tuner,
        tuning: Tuning,
        report: Callable[[], None],
    ) -> None:
        self._incoming = incoming
        self._ready = ready
        self._lending = lending
        self._reading = reading
        self._tuner = tuner
        self._report = report  # tells publishers how far we are
        self._pending_bytes_max = tuning.pending_bytes_max
        self._turn = 0
        self._timing = NackTiming(
            delay_s=tuning.repair_delay_s,
            retry_s=tuning.repair_retry_s,
            deadline_s=tuning.repair_deadline_s,
        )
        # A log has what is missing, and only its publisher can say that it has not.
        self._patience = replace(self._timing, deadline_s=NEVER)

    # --- what is said of them ---

    def on_attach(self, source: Source) -> None:
        """The publisher is there, and says where an epoch begins of which nothing has come."""
        receiver, led = source.receiver, source.led
        if receiver is None or led is None or not self._incoming.is_claimed(source):
            return
        if source.is_lent:
            return  # it is disowned at its next word
        self._incoming.counters["unproved_starts"] += 1
        self._ready.withdraw(source, receiver.epoch, 0)
        with self._incoming.lock:
            source.books = Books(source.info.name, 0, 0)
            source.receiver = source.led = None
        self._lending.put(source, led)  # what the recorder has still counts beside the rest

    def on_tail_hint(
        self, source: Source, receiver: StreamReceiver, hint: TailHint, now: float
    ) -> None:
        """What a stream has, heard beside the data path."""
        if hint.lender is not None:
            self._lending.on_claim(source, hint, now)
            return
        if hint.final:
            self._reading.put_all_together(source, now)
            source.ends[hint.epoch] = hint.next
            self._incoming.leavers = True
        if hint.epoch != receiver.epoch:
            return
        if receiver.on_word(hint.next, now=now):
            source.heard_next = receiver.high
        source.heard_next = max(source.heard_next, hint.next)
        below = None if source.packets is None else source.packets.receiver
        if hint.final or below is None or not below.is_behind:
            receiver.on_tail_hint(hint.next, now=now)

    def on_admission(self, source: Source, admission: Subscribed, now: float) -> None:
        """An epoch is ours to receive: enter it, or have it wait for its turn."""
        incoming, lending = self._incoming, self._lending
        if not admission.recorded:
            source.said = max(source.said, admission.epoch)
            if source.is_lent:
                self._disown(source)
        receiver, waiting = source.receiver, source.admissions
        durable = source.info.durable
        if durable and receiver is not None and admission.epoch < receiver.epoch:
            # The last words of a publisher that was killed, read after those of the next one.
            incoming.counters["stale_admissions"] += 1
            return
        if admission.over and not admission.recorded:
            known = source.overs.get(admission.epoch, 0)
            source.overs[admission.epoch] = max(known, admission.next)
        same = receiver is not None and receiver.epoch == admission.epoch
        at_once = receiver is None and not waiting and lending.may_enter(source, admission)
        at_once = at_once and not (admission.recorded and source.has_publisher)
        if same or (at_once and not lending.is_asking(source, now)):
            self._enter(source, admission, now)
        else:
            if not waiting:  # else whoever says it again would put it off
                source.data_at = now
            lending.put(source, admission)
        if source.admissions:  # first all that is there must be read
            incoming.settled = False

    def stash(self, source: Source, frame: Frame) -> None:
        """Keep a frame of an epoch that is not entered yet."""
        receiver = source.receiver
        if receiver is not None and frame.epoch < receiver.epoch:
            self._incoming.counters["stale_frames"] += 1
        elif source.stash_bytes + len(frame.data) > STASH_BYTES_MAX:
            self._incoming.counters["stash_full"] += 1  # it will be found missing and asked for
        else:
            source.stash.append(frame)
            source.stash_bytes += len(frame.data)

    # --- from one to the next ---

    def go_on(self, now: float) -> bool:
        """Close the books of epochs that are over and enter the next, once all is read.

        That nothing of an old epoch came for a while, although we were reading, says so: what is
        on its way from the kernel comes sooner.  Returns whether some have to wait.
        """
        incoming, lending = self._incoming, self._lending
        waiting = False
        queued = [source for source in incoming.by_name.values() if source.admissions]
        if len(queued) > SOURCES_A_TURN:  # the consumer waits meanwhile: they take turns
            self._turn = (self._turn + SOURCES_A_TURN) % len(queued)
            queued = (queued + queued)[self._turn : self._turn + SOURCES_A_TURN]
            waiting = True
        for source in queued:
            quiet_since = max(source.data_at, self._ready.full_at)
            while source.admissions:
                if lending.is_asking(source, now) or lending.awaits_publisher(source):
                    incoming.timer_due = min(incoming.timer_due, now + ASKING_S)
                    waiting = True
                    break
                if not lending.may_enter(source, source.admissions[0]):
                    break  # until its publisher is there
                if source.receiver is None:
                    self._enter(source, source.admissions.popleft(), now)
                    continue
                lending.follow(source, now)
                over = source.overs.get(source.receiver.epoch)
                if source.receiver.next < (over or 0) or source.receiver.claimed:
                    waiting = True  # the publisher's log has the rest, or recorders may have it
                    break
                if over is None and now - quiet_since < HINT_GRACE_S:
                    incoming.timer_due = min(incoming.timer_due, quiet_since + HINT_GRACE_S)
                    waiting = True
                    break
                # What is missing of the old epoch went with the memory of the process that had it.
                stop = max(heard_next(source), source.ends.pop(source.receiver.epoch, 0))
                source.overs.pop(source.receiver.epoch, None)
                self._ready.put(source, source.receiver.on_end(stop, "gone", now=now))
                self._enter(source, source.admissions.popleft(), now)
        return waiting

    def _enter(self, source: Source, admission: Subscribed, now: float) -> None:
        self._reading.put_all_together(source, now)
        self._incoming.wake_at(source, now)
        receiver = source.receiver
        if receiver is not None and receiver.epoch == admission.epoch:
            self._come_back(source, receiver, admission, now)
        else:
            left_at = [books.stop for books in source.old_books if books.epoch == admission.epoch]
            self._begin(source, admission, max([admission.start, *left_at]), now)
        if source.info.durable or source.info.multicast is not None:
            # The publisher counts on us from now on, also through a crash; of packets that came
            # before now none was taken.
            self._report()

    def _begin(self, source: Source, admission: Subscribed, start: int, now: float) -> None:
        """Receive an epoch from an event on."""
        name, epoch = source.info.name, admission.epoch
        with self._incoming.lock:
            if source.receiver is not None:
                source.books.stop = source.receiver.next
                source.old_books.append(source.books)
            source.books = _books(source, epoch, start)
            self._incoming.born.discard(name)
        self._tuner.enter(source, admission)  # before a report can say that we are there
        receiver = source.receiver = StreamReceiver(
            name,
            epoch,
            start,
            timing=self._patience if source.info.durable else self._timing,
            pending_bytes_max=self._pending_bytes_max,
        )
        receiver.lent = start if admission.recorded else 0
        source.led = admission if admission.recorded else None
        source.heard_next = max(start, admission.next)
        source.ladder.enter(epoch)
        stash, source.stash, source.stash_bytes = source.stash, [], 0
        for frame in stash:
            if frame.epoch != epoch:
                self.stash(source, frame)
            elif frame.stop > start:
                self._ready.put(source, receiver.on_frame(frame, now=now))
        # Where the start lies in the past, what is there already will not come by itself.  Without
        # a connection, the packets below ask for it.
        if source.link is not None or source.lenders:
            receiver.on_tail(admission.next, now=now)
            self._lending.follow(source, now)

    def _come_back(
        self, source: Source, receiver: StreamReceiver, admission: Subscribed, now: float
    ) -> None:
        """After a broken connection: what came meanwhile may still be on its way."""
        if admission.next < receiver.lent and not admission.over:
            self._set_back(source, receiver, admission, now)
            return
        if not admission.recorded:
            source.led = None
        source.heard_next = max(source.heard_next, admission.next)
        receiver.on_tail_hint(admission.next, now=now)
        packets = source.packets
        below = None if packets is None else packets.receiver
        if packets is not None and (below is None or below.epoch != admission.epoch):
            self._tuner.enter(source, admission)
        elif packets is not None and admission.seal is not None:
            packets.rekey(admission.seal.keys)

    # --- what only recorders vouched for ---

    def _set_back(
        self, source: Source, receiver: StreamReceiver, admission: Subscribed, now: float
    ) -> None:
        """The publisher has not come as far in this epoch as recorders served events."""
        start = min(receiver.next, admission.next)
        if receiver.start > start and self._incoming.start.reaches_back(source.info.name):
            start = admission.first
        self._incoming.counters["disowned"] += 1
        log.error(
            "%s: recorders served events that are not its publisher's, from %d on: they do not "
            "count. Which peers may record it?",
            source.info.name,
            start,
            extra={"stream": source.info.name},
        )
        self._ready.withdraw(source, receiver.epoch, start)
        self._begin(source, admission, start, now)

    def _disown(self, source: Source) -> None:
        """The publisher knows nothing of the epoch that we are in: nor do we."""
        receiver = source.receiver
        assert receiver is not None
        self._incoming.counters["disowned"] += 1
        log.error(
            "%s: recorders served epoch %d, which is not its publisher's: it does not count. "
            "Which peers may record it?",
            source.info.name,
            receiver.epoch,
            extra={"stream": source.info.name},
        )
        self._ready.withdraw(source, receiver.epoch, 0)
        with self._incoming.lock:
            source.old_books.append(source.books)
            source.books = Books(source.info.name, 0, 0)
        source.receiver = source.led = None
        known = [one for one in source.admissions if one.epoch <= source.said]
        source.admissions.clear()
        source.admissions.extend(known)


def _books(source: Source, epoch: int, start: int) -> Books:
    """Return the books of an epoch that goes on where it was left, or else new ones."""
    for books in source.old_books:
        if (books.epoch, books.stop) == (epoch, start):
            source.old_books.remove(books)
            return books
    return Books(source.info.name, epoch, start)
