"""One life of a durable publisher: the real log and the real sender, on a disk that crashes.

The steps are those of the peer: append, sync (where the word asks for it), send, acknowledge.  At
every point between them, and inside of every call to the disk, the process or the machine may die.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from meshmsg._model.errors import LogError
from meshmsg._model.log_policy import Retention
from meshmsg._replay.log_reads import Chapter, Replay
from meshmsg._wire.control import Start, stream_wire_id
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import Crashed
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender
from tests.simulation.durable.options import MESH, STREAM, TICK_S, Place

if TYPE_CHECKING:
    from tests.simulation.durable.subscriber import Subscriber
    from tests.simulation.durable.world import World

DATA = "/data"
WIRE_ID = stream_wire_id(MESH, STREAM)


class Publisher:
    """The sending side, from one start to one crash."""

    def __init__(self, world: World) -> None:
        options = world.options
        self.world = world
        self.alive = True
        self.writer = LogWriter(
            DATA,
            STREAM,
            mesh=MESH,
            settings=LogSettings(
                fsync=options.fsync,
                segment_bytes=options.segment_bytes,
                allocate_bytes=options.allocate_bytes,
                retention=Retention(bytes_max=options.retention_bytes),
            ),
            files=world.files,
            clock=lambda: int(world.clock.now * 1e9) + 1,
            background=False,
        )
        self.writer.open()
        self.epoch = self.writer.begin(world.rng.choice((1, int(world.clock.now * 1e6))))
        self.sender = StreamSender(
            STREAM,
            WIRE_ID,
            self.epoch,
            SenderPolicy("drop_oldest", options.buffer_bytes, 1, None, 300, 0.05, 0.4),
            log=self.writer,
            holds=options.fsync == "always",
        )
        self.replay = Replay("simulated", Counter())
        self.at(0.0, self.publish)
        self.at(0.0, self.tick)

    def at(self, delay_s: float, step: object) -> None:
        """Do something later in this life; it may be the end of it."""

        def run() -> None:
            if not self.alive:
                return
            try:
                step()  # type: ignore[operator]
            except Crashed:
                self.world.crash(self)

        self.world.clock.at(self.world.clock.now + delay_s, run)

    def point(self) -> None:
        """Between two steps: the end may come."""
        if self.world.may_crash and self.world.rng.random() < self.world.options.crash_point:
            raise Crashed

    # --- publishing ---

    def publish(self) -> None:
        world = self.world
        if not world.left:
            return
        for _ in range(world.rng.choice((1, 2, 8))):
            if world.left:
                self.publish_one()
        self.at(world.rng.choice((0.0, 0.01, 0.1)), self.publish)

    def publish_one(self) -> None:
        world, sender = self.world, self.sender
        count = min(world.left, world.rng.choice((1, 1, 1, 5)))
        first = self.writer.next
        payloads = [world.rng.randbytes(world.rng.choice((1, 20, 300))) for _ in range(count)]
        places = [(self.epoch, first + n) for n in range(count)]
        self.point()
        world.try_places(dict(zip(places, payloads, strict=True)))
        try:
            frame = sender.seal_run("a.b", payloads, first + 1, raw=True, now=world.clock.now)
        except LogError:
            assert self.writer.next == first, "refused, and written all the same"
            world.forget_places(places)
            return
        assert frame is not None
        self.point()
        frames = [frame]
        if sender.holds:
            try:
                self.writer.flush()
            except LogError:
                return  # it is written, and nobody was told so
            self.point()
            frames = sender.release(self.writer.durable, now=world.clock.now)
        self.send(frames)
        self.point()
        world.left -= count
        world.acknowledge(places)
        self.point()

    def send(self, frames: list[bytes]) -> None:
        for frame in frames:
            for subscriber in self.world.subscribers:
                self.point()
                subscriber.push(frame)

    def tick(self) -> None:
        """What the committer's and the I/O thread do now and then."""
        world, sender = self.world, self.sender
        try:
            if world.rng.random() < 0.3:
                self.writer.flush()
            if world.rng.random() < 0.3:
                self.writer.retain()
        except LogError:
            pass
        if sender.holds:
            self.send(sender.release(self.writer.durable, now=world.clock.now))
        beat = sender.tail()
        for subscriber in world.subscribers:
            subscriber.tell(partial(subscriber.on_beat, beat.epoch, beat.next))
        self.at(TICK_S, self.tick)

    # --- subscribers ---

    def on_subscribe(self, subscriber: Subscriber, start: Start) -> None:
        """As the replay's thread does: find the start, hold, find it again, admit."""
        chapters, begin = self.find(start)
        if subscriber.holds:
            first = chapters[0] if chapters else None
            place = (self.epoch, begin) if first is None else (first.epoch, first.start)
            try:
                if self.writer.hold(subscriber.name, *place):
                    chapters, begin = self.find(start)
            except LogError:
                self.at(0.1, partial(self.on_subscribe, subscriber, start))
                return
        given = self.sender.admit(
            subscriber.sub,
            subscriber.name,
            ["**"],
            "resume",
            begin,
            self.epoch,
            now=self.world.clock.now,
        )
        self.point()
        subscriber.tell(partial(subscriber.on_subscribed, chapters, given))

    def find(self, start: Start) -> tuple[list[Chapter], int]:
        if start.kind == "live":
            return [], self.sender.next
        if start.kind == "resume" and start.epoch == self.epoch:
            return [], min(start.value, self.sender.next)
        chapters, seq = self.replay.chapters(self.writer.folder, start, self.epoch)
        return chapters, self.sender.origin if seq is None else seq

    def on_nack(
        self, subscriber: Subscriber, epoch: int, ranges: list[tuple[int, int]], request: int
    ) -> None:
        limit = self.world.options.repair_bytes_max
        answer = self.sender.repair(subscriber.sub, epoch, ranges, limit)
        frames, gone = answer.frames, answer.gone
        if answer.in_log:
            frames, gone = self.replay.frames(self.writer.folder, epoch, ranges, limit)
        for n, frame in enumerate(frames, 1):
            last = request if n == len(frames) and not gone else 0
            subscriber.tell(partial(subscriber.on_repair, frame, last))
        for n, (reason, lost) in enumerate(gone.items(), 1):
            last = request if n == len(gone) else 0
            subscriber.tell(partial(subscriber.on_gone, epoch, lost, reason, last))

    def on_commit(self, subscriber: Subscriber, place: Place) -> None:
        self.writer.move_hold(subscriber.name, *place)
