"""The sending side of a multicast world: a `StreamSender` over a `PacketSender`."""

from __future__ import annotations

import random
import struct
from functools import partial
from typing import TYPE_CHECKING

from meshmsg._wire.packet import NACK, REPAIR, PacketRequest, PacketStatus, decode_packet
from meshmsg.recovery.multicast.pacing import TokenBucket
from meshmsg.recovery.multicast.packet_sender import PacketPolicy, PacketSender
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender
from tests.simulation.multicast.network import Path
from tests.simulation.options import STREAM, WIRE_ID

if TYPE_CHECKING:
    from tests.simulation.multicast.receiver import Receiver
    from tests.simulation.multicast.world import MulticastWorld

LINGER_S = 0.005
REPAIR_ANSWER_BYTES = 100_000


class Publisher:
    """Publishes what is planned, sends when it may, answers."""

    def __init__(self, world: MulticastWorld, epoch: int) -> None:
        options = world.options
        self.world = world
        self.epoch = epoch
        self.random = random.Random(f"{world.seed} publisher {epoch}")
        self.stream = StreamSender(
            STREAM,
            WIRE_ID,
            epoch,
            SenderPolicy(
                overflow=options.overflow,
                buffer_bytes=options.buffer_bytes,
                window_bytes=options.window_bytes,
                evict_after_s=None,
                frame_bytes=1000,
                heartbeat_min_s=1.0,
                heartbeat_max_s=1.0,
            ),
        )
        self.packets = PacketSender(
            WIRE_ID,
            epoch,
            PacketPolicy(
                packet_bytes=options.packet_bytes,
                flow=options.flow,
                rate=options.rate,
                repair_rate=options.repair_rate,
                buffer_bytes=options.buffer_bytes,
                buffer_age_s=options.buffer_age_s,
                linger_s=LINGER_S,
                heartbeat_min_s=0.01,
                heartbeat_max_s=1.0,
                receiver_timeout_s=3.0,
                parity=options.parity,
                hold=options.overflow == "block",
            ),
        )
        self.packets._repair_pace = TokenBucket(
            options.repair_rate, burst_bytes=options.repair_burst_bytes
        )
        if options.rate:
            self.packets._pace = TokenBucket(options.rate, burst_bytes=2000)
        self.payloads: list[bytes] = []
        self.frames: list[tuple[int, int, int]] = []  # stop event, first packet, stop packet
        self.alive = True
        self.timer = NEVER
        self.started_at = world.clock.now
        self.repair_bytes = 0
        self.repaired_at: dict[int, float] = {}
        self.lines = [
            Path(f"out{line}.{epoch}", world.seed, world.faults, loss=options.shared_loss)
            for line in range(options.lines)
        ]
        world.clock.at(world.clock.now + options.warm_up_s, self.publish)

    # --- publishing ---

    def publish(self) -> None:
        """A batch of events, unless it has to wait; the next one soon."""
        world, options = self.world, self.world.options
        if not self.alive or not world.left:
            return
        if self.is_gated():
            world.clock.at(world.clock.now + 0.01, self.publish)
            return
        count = min(world.left, self.random.randint(1, options.batch_max))
        world.left -= count
        first = self.stream.next
        payloads = [self.payload(first + n) for n in range(count)]
        self.payloads += payloads
        frame = self.stream.seal_run("a.run", payloads, 0, raw=True, now=world.clock.now)
        assert frame is not None
        start = self.packets.store.next
        self.packets.add(frame, first, first + count, now=world.clock.now)
        self.frames.append((first + count, start, self.packets.store.next))
        if world.trace is not None:
            world.note(f"sender: events {first}..{first + count} in packets from {start}")
        self.pump()
        pause = options.pause_s * self.random.choice((0.0, 1.0, 2.0))
        world.clock.at(world.clock.now + pause, self.publish)

    def payload(self, seq: int) -> bytes:
        options = self.world.options
        size = options.event_bytes
        if options.large_bytes and self.random.random() < 0.15:
            size = options.large_bytes
        return struct.pack("<QQ", self.epoch, seq) + bytes(self.random.randrange(size))

    def is_gated(self) -> bool:
        options = self.world.options
        if options.overflow != "block":
            return False
        return self.stream.flow.is_shut() or self.packets.unsent_bytes > options.window_bytes

    # --- sending ---

    def pump(self) -> None:
        world = self.world
        now = world.clock.now
        if not self.alive:
            return
        self.packets.on_deadline(now=now)
        for data, size in self.packets.take(now=now):
            world.counters["bursts"] += 1
            if data[4] == REPAIR:
                self.check_repair(data, size, now)
            for line, path in enumerate(self.lines):
                self.multicast(data, size, line, path)
        due = self.packets.deadline(now=now)
        if due < self.timer or self.timer <= now:
            self.timer = max(due, now)
            if due < NEVER:
                world.clock.at(self.timer, self.on_timer)

    def on_timer(self) -> None:
        if self.world.clock.now >= self.timer:
            self.timer = NEVER
            self.pump()

    def multicast(self, data: bytes, size: int, line: int, path: Path) -> None:
        world = self.world
        for at in range(0, len(data), size):
            packet = data[at : at + size]
            if path.passes():
                for receiver in world.receivers:
                    receiver.offer(packet, line)
                continue
            world.counters["lost for all"] += packet[4] <= REPAIR
            if world.trace is not None:
                world.note(f"network: {world.describe(packet)} lost for all on line {line}")
        for receiver in world.receivers:
            receiver.close_burst(size, line)

    def check_repair(self, data: bytes, size: int, now: float) -> None:
        """Repairs stay within their budget, and no packet is repaired twice in a linger."""
        options = self.world.options
        self.repair_bytes += len(data)
        allowed = (now - self.started_at) * options.repair_rate + options.repair_burst_bytes
        allowed += 65_536  # what leaves whole when there was little left
        assert self.repair_bytes <= allowed, "repairs beyond their budget"
        for at in range(0, len(data), size):
            number = int.from_bytes(data[at + 24 : at + 32], "little")
            before = self.repaired_at.get(number)
            assert before is None or now - before >= LINGER_S, f"{number} repaired twice at once"
            self.repaired_at[number] = now
            self.world.counters["repairs"] += 1

    # --- what receivers say ---

    def on_datagram(self, data: bytes, source: int) -> None:
        if not self.alive:
            return
        message = decode_packet(data)
        now = self.world.clock.now
        if isinstance(message, PacketRequest):
            assert message.kind == NACK
            self.packets.on_request(message, source, now=now)
        else:
            assert isinstance(message, PacketStatus)
            self.packets.on_status(message, now=now)
        self.pump()

    def on_subscribe(self, receiver: Receiver, kind: str, value: int, epoch: int) -> None:
        now = self.world.clock.now
        given = self.stream.admit(
            receiver.sub, str(receiver.sub), ["a.**"], kind, value, epoch, now=now
        )
        start = self.packets.admit(receiver.sub, self.world.options.window_bytes, now=now)
        self.pump()
        receiver.inward.post(partial(receiver.on_subscribed, given, start), sure=True)

    def on_event_nack(
        self, receiver: Receiver, epoch: int, ranges: list[tuple[int, int]], request: int
    ) -> None:
        self.world.counters["event_nacks"] += 1
        answer = self.stream.repair(receiver.sub, epoch, ranges, REPAIR_ANSWER_BYTES)
        for frame in answer.frames:
            receiver.inward.post(partial(receiver.on_repair, frame))
        for reason, gone in answer.gone.items():
            receiver.inward.post(partial(receiver.on_gone, epoch, gone, reason))
        receiver.inward.post(partial(receiver.on_answered, epoch, request))
