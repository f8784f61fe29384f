"""The sending half of the multicast transport: packet numbers, pacing, repairs, heartbeats.

Frames go in; bursts of packets come out when flow control lets them: live packets first, then
repairs within a budget of their own, so that repairs never starve live data.  Requests and status
reports of receivers go in, too.  One sender serves one epoch of one stream.

A burst is bytes and a packet size: packets of that size one behind the other, the last may be
shorter.  The kernel cuts it (segmentation offload), or the transport does.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from meshmsg._packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    ENDS,
    LEAVES,
    NACK,
    RANGES_MAX,
    REPAIR,
    PacketBeat,
    PacketRequest,
    PacketStatus,
)
from meshmsg.recovery.loss_detector import NEVER
from meshmsg.recovery.pacing import TokenBucket
from meshmsg.recovery.packet_store import PacketStore, StoredFrame
from meshmsg.recovery.parity import parity_packets
from meshmsg.recovery.ranges import RangeSet

Range = tuple[int, int]
Burst = tuple[bytes, int]

#: A burst is one call to the kernel, which takes 64 packets and 64 KiB at most.
BURST_BYTES_MAX = 65_000
BURST_PACKETS_MAX = 64
RECEIVERS_MAX = 10_000
#: Ranges waiting to be resent; more are left to be asked for again.
REPAIR_RANGES_MAX = 4096
#: Requests of one address that are read in a row, and then a second.
REQUESTS_BURST = 200
REQUESTS_PER_S = 1000.0
ASKERS_MAX = 1024
#: Bursts given at once, so that repairs, heartbeats and the caller get their turn.
TURN_BURSTS_MAX = 32


@dataclass(frozen=True, slots=True)
class PacketPolicy:
    """What a packet sender needs to know of its stream's configuration."""

    packet_bytes: int
    flow: str  # rate, fastest, slowest
    rate: float | None
    repair_rate: float
    buffer_bytes: int
    buffer_age_s: float
    linger_s: float
    heartbeat_min_s: float
    heartbeat_max_s: float
    receiver_timeout_s: float
    parity: tuple[int, int] | None = None
    hold: bool = True  # what is not sent yet is never dropped


class _Receiver:
    __slots__ = ("limit", "next", "seen_at")

    def __init__(self, next_: int, limit: int, seen_at: float) -> None:
        self.next = next_
        self.limit = limit  # packets before this number may be sent
        self.seen_at = seen_at


