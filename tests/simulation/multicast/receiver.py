"""The receiving side of a multicast world: a `PacketReceiver` under a `StreamReceiver`."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from meshmsg._model.event import Loss
from meshmsg._wire.frame import Frame
from meshmsg._wire.packet import (
    HEARTBEAT,
    PacketBeat,
    PacketRequest,
    PacketStatus,
    decode_packet,
)
from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from meshmsg.recovery.stream.loss_detector import NEVER, NackTiming
from meshmsg.recovery.stream.receiver import Delivery, StreamReceiver
from meshmsg.recovery.stream.sender import Admission
from tests.simulation.multicast.network import Path
from tests.simulation.network import Link
from tests.simulation.options import STREAM, WIRE_ID
from tests.simulation.subscriber import Books

if TYPE_CHECKING:
    from tests.simulation.multicast.world import MulticastWorld

STATUS_S = 0.1
INBOX_BYTES_MAX = 4000


class Receiver:
    """One process: a socket with a queue, the two cores, and a consumer that checks."""

    def __init__(self, world: MulticastWorld, sub: int, *, one_way: bool) -> None:
        options = world.options
        self.world = world
        self.sub = sub
        self.one_way = one_way
        self.random = random.Random(f"{world.seed} receiver {sub}")
        self.start = self.random.choice(("live", "earliest"))
        self.timing = NackTiming(
            delay_s=0.0002,
            spread_s=0.002,
            retry_s=0.008,
            retry_growth=1.5,
            retry_max_s=0.2,
            deadline_s=options.deadline_s,
            learns=True,
        )
        self.inward, self.outward = Link(world), Link(world)
        self.lines = [
            Path(
                f"in{sub}.{line}",
                world.seed,
                world.faults,
                loss=options.loss,
                bursty=options.bursty,
                duplicate=options.duplicate,
                delay_s=options.delay_s,
                jitter_s=options.jitter_s,
            )
            for line in range(options.lines)
        ]
        self.back = Path(
            f"back{sub}",
            world.seed,
            world.faults,
            loss=options.back_loss,
            delay_s=options.delay_s,
            jitter_s=options.jitter_s,
        )
        self.alive = False
        self.cut_until = 0.0
        self.frozen_until = 0.0
        self.packets: PacketReceiver | None = None
        self.stream: StreamReceiver | None = None
        self.books: Books | None = None
        self.closed_books: list[Books] = []
        self.burst: list[bytes] = []
        self.socket: deque[tuple[bytes, int, int]] = deque()
        self.socket_bytes = 0
        self.inbox: deque[Delivery] = deque()
        self.inbox_bytes = 0
        self.timer = NEVER
        self.reported = 0
        self.known: list[tuple[float, int]] = []  # when which packets were heard of
        self.asked_at: dict[int, float] = {}

    # --- joining ---

    def join(self) -> None:
        self.alive = True
        if self.one_way:
            self.packets = self.new_packets(self.world.publisher.epoch, None)
        else:
            self.subscribe(self.start, 0, 0)
        self.world.clock.at(self.world.clock.now, self.report_now_and_then)

    def subscribe(self, kind: str, value: int, epoch: int) -> None:
        self.outward.post(
            lambda: self.world.publisher.on_subscribe(self, kind, value, epoch), sure=True
        )

    def new_packets(self, epoch: int, start: int | None) -> PacketReceiver:
        options = self.world.options
        self.known = []
        self.asked_at = {}
        packets = PacketReceiver(
            WIRE_ID,
            epoch,
            start,
            receiver=self.sub,
            timing=self.timing,
            held_bytes_max=options.held_bytes,
            rng=self.random,
            lines=options.lines,
        )
        packets.frames_max = (self.world.seed + self.sub) % 4  # 0: all at once
        if options.parity:
            packets.use_parity()
        return packets

    def open(self, epoch: int, start: int, kept_from: int) -> StreamReceiver:
        """Begin with an event, and with new books."""
        if self.books is not None:
            self.closed_books.append(self.books)
        self.books = Books(epoch, start, kept_from, start)
        # Without a control channel there is nobody else to ask: what is missing is lost.
        self.stream = StreamReceiver(
            STREAM,
            epoch,
            start,
            timing=NackTiming(deadline_s=0.0 if self.one_way else 5.0),
            pending_bytes_max=1 << 26,
        )
        return self.stream

    def on_subscribed(self, given: Admission, start: int) -> None:
        if not self.alive or (self.stream is not None and self.stream.epoch >= given.epoch):
            return
        now = self.world.clock.now
        self.read(now)
        if self.stream is not None:
            self.hand_on(self.stream.on_end(self.stream.high, "gone", now=now))
            self.consume_all()
        self.packets = self.new_packets(given.epoch, start)
        stream = self.open(given.epoch, given.start, given.first)
        if given.start < given.next:
            stream.on_tail(given.next, now=now)
        self.pump()

    def leave(self) -> None:
        """The process ends, in the middle of everything."""
        self.alive = False
        self.inward.lose_all()
        self.outward.lose_all()

    # --- the network's side ---

    def offer(self, packet: bytes, line: int) -> None:
        """A packet is on its way; those of a burst that arrive together arrive as one."""
        world = self.world
        if not self.alive:
            return
        delays = self.lines[line].delays()
        if world.trace is not None and not delays:
            world.note(f"network: {world.describe(packet)} lost for {self.sub} on line {line}")
        if len(delays) == 1 and not world.options.jitter_s:
            self.burst.append(packet)
            return
        for delay in delays:
            self.arrive_at(packet, len(packet), line, delay)

    def close_burst(self, size: int, line: int) -> None:
        if not self.burst:
            return
        burst, self.burst = self.burst, []
        delay = self.world.options.delay_s
        short = len(burst[-1]) < size
        whole = burst[:-1] if short and any(len(p) < size for p in burst[:-1]) else burst
        if all(len(packet) == size for packet in whole[:-1]):
            self.arrive_at(b"".join(whole), size, line, delay)
            burst = burst[len(whole) :]
        for packet in burst:
            self.arrive_at(packet, len(packet), line, delay)

    def arrive_at(self, data: bytes, size: int, line: int, delay: float) -> None:
        clock = self.world.clock
        if clock.now >= self.cut_until:
            clock.at(clock.now + delay, lambda: self.arrive(data, size, line))

    def arrive(self, data: bytes, size: int, line: int) -> None:
        if not self.alive:
            return
        if self.socket and self.socket_bytes + len(data) > self.world.options.socket_bytes:
            self.world.counters["kernel_drops"] += 1
            return
        self.socket.append((data, size, line))
        self.socket_bytes += len(data)
        self.pump()

    def send(self, data: bytes) -> None:
        world = self.world
        if world.clock.now < self.cut_until:
            return
        for delay in self.back.delays():
            world.clock.at(
                world.clock.now + delay, lambda: world.publisher.on_datagram(data, self.sub)
            )

    # --- driving ---

    def pump(self) -> None:
        now = self.world.clock.now
        if not self.alive or now < self.frozen_until:
            return
        self.read(now)
        self.run_timers(now)
        if self.is_full:
            return  # what is consumed wakes it
        due = min(
            NEVER if self.packets is None else self.packets.deadline(),
            NEVER if self.stream is None else self.stream.deadline(),
        )
        if due < self.timer or self.timer <= now:
            self.timer = due = max(due, now + 1e-6)
            if due < NEVER:
                self.world.clock.at(due, self.on_timer)

    def on_timer(self) -> None:
        if self.world.clock.now >= self.timer:
            self.timer = NEVER
            self.pump()

    @property
    def is_full(self) -> bool:
        return self.inbox_bytes >= INBOX_BYTES_MAX

    def read(self, now: float) -> None:
        while self.socket and not self.is_full:
            data, size, line = self.socket.popleft()
            self.socket_bytes -= len(data)
            if self.packets is not None:
                self.on_packets(self.packets, data, size, line, now)
                if self.packets.more and len(self.socket) % 2:  # others come first
                    self.on_frames(self.packets.go_on(now=now), now)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Take all that is complete."""
        while self.packets is not None and self.packets.more:
            assert self.packets.complete > 0
            self.on_frames(self.packets.go_on(now=now), now)

    def on_packets(
        self, packets: PacketReceiver, data: bytes, size: int, line: int, now: float
    ) -> None:
        if self.world.trace is not None:
            for at in range(0, len(data), size):
                packet = data[at : at + size]
                self.world.note(f"{self.sub:>6}: got {self.world.describe(packet)}")
        if self.one_way and not packets.started and self.start == "earliest":
            if data[4] != HEARTBEAT:
                return
            beat = decode_packet(data)
            if isinstance(beat, PacketBeat) and beat.epoch == packets.epoch:
                packets.start_from(beat)
                self.open(beat.epoch, beat.first_event, beat.first_event)
        before = packets.counters["packets"]
        self.on_frames(packets.receive(data, size, now=now, line=line), now)
        self.check_memory(packets)
        if packets.counters["packets"] > before and packets.next - self.reported >= (
            self.world.options.window_bytes // self.world.options.packet_bytes // 4 or 1
        ):
            self.report()

    def on_frames(self, frames: list[Frame], now: float) -> None:
        packets = self.packets
        assert packets is not None
        for frame in frames:
            if self.stream is None:
                self.open(frame.epoch, frame.first, frame.first)
            assert self.stream is not None
            self.hand_on(self.stream.on_frame(frame, now=now))
        if not self.known or self.known[-1][1] < packets.high:
            self.known.append((now, packets.high))
        if self.stream is not None:
            self.stream.on_tail(packets.take_tail(self.stream.high), now=now)
            if self.one_way and self.stream.missing:
                _, deliveries = self.stream.on_deadline(now=now)
                self.hand_on(deliveries)

    def run_timers(self, now: float) -> None:
        packets, stream = self.packets, self.stream
        if packets is not None and packets.deadline() <= now:
            if self.is_full:
                packets.hold(now=now)
            else:
                requests, frames = packets.on_deadline(now=now)
                for request in requests:
                    self.ask(request, now)
                self.on_frames(frames, now)
                self.go_on(now)
        if stream is not None and stream.deadline() <= now:
            if self.is_full:
                stream.hold(now=now)
                return
            asks, deliveries = stream.on_deadline(now=now)
            self.hand_on(deliveries)
            if asks and not self.one_way:
                epoch, request = stream.epoch, stream.request
                self.outward.post(
                    lambda: self.world.publisher.on_event_nack(self, epoch, asks, request)
                )

    def ask(self, request: bytes, now: float) -> None:
        """A request goes out: not for the same packet again before its time."""
        world = self.world
        world.counters["nacks"] += 1
        message = decode_packet(request)
        assert isinstance(message, PacketRequest)
        if world.trace is not None:
            world.note(f"{self.sub:>6}: asks for {list(message.ranges)}")
        assert self.packets is not None
        spread = self.packets._detector._spread_s
        for first, stop in message.ranges:
            for number in range(first, stop):
                before = self.asked_at.get(number, -NEVER)
                wait = now - before
                assert wait >= self.timing.retry_s - spread, f"{number} asked for twice at once"
                self.asked_at[number] = now
        world.counters["asked_packets"] += sum(b - a for a, b in message.ranges)
        self.send(request)

    def check_memory(self, packets: PacketReceiver) -> None:
        held = sum(run[0] * run[3] for run in packets._held.runs.values())
        assert packets.held_bytes == held <= self.world.options.held_bytes, "too much is held"

    # --- the control channel ---

    def on_repair(self, data: bytes) -> None:
        frame, stream = Frame(data), self.stream
        if self.alive and stream is not None and frame.epoch == stream.epoch:
            now = self.world.clock.now
            self.hand_on(stream.on_frame(frame, now=now, repair=True))

    def on_gone(self, epoch: int, ranges: list[tuple[int, int]], reason: str) -> None:
        stream = self.stream
        if self.alive and stream is not None and epoch == stream.epoch:
            self.hand_on(stream.on_gone(ranges, reason, now=self.world.clock.now))

    def on_answered(self, epoch: int, request: int) -> None:
        stream = self.stream
        if self.alive and stream is not None and epoch == stream.epoch:
            stream.on_answered(request, now=self.world.clock.now)
            self.pump()

    # --- consuming ---

    def hand_on(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if isinstance(delivery, Loss):
                self.world.check_loss(self, delivery)
            else:
                self.inbox_bytes += len(delivery.frame.data)
            self.inbox.append(delivery)
        if not self.world.options.consume_s:
            self.consume_all()
        elif deliveries and len(self.inbox) == len(deliveries):
            self.world.clock.at(self.world.clock.now + self.world.options.consume_s, self.consume)

    def consume(self) -> None:
        """Take one delivery, slowly."""
        now, options = self.world.clock.now, self.world.options
        if now < self.frozen_until:
            self.world.clock.at(self.frozen_until, self.consume)
            return
        if self.inbox:
            self.take(self.inbox.popleft())
        if self.inbox:
            self.world.clock.at(now + options.consume_s, self.consume)
        self.pump()

    def consume_all(self) -> None:
        while self.inbox:
            self.take(self.inbox.popleft())

    def take(self, delivery: Delivery) -> None:
        books = self.books
        assert books is not None
        if isinstance(delivery, Loss):
            assert delivery.first == books.consumed, "a loss out of order"
            assert delivery.epoch == books.epoch
            assert delivery.count > 0
            books.lost[delivery.reason] += delivery.count
            books.consumed = delivery.stop
            return
        frame, low, high = delivery
        self.inbox_bytes -= len(frame.data)
        assert frame.epoch == books.epoch
        assert frame.first + low == books.consumed, "a run out of order"
        assert low < high
        sent = self.world.payloads(books.epoch)
        for index in range(low, high):
            assert frame.payload_at(index) == sent[frame.first + index]
        books.delivered += high - low
        books.consumed = frame.first + high

    # --- reporting ---

    def report(self) -> None:
        packets = self.packets
        if packets is None or not packets.started:
            return
        self.reported = packets.next
        room = self.world.options.window_bytes - packets.held_bytes - self.inbox_bytes
        status = PacketStatus(WIRE_ID, packets.epoch, packets.next, self.sub, max(0, room))
        self.send(status.encode())

    def report_now_and_then(self) -> None:
        world = self.world
        if not self.alive:
            return
        if world.clock.now >= self.frozen_until:
            self.report()
            if not self.one_way and self.books is not None and self.stream is not None:
                books, received = self.books.copy(), self.stream.next
                self.outward.post(lambda: world.on_books(self, books, received))
        world.clock.at(world.clock.now + STATUS_S, self.report_now_and_then)

    def freeze(self) -> None:
        self.frozen_until = self.world.clock.now + self.world.options.freeze_s
        self.world.clock.at(self.frozen_until, self.pump)

    def cut(self) -> None:
        """Nothing comes or goes."""
        until = self.world.clock.now + self.world.options.cut_s
        self.cut_until = self.inward.cut_until = self.outward.cut_until = until
