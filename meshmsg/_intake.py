"""The receiving side of one subscription: its data socket, its streams, its books.

An `Intake` is driven by whoever waits for events: the consumer's own thread or event loop while it
waits (no hand-over between threads on the way of an event), the I/O thread now and then while the
consumer is busy, so that gaps are found and repaired meanwhile.  The lock is held by the driver.

Everything that comes by the control channel is put into `inbox` by the I/O thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import length_hint
from typing import Any

from meshmsg._batch import Batch, run_out
from meshmsg._bookmarks import Bookmarks
from meshmsg._codecs import Codec, UnknownCodec, codec_for
from meshmsg._config import Tuning
from meshmsg._control import (
    Evicted,
    Figures,
    Rekey,
    Start,
    StreamInfo,
    Subscribed,
    stream_wire_id,
    subscription_token,
)
from meshmsg._errors import BindError, ConfigError, ProtocolError
from meshmsg._event import Event, Loss, Position
from meshmsg._frame import FRAME_MAGIC, HEARTBEAT_MAGIC, PREFIX_BYTES, Frame, Heartbeat
from meshmsg._lending import Lending
from meshmsg._mcast_in import PacketSource, groups_to_join, info_of
from meshmsg._mcast_seal import receiving_seal, sealed_bytes
from meshmsg._mcast_words import MulticastInfo
from meshmsg._multicast import Feed
from meshmsg._packet import DATA_HEAD, HEAD, PACKET_MAGIC, SEALED_MAGIC, STREAM_AT
from meshmsg._security import Security
from meshmsg._shortcut import take_next
from meshmsg._source import (
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
    TailHint,
    heard_next,
    row_of,
)
from meshmsg._topics import TopicFilter
from meshmsg.recovery.ledger import LedgerRow
from meshmsg.recovery.loss_detector import NEVER, NackTiming
from meshmsg.recovery.receiver import HINT_GRACE_S, Delivery, Run, StreamReceiver
from meshmsg.transports.fanout import FanoutClient
from meshmsg.transports.multicast import Datagram, Group, MulticastClient
from meshmsg.transports.zmq_inlet import SOON_S

log = logging.getLogger("meshmsg.peer")

STASH_BYTES_MAX = 16 * 1024 * 1024
LOSSES_MAX = 10_000
BACKGROUND_AFTER_S = 0.05
#: The same where packets wait in a kernel buffer, which fills quickly.
BACKGROUND_PACKETS_S = 0.005
READ_DATAGRAMS_MAX = 8
#: Read beside each batch that is handed over while more are ready.
KEEP_UP_DATAGRAMS = 3
#: Magic, kind, flags, place, stream and epoch: all that live first packets of a stream share.
SINGLE_PREFIX_BYTES = HEAD.size - 8
READ_FRAMES_MAX = 64
#: When so many packets of other streams came and none of a feed's, something may be misspelt.
OTHERS_TOLD = 5
HOLD_S = 0.05
LEAVE_AFTER_S = 1.0
SIGNALS_S = 0.5
#: How often to see whether a publisher is back that has a log.
AWAY_S = 0.1


class Intake:
    """All streams of one subscription, in one order a stream."""

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
        self._security = security
        self.background_s = BACKGROUND_AFTER_S  #: a consumer that did not read for so long is busy
        self.start = start
        self.bookmarks: Bookmarks | None = None  #: of a named subscription with a place for them
        self.hold = False  #: publishers' logs keep what it has not committed
        self.filter = topics
        self.lock = threading.RLock()
        self.inbox: deque[Notice] = deque()
        self.counters: Counter[str] = Counter()
        self.losses: deque[Loss] = deque(maxlen=LOSSES_MAX)
        self.evictions: deque[str] = deque(maxlen=100)
        self.closed = False
        self._client_closed = False
        self.driven_at = 0.0
        self.current: Batch | None = None
        self.iterator: Iterator[Event] = iter(())
        self._client = client
        self._tuning = tuning
        self._mesh = mesh
        self._post = post
        self._report = report
        self._codec = codec
        self._type = type
        self._books_lock = threading.Lock()
        self._by_wire: dict[int, Source] = {}
        self._by_name: dict[str, Source] = {}
        self._ready: deque[tuple[Source, Books, Delivery]] = deque()
        self._ready_bytes = 0
        self._timer_due = NEVER
        self._report_due = NEVER  # reports to multicast senders: a little late does no harm
        self._leavers = False  # a publisher has said good-bye
        self._leaving: dict[str, float] = {}  # addresses to disconnect from, when all is read
        self._full_at = 0.0  # when there was no room to read on
        self._starved = False  # senders were told that there is none
        self._settled = False  # every stream that we know has admitted us
        self.lending = Lending(self)
        self._current_books: Books | None = None
        self._interface = interface
        self._second_interface = second_interface
        self._lines: dict[Group, MulticastClient] = {}
        self._singles: dict[bytes, Source] = {}  # by how their live packets begin
        self._backlog: list[Source] = []  # with frames that have yet to be put together
        self._backlog_bytes = 0  # how much those are, about
        self._only_line: MulticastClient | None = None  # where all streams come by one
        self._turn = 0  # what is read first, of ZeroMQ's socket and the lines
        self._packet_fault: Callable[[bytes], bool] | None = None
        self._fault_at: tuple[str, int] | None = None  # the line where packets are lost
        self._timing = NackTiming(
            delay_s=tuning.repair_delay_s,
            retry_s=tuning.repair_retry_s,
            deadline_s=tuning.repair_deadline_s,
        )
        # A log has what is missing, and only its publisher can say that it has not.
        self._patience = replace(self._timing, deadline_s=NEVER)
        client.subscribe(subscription_token(sub))

    # --- for the I/O thread ---

    def notify(self, notice: Notice) -> None:
        """Hand in what came by the control channel."""
        self.inbox.append(notice)
        self.wake()

    def wake(self) -> None:
        """Have whoever drives look at the inbox."""
        self._client.wakeup.set()

    def start_for(self, info: StreamInfo, *, born: bool) -> Start:
        """What to ask of a publisher: go on where we are, or start where the user said."""
        source = self._by_name.get(info.name)
        receiver = None if source is None else source.receiver
        if source is not None and receiver is not None:
            with self._books_lock:
                taken = self._figures(source.books, receiver).consumed
            return Start(info.name, "resume", taken, receiver.epoch)
        return self.start.for_stream(info.name, born=born)

    def wants_history(self, stream: str) -> bool:
        """Whether to ask a recorder what it has, though the publisher is there."""
        source = self._by_name.get(stream)
        fresh = source is None or source.receiver is None
        return fresh and self.start.reaches_back(stream)

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
        while read_ahead and self._backlog and self._ready_bytes < self._tuning.inbox_bytes_max:
            self._put_together(self._backlog[0], now)
        if not self._settled:
            self._enter_epochs(now, drained)
        if now >= self._timer_due or now >= self._report_due or (drained and self._leavers):
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
        self.driven_at = time.monotonic()

    def receive(
        self, now: float, deadline: float | None, *, as_events: bool = False
    ) -> bool | Batch:
        """If all is calm, take in the next message, waiting a little for it: the quick way.

        `False` if there is more to see to than data, or none came: then `pump` and `wait`.  A batch
        if none is to be taken before it.
        """
        soon = now + SOON_S
        if self.inbox or not self._settled or self._report_due < now or self._timer_due <= now:
            return False
        # Where there is no time to wait, what is there already need not go the long way.
        hurried = self._timer_due < soon or (deadline is not None and deadline < soon)
        self.driven_at = now if hurried else soon
        line = self._only_line
        if line is not None:
            datagram = line.recv() if hurried else line.recv_soon()
            if datagram is None:
                return False
            self.driven_at = now = time.monotonic()
            if not (as_events and self._take_single(datagram, now)):
                self._on_datagram(line, datagram, now)
            return True
        if self._lines:
            return False
        self.current = None  # taken; to let go of it now costs nobody any time
        data = self._client.recv() if hurried else self._client.recv_soon()
        if data is None:
            return False
        if take_next(self, data, now, as_events):
            return self.current or True
        self._on_message(data, now)
        return True

    @property
    def timer_due(self) -> float:
        """When `pump` has to be called even if nothing comes."""
        return min(self._timer_due, self._report_due)

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors for an event loop: data, wake-up, multicast groups."""
        lines = [line.fd for line in list(self._lines.values())]
        return (*self._client.fds, self._client.wakeup.fd, *lines)

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
        if self._lines and (len(ready) > 1 or self._backlog):
            self._keep_up()
        while ready:
            source, books, delivery = ready.popleft()
            if self._backlog and not ready:
                self._refill(time.monotonic())
            if isinstance(delivery, Loss):
                with self._books_lock:
                    self.current = None
                    books.lost[delivery.reason] += delivery.count
                    books.consumed = delivery.stop
                    self.counters["lost"] += delivery.count
                self.losses.append(delivery)
                self._note_consumed(source, 0)
                return delivery
            size = len(delivery.frame.data)
            self._ready_bytes -= size
            if self._starved and self._room * 2 > self._tuning.inbox_bytes_max:
                self._starved = False
                self._timer_due = 0.0  # there is room again: say so
            batch = self._hand_over(source, books, delivery, as_events)
            self._note_consumed(source, size)
            if batch is not None:
                return batch
        return None

    def _keep_up(self) -> None:
        """Read on while much is ready, as after a repair: a kernel buffer fills quickly."""
        now = time.monotonic()
        reads = KEEP_UP_DATAGRAMS if self._room > 0 else 0  # what overruns it by these is little
        for line in list(self._lines.values()):
            for _ in range(reads):
                datagram = line.recv()
                if datagram is None:
                    break
                self._on_datagram(line, datagram, now)
        self.driven_at = now
        if now >= self._timer_due:
            self._run_timers(now, False)

    def _hand_over(self, source: Source, books: Books, run: Run, as_events: bool) -> Batch | None:
        """What the subscription's patterns take of a run, entered in the books."""
        frame, lo, hi = run
        keep: list[int] | None = None
        verdict = source.keeps.get(frame.topics, "new")
        if verdict == "new":
            verdict = self._judge(source, frame.topics)
        if verdict == "some":
            chosen = [self._takes(source, topic) for topic in frame.topics]
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
        return batch

    def _judge(self, source: Source, topics: tuple[str, ...]) -> str:
        """Whether the patterns take `all`, `none` or `some` of a frame's topics."""
        chosen = {self._takes(source, topic) for topic in topics}
        verdict = "some" if len(chosen) > 1 else "all" if chosen.pop() else "none"
        if len(source.keeps) > 10_000:
            source.keeps.clear()
        source.keeps[topics] = verdict
        return verdict

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
        if source.unreported_bytes * 4 >= source.info.window_bytes:
            source.unreported_bytes = 0
            self._report(self)

    def _read(self, now: float, read_ahead: bool) -> bool:
        """Read messages; returns whether none is left."""
        limit = self._tuning.inbox_bytes_max
        recv, ready = self._client.recv, self._ready
        if self._lines:
            # What always has something ready must not keep the others waiting.
            self._turn += 1
            if self._turn % 2 and not self._read_lines(now, read_ahead):
                return False
        for _ in range(READ_FRAMES_MAX * (16 if read_ahead else 1)):
            if self._ready_bytes >= limit:
                self._full_at = now
                return False
            if ready and not read_ahead:
                return False
            data = recv()
            if data is None:
                return not self._lines or self._read_lines(now, read_ahead)
            self._on_message(data, now)
        return False

    def _read_lines(self, now: float, read_ahead: bool) -> bool:
        """Read multicast packets; returns whether none is left."""
        ready = self._ready
        drained = True
        lines = list(self._lines.values())
        at = self._turn // 2 % len(lines)
        for line in lines[at:] + lines[:at]:
            for _ in range(READ_DATAGRAMS_MAX * (16 if read_ahead else 1)):
                if self._room <= 0:
                    self._full_at = now
                    return False
                if ready and not read_ahead:
                    return False
                datagram = line.recv()
                if datagram is None:
                    break
                self._on_datagram(line, datagram, now)
            else:
                drained = False
        return drained

    def _on_datagram(self, line: MulticastClient, datagram: Datagram, now: float) -> None:
        data = datagram.data
        if len(data) < HEAD.size or data[:4] not in (PACKET_MAGIC, SEALED_MAGIC):
            self.counters["bad_packets"] += bool(data)
            return
        source = self._by_wire.get(int.from_bytes(data[STREAM_AT : STREAM_AT + 8], "little"))
        if source is None or source.packets is None:
            self.counters["other_packets"] += 1  # another stream shares the group
            if self.counters["other_packets"] == OTHERS_TOLD:
                for problem in self.unheard():
                    log.warning("%s", problem)
            return
        packets = source.packets
        if self._backlog:
            self._backlog_bytes += len(data)
        for frame in packets.receive(line, datagram, now):
            self._on_frame(source, frame, now)
        self._after_packets(source, packets, now)
        packets.report(now, self._room)
        self._timer_due = min(self._timer_due, packets.deadline())

    @property
    def _room(self) -> int:
        """Bytes that may still be read ahead of the consumer."""
        return self._tuning.inbox_bytes_max - self._ready_bytes - self._backlog_bytes

    def _refill(self, now: float) -> None:
        """As long as frames have yet to be put together, some are ready."""
        while self._backlog and not self._ready:
            self._put_together(self._backlog[0], now)

    def _put_together(self, source: Source, now: float) -> None:
        packets = source.packets
        if packets is None or not packets.more:
            self._backlog.remove(source)
            self._backlog_bytes = 0 if not self._backlog else self._backlog_bytes
            return
        for frame in packets.go_on(now):
            self._on_frame(source, frame, now)
        self._after_packets(source, packets, now)
        # Counted here, once for some frames; in between, what comes is simply added.
        waiting = [s.packets for s in self._backlog if s.packets is not None]
        self._backlog_bytes = sum(other.complete_bytes for other in waiting)

    def _put_all_together(self, source: Source, now: float) -> None:
        """What comes next is of another epoch, or nothing at all."""
        while source in self._backlog:
            self._put_together(source, now)

    def _take_single(self, datagram: Datagram, now: float) -> bool:
        """A frame in a packet of its own, the next one: handed to the consumer as events at once.

        `False` if it is anything else: then the long way is needed, and nothing was done.
        """
        data, packet_bytes, origin = datagram
        source = self._singles.get(data[:SINGLE_PREFIX_BYTES])
        if source is None or packet_bytes < len(data) or self._ready:
            return False
        packets, receiver = source.packets, source.receiver
        if packets is None or receiver is None:
            return False
        if not packets.is_single(data, origin, receiver.epoch, receiver.next):
            return False
        if not take_next(self, data[DATA_HEAD.size :], now):
            return False
        packets.take_single(now)
        packets.report(now, self._room)
        return True

    def _after_packets(self, source: Source, packets: PacketSource, now: float) -> None:
        """What the packets say about the events' own numbers, and whether there are more."""
        if packets.more and source not in self._backlog:
            self._backlog.append(source)
            self._backlog_bytes += packets.complete_bytes
            self._refill(now)
        receiver, below = source.receiver, packets.receiver
        if receiver is None or below is None or below.epoch != receiver.epoch:
            return
        if below.event_next > receiver.high:
            source.heard_next = max(source.heard_next, below.event_next)
            receiver.on_tail(below.event_next, now=now)
        if receiver.missing and source.link is None and not source.lenders:
            # No connection, no other way to ask: what the packets could not bring is lost.
            reason = below.lost_reason or "overflow"
            self._deliver(source, receiver.on_gone([(0, 1 << 62)], reason, now=now))
        elif receiver.missing:
            self._timer_due = min(self._timer_due, receiver.deadline())

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
        self.counters["bad_messages"] += 1

    def _on_frame(self, source: Source, frame: Frame, now: float, repair: bool = False) -> None:
        receiver = source.receiver
        if receiver is None or frame.epoch != receiver.epoch:
            self._stash(source, frame)
            return
        source.data_at = now
        self._deliver(source, receiver.on_frame(frame, now=now, repair=repair))
        if receiver.missing:
            self._timer_due = min(self._timer_due, receiver.deadline())

    def _on_heartbeat(self, source: Source, beat: Heartbeat, now: float) -> None:
        receiver = source.receiver
        if receiver is not None and beat.epoch == receiver.epoch:
            source.heard_next = max(source.heard_next, beat.next)
            receiver.on_tail(beat.next, now=now)
            self._timer_due = min(self._timer_due, receiver.deadline())

    def _stash(self, source: Source, frame: Frame) -> None:
        """Keep a frame of an epoch that is not entered yet."""
        receiver = source.receiver
        if receiver is not None and frame.epoch < receiver.epoch:
            self.counters["stale_frames"] += 1
        elif source.stash_bytes + len(frame.data) > STASH_BYTES_MAX:
            self.counters["stash_full"] += 1  # it will be found missing and asked for
        else:
            source.stash.append(frame)
            source.stash_bytes += len(frame.data)

    def _deliver(self, source: Source, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if isinstance(delivery, Loss):
                delivery = self._joined(delivery)
            else:
                self._ready_bytes += len(delivery.frame.data)
            self._ready.append((source, source.books, delivery))

    def _joined(self, loss: Loss) -> Loss:
        """One report for what was found lost piece by piece."""
        last = self._ready[-1][2] if self._ready else None
        if isinstance(last, Loss) and last.stop == loss.first:
            same = (last.stream, last.epoch, last.reason) == (loss.stream, loss.epoch, loss.reason)
            if same:
                self._ready.pop()
                return Loss(loss.stream, loss.epoch, last.first, loss.stop, loss.reason)
        return loss

    # --- the inbox ---

    def _read_inbox(self, now: float) -> None:
        while self.inbox:
            notice = self.inbox.popleft()
            if isinstance(notice, Attach):
                self._attach(notice, now)
            elif isinstance(notice, Lend):
                self.lending.on_lend(notice, now)
            elif isinstance(notice, Complete):
                self.lending.on_complete(now)
            elif isinstance(notice, Join):
                for feed in notice.feeds:
                    self._join(feed)
            elif isinstance(notice, Detach):
                # Leaving at once would throw away what it sent and nobody has read yet.
                self._leaving[notice.address] = now
                self._settled = False
                if notice.at_once:
                    self._client.disconnect(notice.address)
            else:
                source = self._by_name.get(notice.stream)
                if source is not None:
                    self._on_notice(source, notice, now)

    def _add_source(self, source: Source) -> None:
        self._by_name[source.info.name] = source
        self._by_wire[source.wire_id] = source

    def _attach(self, notice: Attach, now: float) -> None:
        for info in notice.streams:
            source = self._by_name.get(info.name)
            if source is None:
                wire_id = stream_wire_id(self._mesh, info.name)
                source = Source(info, wire_id, notice.link, self._codec_for(info))
                self._add_source(source)
                self._client.subscribe(wire_id.to_bytes(8, "little"))
            source.attach(info, notice.link)
            self.lending.on_attach(source, notice.more, now)
            if info.multicast is not None:
                self._tune_in(source, info.multicast, self._interface, self._second_interface)
            elif source.packets is not None:
                self._put_all_together(source, now)
                source.packets = None  # it came back with another transport
                self._leave_groups()
        self._settled = False
        self._leaving.pop(notice.address, None)
        wire_ids = [self._by_name[info.name].wire_id for info in notice.streams]
        streams = [wire_id.to_bytes(8, "little") for wire_id in wire_ids]
        try:
            self._client.connect(notice.address, notice.key, streams)
        except ProtocolError as error:
            self.counters["bad_messages"] += 1
            log.warning("a publisher names an address that cannot be used: %s", error)

    def _join(self, feed: Feed) -> None:
        """Receive a stream by hand, from a publisher that we have no connection to."""
        transport = feed.transport
        info = StreamInfo(
            name=feed.stream,
            topics=feed.topics,
            epoch=0,
            overflow="drop_oldest",
            codec=codec_for(feed.codec).name,
            window_bytes=1 << 62,
            multicast=info_of(transport, [], sealed_bytes(transport, self._security)),
        )
        wire_id = stream_wire_id(self._mesh, info.name)
        if wire_id in self._by_wire:
            return
        codec = self._codec or codec_for(feed.codec, type=self._type)
        source = Source(info, wire_id, None, codec)
        self._add_source(source)
        assert info.multicast is not None
        interface = transport.interface or self._interface
        second = transport.second_interface or self._second_interface
        self._tune_in(source, info.multicast, interface, second)
        if source.packets is not None:
            source.packets.begin = partial(self._begin, source)
            source.packets.begin_at = self.start.for_beat(feed.stream)
        self._settled = False

    def _begin(self, source: Source, epoch: int, packet: int, event: int, next_: int) -> None:
        """A publisher is heard for the first time, or in a new epoch."""
        # What lies before `next_` is asked for by the numbers of its packets, not of its events.
        name = source.info.name
        admission = Subscribed(self.sub, name, epoch, event, event, event, event, packet)
        self._on_admission(source, admission, time.monotonic())
        if source.receiver is not None and source.receiver.epoch == epoch:
            source.heard_next = max(source.heard_next, next_)

    def _tune_in(
        self, source: Source, info: MulticastInfo, interface: str, second: str = ""
    ) -> None:
        """Join the groups of a stream; where that fails, what comes by repair has to do."""
        old = source.packets
        if old is not None and (old.info.group, old.info.second) == (info.group, info.second):
            old.renew(info)
            return
        try:
            groups = groups_to_join(info, interface, second)
            lines = [self._line(group, info.receive_buffer_bytes) for group in groups]
        except (ConfigError, BindError) as error:
            self.counters["join_errors"] += 1
            log.error("%s: cannot join %s: %s", source.info.name, info.group, error)
            return
        self._put_all_together(source, time.monotonic())
        held = self._tuning.pending_bytes_max
        seal = receiving_seal(self._security, source.wire_id, source.info.name, len(lines))
        source.packets = PacketSource(info, source.wire_id, self.sub, lines, held, seal)
        self.background_s = BACKGROUND_PACKETS_S
        if old is not None:
            self._leave_groups()

    def _leave_groups(self) -> None:
        """Close the sockets of groups that no stream comes by any more."""
        used = [s.packets.lines for s in self._by_name.values() if s.packets is not None]
        for group, line in list(self._lines.items()):
            if not any(line in lines for lines in used):
                del self._lines[group]
                self._client.unwatch(line.fd)
                line.close()
        self._only_line = None

    def _line(self, group: Group, buffer_bytes: int) -> MulticastClient:
        line = self._lines.get(group)
        if line is None:
            line = self._lines[group] = MulticastClient(
                group, None, buffer_bytes, self._tuning.spin_s
            )
            line.fault = self._packet_fault if self._fault_at in (None, group[:2]) else None
            self._client.watch(line.fd)
        return line

    def set_packet_fault(
        self, fault: Callable[[bytes], bool] | None, at: tuple[str, int] | None = None
    ) -> None:
        """Lose packets on purpose, as they come in on all lines or on one (`meshmsg.testing`)."""
        with self.lock:
            self._packet_fault, self._fault_at = fault, at
            for group, line in self._lines.items():
                line.fault = fault if at in (None, group[:2]) else None

    def unheard(self) -> list[str]:
        """Feeds of which no packet has come, and what may be the matter, in words."""
        others, heard = self.counters["other_packets"], ""
        if others:
            heard = (
                f", but {others} packets of other streams were: the names of the publisher, of the "
                f"stream and of the mesh ({self._mesh!r}) have to be the same on both sides"
            )
        return [
            f"nothing was heard of {source.info.name} at {source.packets.info.group}{heard}"
            for source in list(self._by_name.values())
            if source.receiver is None and source.packets is not None and source.link is None
        ]

    def injected_drops(self) -> int:
        """Packets lost on purpose."""
        return sum(line.counters["injected_drops"] for line in list(self._lines.values()))

    def foreign(self) -> Counter[str]:
        """Frames of streams that were not whose they came from."""
        return Counter(foreign_frames=self._client.foreign)

    def _codec_for(self, info: StreamInfo) -> Codec:
        if self._codec is not None:
            return self._codec
        try:
            return codec_for(info.codec, type=self._type)
        except ConfigError:
            return UnknownCodec(info.codec)

    def _on_notice(self, source: Source, notice: Heard, now: float) -> None:
        receiver = source.receiver
        if isinstance(notice, Said):
            if isinstance(notice.message, Subscribed):
                if self.lending.on_admission(source, notice.link, notice.message, now):
                    self._on_admission(source, notice.message, now)
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
            log.warning("%s: evicted: %s", notice.stream, notice.reason)
        elif receiver is None:
            self.counters["early_notices"] += 1
        elif isinstance(notice, RepairFrame):
            self._on_repair(source, receiver, notice, now)
        else:
            self._on_tail_hint(source, receiver, notice, now)
        self._timer_due = now

    def _on_tail_hint(
        self, source: Source, receiver: StreamReceiver, hint: TailHint, now: float
    ) -> None:
        if hint.final:
            self._put_all_together(source, now)
            source.ends[hint.epoch] = hint.next
            self._leavers = True
        if hint.epoch != receiver.epoch:
            self.lending.on_strange_tail(source, hint, now)
            return
        source.heard_next = max(source.heard_next, hint.next)
        below = None if source.packets is None else source.packets.receiver
        if hint.lender is not None and source.link in source.lenders:
            receiver.on_tail(hint.next, now=now)  # nothing comes by itself
        elif hint.final or below is None or not below.is_behind:
            receiver.on_tail_hint(hint.next, now=now)

    def _on_admission(self, source: Source, admission: Subscribed, now: float) -> None:
        receiver, waiting = source.receiver, source.admissions
        durable = source.info.durable
        if durable and receiver is not None and admission.epoch < receiver.epoch:
            # The last words of a publisher that was killed, read after those of the next one.
            self.counters["stale_admissions"] += 1
            return
        if admission.over:
            known = source.overs.get(admission.epoch, 0)
            source.overs[admission.epoch] = max(known, admission.next)
        same = receiver is not None and receiver.epoch == admission.epoch
        if same or (receiver is None and not self.lending.is_asking(source, now) and not waiting):
            self._enter(source, admission, now)
        else:
            self.lending.put(source, admission)
            source.data_at = now
        waiting = source.admissions
        self._settled = self._settled and not waiting  # first all that is there must be read

    def _on_repair(
        self, source: Source, receiver: StreamReceiver, notice: RepairFrame, now: float
    ) -> None:
        try:
            frame = Frame(notice.data)
        except ProtocolError:
            self.counters["bad_messages"] += 1
            return
        if frame.stream != source.wire_id or frame.epoch != receiver.epoch:
            self.counters["bad_messages"] += 1
            return
        self._on_frame(source, frame, now, repair=True)
        receiver.on_answered(notice.answers, now=now)

    def _enter_epochs(self, now: float, drained: bool) -> None:
        """Close the books of epochs that are over and enter the next, once all is read.

        That nothing of an old epoch came for a while, although we were reading, says so: what is
        on its way from the kernel comes sooner.
        """
        waiting = False
        for source in self._by_name.values():
            quiet_since = max(source.data_at, self._full_at)
            while source.admissions:
                if self.lending.is_asking(source, now):
                    self._timer_due = min(self._timer_due, now + HOLD_S)
                    waiting = True
                    break
                if source.receiver is None:
                    self._enter(source, source.admissions.popleft(), now)
                    continue
                over = source.overs.get(source.receiver.epoch)
                if over is not None:
                    if source.receiver.next < over:
                        waiting = True  # the publisher's log has the rest
                        break
                elif now - quiet_since < HINT_GRACE_S:
                    self._timer_due = min(self._timer_due, quiet_since + HINT_GRACE_S)
                    waiting = True
                    break
                # What is missing of the old epoch went with the memory of the process that had it.
                stop = max(heard_next(source), source.ends.pop(source.receiver.epoch, 0))
                source.overs.pop(source.receiver.epoch, None)
                self._deliver(source, source.receiver.on_end(stop, "gone", now=now))
                self._enter(source, source.admissions.popleft(), now)
        if drained and not waiting:
            self._disconnect(now)
        known = self._by_name.values()
        waiting = waiting or bool(self._leaving)
        self._settled = bool(known) and not waiting and all(s.receiver for s in known)
        one = len(self._lines) == 1 and all(s.packets is not None for s in known)
        self._only_line = next(iter(self._lines.values())) if one else None

    def _disconnect(self, now: float) -> None:
        """Leave the addresses of publishers that have moved, when all they sent is read."""
        for address, since in list(self._leaving.items()):
            due = max(since, self._full_at) + LEAVE_AFTER_S
            if now >= due:
                self._client.disconnect(address)
                del self._leaving[address]
            else:
                self._timer_due = min(self._timer_due, due)

    def _enter(self, source: Source, admission: Subscribed, now: float) -> None:
        self._put_all_together(source, now)
        self._timer_due = now
        if source.info.durable:
            self._report(self)  # the publisher counts on us from now on, also through a crash
        receiver = source.receiver
        if receiver is not None and receiver.epoch == admission.epoch:
            # Back after a broken connection: what came meanwhile may still be on its way.
            receiver.on_tail_hint(admission.next, now=now)
            below = None if source.packets is None else source.packets.receiver
            if source.packets is not None and (below is None or below.epoch != admission.epoch):
                self._enter_packets(source, admission)
            elif source.packets is not None and admission.seal is not None:
                source.packets.rekey(admission.seal.keys)
            return
        name, epoch, start = source.info.name, admission.epoch, admission.start
        with self._books_lock:
            if receiver is not None:
                source.old_books.append(source.books)
            source.books = Books(name, epoch, start)
        receiver = source.receiver = StreamReceiver(
            name,
            epoch,
            start,
            timing=self._patience if source.info.durable else self._timing,
            pending_bytes_max=self._tuning.pending_bytes_max,
        )
        source.heard_next = max(start, admission.next)
        source.ladder.clear()
        self._enter_packets(source, admission)
        stash, source.stash, source.stash_bytes = source.stash, [], 0
        for frame in stash:
            if frame.epoch != epoch:
                self._stash(source, frame)
            elif frame.stop > start:
                self._deliver(source, receiver.on_frame(frame, now=now))
        # Where the start lies in the past, what is there already will not come by itself.  Without
        # a connection, the packets below ask for it.
        if source.link is not None or source.lenders:
            receiver.on_tail(admission.next, now=now)

    def _enter_packets(self, source: Source, admission: Subscribed) -> None:
        # Of one that is over none come; and a recorder does not know them.
        if source.packets is not None and not (admission.over or admission.recorded):
            source.packets.enter(admission.epoch, admission.packet, admission.seal)
            self._find_singles()

    def _find_singles(self) -> None:
        """By what to know live packets of our streams that may be a frame each."""
        self._singles = {
            source.packets.receiver.single_prefix: source
            for source in self._by_name.values()
            if source.packets is not None
            and source.packets.receiver is not None
            and len(source.packets.lines) == 1
            and source.packets.seal is None
        }

    def _run_timers(self, now: float, drained: bool) -> None:
        if self._room <= 0:
            # The consumer is behind: what would be sent again now has no place to go.
            for source in self.sources():
                source.receiver.hold(now=now)  # type: ignore[union-attr]
                if source.packets is not None and source.packets.receiver is not None:
                    source.packets.receiver.hold(now=now)
                    source.packets.report(now, 0)
                    self._starved = True
            self._timer_due = self._report_due = now + HOLD_S
            return
        due = report_due = NEVER
        for source in self._by_name.values():
            receiver = source.receiver
            if receiver is None:
                continue
            packets = source.packets
            if packets is not None:
                for frame in packets.on_deadline(now):
                    self._on_frame(source, frame, now)
                self._after_packets(source, packets, now)
                packets.report(now, self._room)
                due = min(due, packets.deadline())
                report_due = min(report_due, packets.report_due())
            if receiver.missing and self.lending.is_away(source):
                receiver.hold(now=now)  # its log has what is missing: wait until it is back
                due = min(due, now + AWAY_S)
                continue
            asks, deliveries = receiver.on_deadline(now=now, drained=drained)
            self._deliver(source, deliveries)
            if (
                drained
                and receiver.missing
                and receiver.epoch in source.ends
                and not source.info.durable
                and not self.lending.may_have(source)
            ):
                # The publisher has left, and what it answered before has been read.
                self._deliver(source, receiver.on_end(receiver.high, "gone", now=now))
                asks = []
            if asks:
                self.lending.ask(source, receiver, asks, now)
            due = min(due, receiver.deadline())
        # A deadline that waits for the socket to be drained must not spin meanwhile.
        self._timer_due = due if due > now else now + 0.01
        self._report_due = report_due if report_due > now else now + 0.01

    # --- books: any thread ---

    def figures(self, link: Any = None) -> list[Figures]:
        """The books on the current epoch of each stream (of one publisher)."""
        with self._books_lock:
            return [
                self._figures(source.books, source.receiver)
                for source in list(self._by_name.values())
                if source.receiver is not None and (link is None or source.link is link)
            ]

    def positions(self) -> list[Position]:
        """In each stream, where the consumer goes on: all before it has been handed over."""
        with self._books_lock:
            return [self._position(source) for source in self.sources()]

    def _position(self, source: Source) -> Position:
        every = [*source.old_books, source.books]
        # Of the newest epoch that anything was taken of: later ones are only waiting.
        taken = [books for books in every if books.consumed > books.start]
        figures = self._figures(taken[-1] if taken else every[0], None)
        return Position(figures.stream, figures.epoch, figures.consumed)

    def rows(self, label: str) -> list[LedgerRow]:
        """The books as ledger rows, by what this side has heard of the publishers."""
        rows: list[LedgerRow] = []
        with self._books_lock:
            for source in list(self._by_name.values()):
                for books in source.old_books:
                    figures = self._figures(books, None)
                    rows.append(row_of(figures, label, figures.consumed, "ended"))
                if source.receiver is not None:
                    figures = self._figures(source.books, source.receiver)
                    stop = max(heard_next(source), figures.received)
                    rows.append(row_of(figures, label, stop, "live"))
        return rows

    def _figures(self, books: Books, receiver: StreamReceiver | None) -> Figures:
        delivered, filtered, consumed = books.delivered, books.filtered, books.consumed
        batch = self.current
        left = length_hint(self.iterator)
        if left and batch is not None and self._current_books is books:
            # The consumer is inside a batch: what it has yet to take is in flight.
            index = batch.indices[len(batch) - left]
            consumed = batch.frame.first + index
            delivered -= left
            filtered -= batch.hi - index - left
        return Figures(
            stream=books.stream,
            epoch=books.epoch,
            start=books.start,
            received=consumed if receiver is None else max(receiver.next, consumed),
            consumed=consumed,
            delivered=delivered,
            filtered=filtered,
            lost=dict(books.lost),
        )

    def sources(self) -> list[Source]:
        """The streams that are being received."""
        return [s for s in list(self._by_name.values()) if s.receiver is not None]

    def close(self) -> None:
        """Close the socket, as soon as whoever drives lets go of it."""
        self.closed = True
        self.wake()
        with self.lock:
            if not self._client_closed:
                self._client_closed = True
                self._client.close()
                for source in self._by_name.values():
                    if source.packets is not None:
                        source.packets.leave()
                for line in self._lines.values():
                    line.close()
