"""The publishing side of a peer: streams, the data socket, and the subscribers it serves.

Joins `StreamSender` cores to the XPUB socket and the control server.  Events get their numbers as
they are added to the open frame (see `FrameBuilder`); one lock guards all the rest, the cores and
the socket together, so frames leave in the order of their numbers whichever thread sends them.

Natural batching: an event that finds its stream idle is sent at once by the caller's own thread
(a hand-over to another thread costs more than everything else).  Events that follow within
`HOT_NS` gather in the open frame.  It leaves when it is full, when it is due and another event
comes, when the thread that filled it goes on to wait for events, or when the I/O thread finds it,
whichever is first: nothing waits for a timer when idle.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from time import time_ns
from typing import Any

import msgspec

from meshmsg._codecs import Codec, codec_for, encode_payload
from meshmsg._compiled import COMPILED
from meshmsg._config import PeerConfig, Stream, Tuning
from meshmsg._control import (
    NACK_RANGES_MAX,
    Commit,
    Evicted,
    Figures,
    Gone,
    Join,
    Nack,
    Repair,
    Settle,
    Start,
    Status,
    StatusPlease,
    StreamInfo,
    Subscribe,
    Subscribed,
    Tail,
    encode_message,
    stream_wire_id,
    subscription_token,
)
from meshmsg._durable import DurableSide
from meshmsg._errors import (
    ClosedError,
    ConfigError,
    EventTooLarge,
    NoStream,
    PublishTimeout,
)
from meshmsg._event import Position
from meshmsg._frame import FrameBuilder, Note
from meshmsg._group_books import Seat
from meshmsg._group_publisher import GroupSide
from meshmsg._mcast_out import PacketOutlet
from meshmsg._open_frame import OpenFrame
from meshmsg._publisher_books import claim_row, stream_stats, subscribers_of
from meshmsg._replay import Chapter
from meshmsg._routes import RUSH_DUES, Routes, Rush
from meshmsg._runs import Run, check_notes, cuts, keys_of, scan
from meshmsg._seal_keeper import SealKeeper
from meshmsg._spill import SpillPlace
from meshmsg._together import Together
from meshmsg._topics import TopicFilter, check_topic
from meshmsg.recovery.flow_control import Claim
from meshmsg.recovery.ledger import LedgerRow
from meshmsg.recovery.log_folder import LogFolder
from meshmsg.recovery.log_writer import LogWriter
from meshmsg.recovery.sender import SenderPolicy, StreamSender
from meshmsg.recovery.spill_log import SpillLog
from meshmsg.transports.fanout import FanoutServer
from meshmsg.transports.multicast import Inlet

if COMPILED:
    from meshmsg import _speed

log = logging.getLogger("meshmsg.peer")

#: A stream that sent nothing for this long is idle, and the caller sends the next event itself.
HOT_NS = 20_000
#: An open frame that gathered more events than this in that time goes on filling ...
DENSE_EVENTS = 8
#: ... for this long at most.  A frame costs about as much as 30 events, whatever it holds.
HOT_MAX_NS = 500_000
#: In a rush it is the I/O thread that sends, as often as it can; a publisher after this long.
RUSH_NS = 200_000_000
#: How often the I/O thread looks at frames that are filling.
FILLING_S = 0.002
#: Waits are cut to this, so that Ctrl-C is noticed.
SIGNALS_S = 0.5
#: What an event costs in a frame beside its payload: offset, time, topic index.
EVENT_COST = 14
ROUTES_MAX = 200_000
TOKENS_MAX = 100_000
FINISHED_MAX = 1000
SUBSCRIPTIONS_MAX = 10_000
RUN_EVENTS_MAX = 8192

Send = Callable[[bytes, list[bytes]], bool]
Range = tuple[int, int]


class Outlet(OpenFrame):
    """One stream on its way out: its open frame, its core, and what the hot path needs at hand."""

    __slots__ = (
        "codec",
        "config",
        "event_bytes_max",
        "gate_waiters",
        "groups",
        "log",
        "marked_by",
        "packets",
        "seen",
        "sender",
        "spill",
        "together",
    )

    def __init__(
        self,
        config: Stream,
        stream: str,
        wire_id: int,
        epoch: int,
        tuning: Tuning,
        log: LogWriter | None = None,
        spill: SpillLog | None = None,
    ) -> None:
        super().__init__()
        frame_bytes = tuning.frame_bytes
        policy = SenderPolicy(
            overflow=config.overflow,
            buffer_bytes=int(config.buffer_bytes),
            window_bytes=int(config.window_bytes),
            evict_after_s=None if config.evict_after is None else float(config.evict_after),
            frame_bytes=frame_bytes,
            heartbeat_min_s=tuning.heartbeat_min_s,
            heartbeat_max_s=tuning.heartbeat_max_s,
            # Of two queues of that length each may take but half before the other side knows.
            queue_frames=tuning.queue_frames * 3 // 4 if config.transport is None else None,
        )
        self.config = config
        self.stream = stream
        self.epoch = epoch
        self.codec: Codec = codec_for(config.codec)
        self.log = log  #: of a durable stream
        self.spill = spill  #: of one that spills, unless the log is its spill
        self.sender = StreamSender(
            stream,
            wire_id,
            epoch,
            policy,
            builder=self,
            log=log,
            holds=log is not None and config.fsync == "always",
            spill=spill,
        )
        self.event_bytes_max = int(config.event_bytes_max)
        self.size_max = frame_bytes
        self.large_max = min(self.size_max, self.event_bytes_max)  #: more is seen to apart
        if log is not None:
            # No event waits in the open frame: each goes the way of a large one, into a frame that
            # is in the log before `publish` returns.
            self.large_max = -1
        self.together: Together | None = None  #: the way in of a durable stream
        self.packets: PacketOutlet | None = None  #: of a multicast stream
        self.marked_by = 0  #: the thread whose event made it dirty
        self.seen = -1  #: `next` when the I/O thread last looked
        self.dirty = False  #: the I/O thread knows of the open frame
        self.gated = False  #: publishing has to wait, or is over
        self.gate_waiters: list[Callable[[], None]] = []
        self.groups: list[Seat] = []  #: work groups that take events
        self.sent_ns = 0  #: when the last frame left
        self.due_ns = 0  #: an event after this time sends the open frame

    def info(self) -> StreamInfo:
        """How the stream is announced."""
        # Subscribers report at each quarter of it: often where the publisher waits for them.
        window = int(self.config.buffer_bytes)
        if self.config.overflow == "block":
            window = min(int(self.config.window_bytes), window)
        else:
            window //= 4
        return StreamInfo(
            name=self.stream,
            topics=self.config.topics,
            epoch=self.epoch,
            overflow=self.config.overflow,
            codec=self.codec.name,
            window_bytes=window,
            multicast=None if self.packets is None else self.packets.info,
            durable=self.log is not None,
        )

    @property
    def disk(self) -> LogFolder:
        """Where events are that memory does not have."""
        store = self.log or self.spill
        assert store is not None
        return store.folder

    def reaches_back(self, start: Start) -> bool:
        """Whether only the log knows where a subscription starts."""
        if self.log is None or start.kind in ("live", "origin"):
            return False
        return start.kind != "resume" or start.epoch != self.epoch

    def is_full(self) -> bool:
        """Whether publishing has to wait: for subscribers, or for packets to leave."""
        if self.sender.flow.is_shut():
            return True
        return self.packets is not None and self.packets.is_crowded()

    def is_shut(self) -> bool:
        """Whether publishing has to wait, or should for a moment."""
        return self.is_full() or self.sender.flow.is_crowded(time.monotonic())

    def blockers(self) -> dict[int, str]:
        """Whom publishing waits for, by subscription: their names."""
        claims = self.sender.flow.claims
        names = {claim.sub: claim.label for claim in self.sender.flow.blockers()}
        for sub in () if self.packets is None else self.packets.sender.holders():
            names[sub] = claims[sub].label if sub in claims else unconnected(sub)
        return names

    def tail_next(self) -> int:
        """One past the last event that is on its way to subscribers."""
        return self.sender.sealed if self.packets is None else self.packets.sent_events


class RemoteSubscription:
    """A subscription of another peer, as the publisher knows it."""

    def __init__(self, request: Subscribe, link: bytes, peer: str) -> None:
        self.sub = request.sub
        self.link = link
        self.peer = peer
        self.label = f"{peer}/{request.name or '-'}#{request.sub & 0xFFFFFF:06x}"
        self.hold = request.hold and bool(request.name)
        self.cursor = f"{peer}/{request.name}"  #: by which a log knows what it holds for it
        self.filter = TopicFilter(request.patterns)
        self.starts: dict[str, Start] = {start.stream: start for start in request.starts}
        self.admitted: set[str] = set()
        self.confirmed: set[str] = set()  #: durable streams of which it has heard that it is
        self.detached_at: float | None = None
        self.answered = 0


class PublisherSide:
    """All streams of a peer and everyone who subscribes to them."""

    def __init__(self, config: PeerConfig, epoch: int, wake: Callable[[], None]) -> None:
        self._config = config
        self._tuning = config.tuning
        self._epoch = epoch
        self._wake = wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._outlets: dict[str, Outlet] = {}
        self._declared = Routes[Outlet]()
        self._routes: dict[str, Outlet] = {}
        self._rush = Rush(HOT_NS)
        if FrameBuilder.NEEDS_LOCK:
            self.publish = self._publish_locked  # type: ignore[method-assign]
        elif COMPILED:
            self.publish = _speed.Publish(self, self._routes, check_notes, Position)  # type: ignore[method-assign]
        self._dirty: list[Outlet] = []
        self._awake = False
        self._tick_due = 0.0
        self._closed = False
        self._fanout: FanoutServer | None = None
        self._subs: dict[int, RemoteSubscription] = {}
        self._tokens: set[int] = set()
        self._finished: deque[LedgerRow] = deque(maxlen=FINISHED_MAX)
        self._asked = 0
        self._send_control: Send = lambda to, parts: False
        self.announce: Callable[[], None] = lambda: None
        self.counters: Counter[str] = Counter()
        self.durable = DurableSide(self, config.name)
        self._spills = SpillPlace(config)
        self.groups = GroupSide(self)
        self.seals = SealKeeper(self, config.security)

    def open(self, fanout: FanoutServer, send_control: Send) -> None:
        """Take the sockets into use."""
        self._fanout = fanout
        self._send_control = send_control
        for stream in self._config.streams:
            self._declare(stream)

    def _declare(self, stream: Stream) -> Outlet:
        name = f"{self._config.name}/{stream.label}"
        wire_id = stream_wire_id(self._config.mesh, name)
        writer, epoch = None, self._epoch
        if stream.durability == "log":
            writer = self.durable.open_log(stream, name, epoch)
            epoch = writer.epoch
        spill = self._spills.spill_of(stream, name, epoch)
        outlet = Outlet(stream, name, wire_id, epoch, self._tuning, writer, spill)
        if outlet.sender.holds:
            outlet.together = Together(self, outlet)
        if stream.transport is not None:
            seal = self.seals.seal(name, wire_id)
            outlet.packets = PacketOutlet(stream, wire_id, epoch, self._config.interface, seal)
            outlet.packets.open(time.monotonic())
        self._outlets[name] = outlet
        self._declared.add(stream.topics, outlet)
        self.groups.declare(outlet)
        return outlet

    # --- publishing: any thread ---

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
        while True:
            now_ns = time_ns()
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
        if outlet.together is not None:
            return outlet.together.publish(topic, data, raw, note, timeout, on_gate)
        key, packed = note or (None, None)
        size = len(data) + 4 * len(key or "") + len(packed or b"")
        if size > outlet.event_bytes_max:
            raise EventTooLarge(topic, size, outlet.event_bytes_max)
        keys = {} if key is None else {0: key}
        headers = {} if packed is None else {0: packed}
        run = Run([data], raw, keys, headers, len(data))
        return self.publish_run(outlet, topic, run, timeout, on_gate)

    def _publish_idle(
        self, outlet: Outlet, topic: str, data: bytes, now_ns: int, raw: bool
    ) -> Position | None:
        """The stream is idle: the shortest way out for one event; `None` if it is not after all."""
        sender = outlet.sender
        with self._lock:
            if outlet.gated or self._rush.is_on(now_ns):
                return None
            frame = sender.seal_run(
                topic, (data,), now_ns, raw=raw, length=len(data), now=time.monotonic()
            )
            if frame is None:
                return None
            self._send_frame(outlet, frame)
            return Position(outlet.stream, outlet.epoch, sender.sealed - 1)

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
        durable = self._find(topic).log is not None  # nothing of it goes into the open frame
        with contextlib.nullcontext() if durable else self._lock:
            return PublisherSide.publish(
                self, topic, data, key=key, headers=headers, timeout=timeout, on_gate=on_gate
            )

    def _send_full(self, outlet: Outlet) -> None:
        with self._lock:
            self._send_open(outlet)

    def _on_due(self, outlet: Outlet, now_ns: int) -> None:
        """The stream was idle or the open frame is due: send it, unless it fills quickly."""
        with self._lock:
            waited_ns = now_ns - outlet.sent_ns
            dense = outlet.count > DENSE_EVENTS and 0 <= waited_ns < HOT_MAX_NS
            if (dense or self._rush.is_on(now_ns)) and outlet.size <= outlet.size_max:
                outlet.due_ns = (outlet.sent_ns if dense else now_ns) + HOT_MAX_NS
                self._mark_dirty(outlet)  # if no further event comes, the I/O thread sends it
            else:
                self._send_open(outlet)

    def _mark_dirty(self, outlet: Outlet) -> None:
        """The open frame waits for the next event or for the I/O thread, whichever is first."""
        with self._lock:
            if not outlet.dirty:
                outlet.dirty = True
                outlet.marked_by = get_ident()
                self._dirty.append(outlet)
            if not self._awake:
                self._awake = True
                self._wake()

    def send_own(self) -> None:
        """The calling thread is about to wait: what it has published need not wait for others.

        An answer may come back within `HOT_NS` and be answered in turn; nobody publishes then who
        would send the open frame, and the I/O thread looks at it only now and then.
        """
        if not self._dirty or len(self._dirty) > RUSH_DUES:
            return
        own = get_ident()
        with self._lock:
            for outlet in self._dirty:
                if outlet.marked_by == own and outlet.count:
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
        last = None
        try:
            for outlet, run in self.publish_runs(topic, items, keys, headers):
                last = self.publish_run(outlet, topic, run, timeout)
        except PublishTimeout as error:
            error.last = last
            raise
        return last

    def publish_runs(
        self,
        topic: str,
        items: Iterable[Any],
        keys: Sequence[str | None] | None,
        headers: Mapping[str, Any] | None,
    ) -> Iterator[tuple[Outlet, Run]]:
        """Cut many events of one topic into runs of a frame each, encoded."""
        outlet = self._find(topic)
        packed = check_notes(None, headers)
        values = items if isinstance(items, list) else list(items)
        if keys is not None and len(keys) != len(values):
            raise ConfigError("keys", f"{len(keys)} keys for {len(values)} events")
        for at in range(0, len(values), RUN_EVENTS_MAX):
            chunk = values[at : at + RUN_EVENTS_MAX] if len(values) > RUN_EVENTS_MAX else values
            payloads, raw, uniform, largest = self._encode_many(outlet, chunk)
            notes = keys_of(keys, at, len(chunk))
            extra = len(packed or b"") + max((4 * len(key) for key in notes.values()), default=0)
            if largest + extra > outlet.event_bytes_max:
                raise EventTooLarge(topic, largest + extra, outlet.event_bytes_max)
            for lo, hi in cuts(payloads, uniform, extra, outlet.size_max):
                yield (
                    outlet,
                    Run(
                        payloads[lo:hi] if hi - lo < len(payloads) else payloads,
                        raw if isinstance(raw, bool) else raw[lo:hi],
                        {i - lo: key for i, key in notes.items() if lo <= i < hi},
                        {} if packed is None else dict.fromkeys(range(hi - lo), packed),
                        uniform,
                    ),
                )

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
                    time_ns(),
                    raw=run.raw,
                    keys=run.keys,
                    headers=run.headers,
                    length=run.length,
                    now=time.monotonic(),
                )
                if frame is not None:
                    break
                self._send_open(outlet)
            if not sender.holds:
                self._send_frame(outlet, frame)
                return Position(outlet.stream, outlet.epoch, sender.sealed - 1)
            last = outlet.first - 1
        assert outlet.log is not None
        outlet.log.sync(outlet.log.written)  # together with all who wait for the disk now
        with self._lock:
            self.durable.send_safe(outlet)
        return Position(outlet.stream, outlet.epoch, last)

    def publish_sealed(
        self,
        outlet: Outlet,
        topic: str,
        payload: bytes,
        *,
        raw: bool,
        key: str | None,
        headers: bytes,
    ) -> None:
        """One event that is encoded already, on a stream that never blocks."""
        keys = {} if key is None else {0: key}
        run = Run([payload], raw, keys, {0: headers}, len(payload))
        self.publish_run(outlet, topic, run, None, _nobody)

    def _find(self, topic: str) -> Outlet:
        outlet = self._routes.get(topic)  # an outlet with an empty frame is false
        return self._route(topic) if outlet is None else outlet

    def _route(self, topic: str) -> Outlet:
        check_topic(topic)
        with self._lock:
            outlet = self._declared.find(topic)
            fresh = outlet is None and not self._config.streams
            if fresh:
                if self._closed or self._fanout is None:
                    raise ClosedError("the peer is not open: use it in a with block")
                outlet = self._declare(Stream("**"))
            if outlet is None:
                raise NoStream(topic, [o.config.label for o in self._outlets.values()])
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = outlet
        if fresh:
            self.announce()
        return outlet

    def _encode(self, outlet: Outlet, data: Any) -> tuple[bytes, bool]:
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data), True
        return encode_payload(outlet.codec, data), False

    def _encode_many(
        self, outlet: Outlet, chunk: list[Any]
    ) -> tuple[list[bytes], bool | bytes, int, int]:
        """Payloads, which of them are raw, the one length they have or -1, the largest length."""
        given, uniform, largest = scan(chunk)
        if given:
            return chunk, True, uniform, largest
        pairs = [self._encode(outlet, data) for data in chunk]
        flags = bytes(flag for _, flag in pairs)
        raw = bool(flags[0]) if len(set(flags)) == 1 else flags
        payloads = [payload for payload, _ in pairs]
        return payloads, raw, *scan(payloads)[1:]

    def _pass(
        self, outlet: Outlet, timeout: float | None, on_gate: Callable[[], None] | None
    ) -> bool:
        """Wait for the stream to open, or say no."""
        with self._changed:
            if self._closed:
                raise ClosedError("the peer is closed")
            if not outlet.gated:
                return True
            if on_gate is not None:
                if on_gate not in outlet.gate_waiters:
                    outlet.gate_waiters.append(on_gate)
                return False
            self.counters["publish_waits"] += 1
            deadline = None if timeout is None else time.monotonic() + timeout
            while outlet.gated and not self._closed:
                left = SIGNALS_S if deadline is None else deadline - time.monotonic()
                if left <= 0 and not outlet.is_full():
                    self._open(outlet)  # it would have been better to wait, and was not asked for
                elif left <= 0:
                    names = list(outlet.blockers().values())
                    raise PublishTimeout(outlet.stream, timeout or 0.0, names)
                else:
                    self._changed.wait(min(left, SIGNALS_S))
            if self._closed:
                raise ClosedError("the peer was closed while the stream was blocked")
            return True

    def _send_open(self, outlet: Outlet) -> None:
        frame = outlet.sender.seal(now=time.monotonic())
        if frame is not None:
            self._send_frame(outlet, frame)

    def _send_frame(self, outlet: Outlet, frame: bytes) -> None:
        fanout = self._fanout
        if fanout is None:
            raise ClosedError("the peer is not open: use it in a with block")
        all_sent = True
        if outlet.packets is not None:
            all_sent = outlet.packets.send(frame, time.monotonic())
        elif len(frame) > self._tuning.push_bytes_max:
            # Pushed to a stalled subscriber, large frames would fill memory; each fetches its own.
            fanout.send(outlet.sender.tail().encode())
            self.counters["announced_frames"] += 1
        elif self._tokens or not outlet.groups:  # else there are members only
            fanout.send(frame)
        if outlet.groups:
            self.groups.on_frame(outlet)
        outlet.sent_ns = now_ns = time_ns()  # sending took its time, which says nothing of the load
        outlet.due_ns = now_ns + HOT_NS
        flow = outlet.sender.flow
        if (flow.is_shut() or flow.is_crowded(time.monotonic())) if all_sent else outlet.is_shut():
            outlet.gated = True
            self._wake()
        elif not all_sent and outlet.packets is not None and outlet.packets.is_paced():
            self._wake()  # the I/O thread sends the rest when it is time

    # --- waiting: any thread ---

    def forget_waiter(self, topic: str, on_gate: Callable[[], None]) -> None:
        """Nobody waits for the stream to open by this callback any more."""
        with self._lock:
            outlet = self._routes.get(topic)
            if outlet is not None and on_gate in outlet.gate_waiters:
                outlet.gate_waiters.remove(on_gate)

    def lets_through(self, topic: str) -> bool:
        """Whether a stream on which somebody has waited long enough was shut for a moment only."""
        with self._changed:
            outlet = self._routes[topic]
            through = not (self._closed or outlet.is_full())
            if through:
                self._open(outlet)
            return through

    def blockers(self, topic: str) -> tuple[str, list[str]]:
        """The stream of a topic and the subscribers that block it."""
        with self._lock:
            outlet = self._routes[topic]
            return outlet.stream, list(outlet.blockers().values())

    def wait_for_subscribers(self, topic: str, count: int, timeout: float | None) -> int:
        """How many subscribers take the topic, once there are `count` or the time is up."""
        outlet = self._find(topic)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._takers(outlet, topic) >= count, timeout
            )
            if self._closed:
                raise ClosedError("the peer is closed")
            return self._takers(outlet, topic)

    def _takers(self, outlet: Outlet, topic: str) -> int:
        # Of a durable stream only those count who know it: after a crash they ask for what they
        # missed, while one whose answer was lost with the process would start anew.
        name, durable = outlet.stream, outlet.log is not None
        known = sum(
            sub.detached_at is None
            and name in (sub.confirmed if durable else sub.admitted)
            and sub.filter.matches(topic)
            for sub in self._subs.values()
        )
        # What multicast receivers without a connection take of the stream is their own affair.
        known += self.groups.takers(outlet, topic)
        return known + (outlet.packets.strangers(self._subs) if outlet.packets is not None else 0)

    def flush(
        self, timeout: float | None, *, words: Sequence[str], closing: bool = False
    ) -> list[Claim]:
        """Send what is open and wait until all subscribers have it; returns those who have not.

        Streams whose overflow word is not in `words` are sent, but not waited for; when `closing`,
        nor are groups that go on with their work at the next start.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
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
                left = None if deadline is None else deadline - time.monotonic()
                idle = not behind and not busy
                if idle or self._fanout is None or (left is not None and left <= 0):
                    return behind
                self._ask_status({claim.sub for claim in behind})
                self._changed.wait(0.02 if left is None else min(0.02, left))

    def waits_for_disk(self, topic: str | None = None) -> bool:
        """Whether to publish to a topic, or to any, is to wait for the disk."""
        outlets = list(self._outlets.values()) if topic is None else [self._find(topic)]
        return any(outlet.sender.holds for outlet in outlets)

    def _ask_status(self, subs: set[int]) -> int:
        """With the lock held: have subscribers report; the number comes back in their answer."""
        self._asked += 1
        for sub in subs:
            remote = self._subs.get(sub)
            if remote is not None:
                self._post(remote.link, StatusPlease(sub, self._asked))
        return self._asked

    def _post(self, link: bytes, message: Any) -> None:
        self._send_control(link, [encode_message(message)])

    # --- the I/O thread ---

    def on_tick(self, now: float) -> float:
        """Send what is open, heartbeats that are due, evict; returns when to come again."""
        fanout = self._fanout
        assert fanout is not None
        if now < self._tick_due and self._all_filling():
            return now + FILLING_S
        with self._changed:
            rush = len(self._dirty) > RUSH_DUES
            if self._dirty:
                self._send_dirty(rush)
            else:
                self._awake = False
            due = now + 0.2
            for outlet in self._outlets.values():
                sender = outlet.sender
                if outlet.packets is not None:
                    due = min(due, self._tend_packets(outlet, outlet.packets, now))
                else:
                    if sender.heartbeat_due() <= now:
                        fanout.send(sender.heartbeat(now=now).encode())
                    due = min(due, sender.heartbeat_due())
                if sender.holds:
                    self.durable.send_safe(outlet)  # of whoever was interrupted while it waited
                if outlet.gated:
                    due = min(due, now + 0.05)
                    for claim in sender.flow.on_deadline(now=now):
                        self._evict(outlet, claim.sub, claim.label)
                    self._open_gate(outlet)
            self._drain_tokens(now)
            self._forget_detached(now)
            due = min(due, self.groups.on_tick(now), self.durable.on_tick(now))
            self._tick_due = due
            # While events come quickly the thread looks again soon, without being called.
            return now if rush else min(due, now + FILLING_S) if self._awake else due

    def _send_dirty(self, rush: bool) -> None:
        """Send the open frames.  In a rush they stay marked: who publishes then needs no lock."""
        dirty, self._dirty = self._dirty, []
        for outlet in dirty:
            if not rush:
                outlet.dirty = False
                self._send_open(outlet)
            elif outlet.count:
                self._send_open(outlet)
                outlet.due_ns = outlet.sent_ns + RUSH_NS
                self._dirty.append(outlet)
            else:  # nothing since the last time: it is idle
                outlet.dirty = False
                outlet.due_ns = 0

    def _all_filling(self) -> bool:
        """Whether every open frame fills quickly by itself: then its publisher sends it in time.

        Without the lock, which would hold up just those who publish most.
        """
        filling = bool(self._dirty)
        for outlet in self._dirty:
            at, outlet.seen = outlet.seen, outlet.next
            filling &= at != outlet.next and outlet.count > DENSE_EVENTS
        return filling

    def _tend_packets(self, outlet: Outlet, packets: PacketOutlet, now: float) -> float:
        """Send packets that are due; they wait for whom the stream waits for."""
        flow = outlet.sender.flow
        strangers = []
        for sub in packets.sender.evict(now=now):
            claim = flow.evict(sub, now=now)
            if claim is not None:
                self._evict(outlet, sub, claim.label)
            elif sub not in flow.claims:
                strangers.append(sub)
        if strangers:  # there may be thousands, if somebody invents them
            more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
            self._evict(outlet, strangers[0], unconnected(strangers[0]) + more, len(strangers))
        packets.sender.set_aside(flow.aside())
        return packets.on_tick(now)

    def _evict(self, outlet: Outlet, sub: int, label: str, count: int = 1) -> None:
        waited = outlet.config.evict_after
        reason = f"blocked {outlet.stream} for {waited:g} s without reading"
        log.warning("evicted %s: it %s", label, reason)
        self.counters["evictions"] += count
        remote = self._subs.get(sub)
        if remote is not None:
            self._post(remote.link, Evicted(sub, outlet.stream, f"you {reason}"))

    def _open_gate(self, outlet: Outlet) -> None:
        if outlet.gated and not self._closed and not outlet.is_shut():
            self._open(outlet)

    def _open(self, outlet: Outlet) -> None:
        outlet.gated = False
        for claim in outlet.sender.flow.claims.values():
            claim.blocked_since = None
        waiters, outlet.gate_waiters = outlet.gate_waiters, []
        for waiter in waiters:
            waiter()
        self._changed.notify_all()

    def _drain_tokens(self, now: float) -> None:
        assert self._fanout is not None
        for came, topic in self._fanout.drain():
            if len(topic) != 12 or topic[:4] != subscription_token(0)[:4]:
                continue
            sub = int.from_bytes(topic[4:], "little")
            remote = self._subs.get(sub)
            if came:
                if len(self._tokens) >= TOKENS_MAX:
                    self.counters["tokens_full"] += 1
                    continue
                self._tokens.add(sub)
                if remote is not None:
                    self._admit(remote, now)
            else:
                self._tokens.discard(sub)
                if remote is not None:
                    remote.detached_at = now
                    for outlet in self._outlets.values():
                        claim = outlet.sender.flow.claims.get(sub)
                        if claim is not None:
                            claim.attached = False
                        if claim is not None and outlet.log is not None:
                            # The log has what it missed: nobody need wait for it meanwhile.
                            outlet.sender.flow.let_go(claim, now=now)
                            self._open_gate(outlet)

    def _forget_detached(self, now: float) -> None:
        limit = now - self._tuning.peer_timeout_s
        for remote in list(self._subs.values()):
            if remote.detached_at is not None and remote.detached_at < limit:
                self._forget(remote.sub, "gone", now)

    def on_subscribe(self, link: bytes, peer: str, request: Subscribe, now: float) -> None:
        """A subscription asks to be taken; it is as soon as its pipe is seen too."""
        with self._changed:
            remote = self._subs.get(request.sub)
            if remote is None:
                if len(self._subs) >= SUBSCRIPTIONS_MAX:
                    self.counters["subscriptions_full"] += 1
                    return
                remote = RemoteSubscription(request, link, peer)
                self._subs[request.sub] = remote
                for row in [r for r in self._finished if r.subscription == remote.label]:
                    self._finished.remove(row)  # it is back, and goes on with its books
            else:
                remote.link, remote.hold = link, request.hold and bool(request.name)
                remote.starts.update({start.stream: start for start in request.starts})
            self._drain_tokens(now)
            if request.sub in self._tokens:
                self._admit(remote, now)

    def _admit(self, remote: RemoteSubscription, now: float) -> None:
        remote.detached_at = None
        starts, remote.starts = remote.starts, {}
        for name, start in starts.items():
            outlet = self._outlets.get(name)
            if outlet is not None and self.durable.wants(remote, outlet, start):
                self.durable.admit(remote, outlet, start)
            elif outlet is not None:
                self._admit_to(remote, outlet, start, (), now)
        for name in remote.admitted:
            claim = self._outlets[name].sender.flow.claims.get(remote.sub)
            if claim is not None:
                claim.attached = True
        self._changed.notify_all()

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
            self._post(remote.link, over)
        known = sub in sender.flow.claims
        given = sender.admit(
            sub,
            remote.label,
            [pattern.text for pattern in remote.filter.patterns],
            start.kind,
            start.value,
            start.epoch,
            now=now,
        )
        behind = bool(past) or (given.start < given.next and not known)
        if outlet.log is not None and behind:
            sender.flow.let_go(sender.flow.claims[sub], now=now)
            self._open_gate(outlet)
        remote.admitted.add(name)
        packets = outlet.packets
        self._post(
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

    def on_join(self, link: bytes, peer: str, message: Join, now: float) -> None:
        """A member of a work group asks to be taken."""
        with self._changed:
            self.groups.on_join(link, peer, message, now)

    def on_settle(self, link: bytes, message: Settle, now: float) -> None:
        """A member of a work group says what became of its work."""
        with self._changed:
            self.groups.on_settle(link, message, now)

    def on_member(self, monitor: Any) -> bool:
        """The connection of a member came or went; `False` if it is not one."""
        if not self.groups.watches(monitor):
            return False
        with self._changed:
            return self.groups.on_readable(monitor, time.monotonic())

    def forget_silent_members(self, last_seen: Mapping[bytes, float], now: float) -> None:
        """Members whose peers gave no sign of life for too long are lost."""
        with self._changed:
            self.groups.forget_silent(last_seen, now)

    def on_nack(self, link: bytes, message: Nack) -> None:
        """Send again what was asked for, as far as it is there."""
        sub, stream = message.sub, message.stream
        outlet = self._outlets.get(stream)
        with self._lock:
            known = self._subs.get(message.sub)
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
            self.durable.answer(link, outlet, message)
        else:
            self.answer_nack(link, message, answer.frames, answer.gone)

    def answer_nack(
        self, link: bytes, message: Nack, frames: list[bytes], gone: dict[str, list[Range]]
    ) -> None:
        """Send repairs, and what cannot be repaired."""
        sub, stream = message.sub, message.stream
        parts = [[encode_message(Repair(sub, stream, 0)), frame] for frame in frames]
        last: Repair | Gone = Repair(sub, stream, message.number)
        for reason, ranges in gone.items():
            for at in range(0, len(ranges), NACK_RANGES_MAX):
                some = ranges[at : at + NACK_RANGES_MAX]
                last = Gone(sub, stream, message.epoch, some, reason, message.number)
                parts.append([encode_message(msgspec.structs.replace(last, answers=0))])
        if parts:
            parts[-1][0] = encode_message(last)  # the last one says that the answer is complete
        for part in parts:
            self._send_control(link, part)
        self.counters["repaired_frames"] += len(frames)

    def on_status(self, link: bytes, message: Status, now: float) -> None:
        """A subscription tells how far it is."""
        with self._changed:
            remote = self._subs.get(message.sub)
            if remote is None or remote.link != link:
                self.counters["strange_status"] += 1
                return
            remote.answered = max(remote.answered, message.answers)
            for figures in message.figures:
                if figures.stream in remote.admitted:
                    remote.confirmed.add(figures.stream)
                self._on_figures(message.sub, figures, now)
            if message.closed:
                self._forget(remote.sub, "closed", now)
            self._changed.notify_all()

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
        self._open_gate(outlet)

    def on_commit(self, link: bytes, message: Commit) -> None:
        """A subscription that holds a log back says what it is done with."""
        with self._lock:
            remote = self._subs.get(message.sub)
            if remote is None or remote.link != link:
                self.counters["strange_commits"] += 1
            else:
                self.durable.on_commit(remote, message)

    def forget_link(self, link: bytes, now: float) -> None:
        """A peer left or fell silent: its subscriptions with it."""
        with self._changed:
            for remote in [r for r in self._subs.values() if r.link == link]:
                self._forget(remote.sub, "gone", now)
            self.groups.forget_link(link, "its peer is gone", now)

    def _forget(self, sub: int, state: str, now: float) -> None:
        remote = self._subs.pop(sub, None)
        if remote is None:
            return
        for outlet in self._outlets.values():
            claim = outlet.sender.flow.release(sub, now=now)
            if outlet.packets is not None:
                outlet.packets.sender.release(sub)
            if claim is not None and claim.reported:
                self._finished.append(claim_row(outlet, claim, claim.consumed, state))
            self._open_gate(outlet)
        self._changed.notify_all()

    # --- books ---

    def tails(self) -> list[Tail]:
        """What each stream has."""
        with self._lock:
            return [
                Tail(o.stream, o.epoch, min(o.sender.first_available, o.tail_next()), o.tail_next())
                for o in self._outlets.values()
            ]

    def count(self) -> int:
        """How many streams there are."""
        return len(self._outlets)

    def infos(self) -> list[StreamInfo]:
        """The streams as they are announced."""
        with self._lock:
            return [outlet.info() for outlet in self._outlets.values()]

    def refresh(self, timeout: float) -> None:
        """Have all subscribers report and wait for their answers, as long as the time allows."""
        deadline = time.monotonic() + timeout
        with self._changed:
            number = self._ask_status(set(self._subs))
            self._changed.wait_for(
                lambda: self._answered(number), max(0.0, deadline - time.monotonic())
            )

    def start_refresh(self) -> int:
        """Ask every subscriber for its status; `is_fresh` tells when they answered."""
        with self._lock:
            return self._ask_status(set(self._subs))

    def is_fresh(self, number: int) -> bool:
        """Whether every subscriber that is there has answered this question."""
        with self._lock:
            return self._answered(number)

    def _answered(self, number: int) -> bool:
        return all(r.answered >= number or r.detached_at is not None for r in self._subs.values())

    def ledger_rows(self) -> list[LedgerRow]:
        """A row for each subscription, by its last report."""
        with self._lock:
            rows = [*self._finished, *self.groups.rows()]
            for outlet in self._outlets.values():
                for claim in subscribers_of(outlet):
                    state = "evicted" if claim.evicted else "live" if claim.attached else "detached"
                    rows.append(claim_row(outlet, claim, outlet.sender.next, state))
            return rows

    def stats(self) -> dict[str, Any]:
        """Figures of each stream and of those who read it."""
        now = time.monotonic()
        with self._lock:
            return {
                outlet.config.label: stream_stats(outlet, now, self.groups.stats(outlet))
                for outlet in self._outlets.values()
            }

    def set_fault(self, fault: Callable[[bytes], bool] | None) -> None:
        """Lose messages on purpose (see `meshmsg.testing`)."""
        with self._lock:
            if self._fanout is None:
                raise ClosedError("the peer is not open")
            self._fanout.fault = fault

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
                    self._open_gate(outlet)
                    if outlet.packets.sender.receivers != before:
                        self._changed.notify_all()
                    return more
        return False

    def injected_drops(self) -> int:
        """Messages and packets lost on purpose."""
        if self._fanout is None:
            return 0
        lost = self._fanout.counters["injected_drops"]
        for outlet in self._outlets.values():
            if outlet.packets is not None:
                lost += outlet.packets.server.counters["injected_drops"]
        return lost

    def finish(self) -> None:
        """No more publishing: whoever waits is told."""
        with self._changed:
            for outlet in self._outlets.values():
                outlet.gated = True
                if self._fanout is not None:
                    self._send_open(outlet)  # what was added since the last flush
                if outlet.packets is not None and not self._closed:
                    outlet.packets.end(time.monotonic())
                waiters, outlet.gate_waiters = outlet.gate_waiters, []
                for waiter in waiters:
                    waiter()
            self._closed = True
            self._changed.notify_all()

    def close(self, linger_s: float) -> None:
        """Close the data socket."""
        with self._lock:
            fanout, self._fanout = self._fanout, None
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


def unconnected(sub: int) -> str:
    """What a multicast receiver is called of which only its reports are known."""
    return f"receiver #{sub & 0xFFFFFF:06x} (not connected)"


def _nobody() -> None:
    """Rung for nobody."""
