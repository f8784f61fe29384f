"""The receiving side of one subscription: its data socket, its streams, its books.

An `Intake` is driven by whoever waits for events: the consumer's own thread or event loop while it
waits (no hand-over between threads on the way of an event), the I/O thread now and then while the
consumer is busy, so that gaps are found and repaired meanwhile.  The lock is held by the driver.

Everything that comes by the control channel is put into `inbox` by the I/O thread.

Here, what comes is read, put in order and handed over.  `incoming_streams` has the streams,
`ready_queue` what waits for the consumer.  When an epoch is entered is decided in `epochs`, who is
asked for what is missing in `repair_sources`, which multicast groups are joined in
`multicast_groups`, and how their packets are read in `multicast_reading`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import length_hint
from typing import Any

from meshmsg import _platform
from meshmsg._model.batch import Batch, Event, run_out
from meshmsg._model.codecs import Codec, received_codec
from meshmsg._model.config import Tuning
from meshmsg._model.errors import PeerRefused, ProtocolError
from meshmsg._model.event import Loss, Position
from meshmsg._model.security_config import Security
from meshmsg._model.topics import TopicFilter
from meshmsg._native import COMPILED
from meshmsg._receive.committed_positions import Bookmarks
from meshmsg._receive.delivery_samples import EVERY_S, DeliverySamples
from meshmsg._receive.epochs import Epochs
from meshmsg._receive.incoming_stream import (
    Attach,
    Books,
    Complete,
    Detach,
    Heard,
    Join,
    Lend,
    Notice,
    RepairFrame,
    Said,
    Source,
    StartAt,
    Sweep,
    TailHint,
    figures_of,
    heard_next,
    row_of,
)
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._receive.multicast_groups import Tuner
from meshmsg._receive.multicast_reading import PacketReading
from meshmsg._receive.ready_queue import Item, ReadyQueue
from meshmsg._receive.repair_sources import Lending
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import (
    Evicted,
    Figures,
    Rekey,
    Start,
    StreamInfo,
    Subscribed,
    stream_wire_id,
    subscription_token,
)
from meshmsg._wire.frame import FRAME_MAGIC, HEARTBEAT_MAGIC, PREFIX_BYTES, Frame, Heartbeat
from meshmsg._wire.packet import DATA_HEAD
from meshmsg.recovery.stream.ledger import LedgerRow
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.receiver import Run, StreamReceiver
from meshmsg.transports.zmq.fanout import FanoutClient
from meshmsg.transports.zmq.receive_socket import SOON_S

if COMPILED:
    from meshmsg import _speed

log = logging.getLogger("meshmsg.peer")

LOSSES_MAX = 10_000
#: A consumer is busy that did not read for so long.
BACKGROUND_AFTER_S = 0.05
#: ... where packets come, which fill a kernel buffer quickly.
BACKGROUND_PACKETS_S = 0.005
READ_FRAMES_MAX = 64
HOLD_S = 0.05
#: Streams that are looked after in one go: the consumer waits meanwhile.
TIMERS_A_TURN = 256
LEAVE_AFTER_S = 1.0
SIGNALS_S = 1.0
#: How often to see whether a publisher is back that has a log.
AWAY_S = 0.1


class Intake:
    """All streams of one subscription, in one order a stream."""

    #: Whether recorders may lead on in a stream whose publisher is not there.
    follows_recorders = True
    #: Of a work group there may be one.
    refusal: PeerRefused | None = None

    def __init__(
        self,
        sub: int,
        topics: TopicFilter,
        client: FanoutClient,
        tuning: Tuning,
        mesh: str,
        post: Callable[[Any, Any], None],
        report: Callable[[Intake], None],
        codec: Codec | None,
        type: Any,
        start: StartAt,
        interface: str = "127.0.0.1",
        second_interface: str = "",
        security: Security | None = None,
    ) -> None:
        self.sub = sub
        self.bookmarks: Bookmarks | None = None  #: of a named subscription with a place for them
        self.hold = False  #: publishers' logs keep what it has not committed
        self.filter = topics
        self.lock = _platform.new_rlock()
        self._monotonic = _platform.current().monotonic  # at hand: asked for each event
        self._time_ns = _platform.current().time_ns
        self._sample_at = 0.0
        self.inbox: deque[Notice] = deque()
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"subscription {sub & 0xFFFFFF:06x}", self.counters)
        self.losses: deque[Loss] = deque(maxlen=LOSSES_MAX)
        self.evictions: deque[str] = deque(maxlen=100)
        self.refusals: dict[str, str] = {}  #: by stream, why its publisher does not take us
        self.closed = False
        self.on_close: Callable[[], None] | None = None  #: while a coroutine waits
        self._client_closed = False
        self.driven_at = 0.0
        self.current: Batch | None = None
        self.iterator: Iterator[Event] = iter(())
        self.incoming = IncomingStreams(start, self.counters)
        self.ready = ReadyQueue(tuning.inbox_bytes_max)
        self.reading = PacketReading(self.incoming, self.ready, self.guard, mesh, self._on_frame)
        self._client = client
        self._mesh = mesh
        self._report = partial(report, self)
        self._codec = codec
        self._type = type
        # At hand, for the fast path and what is done with every batch.
        self._books_lock = self.incoming.lock
        self._by_wire = self.incoming.by_wire
        self._ready = self.ready.items
        self._lines = self.reading.lines
        self._report_due = NEVER  # reports to multicast senders: a little late does no harm
        self._leaving: dict[str, float] = {}  # addresses to disconnect from, when all is read
        self._current_books: Books | None = None
        self._turn = 0  # what is read first, of ZeroMQ's socket and the lines
        self.lending = Lending(
            sub, topics, self.incoming, self.ready, post, self._offered, self.follows_recorders
        )
        self.tuner = Tuner(
            sub,
            mesh,
            self.incoming,
            self.reading,
            client,
            self.guard,
            tuning,
            self._on_admission,
            interface,
            second_interface,
            security,
        )
        self.epochs = Epochs(
            self.incoming,
            self.ready,
            self.lending,
            self.reading,
            self.tuner,
            tuning,
            self._report,
        )
        client.subscribe(subscription_token(sub))

    # --- for the I/O thread ---

    def notify(self, notice: Notice) -> None:
        """Hand in what came by the control channel."""
        if isinstance(notice, TailHint) and self._is_stale(notice):
            return  # each second, of each idle stream: nobody need be woken for it
        self.inbox.append(notice)
        self.wake()

    def _is_stale(self, hint: TailHint) -> bool:
        """Return True when a hint says no more than what was received; any thread."""
        source = self.incoming.by_name.get(hint.stream)
        receiver = None if source is None else source.receiver
        return (
            receiver is not None
            and receiver.epoch == hint.epoch
            and receiver.next == receiver.high == hint.next
            and not hint.final
            and hint.lender is None
        )

    def wake(self) -> None:
        """Have whoever drives look at the inbox."""
        self._client.wakeup.set()

    def look(self) -> int:
        """Cut publishers that never finish what they send; return how many were."""
        return self._client.look()

    def start_for(self, info: StreamInfo, *, born: bool, lent: bool = False) -> Start:
        """What to ask of a publisher, or of a recorder: go on where we are, or as the user said.

        In an epoch that only recorders vouch for, and that the publisher has not come to, we are
        nowhere: then it is where we were before that counts.  A stream that was `born` since we
        met its publisher is read from its first event on, however often it takes to be admitted.
        """
        name, incoming = info.name, self.incoming
        with self._books_lock:
            source, left = incoming.by_name.get(name), incoming.left(name)
            receiver = None if source is None else source.receiver
            if source is not None and not lent and incoming.is_claimed(source):
                receiver = None  # see `Epochs.on_attach`
            said = max(left.said, info.epoch)
            if source is not None and receiver is not None and (lent or receiver.epoch <= said):
                taken = self._figures(source.books, receiver).consumed
                return Start(name, "resume", taken, receiver.epoch)
            for books in reversed(left.books):
                if books.epoch <= said or (lent and receiver is None):
                    return Start(name, "resume", books.consumed, books.epoch)
        if born:
            incoming.born.add(name)
        return incoming.start.for_stream(name, born=name in incoming.born)

    def wants_history(self, stream: str) -> bool:
        """Whether to ask a recorder what it has, though the publisher is there."""
        source = self.incoming.by_name.get(stream)
        fresh = source is None or source.receiver is None
        return fresh and self.incoming.reaches_back(stream)

    def has_forgotten(self, stream: str) -> bool:
        """Whether it was in a stream before, which is forgotten."""
        return self.incoming.has_forgotten(stream)

    def streams(self) -> set[str]:
        """The streams that it has, or is about to have."""
        offers = [notice for notice in list(self.inbox) if isinstance(notice, Attach | Lend)]
        return {*self.incoming.by_name, *(info.name for offer in offers for info in offer.streams)}

    @property
    def background_s(self) -> float:
        """A consumer that did not read for so long is busy."""
        return BACKGROUND_PACKETS_S if self._lines else BACKGROUND_AFTER_S

    def tend(self, now: float, *, force: bool = False) -> None:
        """Drive in the background if the consumer has not for a while and nobody else does."""
        if not (force or self.inbox or now - self.driven_at > self.background_s):
            return
        if self.lock.acquire(blocking=False):
            try:
                if not self.closed and self.pump(now, read_ahead=True):
                    self.wake()  # an event loop may be waiting for what was just read
            finally:
                self.lock.release()

    # --- driving: with the lock held ---

    def pump(self, now: float, *, read_ahead: bool = False) -> bool:
        """Take in what there is without waiting; returns whether anything is ready."""
        if self.inbox:
            self._read_inbox(now)
        drained = self._read(now, read_ahead)
        reading, incoming = self.reading, self.incoming
        while read_ahead and reading.backlog and not self.ready.is_full:
            reading.put_together(reading.backlog[0], now)
        if not incoming.settled:
            try:
                self._settle(now, drained)
            except Exception:
                self.guard.failed("the end of an epoch, or of a publisher")
        if now >= self.timer_due or (drained and incoming.leavers):
            self._run_timers(now, drained)
        if not read_ahead:
            self.driven_at = now
        return bool(self._ready)

    def wait(self, timeout: float | None, now: float) -> None:
        """Wait for something to come in, a timer, or the time to be up."""
        # A signal that comes just before the call does not interrupt it: look up now and then, or
        # Ctrl-C waits for the next event.
        left = min(self.timer_due - now, SIGNALS_S)
        if timeout is not None:
            left = min(timeout, left)
        self.driven_at = now + left  # whoever waits here is not busy elsewhere
        self._client.wait(left)
        self.driven_at = self._monotonic()

    def receive(
        self, now: float, deadline: float | None, *, as_events: bool = False
    ) -> bool | Batch | None:
        """If all is calm, take in the next message, waiting a little for it: the quick way.

        `False` if there is more to see to than data: then `pump`.  `None` if nothing came, and
        `pump` would find nothing either.  A batch if none is to be taken before it.
        """
        soon, incoming = now + SOON_S, self.incoming
        timer_due = incoming.timer_due
        if self.inbox or not incoming.settled or self._report_due < now or timer_due <= now:
            return False
        # Where there is no time to wait, what is there already need not go the long way.
        hurried = timer_due < soon or (deadline is not None and deadline < soon)
        self.driven_at = now if hurried else soon
        if self._lines:
            return self._receive_packets(hurried, as_events)
        self.current = None  # taken; to let go of it now costs nobody any time
        data = self._client.recv() if hurried else self._client.recv_soon()
        if data is None:
            return None if hurried and not (self.inbox or incoming.leavers) else False
        try:
            if take_next(self, data, now, as_events):
                if now >= self._sample_at:
                    self._sample(now)
                return True if self.current is None else self.current
        except Exception:
            self.guard.failed("a message")
            return True
        self._on_message(data, now)
        return bool(self._ready)  # after a heartbeat nothing is expected soon

    def _receive_packets(self, hurried: bool, as_events: bool) -> bool:
        """Take in the next datagram where all streams come by one line; `False`: then `pump`."""
        line = self.reading.only_line
        datagram = None if line is None else line.recv() if hurried else line.recv_soon()
        if line is None or datagram is None:
            return False
        self.driven_at = now = self._monotonic()
        try:
            packets = self.reading.single(datagram) if as_events else None
            if packets is not None and take_next(self, datagram.data[DATA_HEAD.size :], now):
                packets.take_single(now)
                packets.report(now, self.ready.room)
                if now >= self._sample_at:
                    self._sample(now)
                return True
        except Exception:
            self.guard.failed("a packet")
            return True
        self.reading.on_datagram(line, datagram, now)
        return True

    @property
    def timer_due(self) -> float:
        """When `pump` has to be called even if nothing comes."""
        return min(self.incoming.timer_due, self._report_due)

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors for an event loop: wake-up, data, multicast groups."""
        return (self._client.wakeup.fd, *self.arrival_fds)

    @property
    def arrival_fds(self) -> tuple[int, ...]:
        """Those of them on which data comes."""
        fds, lines = self._client.fds, self._lines
        return (*fds, *(line.fd for line in list(lines.values()))) if lines else fds

    def clear_wakeup(self) -> None:
        """The wake-up call was heard."""
        self._client.wakeup.clear()

    def take(self, *, as_events: bool) -> Batch | Loss | None:
        """The next batch or loss, `None` if nothing is ready; counts it as handed over.

        With `as_events`, the consumer goes through the batch's events by `iterator`.  What is left
        of the batch before comes first, so that threads may share a subscription.
        """
        if length_hint(self.iterator):
            rest = self.current if as_events else self._rest()
            if rest is not None:
                return rest
        ready = self._ready
        if self._lines and (len(ready) > 1 or self.reading.backlog):
            self._keep_up()
        while ready:
            source, books, delivery = self._pop()
            if isinstance(delivery, Loss):
                self._enter_loss(books, delivery)
                self._note_consumed(source, 0)
                return delivery
            size = len(delivery.frame.data)
            try:
                batch = self._hand_over(source, books, delivery, as_events)
            except Exception:
                self.guard.failed("events that were ready")
                lost = self._unfit(books, delivery)
                self._note_consumed(source, size)
                return lost
            self._note_consumed(source, size)
            if batch is not None:
                return batch
        return None

    def _keep_up(self) -> None:
        self.driven_at = now = self._monotonic()
        self.reading.keep_up(now)
        if now >= self.incoming.timer_due:
            self._run_timers(now, False)

    def _pop(self) -> Item:
        """Take out what is ready first."""
        item = self.ready.take()
        if self.reading.backlog:
            self.reading.refill(self._monotonic())
        if self.ready.is_fed():
            self.incoming.timer_due = 0.0  # there is room again: say so
        return item

    def _enter_loss(self, books: Books, loss: Loss) -> None:
        with self._books_lock:
            self.current = None
            books.lost[loss.reason] += loss.count
            books.consumed = loss.stop
            self.counters["lost"] += loss.count
        self.losses.append(loss)

    def _unfit(self, books: Books, run: Run) -> Loss:
        """Events that could not be handed over are lost, and reported like any others."""
        first, stop = run.frame.first + run.lo, run.frame.first + run.hi
        loss = Loss(books.stream, books.epoch, first, stop, "corrupt")
        self._enter_loss(books, loss)
        return loss

    def _hand_over(self, source: Source, books: Books, run: Run, as_events: bool) -> Batch | None:
        """What the subscription's patterns take of a run, entered in the books."""
        frame, lo, hi = run
        keep: list[int] | None = None
        takes, topics = partial(self._takes, source), frame.topics
        verdict = source.keeps.get(topics) or source.keeps.judge(topics, takes)
        if verdict == "some":
            chosen = list(map(takes, topics))
            ids = frame.topic_ids
            assert ids is not None
            keep = [i for i in range(lo, hi) if chosen[ids[i]]]
        taken = 0 if verdict == "none" else hi - lo if keep is None else len(keep)
        batch = Batch(frame, books.stream, source.codec, lo, hi, keep) if taken else None
        # Decoded before it is entered: the books must not run ahead of what can be iterated.
        iterator = iter(batch.events() if batch is not None and as_events else ())
        with self._books_lock:
            books.filtered += hi - lo - taken
            books.delivered += taken
            books.consumed = frame.first + hi
            self._current_books = books
            self.current = batch
            self.iterator = iterator
        now = self._monotonic()
        if now >= self._sample_at:
            self._sample(now)
        return batch

    def _sample(self, now: float) -> None:
        """Note how long what is handed over now has taken."""
        batch = self.current
        source = None if batch is None else self._by_wire.get(batch.frame.stream)
        if batch is not None and source is not None:
            self._sample_at = now + EVERY_S
            source.samples = source.samples or DeliverySamples()
            source.samples.add(batch, now_ns=self._time_ns())

    def _takes(self, source: Source, topic: str) -> bool:
        """Whether a topic is wanted; one that its stream may not carry never is."""
        if source.only is not None and not source.only.matches(topic):
            self.counters["foreign_topics"] += 1
            return False
        return self.filter.matches(topic)

    def _rest(self) -> Batch | None:
        """What the consumer has yet to take of the batch it is in, as a batch of its own."""
        with self._books_lock:
            batch = self.current
            left = run_out(self.iterator)
            if batch is None or not left:  # another thread was quicker
                return None
            index = batch.indices[len(batch) - left]
            keep = None if batch.keep is None else batch.keep[-left:]
            return Batch(batch.frame, batch.stream, batch.codec, index, batch.hi, keep)

    def loss_is_next(self) -> bool:
        """Whether a loss would be handed over next."""
        return bool(self._ready) and isinstance(self._ready[0][2], Loss)

    def _note_consumed(self, source: Source, size: int) -> None:
        source.unreported_bytes += size
        if source.unreported_bytes >= source.report_bytes:
            source.unreported_bytes = 0
            self._report()

    def _read(self, now: float, read_ahead: bool) -> bool:
        """Read messages; returns whether none is left."""
        recv, ready = self._client.recv, self.ready
        if self._lines:
            # What always has something ready must not keep the others waiting.
            self._turn += 1
            if self._turn % 2 and not self.reading.read(now, read_ahead):
                return False
        for _ in range(READ_FRAMES_MAX * (16 if read_ahead else 1)):
            if ready.is_full:
                ready.full_at = now
                return False
            if ready.items and not read_ahead:
                return False
            data = recv()
            if data is None:
                return not self._lines or self.reading.read(now, read_ahead)
            self._on_message(data, now)
        return False

    def _on_message(self, data: bytes, now: float) -> None:
        magic = data[PREFIX_BYTES : PREFIX_BYTES + 4]
        try:
            if magic == FRAME_MAGIC:
                frame = Frame(data)
                source = self._by_wire.get(frame.stream)
                if source is not None:
                    self._on_frame(source, frame, now)
                    return
            elif magic == HEARTBEAT_MAGIC:
                beat = Heartbeat.decode(data)
                source = self._by_wire.get(beat.stream)
                if source is not None:
                    self._on_heartbeat(source, beat, now)
                    return
        except ProtocolError as error:
            log.debug("a bad message was dropped: %s", error)
        except Exception:
            self.guard.failed("a message")
        self.counters["bad_messages"] += 1

    def _on_frame(self, source: Source, frame: Frame, now: float) -> None:
        receiver = source.receiver
        if receiver is None or frame.epoch != receiver.epoch:
            self.epochs.stash(source, frame)
            return
        source.data_at = now
        self.ready.put(source, receiver.on_frame(frame, now=now))
        if receiver.missing:
            self.incoming.wake_at(source, receiver.deadline())

    def _on_heartbeat(self, source: Source, beat: Heartbeat, now: float) -> None:
        receiver = source.receiver
        if receiver is not None and beat.epoch == receiver.epoch:
            source.heard_next = max(source.heard_next, beat.next)
            receiver.on_tail(beat.next, now=now)
            self.incoming.wake_at(source, receiver.deadline())

    # --- the inbox ---

    def _read_inbox(self, now: float) -> None:
        while self.inbox:
            notice = self.inbox.popleft()
            try:
                self._take_notice(notice, now)
            except Exception:
                self.guard.failed(f"a notice ({type(notice).__name__})")

    def _take_notice(self, notice: Notice, now: float) -> None:
        if isinstance(notice, Attach):
            self._attach(notice, now)
        elif isinstance(notice, Lend):
            self.lending.on_lend(notice, now)
        elif isinstance(notice, Complete):
            self.lending.on_complete(now)
        elif isinstance(notice, Sweep):
            self._sweep(notice, now)
        elif isinstance(notice, Join):
            for feed in notice.feeds:
                self.tuner.join(feed, self._codec, self._type)
        elif isinstance(notice, Detach):
            # Leaving at once would throw away what it sent and nobody has read yet.
            self._leaving[notice.address] = now
            self.incoming.settled = False
            if notice.at_once:
                self._client.disconnect(notice.address)
        else:
            source = self.incoming.by_name.get(notice.stream)
            if source is not None:
                self._on_notice(source, notice, now)

    def _offered(self, info: StreamInfo, link: Any) -> Source:
        """A stream that somebody has and that is new to us."""
        codec = received_codec(info.codec, self._codec, self._type)
        source = Source(info, stream_wire_id(self._mesh, info.name), link, codec)
        self.incoming.add(source)
        self._client.subscribe(source.wire_id.to_bytes(8, "little"))
        return source

    def _sweep(self, notice: Sweep, now: float) -> None:
        """Forget what nobody has published for so long, if nothing of it waits."""
        busy = {source for source, _, _ in self._ready} | set(self.reading.backlog)
        taken = self._current_books if length_hint(self.iterator) else None
        for source in self.incoming.at_rest(notice.gone_s, now):
            name = source.info.name
            if source in busy or name in self.tuner.feeds or (taken and taken.stream == name):
                continue
            self.tuner.tune_out(source, now)
            self.incoming.forget(source, is_named=self.bookmarks is not None)
            self._client.unsubscribe(source.wire_id.to_bytes(8, "little"))
            self.refusals.pop(name, None)

    def _attach(self, notice: Attach, now: float) -> None:
        by_name = self.incoming.by_name
        for info in notice.streams:
            source = by_name.get(info.name)
            if source is None:
                source = self._offered(info, notice.link)
            source.attach(info, notice.link)
            source.codec = received_codec(info.codec, self._codec, self._type)
            self.epochs.on_attach(source)
            self.lending.on_attach(source, notice.more, now)
            if info.multicast is not None:
                self.tuner.tune_in(source, info.multicast)
            else:
                self.tuner.tune_out(source, now)
        self.incoming.settled = False
        self._leaving.pop(notice.address, None)
        wire_ids = [by_name[info.name].wire_id for info in notice.streams]
        streams = [wire_id.to_bytes(8, "little") for wire_id in wire_ids]
        try:
            self._client.connect(notice.address, notice.key, streams)
        except ProtocolError as error:
            self.counters["bad_messages"] += 1
            self.guard.notes.warning("a publisher names an address that cannot be used: %s", error)

    def foreign(self) -> Counter[str]:
        """Frames of streams that were not whose they came from."""
        return Counter(foreign_frames=self._client.foreign)

    def _on_notice(self, source: Source, notice: Heard, now: float) -> None:
        receiver = source.receiver
        if isinstance(notice, Said):
            if isinstance(notice.message, Subscribed):
                admission = self.lending.on_admission(source, notice.link, notice.message, now)
                if admission is not None:
                    self._on_admission(source, admission, now)
            elif receiver is None:
                self.counters["early_notices"] += 1
            elif notice.message.epoch == receiver.epoch:
                self.lending.on_gone(source, receiver, notice.link, notice.message, now)
        elif isinstance(notice, Rekey):
            if source.packets is not None:
                source.packets.rekey(notice.keys)
        elif isinstance(notice, Evicted):
            self.counters["evicted"] += 1
            self.evictions.append(notice.reason)
            self.guard.notes.warning(
                "%s: evicted: %s", notice.stream, notice.reason, stream=notice.stream
            )
        elif receiver is None:
            self.counters["early_notices"] += 1
        elif isinstance(notice, RepairFrame):
            self._on_repair(source, receiver, notice, now)
        else:
            self.epochs.on_tail_hint(source, receiver, notice, now)
        self.incoming.wake_at(source, now)

    def _on_admission(self, source: Source, admission: Subscribed, now: float) -> None:
        self.epochs.on_admission(source, admission, now)

    def _on_repair(
        self, source: Source, receiver: StreamReceiver, notice: RepairFrame, now: float
    ) -> None:
        lent = notice.link is not source.link
        try:
            frame = Frame(notice.data)
        except ProtocolError:
            self.counters["bad_messages"] += 1
            return
        if (frame.stream, frame.epoch) != (source.wire_id, receiver.epoch) or (
            lent and notice.link not in source.lenders
        ):
            self.counters["bad_messages"] += 1
            return
        missing = receiver.missing
        self.ready.put(source, receiver.on_frame(frame, now=now, repair=True, lent=lent))
        if receiver.missing < missing:
            source.data_at = now
            source.ladder.served(notice.link)
        receiver.on_answered(notice.answers, now=now)

    def _settle(self, now: float, drained: bool) -> None:
        """Let epochs and publishers go that are done with, and see whether that is all."""
        waiting = self.epochs.go_on(now)
        if drained and not waiting:
            self._disconnect(now)
        # A stream that has yet to admit us waits for a notice, and is nobody's concern before that.
        self.incoming.settled = not (waiting or self._leaving) and bool(self.incoming.by_name)
        self.reading.find_only_line()

    def _disconnect(self, now: float) -> None:
        """Leave the addresses of publishers that have moved, when all they sent is read."""
        for address, since in list(self._leaving.items()):
            due = max(since, self.ready.full_at) + LEAVE_AFTER_S
            if now >= due:
                self._client.disconnect(address)
                del self._leaving[address]
            else:
                self.incoming.timer_due = min(self.incoming.timer_due, due)

    def _run_timers(self, now: float, drained: bool) -> None:
        incoming = self.incoming
        if self.ready.room <= 0:
            # The consumer is behind: what would be sent again now has no place to go.
            incoming.timer_due = self._report_due = now + HOLD_S
            for source in self.sources():
                try:
                    self._hold(source, now)
                except Exception:
                    self.guard.failed("a timer")
            return
        due = report_due = NEVER
        leavers, incoming.leavers = incoming.leavers, False
        runs = 0
        for source in list(incoming.by_name.values()):
            packets, receiver = source.packets, source.receiver
            if receiver is None:
                continue
            is_left = leavers and receiver.epoch in source.ends and receiver.deadline() < NEVER
            incoming.leavers = incoming.leavers or is_left
            is_due = source.due <= now or packets is not None or (is_left and drained)
            if is_due and runs < TIMERS_A_TURN:
                runs += 1
                self._run_timers_of(source, receiver, now, drained)
            due = min(due, source.due)
            if packets is not None:
                report_due = min(report_due, packets.report_due())
        # A deadline that waits for the socket to be drained must not spin meanwhile.
        soon = now + (0.01 if runs < TIMERS_A_TURN else 0.001)
        incoming.timer_due = due if due > now else soon
        self._report_due = report_due if report_due > now else now + 0.01

    def _run_timers_of(
        self, source: Source, receiver: StreamReceiver, now: float, drained: bool
    ) -> None:
        packets = source.packets
        try:
            if packets is not None:
                self.reading.run_timers(source, packets, now)
            source.due = self._run_repair_timers(source, receiver, now, drained)
            if packets is not None:
                source.due = min(source.due, packets.deadline())
        except Exception:
            self.guard.failed("a timer")
            source.due = now + HOLD_S

    def _hold(self, source: Source, now: float) -> None:
        source.receiver.hold(now=now)  # type: ignore[union-attr]
        if source.packets is not None and source.packets.receiver is not None:
            source.packets.receiver.hold(now=now)
            source.packets.report(now, 0)
            self.ready.starved = True

    def _run_repair_timers(
        self, source: Source, receiver: StreamReceiver, now: float, drained: bool
    ) -> float:
        """Ask for what is missing of a stream, or give it up; returns when to come again."""
        if receiver.missing and self.lending.is_away(source):
            receiver.hold(now=now)  # its log has what is missing: wait until it is back
            return now + AWAY_S
        asks, deliveries = receiver.on_deadline(now=now, drained=drained)
        self.ready.put(source, deliveries)
        if (
            drained
            and receiver.missing
            and receiver.epoch in source.ends
            and not source.info.durable
            and not self.lending.may_have(source)
        ):
            # The publisher has left, and what it answered before has been read.
            self.ready.put(source, receiver.on_end(receiver.proved, "gone", now=now))
            asks = []
        if asks:
            self.lending.ask(source, receiver, asks, now)
        return receiver.deadline()

    # --- books: any thread ---

    def figures_of(self, sources: list[Source]) -> list[Figures]:
        """The books on the current epoch of some streams."""
        with self._books_lock:
            return [self._figures(source.books, source.receiver) for source in sources]

    def sources_of(self, link: Any) -> list[Source]:
        """The streams of one publisher that are being received."""
        return [source for source in self.sources() if source.link is link]

    def positions(self) -> list[Position]:
        """In each stream, where the consumer goes on: all before it has been handed over."""
        with self._books_lock:
            known = self.incoming.by_name.values()
            every = [[*s.old_books, s.books] for s in known if s.was_entered]
            return [self._position(books) for books in (*every, *self.incoming.uncommitted())]

    def committed(self, positions: Iterable[Position]) -> None:
        """These are kept on disk."""
        with self._books_lock:
            self.incoming.committed(position.stream for position in positions)

    def _position(self, every: Sequence[Books]) -> Position:
        # Of the newest epoch that anything was taken of: later ones are only waiting.
        taken = [books for books in every if books.consumed > books.start]
        figures = self._figures(taken[-1] if taken else every[0], None)
        return Position(figures.stream, figures.epoch, figures.consumed)

    def fate(self, place: Position) -> tuple[str, str, int] | None:
        """What became of an event here: a word, why it is lost, how many were filtered.

        `None` where nothing is known of its epoch.  `before` (it began behind it), `absent` (it has
        not come), `here` (the consumer has yet to take it), `taken` (or filtered), `lost`, `over`
        (taken or lost: more losses were reported than are remembered).
        """
        with self._books_lock:
            source = self.incoming.by_name.get(place.stream)
            now = () if source is None else (source.books,)
            every = [*self.incoming.left(place.stream).books, *now]
            books = next((one for one in every if one.epoch == place.epoch), None)
            if books is None:
                return None
            live = source is not None and books is source.books
            figures = self._figures(books, source.receiver if live and source else None)
        if place.seq < figures.start:
            return "before", "", figures.filtered
        if place.seq >= figures.consumed:
            word = "here" if place.seq < figures.received else "absent"
            return word, "", figures.filtered
        for loss in list(self.losses):
            same = (loss.stream, loss.epoch) == (place.stream, place.epoch)
            if same and loss.first <= place.seq < loss.stop:
                return "lost", loss.reason, figures.filtered
        word = "over" if len(self.losses) == LOSSES_MAX and figures.lost else "taken"
        return word, "", figures.filtered

    def rows(self, label: str) -> list[LedgerRow]:
        """The books as ledger rows, by what this side has heard of the publishers."""
        rows: list[LedgerRow] = []
        with self._books_lock:
            for source in list(self.incoming.by_name.values()):
                for books in source.old_books:
                    figures = self._figures(books, None)
                    rows.append(row_of(figures, label, figures.consumed, "ended"))
                if source.receiver is not None:
                    figures = self._figures(source.books, source.receiver)
                    stop = max(heard_next(source), figures.received)
                    rows.append(row_of(figures, label, stop, "live"))
        return rows

    def _figures(self, books: Books, receiver: StreamReceiver | None) -> Figures:
        batch = self.current if self._current_books is books else None
        received = 0 if receiver is None else receiver.next
        return figures_of(books, received, batch, length_hint(self.iterator))

    def sources(self) -> list[Source]:
        """The streams that are being received."""
        return self.incoming.received()

    def close(self) -> None:
        """Close the socket, as soon as whoever drives lets go of it."""
        self.closed = True
        self.wake()
        with self.lock:
            if not self._client_closed:
                self._client_closed = True
                self._client.close()
                self.tuner.close()
        told = self.on_close
        if told is not None:  # the loop may not hear of descriptors that are closed
            told()


