"""The receiving side: goes through the epochs of a log as `Intake` does, and checks all it gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from meshmsg._model.event import Loss
from meshmsg._replay.log_reads import Chapter
from meshmsg._wire.control import Start
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.loss_detector import NackTiming
from meshmsg.recovery.stream.receiver import Delivery, StreamReceiver
from meshmsg.recovery.stream.sender import Admission
from tests.simulation.durable.options import STREAM, TICK_S, Place

if TYPE_CHECKING:
    from tests.simulation.durable.world import World


class Subscriber:
    """One consumer: `live`, `earliest`, or `named`, which commits and may crash itself."""

    def __init__(self, world: World, sub: int) -> None:
        rng = world.rng
        self.world = world
        self.sub = sub
        self.kind = rng.choice(("live", "earliest", "named", "named"))
        self.holds = self.kind == "named" and rng.random() < 0.5
        self.name = f"s{sub}/audit"
        self.committed: Place | None = None
        self.got: list[Place] = []  #: delivered for good, or since the last commit
        self.lost: set[Place] = set()
        self.kept = 0  #: of `got`, what is committed
        self.origin: Place | None = None  #: where it began
        self.held_from: Place | None = None
        self.lives = 0
        self.naps = 3
        self.present = False
        self.clear()
        world.clock.at(rng.choice((0.0, 0.0, 0.5, 3.0)), self.arrive)

    def clear(self) -> None:
        """As a process that has just started."""
        self.lives += 1
        self.up = False
        self.receiver: StreamReceiver | None = None
        self.admissions: deque[Admission] = deque()
        self.overs: dict[int, int] = {}
        self.heard = 0
        self.stash: list[Frame] = []

    def arrive(self) -> None:
        self.present = True
        self.world.clock.at(self.world.clock.now, self.tend)
        self.connect()

    def leave(self) -> None:
        """The consumer's process dies: what it had not committed comes again."""
        self.present = False
        self.world.counters["consumer_crashes"] += 1
        del self.got[self.kept :]
        self.lost = {place for place in self.lost if self.committed and place < self.committed}
        if self.committed is None:
            self.origin = None  # it begins anew, with what is there then
        self.clear()
        self.sub += 1000
        self.world.clock.at(self.world.clock.now + self.world.rng.choice((0.1, 2.0)), self.arrive)

    # --- the network ---

    def connect(self) -> None:
        publisher = self.world.publisher
        if publisher is None or not self.present or self.up:
            return
        start, life = self.start(), self.lives
        self.up = True

        def ask() -> None:
            if life == self.lives:
                publisher.on_subscribe(self, start)

        publisher.at(self.world.options.delay_s, ask)
        if self.holds and self.committed is not None:
            place = self.committed
            publisher.at(self.world.options.delay_s, lambda: publisher.on_commit(self, place))

    def start(self) -> Start:
        if self.receiver is not None:
            return Start(STREAM, "resume", self.receiver.next, self.receiver.epoch)
        if self.committed is not None:
            return Start(STREAM, "resume", self.committed[1], self.committed[0])
        return Start(STREAM, "live" if self.kind == "live" else "earliest")

    def tell(self, notice: Callable[[], None], *, data: bool = False) -> None:
        """Something is on its way; a crash of either side takes it along, or not, if it is data."""
        world, sent_by, life = self.world, self.world.publisher, self.lives

        def come() -> None:
            if not self.present or life != self.lives:
                return
            if world.publisher is not sent_by and not (data and world.rng.random() < 0.5):
                return
            notice()
            self.enter_epochs()

        world.clock.at(world.clock.now + world.options.delay_s, come)

    def push(self, frame: bytes) -> None:
        """The live path."""
        if self.present and self.up and self.world.rng.random() >= self.world.options.drop:
            self.tell(lambda: self.on_frame(Frame(frame)), data=True)

    def on_down(self) -> None:
        self.up = False

    # --- in ---

    def on_frame(self, frame: Frame, *, repair: bool = False) -> None:
        receiver = self.receiver
        if receiver is None or frame.epoch > receiver.epoch:
            self.stash.append(frame)
        elif frame.epoch == receiver.epoch:
            self.take(receiver.on_frame(frame, now=self.world.clock.now, repair=repair))

    def on_beat(self, epoch: int, next_: int) -> None:
        receiver = self.receiver
        if receiver is not None and receiver.epoch == epoch:
            self.heard = max(self.heard, next_)
            receiver.on_tail(next_, now=self.world.clock.now)

    def on_repair(self, data: bytes, answers: int) -> None:
        receiver, frame = self.receiver, Frame(data)
        if receiver is not None and receiver.epoch == frame.epoch:
            self.on_frame(frame, repair=True)
            receiver.on_answered(answers, now=self.world.clock.now)

    def on_gone(self, epoch: int, ranges: list[tuple[int, int]], reason: str, answers: int) -> None:
        receiver = self.receiver
        if receiver is not None and receiver.epoch == epoch:
            self.take(receiver.on_gone(ranges, reason, now=self.world.clock.now))
            receiver.on_answered(answers, now=self.world.clock.now)

    def on_subscribed(self, chapters: list[Chapter], given: Admission) -> None:
        first = (chapters[0].epoch, chapters[0].start) if chapters else (given.epoch, given.start)
        if self.origin is None:
            self.origin = first
        if self.holds and self.held_from is None:
            self.held_from = first
        for epoch, origin, start, stop in chapters:
            self.overs[epoch] = stop
            self.on_admission(Admission(epoch, origin, start, stop, start))
        self.on_admission(given)

    def on_admission(self, given: Admission) -> None:
        if self.receiver is None:
            self.enter(given)
        elif given.epoch == self.receiver.epoch:
            self.receiver.on_tail_hint(given.next, now=self.world.clock.now)
        elif given.epoch > self.receiver.epoch:
            epochs = [known.epoch for known in self.admissions]
            if given.epoch in epochs:
                self.admissions[epochs.index(given.epoch)] = given
            else:
                self.admissions.append(given)

    def enter_epochs(self) -> None:
        while self.admissions and self.receiver is not None:
            receiver = self.receiver
            over = self.overs.get(receiver.epoch)
            if over is not None and receiver.next < over:
                return  # the log has the rest
            # Of what was heard of and is not there the log had lost its hold: nothing promised.
            self.take(receiver.on_end(self.heard, "gone", now=self.world.clock.now))
            self.enter(self.admissions.popleft())

    def enter(self, given: Admission) -> None:
        now = self.world.clock.now
        self.heard = max(given.start, given.next)
        self.receiver = StreamReceiver(
            STREAM,
            given.epoch,
            given.start,
            timing=NackTiming(retry_s=0.2, deadline_s=5.0),
            pending_bytes_max=100_000,
        )
        stash, self.stash = self.stash, []
        for frame in stash:
            if frame.stop > given.start or frame.epoch > given.epoch:
                self.on_frame(frame)
        self.receiver.on_tail(given.next, now=now)

    def tend(self) -> None:
        """Timers, and now and then a commit or a crash of our own."""
        world = self.world
        if not self.present:
            return
        now, receiver, publisher = world.clock.now, self.receiver, world.publisher
        if receiver is not None and receiver.deadline() <= now:
            if not self.up or publisher is None:
                receiver.hold(now=now)
            else:
                asks, deliveries = receiver.on_deadline(now=now, drained=True)
                self.take(deliveries)
                if asks:
                    epoch, request = receiver.epoch, receiver.request
                    publisher.at(
                        world.options.delay_s,
                        lambda: publisher.on_nack(self, epoch, asks, request),
                    )
        self.enter_epochs()
        if self.kind == "named" and receiver is not None:
            if world.rng.random() < 0.3:
                self.commit()
            if self.naps and world.rng.random() < world.options.consumer_crash:
                self.naps -= 1
                self.leave()
                return
        world.clock.at(now + TICK_S, self.tend)

    def commit(self) -> None:
        assert self.receiver is not None
        self.committed = place = (self.receiver.epoch, self.receiver.next)
        self.kept = len(self.got)
        publisher = self.world.publisher
        if self.holds and self.up and publisher is not None:
            publisher.at(self.world.options.delay_s, lambda: publisher.on_commit(self, place))

    # --- what it is given ---

    def take(self, deliveries: list[Delivery]) -> None:
        world = self.world
        for delivery in deliveries:
            if isinstance(delivery, Loss):
                places = [(delivery.epoch, seq) for seq in range(delivery.first, delivery.stop)]
                self.check_loss(delivery, places)
                self.lost.update(places)
                continue
            frame = delivery.frame
            for index in range(delivery.lo, delivery.hi):
                place = (frame.epoch, frame.first + index)
                assert not self.got or place > self.got[-1], f"{place} after {self.got[-1]}"
                assert frame.payload_at(index) == world.known[place], f"{place} is another event"
                self.got.append(place)
                world.counters["delivered"] += 1

    def check_loss(self, loss: Loss, places: list[Place]) -> None:
        promised = [place for place in places if place in self.world.promised]
        self.world.counters[f"lost_{loss.reason}"] += len(places)
        if loss.reason == "expired":
            assert self.world.options.retention_bytes is not None, "expired without retention"
            held = self.held_from is not None and places[-1] >= self.held_from
            assert not held, f"{self.name} held {self.held_from}, and lost {loss}"
            return
        assert not promised, f"acknowledged, and lost: {promised[:3]} ({loss.reason})"

    def check_end(self) -> None:
        """Everything that was promised since it began has come, or has expired."""
        assert len(set(self.got)) == len(self.got), "an event came twice"
        origin = self.origin
        assert origin is not None
        missing = {p for p in self.world.promised if p >= origin} - set(self.got) - self.lost
        assert not missing, f"{self.name} ({self.kind}) never got {sorted(missing)[:3]}"
