"""The sending side of a world: a `StreamSender` driven as the peer drives it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meshmsg.recovery.stream.ledger import row_from_positions
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender
from tests.simulation.options import STREAM, TICK_S, WIRE_ID, payload_of, topic_of

if TYPE_CHECKING:
    from tests.simulation.subscriber import Books, Subscriber
    from tests.simulation.world import World


class Publisher:
    """The sending side: publishes what is planned, waits at the gate, answers, beats."""

    def __init__(self, world: World, epoch: int) -> None:
        options = world.options
        self.world = world
        self.sender = StreamSender(
            STREAM,
            WIRE_ID,
            epoch,
            SenderPolicy(
                overflow=options.overflow,
                buffer_bytes=options.buffer_bytes,
                window_bytes=options.window_bytes,
                evict_after_s=options.evict_after_s,
                frame_bytes=options.frame_bytes,
                heartbeat_min_s=0.05,
                heartbeat_max_s=0.4,
            ),
        )
        self.gated = False
        self.open_bytes = 0
        self.alive = True
        self.largest = 0
        self.evicted: set[int] = set()
        world.clock.at(world.clock.now, self.publish)
        world.clock.at(world.clock.now, self.tick)

    def publish(self) -> None:
        """Publish some events, one by one or as a run, unless the gate is shut."""
        world, sender = self.world, self.sender
        if not self.alive:
            return
        for _ in range(world.rng.choice((1, 3, 20))):
            if self.gated or not world.left:
                break
            world.left -= 1
            if world.rng.random() < 0.1:
                self.publish_run(min(world.left, world.rng.randrange(8)) + 1)
                continue
            seq = sender.next
            payload = payload_of(sender.epoch, seq)
            sender.builder.add(topic_of(seq), payload, seq)
            self.open_bytes += len(payload)
            if self.open_bytes >= world.options.frame_bytes:
                self.send_open()
        if world.rng.random() < 0.5:
            self.send_open()
        wait = world.rng.choice((0.0, 0.001, 0.02, 0.1))
        if world.left:
            world.clock.at(world.clock.now + wait, self.publish)

    def publish_run(self, count: int) -> None:
        self.world.left -= count - 1
        self.send_open()
        sender, first = self.sender, self.sender.sealed
        payloads = [payload_of(sender.epoch, first + n) for n in range(count)]
        # A run has one topic; what a filter takes of it follows from the topic alone.
        frame = sender.seal_run("a.run", payloads, first, raw=True, now=self.world.clock.now)
        assert frame is not None
        self.send(frame)

    def send_open(self) -> None:
        frame = self.sender.seal(now=self.world.clock.now)
        self.open_bytes = 0
        if frame is not None:
            self.send(frame)

    def send(self, frame: bytes) -> None:
        self.largest = max(self.largest, len(frame))
        for subscriber in self.world.subscribers:
            subscriber.push(frame)
        self.gated = self.gated or self.sender.flow.is_shut()
        self.check_bound()

    def check_bound(self) -> None:
        """What is kept stays within the bound; one frame is kept however large.

        Where nothing may fall out, the gate shuts after the frame that goes past the window, and
        what was open then still follows.
        """
        buffer = self.sender.buffer
        bound = max(buffer.ring_bytes_max, self.largest) + buffer.backlog_bytes_max
        if buffer.hold:
            bound = buffer.ring_bytes_max + 2 * self.largest
        assert buffer.bytes <= bound, "the buffer is over its bound"

    def tick(self) -> None:
        """What the I/O thread does now and then."""
        if not self.alive:
            return
        now, sender = self.world.clock.now, self.sender
        self.send_open()
        if sender.heartbeat_due() <= now:
            beat = sender.heartbeat(now=now).encode()
            for subscriber in self.world.subscribers:
                subscriber.push(beat)
        for subscriber in self.world.subscribers:
            if self.world.rng.random() < 0.1:
                subscriber.inward.post(partial(subscriber.on_hint, sender.epoch, sender.sealed))
        if self.gated:
            for claim in sender.flow.on_deadline(now=now):
                self.evicted.add(claim.sub)
            self.open_gate()
        self.world.clock.at(now + TICK_S, self.tick)

    def open_gate(self) -> None:
        if self.gated and not self.sender.flow.is_shut():
            self.gated = False
            for claim in self.sender.flow.claims.values():
                claim.blocked_since = None

    def on_subscribe(self, subscriber: Subscriber, kind: str, value: int, epoch: int) -> None:
        given = self.sender.admit(
            subscriber.sub,
            f"s{subscriber.sub}",
            ["a.**"],
            kind,
            value,
            epoch,
            now=self.world.clock.now,
        )
        subscriber.inward.post(partial(subscriber.on_subscribed, given), sure=True)

    def on_nack(
        self, subscriber: Subscriber, epoch: int, ranges: list[tuple[int, int]], request: int
    ) -> None:
        limit = self.world.options.repair_bytes_max
        answer = self.sender.repair(subscriber.sub, epoch, ranges, limit)
        last = len(answer.frames) - 1 if not answer.gone else -1
        for n, frame in enumerate(answer.frames):
            self.world.counters["repair_frames"] += 1
            answers = request if n == last else 0
            subscriber.inward.post(partial(subscriber.on_repair, frame, answers))
        for n, (reason, gone) in enumerate(answer.gone.items(), start=1):
            answers = request if n == len(answer.gone) else 0
            subscriber.inward.post(partial(subscriber.on_gone, epoch, gone, reason, answers))

    def on_status(self, subscriber: Subscriber, books: Books, received: int) -> None:
        if books.epoch != self.sender.epoch:
            return
        self.sender.flow.report(
            subscriber.sub,
            received=received,
            consumed=books.consumed,
            delivered=books.delivered,
            filtered=books.filtered,
            lost=books.lost,
            stop=self.sender.sealed,
            now=self.world.clock.now,
        )
        self.check_row(subscriber.sub)
        self.open_gate()

    def check_row(self, sub: int) -> None:
        claim = self.sender.flow.claims[sub]
        if not claim.reported:
            return
        row = row_from_positions(
            STREAM,
            self.sender.epoch,
            claim.label,
            start=claim.start,
            stop=self.sender.next,
            consumed=claim.consumed,
            delivered=claim.delivered,
            filtered=claim.filtered,
            lost=claim.lost,
            state="live",
        )
        assert row.reconciles, f"the ledger does not reconcile: {row}"