class PacketSender:
    """Numbers, paces and resends the packets of one stream in one epoch."""

    def __init__(self, stream: int, epoch: int, policy: PacketPolicy) -> None:
        self.stream = stream
        self.epoch = epoch
        self.policy = policy
        self.store = PacketStore(
            stream, epoch, policy.packet_bytes, policy.buffer_bytes, policy.buffer_age_s
        )
        self.sent = 0  #: packets before this number were sent
        self.counters: Counter[str] = Counter()
        self._ended = False
        self._packets_max = max(1, min(BURST_PACKETS_MAX, BURST_BYTES_MAX // policy.packet_bytes))
        self._pace = TokenBucket(policy.rate if policy.flow == "rate" else None)
        self._repair_pace = TokenBucket(policy.repair_rate)
        self._receivers: dict[int, _Receiver] = {}
        self._limit = NEVER  # packets before this number may be sent
        self._repairs = RangeSet()
        self._lingering = (RangeSet(), RangeSet())  # repaired in this span of time, and before
        self._linger_until = 0.0
        self._confirm = False
        self._answer = False
        self._askers: OrderedDict[object, TokenBucket] = OrderedDict()
        self._beat_due = NEVER
        self._beat_wait_s = policy.heartbeat_min_s

    # --- frames in, bursts out ---

    def add(self, frame: bytes, first_event: int, stop_event: int, *, now: float) -> None:
        """Number a frame's packets; they leave by `take`."""
        self.store.append(frame, first_event, stop_event, now=now)
        self._trim(now)

    def take(self, *, now: float) -> list[Burst]:
        """What may be sent now."""
        bursts: list[Burst] = []
        if self.sent < self.store.next:
            self._take_live(bursts, now)
        if self._repairs:
            self._take_repairs(bursts, now)
        if self._confirm:
            self._confirm = False
            ranges = list(self._repairs)[:RANGES_MAX]
            if ranges:
                self.counters["confirms"] += 1
                packet = PacketRequest(CONFIRM, self.stream, self.epoch, 0, ranges).encode()
                bursts.append((packet, len(packet)))
        if now >= self._beat_due or self._answer:
            bursts.append(self._beat(now))
        return bursts

    def _take_live(self, bursts: list[Burst], now: float) -> None:
        store, before = self.store, self.sent
        while self.sent < store.next and len(bursts) < TURN_BURSTS_MAX:
            if self.sent >= self._limit or self._pace.ready_at(now=now) > now:
                break
            frame = store.find(self.sent)
            if frame is None:  # dropped before it was sent: receivers will find out
                self.counters["unsent_packets"] += store.first - self.sent
                self.sent = store.first
                continue
            lo = self.sent - frame.first
            hi = min(frame.packets, lo + self._packets_max, self._limit - frame.first)
            hi = int(hi)
            data = store.cut(frame, lo, hi, DATA)
            self._pace.spend(len(data), now=now)
            bursts.append((data, store.packet_bytes))
            self.sent = frame.first + hi
            self.counters["packets"] += hi - lo
            self.counters["bytes"] += len(data)
            if self.policy.parity is not None:
                self._add_parity(bursts, frame.first + lo, data, now)
        if self.sent > before:
            self._beat_wait_s = self.policy.heartbeat_min_s
            self._beat_due = now + self._beat_wait_s

    def _add_parity(self, bursts: list[Burst], first: int, data: bytes, now: float) -> None:
        assert self.policy.parity is not None
        count, extra = self.policy.parity
        size = self.store.packet_bytes
        packets = [data[at : at + size] for at in range(0, len(data), size)]
        for at in range(0, len(packets), count):
            group = packets[at : at + count]
            for parity in parity_packets(self.stream, self.epoch, first + at, group, extra):
                self._pace.spend(len(parity), now=now)
                bursts.append((parity, len(parity)))
                self.counters["parity_packets"] += 1

    def _take_repairs(self, bursts: list[Burst], now: float) -> None:
        room = len(bursts) + TURN_BURSTS_MAX
        while self._repairs and len(bursts) < room:
            if self._repair_pace.ready_at(now=now) > now:
                return
            first, stop = self._repairs.bounds[0], next(iter(self._repairs))[1]
            frame = self.store.find(first)
            if frame is None:  # it fell out of the buffer while it waited
                self._repairs.remove(first, min(stop, max(first + 1, self.store.first)))
                self._answer = True
                continue
            stop = min(stop, frame.first + frame.packets, first + self._packets_max)
            bursts.append(self._repair(frame, first, stop, now))
            self._repairs.remove(first, stop)

    def _repair(self, frame: StoredFrame, first: int, stop: int, now: float) -> Burst:
        data = self.store.cut(frame, first - frame.first, stop - frame.first, REPAIR)
        self._repair_pace.spend(len(data), now=now)
        if now >= self._linger_until:
            fresh = now - self._linger_until < self.policy.linger_s
            self._lingering = (RangeSet(), self._lingering[0] if fresh else RangeSet())
            self._linger_until = now + self.policy.linger_s
        self._lingering[0].add(first, stop)
        self.counters["repairs"] += stop - first
        return data, self.store.packet_bytes

    def _beat(self, now: float) -> Burst:
        flags = (ENDS if self._ended else 0) | (ANSWERS if self._answer else 0)
        self._answer = False
        if now >= self._beat_due:
            self._beat_wait_s = min(self._beat_wait_s * 2, self.policy.heartbeat_max_s)
            self._beat_due = now + self._beat_wait_s
        self.counters["heartbeats"] += 1
        # What is not sent yet is no receiver's business.
        store, sent, next_event = self.store, self.sent, self.sent_events
        beat = PacketBeat(
            self.stream,
            self.epoch,
            sent,
            min(store.first, sent),
            min(store.first_event, next_event),
            next_event,
            min(len(self._receivers), 0xFFFF),
            flags,
        )
        data = beat.encode()
        return data, len(data)

    # --- what receivers say ---

    def on_request(self, request: PacketRequest, source: object, *, now: float) -> None:
        """A receiver asks for packets; `source` is where that came from."""
        if request.kind != NACK or request.epoch != self.epoch:
            self.counters["strange_requests"] += 1
            return
        if not self._may_ask(source, now):
            self.counters["refused_requests"] += 1
            return
        self.counters["nacks"] += 1
        for first, stop in request.ranges:
            self._on_asked(first, stop, now)

    def _on_asked(self, first: int, stop: int, now: float) -> None:
        low, high = max(first, self.store.first), min(stop, self.sent)
        if low != first or high != stop:
            self._answer = True  # a heartbeat says what there is
        if low >= high:
            return
        self.counters["asked_packets"] += high - low
        lingering = self._lingering if now < self._linger_until + self.policy.linger_s else ()
        wanted = RangeSet([(low, high)])
        for repaired in lingering:
            for a, b in repaired.overlap(low, high):
                wanted.remove(a, b)
        for a, b in self._repairs.overlap(low, high):
            wanted.remove(a, b)
            self._confirm = True
        self.counters["suppressed"] += high - low - wanted.count
        for a, b in wanted:
            if len(self._repairs) >= REPAIR_RANGES_MAX:
                self.counters["repairs_full"] += 1
                return
            self._repairs.add(a, b)
            self._confirm = True

    def _may_ask(self, source: object, now: float) -> bool:
        bucket = self._askers.get(source)
        if bucket is None:
            bucket = TokenBucket(REQUESTS_PER_S, burst_bytes=REQUESTS_BURST)
            self._askers[source] = bucket
            if len(self._askers) > ASKERS_MAX:
                self._askers.popitem(last=False)
        if bucket.ready_at(now=now) > now:
            return False
        bucket.spend(1, now=now)
        return True

    def on_status(self, status: PacketStatus, *, now: float) -> None:
        """A receiver tells how far it is and what it has room for."""
        if status.epoch != self.epoch or status.next > self.store.next:
            self.counters["strange_status"] += 1
            return
        receiver = self._receivers.get(status.receiver)
        if status.flags & LEAVES:
            self.release(status.receiver)
            return
        if receiver is None:
            if len(self._receivers) >= RECEIVERS_MAX:
                self.counters["receivers_full"] += 1
                return
            receiver = self._receivers[status.receiver] = _Receiver(0, 0, now)
        receiver.seen_at = now
        receiver.next = max(receiver.next, status.next)
        receiver.limit = status.next + status.window_bytes // self.policy.packet_bytes
        self._settle()

    def admit(self, receiver: int, window_bytes: int, *, now: float) -> int:
        """A receiver is known before its first report; returns the packet it starts with."""
        if receiver not in self._receivers and len(self._receivers) < RECEIVERS_MAX:
            limit = self.store.next + window_bytes // self.policy.packet_bytes
            self._receivers[receiver] = _Receiver(self.store.next, limit, now)
            self._settle()
        if self._beat_due == NEVER:
            self._beat_due = now + self._beat_wait_s
        return self.store.next

    def open(self, *, now: float) -> None:
        """Begin to send heartbeats: receivers without a connection learn of the stream by them."""
        self._beat_due = now

    def receiver_ids(self) -> list[int]:
        """Receivers that are in touch."""
        return list(self._receivers)

    def release(self, receiver: int) -> None:
        """A receiver has gone."""
        if self._receivers.pop(receiver, None) is not None:
            self._settle()

    def _settle(self) -> None:
        if self.policy.flow == "slowest":
            self._limit = min((r.limit for r in self._receivers.values()), default=NEVER)

    # --- time ---

    def deadline(self, *, now: float) -> float:
        """When `take` may have something."""
        due = self._beat_due
        if self._answer or self._confirm:
            return now
        if self.sent < self.store.next and self.sent < self._limit:
            due = min(due, self._pace.ready_at(now=now))
        if self._repairs:
            due = min(due, self._repair_pace.ready_at(now=now))
        return due

    def on_deadline(self, *, now: float) -> None:
        """Forget receivers that fell silent, and frames that are too old."""
        limit = now - self.policy.receiver_timeout_s
        silent = [key for key, receiver in self._receivers.items() if receiver.seen_at < limit]
        for key in silent:
            del self._receivers[key]
            self.counters["silent_receivers"] += 1
        if silent:
            self._settle()
        self._trim(now)

    def _trim(self, now: float) -> None:
        keep_from = self.sent if self.policy.hold else self.store.next
        self.store.trim(now=now, keep_from=keep_from)

    def end(self, *, now: float) -> None:
        """Nothing more will be added: the next heartbeat says so."""
        self._ended = True
        self._beat_due = now

    # --- state ---

    @property
    def unsent_bytes(self) -> int:
        """About how many bytes wait for flow control."""
        return (self.store.next - self.sent) * self.policy.packet_bytes

    @property
    def sent_events(self) -> int:
        """One past the last event whose packets were all sent."""
        frame = self.store.find(self.sent)
        return self.store.next_event if frame is None else frame.first_event

    @property
    def receivers(self) -> int:
        """Receivers that are in touch."""
        return len(self._receivers)

    @property
    def slowest(self) -> int:
        """The packet that the slowest receiver waits for; `sent` if there is none."""
        return min((r.next for r in self._receivers.values()), default=self.sent)
