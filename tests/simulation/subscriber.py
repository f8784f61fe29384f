"""The receiving side of a world: `StreamReceiver`s, one an epoch, and a consumer that checks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meshmsg._model.event import Loss
from meshmsg._wire.frame import FRAME_MAGIC, Frame, Heartbeat
from meshmsg.recovery.stream.loss_detector import NackTiming
from meshmsg.recovery.stream.receiver import Delivery, StreamReceiver
from meshmsg.recovery.stream.sender import Admission
from tests.simulation.network import Link
from tests.simulation.options import STREAM, TICK_S, payload_of

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Books:
    """What a subscriber's consumer was given of one epoch."""

    epoch: int
    start: int
    kept_from: int
    consumed: int
    delivered: int = 0
    filtered: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Books:
        return replace(self, lost=self.lost.copy())


class Subscriber:
    """The receiving side: a live pipe, a control inbox, a receiver for each epoch, a consumer."""

    def __init__(self, world: World, sub: int) -> None:
        self.world = world
        self.sub = sub
        self.takes = world.rng.choice((("a.odd", "a.even", "a.run"), ("a.odd",)))
        self.inward, self.outward = Link(world), Link(world)
        self.pipe: deque[tuple[float, bytes]] = deque()
        self.inbox: deque[Callable[[float], None]] = deque()
        self.ready: deque[tuple[Books, Delivery]] = deque()
        self.ready_bytes = 0
        self.receiver: StreamReceiver | None = None
        self.books: Books | None = None
        self.closed_books: list[Books] = []
        self.admissions: deque[Admission] = deque()
        self.newest_epoch = 0
        self.stash: list[Frame] = []
        self.ended_at: dict[int, int] = {}
        self.connected = False
        self.frozen_until = 0.0
        self.stalled_until = 0.0
        self.naps = 3
        self.unreported = 0
        self.timer = float("inf")
        self.kind = world.rng.choice(("live", "earliest", "last", "origin"))
        if world.options.cut_s:
            world.clock.at(world.rng.uniform(0, 2), self.cut)
        world.clock.at(world.rng.choice((0.0, 0.0, 0.3)), self.join)

    # --- the network's side ---

    def join(self) -> None:
        self.connected = True
        self.subscribe(self.kind, self.world.rng.randrange(30), 0)
        self.world.clock.at(self.world.clock.now, self.consume)
        self.world.clock.at(self.world.clock.now, self.report_now_and_then)
        self.world.clock.at(self.world.clock.now, self.tend)

    def subscribe(self, kind: str, value: int, epoch: int) -> None:
        self.outward.post(
            lambda: self.world.publisher.on_subscribe(self, kind, value, epoch), sure=True
        )

    def push(self, data: bytes) -> None:
        """The live path: in order, bounded, and not always reliable."""
        world = self.world
        if not self.connected or world.rng.random() < world.options.drop:
            return
        if len(self.pipe) >= world.options.queue_frames:
            world.counters["queue_full"] += 1
            return
        arrival = world.clock.now + world.options.delay_s
        self.pipe.append((arrival, data))
        if world.rng.random() < world.options.swap:
            self.pipe.rotate(world.rng.randrange(len(self.pipe)))
            self.pipe.append((arrival, data))
        world.clock.at(arrival, self.pump)

    def take_in(self, notice: Callable[[float], None]) -> None:
        self.inbox.append(notice)
        self.pump()

    def on_hint(self, epoch: int, next_: int) -> None:
        def hear(now: float) -> None:
            if self.receiver is not None and self.receiver.epoch == epoch:
                self.receiver.on_tail_hint(next_, now=now)

        self.take_in(hear)

    def on_bye(self, epoch: int, next_: int) -> None:
        def hear(now: float) -> None:
            self.ended_at[epoch] = next_
            if self.receiver is not None and self.receiver.epoch == epoch:
                self.receiver.on_tail_hint(next_, now=now)

        self.take_in(hear)

    def on_repair(self, data: bytes, answers: int) -> None:
        def hear(now: float) -> None:
            receiver, frame = self.receiver, Frame(data)
            if receiver is None or frame.epoch != receiver.epoch:
                return
            self.hand_on(receiver.on_frame(frame, now=now, repair=True))
            receiver.on_answered(answers, now=now)

        self.take_in(hear)

    def on_gone(self, epoch: int, ranges: list[tuple[int, int]], reason: str, answers: int) -> None:
        def hear(now: float) -> None:
            receiver = self.receiver
            if receiver is not None and receiver.epoch == epoch:
                self.hand_on(receiver.on_gone(ranges, reason, now=now))
                receiver.on_answered(answers, now=now)

        self.take_in(hear)

    def on_subscribed(self, given: Admission) -> None:
        def hear(now: float) -> None:
            if given.epoch > self.newest_epoch:
                self.newest_epoch = given.epoch
                self.admissions.append(given)

        self.take_in(hear)

    # --- driving ---

    def tend(self) -> None:
        self.pump()
        self.world.clock.at(self.world.clock.now + TICK_S, self.tend)

    def pump(self) -> None:
        now = self.world.clock.now
        if now < self.frozen_until:
            return
        if self.world.rng.random() < 0.2:  # which thread wakes first is nobody's choice
            self.run_timers(now, drained=False)
        while self.inbox:
            self.inbox.popleft()(now)
        drained = self.read(now)
        while drained and self.admissions:
            self.enter(self.admissions.popleft(), now)
        self.run_timers(now, drained=drained)

    def cut(self) -> None:
        """No control message comes or goes for a while."""
        self.inward.cut_until = self.outward.cut_until = (
            self.world.clock.now + self.world.options.cut_s
        )

    def read(self, now: float) -> bool:
        while self.pipe and self.pipe[0][0] <= now:
            if self.ready_bytes >= self.world.options.inbox_bytes_max:
                return False
            self.on_data(self.pipe.popleft()[1], now)
        return not self.pipe

    def on_data(self, data: bytes, now: float) -> None:
        receiver = self.receiver
        if data[8:12] == FRAME_MAGIC:
            frame = Frame(data)
            if receiver is not None and frame.epoch == receiver.epoch:
                self.hand_on(receiver.on_frame(frame, now=now))
                self.check_pending()
            elif receiver is None or frame.epoch > receiver.epoch:
                self.stash.append(frame)
            return
        beat = Heartbeat.decode(data)
        if receiver is not None and beat.epoch == receiver.epoch:
            receiver.on_tail(beat.next, now=now)

    def check_pending(self) -> None:
        assert self.receiver is not None
        limit = self.world.options.pending_bytes_max
        assert self.receiver.pending_bytes <= limit, "too much is held behind a gap"

    def enter(self, given: Admission, now: float) -> None:
        """With all data read: close the books of an epoch that is over and enter the next."""
        receiver = self.receiver
        if receiver is not None:
            assert receiver.epoch < given.epoch
            stop = max(receiver.proved, self.ended_at.get(receiver.epoch, 0))
            self.hand_on(receiver.on_end(stop, "gone", now=now))
            assert receiver.next == stop, "an epoch was left with numbers unaccounted for"
            assert self.books is not None
            self.closed_books.append(self.books)
        self.books = Books(given.epoch, given.start, given.first, given.start)
        self.receiver = receiver = StreamReceiver(
            STREAM,
            given.epoch,
            given.start,
            timing=NackTiming(retry_s=0.2, deadline_s=5.0),
            pending_bytes_max=self.world.options.pending_bytes_max,
        )
        stash, self.stash = self.stash, []
        for frame in stash:
            if frame.epoch == given.epoch and frame.stop > given.start:
                self.hand_on(receiver.on_frame(frame, now=now))
            elif frame.epoch > given.epoch:
                self.stash.append(frame)
        if given.start < given.next:
            receiver.on_tail(given.next, now=now)

    def run_timers(self, now: float, *, drained: bool) -> None:
        receiver = self.receiver
        if receiver is None or receiver.deadline() > now:
            return
        if self.ready_bytes >= self.world.options.inbox_bytes_max:
            receiver.hold(now=now)
            return
        asks, deliveries = receiver.on_deadline(now=now, drained=drained)
        self.hand_on(deliveries)
        if asks:
            self.world.counters["nacks"] += 1
            epoch, request = receiver.epoch, receiver.request
            self.outward.post(lambda: self.world.publisher.on_nack(self, epoch, asks, request))
        if receiver.deadline() > now:
            self.world.clock.at(min(receiver.deadline(), now + 10), self.pump)

    # --- consuming ---

    def hand_on(self, deliveries: list[Delivery]) -> None:
        assert self.books is not None
        for delivery in deliveries:
            if not isinstance(delivery, Loss):
                self.ready_bytes += len(delivery.frame.data)
            self.ready.append((self.books, delivery))

    def consume(self) -> None:
        """Take what is ready, slowly, and now and then not at all."""
        world = self.world
        now = world.clock.now
        if now < max(self.frozen_until, self.stalled_until):
            world.clock.at(max(self.frozen_until, self.stalled_until), self.consume)
            return
        for _ in range(4):
            if self.ready:
                self.take(*self.ready.popleft())
        self.pump()
        if self.naps and world.rng.random() < world.options.stall:
            self.naps -= 1
            self.stalled_until = now + world.rng.choice((0.2, 1.0, 3.0))
        elif self.naps and world.rng.random() < world.options.freeze:
            self.naps -= 1
            self.frozen_until = now + world.rng.choice((0.2, 6.0, 20.0))
        pause = world.options.pause_s if self.ready else TICK_S
        world.clock.at(max(now + pause, self.frozen_until), self.consume)

    def take(self, books: Books, delivery: Delivery) -> None:
        if isinstance(delivery, Loss):
            assert delivery.first == books.consumed, "a loss out of order"
            assert delivery.epoch == books.epoch
            assert delivery.count > 0
            self.check_reason(books, delivery)
            books.lost[delivery.reason] += delivery.count
            books.consumed = delivery.stop
        else:
            self.ready_bytes -= len(delivery.frame.data)
            self.check_run(books, delivery.frame, delivery.lo, delivery.hi)
        self.unreported += 1
        if self.unreported >= 4:
            self.report()

    def check_reason(self, books: Books, loss: Loss) -> None:
        """Each word loses for its own reason only, and `block` and `buffer` for hardly any."""
        options, reason = self.world.options, loss.reason
        if reason == "gone":
            assert books.epoch < self.world.publisher.sender.epoch, "gone without a restart"
        elif reason == "expired":
            assert loss.stop <= books.kept_from, "expired though it was kept when they came"
        elif reason == "deadline":
            assert options.cut_s, "lost by deadline, though all is answered in time"
        elif reason == "evicted":
            assert options.evict_after_s is not None, "evicted where nobody may be"
        else:
            assert reason == "overflow", f"lost by {reason}"
            holds = options.overflow in ("block", "buffer")
            assert not holds, "lost though the publisher waits for everybody"

    def check_run(self, books: Books, frame: Frame, low: int, high: int) -> None:
        assert frame.epoch == books.epoch
        assert frame.first + low == books.consumed, "a run out of order"
        assert low < high
        for index in range(low, high):
            assert frame.payload_at(index) == payload_of(books.epoch, frame.first + index)
            if frame.topic_at(index) in self.takes:
                books.delivered += 1
            else:
                books.filtered += 1
        books.consumed = frame.first + high

    def report(self) -> None:
        self.unreported = 0
        if self.books is None or self.receiver is None:
            return
        books, received = self.books.copy(), self.receiver.next
        self.outward.post(lambda: self.world.publisher.on_status(self, books, received))

    def report_now_and_then(self) -> None:
        if self.world.clock.now >= self.frozen_until:
            self.report()
        self.world.clock.at(self.world.clock.now + 0.25, self.report_now_and_then)
