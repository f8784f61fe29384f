"""The sending half of the multicast transport: packet numbers, pacing, repairs, heartbeats.

Frames go in; bursts of packets come out when flow control lets them: live packets first, then
repairs within a budget of their own, so that repairs never starve live data.  Requests and status
reports of receivers go in, too.  One sender serves one epoch of one stream.

A burst is bytes and a packet size: packets of that size one behind the other, the last may be
shorter.  The kernel cuts it (segmentation offload), or the transport does.

With flow `slowest` the sender waits for its receivers.  How long it waits for one of them depends
on what that one reports:

| receiver | packets that may be sent | until |
|---|---|---|
| reports, and its packets arrive | as many as it has room for | |
| lagging: silent, or without progress though it has room, for `PATIENCE_REPORTS` report intervals \
| as many as the buffer keeps for it | it has caught up |
| silent for `receiver_timeout_s` | any: it is forgotten | it reports again |
| without progress for `receiver_timeout_s` | any: packets do not reach it | it has caught up |
| evicted (`evict_after_s`) | any | it has caught up |

A receiver that has no room makes no progress and is not lagging: its consumer is slow, and the
stream's overflow word says what that costs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from meshmsg._wire.packet import (
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
from meshmsg.recovery.multicast.pacing import TokenBucket
from meshmsg.recovery.multicast.packet_store import PacketStore, StoredFrame
from meshmsg.recovery.multicast.parity import parity_packets
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]
Burst = tuple[bytes, int]

#: A burst is one call to the kernel, which takes 64 packets and 64 KiB at most.
BURST_BYTES_MAX = 65_000
BURST_PACKETS_MAX = 64
RECEIVERS_MAX = 10_000
#: Ranges waiting to be resent; more are left to be asked for again.
REPAIR_RANGES_MAX = 4096
#: What one asker may ask for a second: ranges, packets to be resent, and one for each request.
#: At least this many, or half of what the repair rate allows; and a whole buffer in a row.
ASKED_PER_S = 10_000.0
ASKERS_MAX = 1024
#: A receiver that misses so many reports, or reports no progress so often, holds nobody up while
#: the buffer has room.
PATIENCE_REPORTS = 3
#: Receivers that have closed, the last of them: reports of theirs may still be under way.
CLOSED_MAX = 1024
#: Two confirmations are this part of a linger apart.
CONFIRM_SHARE = 0.2
#: Why a receiver is not waited for.
EVICTED, UNREACHED = "evicted", "unreached"
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
    status_interval_s: float = 0.1
    evict_after_s: float | None = None
    parity: tuple[int, int] | None = None
    hold: bool = True  # what is not sent yet is never dropped
    seal_bytes: int = 0  # by which packets become longer on their way


class _Receiver:
    __slots__ = ("aside", "held_since", "lagging", "limit", "next", "seen_at", "stuck_since")

    def __init__(self, next_: int, limit: int, seen_at: float) -> None:
        self.next = next_
        self.limit = limit  # packets before this number may be sent
        self.seen_at = seen_at
        self.held_since = NEVER  # it has no room for what is next, and made none
        self.stuck_since = NEVER  # it has room, and packets that were sent do not arrive
        self.lagging = False  # waited for only when the buffer is full, until it has caught up
        self.aside = ""  # why it is not waited for at all, until it has caught up


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
        wire_bytes = policy.packet_bytes + policy.seal_bytes
        self._packets_max = max(1, min(BURST_PACKETS_MAX, BURST_BYTES_MAX // wire_bytes))
        self._is_paced = policy.flow == "rate"
        self._pace = TokenBucket(policy.rate if policy.flow == "rate" else None)
        self._repair_pace = TokenBucket(policy.repair_rate)
        #: Packets that may be on their way, or held behind a gap: well within what is kept.
        self.reach = max(BURST_PACKETS_MAX, policy.buffer_bytes * 3 // 4 // policy.packet_bytes)
        self._receivers: dict[int, _Receiver] = {}
        self._closed: OrderedDict[int, None] = OrderedDict()
        self._patience_s = min(
            policy.receiver_timeout_s, policy.status_interval_s * PATIENCE_REPORTS
        )
        self._aside: frozenset[int] = frozenset()  # receivers that the stream does not wait for
        self._held = False  # somebody has no room for what is next
        self._look_at = NEVER  # nobody can be found silent before
        self._limit = NEVER  # packets before this number may be sent
        self._repairs = RangeSet()
        self._repairs_at = 0  # they go on from here
        self._lingering = (RangeSet(), RangeSet())  # repaired in this span of time, and before
        self._linger_until = 0.0
        self._repaired: list[Range] = []  # by this `take`
        self._unconfirmed = RangeSet()  # asked for, and nobody was told that we heard it
        self._confirm_due = NEVER
        self._confirmed_at = -NEVER
        self._answer_due = NEVER
        self._answered_at = -NEVER
        self._group: list[bytes] = []  # sent, and not yet protected by parity
        self._group_first = 0
        self._askers: OrderedDict[object, TokenBucket] = OrderedDict()
        self._beat_due = NEVER
        self._beat_by = NEVER  # but not later, however much data there is
        self._beat_wait_s = policy.heartbeat_min_s

    # --- frames in, bursts out ---

    def add(self, frame: bytes, first_event: int, stop_event: int, *, now: float) -> None:
        """Number a frame's packets; they leave by `take`."""
        self.store.append(frame, first_event, stop_event, now=now)
        self._trim(now)

    def send_single(
        self, frame: bytes, first_event: int, stop_event: int, *, now: float
    ) -> bytes | None:
        """The packet of a frame that is one packet and may leave at once: `add` and `take` in one.

        `None` if it has to wait, needs parity or is larger; then `add` it.
        """
        store = self.store
        number = store.next
        if (
            number != self.sent
            or number >= self._limit
            or len(frame) > store.payload_bytes
            or self.policy.parity is not None
        ):
            return None
        if self._is_paced and self._pace.ready_at(now=now) > now:
            return None
        packet = store.cut(store.append(frame, first_event, stop_event, now=now), 0, 1, DATA)
        if self._is_paced:
            self._pace.spend(len(packet), now=now)
        self.sent = number + 1
        counters = self.counters
        counters["packets"] += 1
        counters["bytes"] += len(packet)
        self._beat_wait_s = wait_s = self.policy.heartbeat_min_s
        self._beat_due = min(now + wait_s, self._beat_by)
        if store.is_full:
            self._trim(now)
        return packet

    def take(self, *, now: float) -> list[Burst]:
        """What may be sent now."""
        bursts: list[Burst] = []
        if self.sent < self.store.next:
            self._take_live(bursts, now)
        self._repaired.clear()
        if self._repairs:
            self._take_repairs(bursts, now)
        if now >= self._confirm_due:
            self._take_confirm(bursts, now)
        if now >= self._beat_due or now >= self._answer_due:
            bursts.append(self._beat(now))
        return bursts

    def _take_confirm(self, bursts: list[Burst], now: float) -> None:
        """What was asked for and is not in these bursts: nobody need ask for it again."""
        self._confirm_due = NEVER
        for first, stop in self._repaired:
            self._unconfirmed.remove(first, stop)
        ranges = list(islice(self._unconfirmed, RANGES_MAX))
        self._unconfirmed.clear()
        if ranges:
            self._confirmed_at = now
            self.counters["confirms"] += 1
            size = len(self._receivers)
            packet = PacketRequest(CONFIRM, self.stream, self.epoch, size, ranges).encode()
            bursts.append((packet, len(packet)))

    def _take_live(self, bursts: list[Burst], now: float) -> None:
        store, before = self.store, self.sent
        while self.sent < store.next and len(bursts) < TURN_BURSTS_MAX:
            if self.sent >= self._limit or self._pace.ready_at(now=now) > now:
                break
            frame = store.find(self.sent)
            assert frame is not None
            lo = self.sent - frame.first
            hi = int(min(frame.packets, lo + self._packets_max, self._limit - frame.first))
            data = store.cut(frame, lo, hi, DATA)
            self._pace.spend(len(data), now=now)
            bursts.append((data, store.packet_bytes))
            self.counters["packets"] += hi - lo
            self.counters["bytes"] += len(data)
            if self.policy.parity is not None:
                self._protect(bursts, data, now)
            self.sent = frame.first + hi
        if self._group:
            self._add_parity(bursts, now)
        if self.sent > before:
            self._beat_wait_s = self.policy.heartbeat_min_s
            self._beat_due = min(now + self._beat_wait_s, self._beat_by)

    def _protect(self, bursts: list[Burst], data: bytes, now: float) -> None:
        """Put packets that were sent into the group; a full one is closed."""
        assert self.policy.parity is not None
        size, count = self.store.packet_bytes, self.policy.parity[0]
        if self._group and self._group_first + len(self._group) != self.sent:
            self._add_parity(bursts, now)  # something in between was dropped unsent
        for number, at in enumerate(range(0, len(data), size), start=self.sent):
            if not self._group:
                self._group_first = number
            self._group.append(data[at : at + size])
            if len(self._group) == count:
                self._add_parity(bursts, now)

    def _add_parity(self, bursts: list[Burst], now: float) -> None:
        assert self.policy.parity is not None
        group, self._group = self._group, []
        extra = self.policy.parity[1]
        for parity in parity_packets(self.stream, self.epoch, self._group_first, group, extra):
            self._pace.spend(len(parity), now=now)
            bursts.append((parity, len(parity)))
            self.counters["parity_packets"] += 1

    def _next_repair(self) -> Range:
        """Upwards, and then from the lowest again.

        If the lowest always came first, whoever asks for those again and again would keep all
        others waiting.
        """
        if self._repairs_at >= self._repairs.bounds[1]:
            self._repairs_at = 0
        return self._repairs.first_from(self._repairs_at)

    def _take_repairs(self, bursts: list[Burst], now: float) -> None:
        """Upwards.  Full packets go together in a burst, which a short one ends."""
        store, repairs = self.store, self._repairs
        size = store.packet_bytes
        parts: list[bytes] = []
        packets = taken = 0
        while repairs and taken < TURN_BURSTS_MAX and self._repair_pace.ready_at(now=now) <= now:
            first, stop = self._next_repair()
            frame = store.find(first)
            if frame is None:  # it fell out of the buffer while it waited
                repairs.remove(first, min(stop, max(first + 1, store.first)))
                self._answer(now)
                continue
            stop = min(stop, frame.first + frame.packets, first + self._packets_max - packets)
            data = self._repair(frame, first, stop, now)
            repairs.remove(first, stop)
            self._repairs_at = stop
            parts.append(data)
            packets += stop - first
            if packets == self._packets_max or len(data) % size:
                bursts.append((b"".join(parts), size))
                parts, packets = [], 0
                taken += 1
        if parts:
            bursts.append((b"".join(parts), size))

    def _repair(self, frame: StoredFrame, first: int, stop: int, now: float) -> bytes:
        data = self.store.cut(frame, first - frame.first, stop - frame.first, REPAIR)
        self._repair_pace.spend(len(data), now=now)
        self._turn_linger(now)
        self._lingering[0].add(first, stop)
        self._repaired.append((first, stop))
        self.counters["repairs"] += stop - first
        return data

    def _turn_linger(self, now: float) -> None:
        """Forget what was repaired longer ago than one to two times the linger."""
        if now >= self._linger_until:
            over = now - self._linger_until >= self.policy.linger_s
            self._lingering = (RangeSet(), RangeSet() if over else self._lingering[0])
            self._linger_until = now + self.policy.linger_s

    def _answer(self, now: float) -> None:
        """Somebody asked for what is not there: a heartbeat says what is, but not one for each."""
        if self._answer_due == NEVER:
            self._answer_due = max(now, self._answered_at + self.policy.linger_s)

    def _beat(self, now: float) -> Burst:
        flags = 0
        if self._ended and self.sent == self.store.next:
            flags |= ENDS
        if now >= self._answer_due:
            flags |= ANSWERS
            self._answer_due = NEVER
            self._answered_at = now
        if now >= self._beat_due:
            self._beat_wait_s = min(self._beat_wait_s * 2, self.policy.heartbeat_max_s)
            self._beat_due = now + self._beat_wait_s
        self._beat_by = now + self.policy.heartbeat_max_s
        self.counters["heartbeats"] += 1
        # What is not sent yet is no receiver's business.
        store, sent, next_event = self.store, self.sent, self.sent_events
        beat = PacketBeat(
            self.stream,
            self.epoch,
            sent,
            store.first,
            store.first_event,
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
        if not self.may_ask(source, now=now):
            self.counters["refused_requests"] += 1
            return
        self.counters["nacks"] += 1
        cost = 1 + len(request.ranges)
        for first, stop in request.ranges:
            cost += self._on_asked(first, stop, now)
        self._askers[source].spend(cost, now=now)

    def _on_asked(self, first: int, stop: int, now: float) -> int:
        """Queue what has to be sent again; returns how many packets that are."""
        low, high = max(first, self.store.first), min(stop, self.sent)
        if low != first or high != stop:
            self._answer(now)
        if low >= high:
            return 0
        self.counters["asked_packets"] += high - low
        self._turn_linger(now)
        wanted = [(low, high)]
        for known in (*self._lingering, self._repairs):
            wanted = [rest for a, b in wanted for rest in known.missing(a, b)]
        count = sum(b - a for a, b in wanted)
        self.counters["suppressed"] += high - low - count
        for a, b in wanted:
            if len(self._repairs) >= REPAIR_RANGES_MAX:
                self.counters["repairs_full"] += 1
                high = a
                break
            self._repairs.add(a, b)
        if low < high:
            self._confirm(low, high, now)
        return count

    def _confirm(self, first: int, stop: int, now: float) -> None:
        """Tell that this was heard: the repair has to wait, or may have been lost for many.

        Without it, everybody asks for what they all missed twice.
        """
        if len(self._unconfirmed) < RANGES_MAX:
            self._unconfirmed.add(first, stop)
        if self._confirm_due == NEVER:
            self._confirm_due = max(now, self._confirmed_at + self.policy.linger_s * CONFIRM_SHARE)

    def may_ask(self, source: object, *, now: float) -> bool:
        """Whether requests from there are listened to: not if it asked for too much of late."""
        bucket = self._askers.get(source)
        if bucket is None:
            policy = self.policy
            rate = max(ASKED_PER_S, policy.repair_rate / policy.packet_bytes / 2)
            burst = max(rate, policy.buffer_bytes / policy.packet_bytes)
            bucket = self._askers[source] = TokenBucket(rate, burst_bytes=burst)
            if len(self._askers) > ASKERS_MAX:
                self._askers.popitem(last=False)
        return bucket.ready_at(now=now) <= now

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
            if status.receiver in self._closed:
                self.counters["late_status"] += 1
                return
            if len(self._receivers) >= RECEIVERS_MAX:
                self.counters["receivers_full"] += 1
                return
            receiver = self._receivers[status.receiver] = _Receiver(0, 0, now)
        receiver.seen_at = now
        self._look_at = min(self._look_at, now + self._patience_s)
        if status.next >= receiver.next:  # not overtaken by a later one
            self._on_progress(receiver, status, now)

    def _on_progress(self, receiver: _Receiver, status: PacketStatus, now: float) -> None:
        ahead = min(status.window_bytes // self.policy.packet_bytes, self.reach)
        limit = status.next + ahead
        if status.next > receiver.next or not ahead or status.next >= self.sent:
            receiver.stuck_since = NEVER
        elif receiver.stuck_since == NEVER:
            receiver.stuck_since = now
        receiver.next = status.next
        if limit > receiver.limit:
            receiver.held_since = NEVER
        if limit > self.sent and receiver.stuck_since == NEVER:  # it has caught up
            receiver.aside, receiver.lagging = "", False
        elif receiver.lagging:
            limit = max(limit, status.next + self.reach)
        self._settle(receiver, limit)

    def admit(self, receiver: int, window_bytes: int, *, now: float) -> int:
        """A receiver is known before its first report; returns the packet it starts with."""
        self._closed.pop(receiver, None)
        if receiver in self._receivers or len(self._receivers) < RECEIVERS_MAX:
            limit = self.store.next + window_bytes // self.policy.packet_bytes
            self._receivers[receiver] = _Receiver(self.store.next, limit, now)
            self._look_at = min(self._look_at, now + self._patience_s)
            self._settle()
        else:
            self.counters["receivers_full"] += 1
        # It hears soon how many they are, and they hear of it.
        self._beat_by = min(self._beat_by, now + self.policy.heartbeat_min_s)
        self._beat_due = min(self._beat_due, self._beat_by)
        return self.store.next

    def open(self, *, now: float) -> None:
        """Begin to send heartbeats: receivers without a connection learn of the stream by them."""
        self._beat_due = now

    def receiver_ids(self) -> list[int]:
        """Receivers that are in touch."""
        return list(self._receivers)

    def release(self, receiver: int) -> None:
        """Wait no longer for a receiver, until it reports again."""
        if self._receivers.pop(receiver, None) is not None:
            self._settle()

    def forget(self, receiver: int) -> None:
        """Release a receiver that has closed.

        What it reported before may come after the connection told that it has: as the report of a
        new receiver, which then falls silent, it would hold everybody up.
        """
        self._closed[receiver] = None
        if len(self._closed) > CLOSED_MAX:
            self._closed.popitem(last=False)
        self.release(receiver)

    def _settle(self, changed: _Receiver | None = None, limit: int = 0) -> None:
        """Find the lowest limit; only one that held it can raise it."""
        if changed is not None:
            before, changed.limit = changed.limit, limit
            if min(before, limit) > self._limit:
                return
        if self.policy.flow == "slowest":
            self._limit = min((r.limit for r in self._waited_for()), default=NEVER)

    def _waited_for(self) -> Iterator[_Receiver]:
        aside = self._aside
        return (r for key, r in self._receivers.items() if not r.aside and key not in aside)

    def set_aside(self, receivers: Iterable[int]) -> None:
        """Wait for all but these, whatever they report: the stream itself does not."""
        aside = frozenset(receivers)
        if aside != self._aside:
            self._aside = aside
            self._settle()

    def holders(self) -> list[int]:
        """The receivers that have no room for what is next."""
        if self.sent == self.store.next or self.sent < self._limit:
            return []
        return [
            key
            for key, r in self._receivers.items()
            if r.limit <= self.sent and not r.aside and key not in self._aside
        ]

    def unreached(self) -> list[int]:
        """The receivers that packets do not reach, though they report."""
        return [key for key, r in self._receivers.items() if r.aside == UNREACHED]

    def evict(self, *, now: float) -> list[int]:
        """Stop waiting for those that held the stream up for `evict_after_s` without progress.

        Returns who they are.
        """
        limit_s = self.policy.evict_after_s
        if limit_s is None:
            return []
        holders = set(self.holders())
        evicted = []
        if holders or self._held:
            for key, receiver in self._receivers.items():
                if key not in holders:
                    receiver.held_since = NEVER
                elif receiver.held_since == NEVER:
                    receiver.held_since = now
                elif now - receiver.held_since >= limit_s:
                    receiver.aside = EVICTED
                    evicted.append(key)
            self._held = bool(holders)
        if evicted:
            self.counters["evicted_receivers"] += len(evicted)
            self._settle()
        return evicted

    # --- time ---

    def deadline(self, *, now: float) -> float:
        """When `take` may have something."""
        due = min(self._beat_due, self._answer_due, self._confirm_due)
        if self.sent < self.store.next:
            if self.sent < self._limit:
                due = min(due, self._pace.ready_at(now=now))
            else:
                due = min(due, self._look_at)
        if self._repairs:
            due = min(due, self._repair_pace.ready_at(now=now))
        return due

    def on_deadline(self, *, now: float) -> None:
        """Forget receivers that fell silent, and frames that are too old."""
        if now >= self._look_at:
            self._look(now)
        self._trim(now)

    def _look(self, now: float) -> None:
        """See which receivers fell silent, or make no progress, and stop waiting for them."""
        timeout_s, patience_s = self.policy.receiver_timeout_s, self._patience_s
        due = NEVER
        for key, receiver in list(self._receivers.items()):
            if receiver.seen_at + timeout_s <= now:
                del self._receivers[key]
                self.counters["silent_receivers"] += 1
                continue
            if receiver.stuck_since + timeout_s <= now and not receiver.aside:
                receiver.aside = UNREACHED
                self.counters["unreached_receivers"] += 1
            since = receiver.seen_at
            if not receiver.aside:
                since = min(since, receiver.stuck_since)
            if since + patience_s <= now and not receiver.lagging:
                receiver.lagging = True
                receiver.limit = max(receiver.limit, receiver.next + self.reach)
                self.counters["lagging_receivers"] += 1
            due = min(due, since + (timeout_s if receiver.lagging else patience_s))
        self._look_at = due
        self._settle()

    def _trim(self, now: float) -> None:
        keep_from = self.store.next
        if self.policy.hold:
            # What a receiver has yet to ask for stays, too: `reach` bounds how much that is.
            full = self.store.bytes > self.policy.buffer_bytes
            keep_from = min(self.sent, self.slowest) if full else self.sent
        self.store.trim(now=now, keep_from=keep_from)
        if self.sent < self.store.first:  # dropped before it was sent: receivers will find out
            self.counters["unsent_packets"] += self.store.first - self.sent
            self.sent = self.store.first

    def end(self, *, now: float) -> None:
        """Nothing more will be added: the next heartbeat says so."""
        self._ended = True
        self._beat_due = now
        self._beat_wait_s = self.policy.heartbeat_min_s

    # --- state ---

    @property
    def unsent_bytes(self) -> int:
        """About how many bytes wait for flow control."""
        return (self.store.next - self.sent) * self.policy.packet_bytes

    @property
    def is_open(self) -> bool:
        """Whether receivers have room for what is not sent."""
        return self.sent < self.store.next and self.sent < self._limit

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
        return min((r.next for r in self._waited_for()), default=self.sent)
