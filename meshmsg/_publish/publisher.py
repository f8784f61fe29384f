"""The publishing side of a peer: its streams, and the data socket through which they leave.

Joins `StreamSender` cores to the XPUB socket and the control server.  Events get their numbers as
they are added to the open frame (see `FrameBuilder`); one lock guards all the rest, the cores and
the socket together, so frames leave in the order of their numbers whichever thread sends them.

Natural batching: an event that finds its stream idle is sent at once by the caller's own thread
(a hand-over to another thread costs more than everything else).  Events that follow within the
time that a send takes, as measured, gather in the open frame.  It leaves when it is full, when that
time is over and another event comes, or when the thread that filled it goes on to wait for anything
(`flush_thread`): nothing waits for a clock.  A thread that does nothing but publish gathers for
`GATHER_SENDS` times as long, so that sending takes a small part of its time.

What is known of one stream is in `published_stream`, of those who read them in `subscribers`; who
publishes faster than they read waits in `backpressure`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from threading import get_ident
from typing import Any, Protocol

from meshmsg import _platform
from meshmsg._access.multicast_keys import SendingSeal
from meshmsg._groups.dispatcher import GroupSide
from meshmsg._model.config import PeerConfig, Stream
from meshmsg._model.errors import ClosedError, EventTooLarge, MeshError, NoStream
from meshmsg._model.event import Position
from meshmsg._model.topics import check_topic
from meshmsg._native import COMPILED
from meshmsg._publish.backpressure import StreamGates
from meshmsg._publish.durable_streams import DurableSide
from meshmsg._publish.event_runs import Run, check_notes, encode, runs_of
from meshmsg._publish.flush_thread import GatheredSender
from meshmsg._publish.hand_over import HandOver
from meshmsg._publish.multicast_sender import PacketOutlet
from meshmsg._publish.published_stream import Outlet, unconnected
from meshmsg._publish.spill import SpillPlace
from meshmsg._publish.stream_counts import claim_row, stream_stats, subscribers_of
from meshmsg._publish.streams import Streams
from meshmsg._publish.subscribers import Subscribers
from meshmsg._publish.topic_router import RUSH_DUES, Routes, Rush
from meshmsg._publish.traced_event import traced
from meshmsg._publish.volatile_epoch import volatile_epoch
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import (
    Join,
    Settle,
    StreamInfo,
    Tail,
    stream_wire_id,
)
from meshmsg._wire.frame import FrameBuilder, Note
from meshmsg.recovery.stream.flow_control import Claim
from meshmsg.recovery.stream.ledger import LedgerRow
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.udp.multicast import Inlet
from meshmsg.transports.zmq.fanout import FanoutServer

if COMPILED:
    from meshmsg import _speed

#: A send is taken to cost at most this: a thread that was kept from running meanwhile says nothing
#: of the cost.
SEND_NS_MAX = 100_000
#: A new measurement counts for one part in this many.
SEND_SHARE = 8
#: An open frame that got more events than this while a send takes goes on filling ...
DENSE_EVENTS = 8
#: ... for so many times what a send takes.  A frame costs about as much as 30 events, whatever it
#: holds.
GATHER_SENDS = 8
#: In a rush it is the gathering thread that sends, as often as it can; a publisher after this long.
RUSH_NS = 200_000_000
#: Streams that become due one after the other within this time of each other may be a rush.
RUSH_GAP_NS = 20_000
#: How often streams are looked at, at least: whoever publishes does not call the I/O thread for the
#: heartbeat after an event, and to send takes the call from subscriptions that have come.  While
#: nobody publishes, as often as idle streams have heartbeats (`heartbeat_max_s`).
LOOK_S = 0.2
#: A look at all streams takes at most one part in this many of the I/O thread's time.
LOOK_SHARE = 10
#: What an event costs in a frame beside its payload: offset, time, topic index.
EVENT_COST = 14
ROUTES_MAX = 200_000


class Spans(Protocol):
    """What goes round publishing where traces are wanted; chosen when a peer opens."""

    def one(
        self, publish: Callable[..., Position | None], stream_of: Callable[[str], str]
    ) -> Callable[..., Position | None]:
        """`publish` with a span for each event."""

    def many(
        self, publish_all: Callable[..., Position | None], stream_of: Callable[[str], str]
    ) -> Callable[..., Position | None]:
        """`publish_all` with a span for each call."""


class PublisherSide:
    """All streams of a peer and everyone who subscribes to them."""

    def __init__(
        self,
        config: PeerConfig,
        clock_us: int,
        control: ControlSender,
        wake: Callable[[], None],
        announce: Callable[[], None],
        spans: Spans | None = None,
    ) -> None:
        self._config = config
        self._tuning = config.tuning
        platform = _platform.current()
        self._monotonic = platform.monotonic  # at hand: asked for each event
        self._time_ns = platform.time_ns
        self._clock_us = clock_us  # at the start
        self._wake = wake
        self._announce = announce
        self.control = control
        self._streams = streams = Streams(config.name)
        # Locks are taken in this order: this one, then that of a log (`Appender`).  Whoever writes
        # a log has only the latter, unless it publishes many: sending does not wait for a disk.
        self._lock = streams.lock
        self._changed = streams.changed
        self._outlets = streams.outlets
        self.counters = streams.counters
        self.guard = streams.guard
        self._declared = Routes[Outlet]()
        self._routes: dict[str, Outlet] = {}
        self._rush = Rush(RUSH_GAP_NS)
        if FrameBuilder.NEEDS_LOCK:
            self.publish = self._publish_locked  # type: ignore[method-assign]
        elif COMPILED:
            clock = platform.own_clock_ns
            self.publish = _speed.Publish(self, self._routes, check_notes, Position, clock)  # type: ignore[method-assign]
        if spans is not None:
            self.publish = spans.one(self.publish, self.stream_of)  # type: ignore[method-assign]
            self.publish_all = spans.many(self.publish_all, self.stream_of)  # type: ignore[method-assign]
        self._dirty: deque[Outlet] = deque()
        self._sending = False  # a frame is leaving
        self._hand_over = HandOver()
        self._published = 0  # events, when the streams were looked at last
        self.is_idle = True  #: nothing was published before that, since the look before
        self.gates = gates = StreamGates(streams, self._routes)
        self._pass = gates.wait  # the compiled core calls it by this name
        self.durable = durable = DurableSide(config, streams, control, wake, self._send_safe)
        self._spills = SpillPlace(config)
        self.groups = GroupSide(
            config,
            streams,
            control,
            durable,
            wake,
            gates.reopen,
            self._declare_late,
            self._publish_dead,
        )
        self.subscribers = Subscribers(
            streams, gates, control, durable, config.tuning, self.find, self.groups.takers
        )
        self._tokens = self.subscribers.tokens  # looked at once a frame
        name = f"meshmsg-{config.name} send"
        self._gathered = GatheredSender(name, self._send_gathered, self.counters)
        self._multicast: list[Outlet] = []
        self._look_from = 0.0  # before this time streams are not looked at again
        self._look_due = NEVER  # something is to be done then, as of the last look
        self._parts: list[Callable[[float], float]] = [
            self._tend_multicast,
            self._look,
            self.subscribers.drain_tokens,
            self.subscribers.tend_away,
            self.groups.on_tick,
            self.durable.on_tick,
        ]

    def open(self, fanout: FanoutServer) -> None:
        """Take the data socket into use."""
        self._streams.fanout = fanout
        for stream in self._config.streams:
            self._declare(stream)

    def _declare(self, stream: Stream) -> Outlet:
        name = f"{self._config.name}/{stream.label}"
        wire_id = stream_wire_id(self._config.mesh, name)
        writer = None
        if stream.durability == "log":
            writer = self.durable.open_log(stream, name, self._clock_us)
            epoch = writer.epoch
        else:
            epoch = self._volatile_epoch
        spill = self._spills.spill_of(stream, name, epoch)
        outlet = Outlet(stream, name, wire_id, epoch, self._tuning, writer, spill)
        if stream.transport is not None:
            seal = self._seal_of(name, wire_id)
            outlet.packets = PacketOutlet(stream, wire_id, epoch, self._config.interface, seal)
            outlet.packets.open(_platform.monotonic())
            self._multicast.append(outlet)
        self._outlets[name] = outlet
        self._declared.add(stream.topics, outlet)
        self.groups.declare(outlet)
        return outlet

    def _declare_late(self, stream: Stream) -> Outlet:
        """With the lock held: one that others have yet to hear of."""
        outlet = self._declare(stream)
        self._announce()
        return outlet

    def _seal_of(self, stream: str, wire_id: int) -> SendingSeal | None:
        """Where an allow-list tells peers apart, the keys are random and subscribers get them.

        Nobody else can compute those.
        """
        security = self._config.security
        if security is None:
            return None
        give = partial(self.subscribers.give_key, stream) if security.key_dir is not None else None
        return SendingSeal(security, wire_id, give)

    @cached_property
    def _volatile_epoch(self) -> int:
        """The epoch of all streams without a log."""
        return volatile_epoch(self._clock_us, self._config.name, self._config.data_dir)

    # --- publishing: any thread ---

    _encode = staticmethod(encode)  # the compiled core calls it by this name

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_gate: Callable[[], None] | None = None,
    ) -> Position | None:
        """Number an event and send it, or leave it in the open frame.

        With `on_gate`, a blocked stream gives `None` at once and calls back when it opens.
        Every call and attribute here is paid once an event: measure before adding one.
        """
        try:
            outlet = self._routes[topic]
        except (KeyError, TypeError):
            outlet = self._route(topic)
        raw = data.__class__ is bytes
        if not raw:
            data, raw = self._encode(outlet, data)
        size = len(data)
        note = None
        if key is not None or headers is not None:
            note = (key, check_notes(key, headers))
            size += len(key or "") * 4 + len(note[1] or b"")
        if size > outlet.large_max:
            return self._publish_large(outlet, topic, data, raw, note, timeout, on_gate)
        if outlet.tail is not None:
            return self._publish_durable(outlet, topic, data, raw, note, timeout, on_gate)
        while True:
            now_ns = self._time_ns()
            due = now_ns > outlet.due_ns
            if due and not outlet.count and note is None:
                position = self._publish_idle(outlet, topic, data, now_ns, raw)
                if position is not None:
                    return position
            try:
                # `FrameBuilder.add` written out: from here to `count` there is no call, so neither
                # a thread nor a signal comes in between, and a closed gate lets nothing through.
                if not outlet.gated:
                    index = outlet.count
                    outlet.topics[index] = topic
                    outlet.payloads[index] = data
                    outlet.times[index] = now_ns
                    outlet.raws[index] = raw
                    seq = outlet.first + index
                    if note is not None:
                        outlet.notes[seq] = note
                    outlet.size = size = outlet.size + size + EVENT_COST
                    outlet.count = index + 1
                    break
            except IndexError:
                self._send_full(outlet)
                continue
            if not self._pass(outlet, timeout, on_gate):
                return None
        if due or size > outlet.size_max:
            self._on_due(outlet, now_ns)
        elif not outlet.dirty:
            self._mark_dirty(outlet)
        return Position(outlet.stream, outlet.epoch, seq)

    def _publish_large(
        self,
        outlet: Outlet,
        topic: str,
        data: bytes,
        raw: bool,
        note: Note | None,
        timeout: float | None,
        on_gate: Callable[[], None] | None,
    ) -> Position | None:
        """An event that fills a frame of its own: several at once in one would be too large."""
        key, packed = note or (None, None)
        size = len(data) + 4 * len(key or "") + len(packed or b"")
        if size > outlet.event_bytes_max:
            raise EventTooLarge(topic, size, outlet.event_bytes_max)
        keys = {} if key is None else {0: key}
        headers = {} if packed is None else {0: packed}
        run = Run([data], raw, keys, headers, len(data))
        return self.publish_run(outlet, topic, run, timeout, on_gate)

    def _publish_durable(
        self,
        outlet: Outlet,
        topic: str,
        data: bytes,
        raw: bool,
        note: Note | None,
        timeout: float | None,
        on_gate: Callable[[], None] | None,
    ) -> Position | None:
        """Add an event to the log's tail and to the open frame.

        The compiled core does so without a lock; it calls `_make_room` and `_wait_safe`.
        """
        key, packed = note or (None, None)
        assert outlet.log is not None
        with self._lock:
            while True:
                if outlet.gated and not self._pass(outlet, timeout, on_gate):
                    return None
                if outlet.count < len(outlet.times):
                    break
                self._send_open(outlet)
            self._follow_log(outlet)
            now_ns = self._time_ns()
            outlet.log.add([(topic, data, now_ns, raw, key, packed)])
            seq = outlet.next
            if note is not None:
                outlet.notes[seq] = note
            outlet.add(topic, data, now_ns, raw=raw)
            outlet.size += len(data) + EVENT_COST
            if not outlet.holds and (now_ns > outlet.due_ns or outlet.size > outlet.size_max):
                self._on_due(outlet, now_ns)
            elif not outlet.holds:
                self._mark_dirty(outlet)
        if outlet.holds:
            self._wait_safe(outlet, seq)
        return Position(outlet.stream, outlet.epoch, seq)

    def _make_room(self, outlet: Outlet, needed: int) -> None:
        """The log's tail has no room for an event of these bytes, or one has to wait for others.

        Without the lock where possible: who sends or publishes meanwhile need not wait for a disk.
        """
        log, tail = outlet.log, outlet.tail
        assert log is not None
        assert tail is not None
        if tail.keepers or log.next > outlet.next:
            with self._lock:  # behind whoever publishes many and keeps others out
                self._follow_log(outlet)
        else:
            log.make_room(needed)

    def _follow_log(self, outlet: Outlet) -> None:
        """Pass over what only the log has: interrupted (Ctrl-C) in between, it is published."""
        assert outlet.log is not None
        if outlet.log.next > outlet.next:
            self._send_open(outlet)
            outlet.reserve(outlet.log.next - outlet.next)

    def _wait_safe(self, outlet: Outlet, seq: int) -> None:
        """Return when an event is on the disk, and was sent."""
        assert outlet.log is not None
        if outlet.log.durable <= seq:
            outlet.log.sync(seq + 1)  # together with all who wait for the disk now
        if outlet.sender.sealed <= seq:
            with self._lock:
                self._send_safe(outlet)

    def _publish_idle(
        self, outlet: Outlet, topic: str, data: bytes, now_ns: int, raw: bool
    ) -> Position | None:
        """The stream is idle: the shortest way out for one event; `None` if it is not after all."""
        if self._sending:
            return None
        sender = outlet.sender
        with self._lock:
            if outlet.gated or self._rush.is_on(now_ns):
                return None
            frame = sender.seal_run(
                topic, (data,), now_ns, raw=raw, length=len(data), now=self._monotonic()
            )
            if frame is None:
                return None
            self._send_frame(outlet, frame, now_ns)
            position = Position(outlet.stream, outlet.epoch, sender.sealed - 1)
        self._give_way(outlet)
        return position

    def _publish_locked(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_gate: Callable[[], None] | None = None,
    ) -> Position | None:
        """`publish` for a Python on which threads may switch anywhere."""
        durable = self.find(topic).log is not None  # it takes the lock, and may wait for the disk
        with contextlib.nullcontext() if durable else self._lock:
            return PublisherSide.publish(
                self, topic, data, key=key, headers=headers, timeout=timeout, on_gate=on_gate
            )

    def _send_full(self, outlet: Outlet) -> None:
        with self._lock:
            self._send_open(outlet)

    def _on_due(self, outlet: Outlet, now_ns: int) -> None:
        """The stream was idle or the open frame is due: send it, unless it fills quickly.

        While another thread sends, this one goes on: many that wait for each other would do so
        once an event.
        """
        if self._sending and outlet.size <= outlet.size_max:
            outlet.due_ns = now_ns + outlet.send_ns * GATHER_SENDS
            self._mark_dirty(outlet)
            return
        with self._lock:
            waited_ns = now_ns - outlet.sent_ns
            gather_ns = outlet.send_ns * GATHER_SENDS
            dense = outlet.count > DENSE_EVENTS and 0 <= waited_ns < gather_ns
            if (dense or self._rush.is_on(now_ns)) and outlet.size <= outlet.size_max:
                outlet.due_ns = (outlet.sent_ns if dense else now_ns) + gather_ns
                self._mark_dirty(outlet)  # if no further event comes, the gathering thread sends it
                return
            alone = outlet.count == 1
            self._send_open(outlet)
        if alone:
            self._give_way(outlet)

    def _give_way(self, outlet: Outlet) -> None:
        """After a single event was sent: see that it leaves.  That time is part of the send."""
        if outlet.packets is not None:
            return  # it has left
        took_ns = self._hand_over.give_way()
        outlet.due_ns += took_ns
        self._rush.pass_over(took_ns)

    def _mark_dirty(self, outlet: Outlet) -> None:
        """The open frame waits for the next event or for the gathering thread; needs no lock."""
        own = get_ident()
        if outlet.dirty:
            return
        outlet.dirty = True  # no call since it was not: one thread does this
        outlet.marked_by = own
        self._dirty.append(outlet)
        self._gathered.call()

    def send_own(self) -> None:
        """The calling thread is about to wait: what it has published need not wait for others.

        An answer may come back and be answered in turn before the gathering thread runs.
        """
        if not self._dirty or len(self._dirty) > RUSH_DUES:
            return
        own = get_ident()
        with self._lock:
            for outlet in list(self._dirty):
                if outlet.marked_by == own and outlet.count:
                    self._send_open(outlet)

    def _send_gathered(self) -> bool:
        """Send the open frames; returns whether to come again at once.

        In a rush they stay marked: who publishes then needs no lock.
        """
        with self._lock:
            dirty = [self._dirty.popleft() for _ in range(len(self._dirty))]
            rush = len(dirty) > RUSH_DUES
            for outlet in dirty:
                try:
                    self._send_marked(outlet, rush)
                except Exception:
                    self.guard.failed("sending what was gathered")
            return bool(self._dirty)

    def _send_marked(self, outlet: Outlet, rush: bool) -> None:
        if rush and outlet.count:
            self._dirty.append(outlet)
            self._send_open(outlet)
            outlet.due_ns = outlet.sent_ns + RUSH_NS
            return
        outlet.dirty = False
        if rush:  # nothing since the last time: it is idle
            outlet.due_ns = 0
        else:
            self._send_open(outlet)

    def publish_all(
        self,
        topic: str,
        items: Iterable[Any],
        keys: Sequence[str | None] | None,
        headers: Mapping[str, Any] | None,
        timeout: float | None,
    ) -> Position | None:
        """Publish many events of one topic, waiting where the stream is blocked."""
        last, published = None, 0
        try:
            outlet = self.find(topic)
            for run in runs_of(outlet, topic, items, keys, headers):
                last = self.publish_run(outlet, topic, run, timeout)
                published += len(run.payloads)
        except MeshError as error:
            error.after(published, last)
            raise
        return last

    def publish_run(
        self,
        outlet: Outlet,
        topic: str,
        run: Run,
        timeout: float | None = None,
        on_gate: Callable[[], None] | None = None,
    ) -> Position | None:
        """Send one run as one frame; like `publish` where the stream is blocked."""
        sender = outlet.sender
        with self._lock:
            while True:
                if outlet.gated and not self._pass(outlet, timeout, on_gate):
                    return None
                frame = sender.seal_run(
                    topic,
                    run.payloads,
                    self._time_ns(),
                    raw=run.raw,
                    keys=run.keys,
                    headers=run.headers,
                    length=run.length,
                    now=self._monotonic(),
                )
                if frame is not None:
                    break
                self._send_open(outlet)
            if not sender.holds:
                self._send_frame(outlet, frame)
                return Position(outlet.stream, outlet.epoch, sender.sealed - 1)
            last = outlet.first - 1
        self._wait_safe(outlet, last)
        return Position(outlet.stream, outlet.epoch, last)

    def _publish_dead(
        self, outlet: Outlet, topic: str, payload: bytes, raw: bool, key: str | None, headers: bytes
    ) -> None:
        """One event that is encoded already, on a stream that never blocks."""
        keys = {} if key is None else {0: key}
        run = Run([payload], raw, keys, {0: headers}, len(payload))
        self.publish_run(outlet, topic, run, None, _nobody)

    def publish_aside(self, outlet: Outlet, topic: str, data: Any) -> None:
        """One event of the peer's own, on a stream that never blocks."""
        payload, raw = encode(outlet, data)
        self.publish_run(outlet, topic, Run([payload], raw, {}, {}, len(payload)), 0.0, _nobody)

    def declare_aside(self, stream: Stream) -> Outlet:
        """A stream of the peer's own."""
        with self._lock:
            return self._declare(stream)

    def find(self, topic: str) -> Outlet:
        """The stream of a topic; raises `NoStream`, `TopicError`."""
        try:
            return self._routes[topic]
        except (KeyError, TypeError):
            return self._route(topic)

    def stream_of(self, topic: str) -> str:
        """The name of the stream of a topic; raises as `find` does."""
        return self.find(topic).stream

    def _route(self, topic: str) -> Outlet:
        check_topic(topic)
        with self._lock:
            outlet = self._declared.find(topic)
            if outlet is None and not self._config.streams:
                if self.gates.closed:
                    raise ClosedError(self.gates.closed_text)
                if self._streams.fanout is None:
                    raise ClosedError("the peer is not open: use it in a with block")
                outlet = self._declare_late(Stream("**"))
            if outlet is None:
                raise NoStream(topic, [o.config.label for o in self._outlets.values()])
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = outlet
            return outlet

    def forget_routes(self) -> None:
        """Have the next event of each topic look for its stream anew."""
        self._routes.clear()

    def _send_open(self, outlet: Outlet) -> None:
        began_ns = self._time_ns()
        frame = outlet.sender.seal(now=self._monotonic())
        if outlet.holds:
            self._send_safe(outlet)
        elif frame is not None:
            self._send_frame(outlet, frame, began_ns)

    def _send_safe(self, outlet: Outlet) -> None:
        """With the lock held: send what has become safe, in order, whoever published it."""
        if outlet.log is None or self._streams.fanout is None:
            return
        for frame in outlet.sender.release(outlet.log.durable, now=self._monotonic()):
            self._send_frame(outlet, frame)

    def _send_frame(self, outlet: Outlet, frame: bytes, began_ns: int = 0) -> None:
        fanout = self._streams.fanout
        if fanout is None:
            raise ClosedError("the peer is not open: use it in a with block")
        all_sent = self._sending = True
        try:
            if outlet.packets is not None:
                all_sent = outlet.packets.send(frame, self._monotonic())
            elif len(frame) > self._tuning.push_bytes_max:
                # Pushed to a stalled subscriber, large frames would fill memory; each fetches its
                # own.
                fanout.send(outlet.sender.tail().encode())
                self.counters["announced_frames"] += 1
            elif self._tokens or not outlet.has_groups:  # else there are members only
                fanout.send(frame)
            if outlet.has_groups:
                self.groups.on_frame(outlet)
        finally:
            self._sending = False
        if outlet.log is not None:
            outlet.log.want()
        # Sending took its time, which says nothing of the load.
        outlet.sent_ns = now_ns = self._time_ns()
        if began_ns:
            took_ns = min(max(0, now_ns - began_ns), SEND_NS_MAX)
            outlet.send_ns += (took_ns - outlet.send_ns) // SEND_SHARE
        outlet.due_ns = now_ns + outlet.send_ns
        flow = outlet.sender.flow
        now = self._monotonic()
        if (flow.is_shut() or flow.is_crowded(now)) if all_sent else outlet.is_shut():
            outlet.gated = True
            self._wake()
        elif not all_sent and outlet.packets is not None and outlet.packets.is_paced():
            self._wake()  # the I/O thread sends the rest when it is time

    # --- waiting: any thread ---

    def flush(
        self, timeout: float | None, *, words: Sequence[str], closing: bool = False
    ) -> list[Claim]:
        """Send what is open and wait until all subscribers have it; returns those who have not.

        Streams whose overflow word is not in `words` are sent, but not waited for; when `closing`,
        nor are groups that go on with their work at the next start.
        """
        deadline = None if timeout is None else _platform.monotonic() + timeout
        with self._changed:
            targets = []
            for outlet in self._outlets.values():
                self._send_open(outlet)
                if outlet.config.overflow in words:
                    targets.append((outlet, outlet.sender.sealed))
            while True:
                behind = [
                    claim
                    for outlet, stop in targets
                    for claim in (*outlet.sender.flow.behind(stop), *self.groups.away(outlet, stop))
                    if not (closing and claim.sub < 0 and outlet.log is not None)
                ]
                busy = any(o.packets is not None and o.packets.is_busy() for o, _ in targets)
                left = None if deadline is None else deadline - _platform.monotonic()
                idle = not behind and not busy
                if idle or self._streams.fanout is None or (left is not None and left <= 0):
                    return behind
                self.subscribers.ask_status({claim.sub for claim in behind})
                self._changed.wait(0.02 if left is None else min(0.02, left))

    def waits_for_disk(self, topic: str | None = None) -> bool:
        """Whether to publish to a topic, or to any, is to wait for the disk."""
        outlets = list(self._outlets.values()) if topic is None else [self.find(topic)]
        return any(outlet.sender.holds for outlet in outlets)

    # --- the I/O thread ---

    def on_tick(self, now: float) -> float:
        """Send heartbeats that are due, evict; returns when to come again."""
        with self._changed:
            due = NEVER
            for part in self._parts:
                try:
                    due = min(due, part(now))
                except Exception:
                    self.guard.failed(part.__qualname__)
            return due

    def _tend_multicast(self, now: float) -> float:
        """Send packets that are due: each turn, for they leave by the clock."""
        return min((self._tend(outlet, now) for outlet in self._multicast), default=NEVER)

    def _look(self, now: float) -> float:
        """Look at all streams, unless that would take too much time; returns when to look again."""
        if now >= self._look_from:
            began = _platform.monotonic()  # later than `now`, if somebody had the lock
            outlets = self._outlets.values()
            published, self._published = self._published, sum(outlet.next for outlet in outlets)
            self.is_idle = published == self._published
            look_s = self._tuning.heartbeat_max_s if self.is_idle else LOOK_S
            due = now + look_s if outlets else NEVER
            for outlet in outlets:
                if outlet.packets is None:
                    due = min(due, self._tend(outlet, now))
            self._look_from = now + min(LOOK_S, LOOK_SHARE * (_platform.monotonic() - began))
            self._look_due = due
        return max(self._look_from, self._look_due)

    def _tend(self, outlet: Outlet, now: float) -> float:
        """Send a heartbeat, evict who is due; returns when to come again."""
        try:
            return self._tended(outlet, now)
        except Exception:
            self.guard.failed("the care of a stream")
            return NEVER

    def _tended(self, outlet: Outlet, now: float) -> float:
        sender, fanout = outlet.sender, self._streams.fanout
        assert fanout is not None
        if outlet.packets is not None:
            due = self._tend_packets(outlet, outlet.packets, now)
        else:
            if sender.heartbeat_due() <= now:
                fanout.send(sender.heartbeat(now=now).encode())
            due = max(sender.heartbeat_due(), 0.0 if self.is_idle else now + LOOK_S)
        if sender.holds:
            self._send_safe(outlet)  # of whoever was interrupted while it waited
        if outlet.gated:
            due = min(due, now + 0.05)
            for claim in sender.flow.on_deadline(now=now):
                self.subscribers.evict(outlet, claim.sub, claim.label)
            self.gates.reopen(outlet)
        return due

    def _tend_packets(self, outlet: Outlet, packets: PacketOutlet, now: float) -> float:
        """Send packets that are due; they wait for whom the stream waits for."""
        flow = outlet.sender.flow
        strangers = []
        for sub in packets.sender.evict(now=now):
            claim = flow.evict(sub, now=now)
            if claim is not None:
                self.subscribers.evict(outlet, sub, claim.label)
            elif sub not in flow.claims:
                strangers.append(sub)
        if strangers:  # there may be thousands, if somebody invents them
            more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
            self.subscribers.evict(
                outlet, strangers[0], unconnected(strangers[0]) + more, len(strangers)
            )
        packets.sender.set_aside(flow.aside())
        due = packets.on_tick(now)
        outlet.tell_unreached()
        return due

    def on_join(self, link: bytes, peer: str, message: Join, now: float) -> None:
        """A member of a work group asks to be taken."""
        with self._changed:
            self.groups.on_join(link, peer, message, now)

    def on_settle(self, link: bytes, message: Settle, now: float) -> None:
        """A member of a work group says what became of its work."""
        with self._changed:
            self.groups.on_settle(link, message, now)

    def forget_connection(self, fd: int) -> None:
        """A connection to the data socket is gone."""
        with self._lock:
            if self._streams.fanout is not None:
                self._streams.fanout.forget(fd)

    def renew_seals(self, now: float) -> None:
        """Somebody may read less than before: all multicast streams get other keys."""
        with self._lock:
            for outlet in self._outlets.values():
                if outlet.packets is not None and outlet.packets.seal is not None:
                    outlet.packets.seal.renew(now)

    def set_rivals(self, rivals: Mapping[str, str]) -> None:
        """Shut the streams that are taken from another peer of our name, and open the others."""
        with self._changed:
            self.gates.rivals = dict(rivals)
            for outlet in self._outlets.values():
                if outlet.stream in rivals:
                    outlet.gated = True
                    self.gates.call_waiters(outlet)
                else:
                    self.gates.reopen(outlet)
            self._changed.notify_all()

    def forget_link(self, link: bytes, now: float) -> None:
        """A peer left: its subscriptions with it."""
        with self._changed:
            self.subscribers.forget_link(link, now)
            self.groups.forget_link(link, "its peer is gone", now)

    def lose_link(self, link: bytes, last_seen: float, now: float) -> None:
        """A peer fell silent: its subscriptions may come back."""
        with self._changed:
            self.subscribers.lose_link(link, last_seen, now)
            self.groups.forget_link(link, "its peer is gone", now)

    # --- books ---

    def tails(self) -> list[Tail]:
        """What each stream has."""
        with self._lock:
            return [
                Tail(o.stream, o.epoch, min(o.sender.first_available, o.tail_next()), o.tail_next())
                for o in self._outlets.values()
            ]

    def guards(self) -> list[Guard]:
        """What looks after the threads of this side."""
        return [self._gathered.guard, self.durable.replay.guard, self.groups.keeper.guard]

    def outlets(self) -> list[Outlet]:
        """The streams; without the lock."""
        return list(self._outlets.values())

    def topics_of(self, stream: str) -> str | None:
        """The topics of one of our streams."""
        outlet = self._outlets.get(stream)
        return None if outlet is None else outlet.config.topics

    def links_of(self, sub: int) -> list[bytes]:
        """The connections of the subscription and the member of this number."""
        known = (self.subscribers.subs.get(sub), self.groups.members.get(sub))
        return [one.link for one in known if one is not None]

    def infos(self) -> list[StreamInfo]:
        """The streams as they are announced."""
        with self._lock:
            return [outlet.info() for outlet in self._outlets.values()]

    def ledger_rows(self) -> list[LedgerRow]:
        """A row for each subscription, by its last report."""
        with self._lock:
            rows = [*self.subscribers.finished, *self.groups.rows()]
            for outlet in self._outlets.values():
                for claim in subscribers_of(outlet):
                    rows.append(claim_row(outlet, claim, outlet.sender.next, claim.state))
            return rows

    def stats(self) -> dict[str, Any]:
        """Figures of each stream and of those who read it."""
        now = _platform.monotonic()
        with self._lock:
            return {
                outlet.config.label: stream_stats(outlet, now, self.groups.stats(outlet))
                for outlet in self._outlets.values()
            }

    def set_fault(self, fault: Callable[[bytes], bool] | None) -> None:
        """Lose messages on purpose (see `meshmsg.testing`)."""
        with self._lock:
            if self._streams.fanout is None:
                raise ClosedError("the peer is not open")
            self._streams.fanout.fault = fault

    def set_packet_fault(
        self, fault: Callable[[bytes], bool] | None, at: tuple[str, int] | None = None
    ) -> None:
        """Lose packets on purpose, before they are sent: on all lines, or on one."""
        with self._lock:
            for outlet in self._outlets.values():
                if outlet.packets is not None:
                    outlet.packets.server.fault = fault
                    outlet.packets.server.fault_at = at

    def inlets(self) -> list[Inlet]:
        """Sockets that bring requests and reports of multicast receivers, to be polled."""
        outlets = self._outlets.values()
        return [i for o in outlets if o.packets is not None for i in o.packets.server.inlets]

    def on_inlet(self, inlet: Inlet, now: float) -> float:
        """Requests and reports came; returns for how long to leave those that are waiting."""
        with self._changed:
            for outlet in self._outlets.values():
                if outlet.packets is not None and outlet.packets.server is inlet.server:
                    before = outlet.packets.sender.receivers
                    more = outlet.packets.on_inlet(inlet, now)
                    self.gates.reopen(outlet)
                    if outlet.packets.sender.receivers != before:
                        self._changed.notify_all()
                    return more
        return 0.0

    def trace(self, place: Position) -> dict[str, Any] | None:
        """What is known of an event of a stream of ours; `None` of one that is not ours."""
        with self._lock:
            outlet = self._outlets.get(place.stream)
            return (
                None if outlet is None else traced(outlet, place, self.groups.fates(outlet, place))
            )

    def injected_drops(self) -> int:
        """Messages and packets lost on purpose."""
        if self._streams.fanout is None:
            return 0
        lost = self._streams.fanout.counters["injected_drops"]
        for outlet in self._outlets.values():
            if outlet.packets is not None:
                lost += outlet.packets.server.counters["injected_drops"]
        return lost

    def finish(self) -> None:
        """No more publishing: whoever waits is told."""
        with self._changed:
            for outlet in self._outlets.values():
                outlet.gated = True
                if self._streams.fanout is not None:
                    self._send_open(outlet)  # what was added since the last flush
                if outlet.packets is not None and not self.gates.closed:
                    outlet.packets.end(_platform.monotonic())
                self.gates.call_waiters(outlet)
            self.gates.closed = True
            self._changed.notify_all()

    def close(self, linger_s: float) -> None:
        """Close the data socket."""
        self._gathered.close()
        with self._lock:
            fanout, self._streams.fanout = self._streams.fanout, None
            for outlet in self._outlets.values():
                if outlet.packets is not None:
                    outlet.packets.server.close()
            self.groups.close()
        if fanout is not None:
            fanout.close(linger_s)
        self.groups.keeper.close()
        self.durable.close()
        for outlet in self._outlets.values():
            if outlet.spill is not None:
                outlet.spill.close()
        self._spills.close()


def _nobody() -> None:
    """Rung for nobody."""