def take_next(intake: Intake, data: bytes, now: float, as_events: bool = True) -> bool:
    """Hand a message that just came to the consumer; `False` if the long way is needed.

    The fast path, for a frame that is next in order and wanted as a whole: nearly every one.  It
    does what `Intake._on_message`, `StreamReceiver.on_frame`, `Intake.take` and what they call do
    for such a frame, for the time of a single event: when a process wakes up, each further function
    costs a microsecond or two, because none of it is in the processor's caches.  It looks first and
    changes nothing unless all is as it should be, and then leaves everything as the long way would
    have: a test takes the same frames both ways.

    The batch is `intake.current` then, and its events, if they are wanted, are in
    `intake.iterator`.  With the lock held, and nothing before it that the consumer has yet to take.
    """
    if data[8:12] != FRAME_MAGIC or intake._ready:
        return False
    try:
        frame = Frame(data)
    except ProtocolError:
        return False
    source = intake._by_wire.get(frame.stream)
    receiver = None if source is None else source.receiver
    if source is None or receiver is None or receiver.epoch != frame.epoch:
        return False
    if not receiver.is_next(frame) or source.keeps.get(frame.topics) != "all":
        return False
    books = source.books
    batch = Batch(frame, books.stream, source.codec)
    iterator = iter(batch.events() if as_events else ())
    receiver.pass_on(frame)
    source.data_at = now
    with intake._books_lock:
        books.delivered += frame.count
        books.consumed = frame.stop
        intake._current_books = books
        intake.current = batch
        intake.iterator = iterator
    intake._note_consumed(source, len(data))
    return True


take_next_in_python = take_next
if COMPILED:
    take_next = _speed.take_next  # type: ignore[assignment]
