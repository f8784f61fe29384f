"""A durable publisher with one work group that crashes and restarts from its log, under a seed.

The cores and the real log writer, on a file system that forgets what was not synced.  A crash takes
the process (the kernel has all that was written) or the machine; members and their memory live on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.subframe import Work
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.resume import line_of, record_of, resume
from meshmsg.recovery.groups.store import GroupStore
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

Place = tuple[int, int]
STREAM = "shop/jobs"
SETTINGS = LogSettings(fsync="batch", segment_bytes=64 * 1024, allocate_bytes=0)


@dataclass
class SimMember:
    """Someone who works; it knows events by their places, and forgets them when it is cut off."""

    number: int
    queue: list[tuple[Place, int]] = field(default_factory=list)


class ResumeWorld:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.files = FaultyFiles(Random(seed))
        self.policy = GroupPolicy(
            rng.choice(["none", "key"]), rng.choice([3, 100]), ("t", "u") if seed % 3 else ("t",)
        )
        self.buffer_bytes = rng.choice([2_000, 20_000, 1_000_000])
        self.nack = rng.choice([0.0, 0.05])
        self.power = rng.random() < 0.3
        self.published: dict[Place, tuple[str, str | None]] = {}  # topic and key, in order
        self.safe: set[Place] = set()  #: settled, and the disk knows
        self.handled: set[Place] = set()
        self.dead: set[Place] = set()
        self.torn: set[Place] = set()  #: not on the disk when the power failed: may be damaged
        self.lost: set[Place] = set()
        self.attempts: dict[Place, int] = {}  #: that the disk knows
        self.repeated = self.crashes = self.fetched = 0
        self.members: dict[int, SimMember] = {}
        self.numbers = 0
        self.epoch_wanted = 10
        self._start()

    # --- lives of the publisher ---

    def _start(self) -> None:
        self.log = LogWriter(
            "data", STREAM, settings=SETTINGS, files=self.files, background=False, clock=lambda: 1
        )
        self.log.open()
        self.epoch = self.log.begin(self.epoch_wanted)
        self.epoch_wanted = self.epoch + 1
        self.sealed = 0
        self.buffer = RetransmitBuffer(self.buffer_bytes)
        self.store = GroupStore(self.log.folder, STREAM)
        records = self.store.load()
        assert not self.store.problems
        if records:
            with LogReader(self.log.folder) as reader:
                line = line_of(records[0], reader.journal.epochs, self.epoch, 0)
        else:
            line = Line(self.epoch)
        shelf = Shelf(self.buffer, line, durable=True)
        self.group = WorkGroup("g", self.buffer, line.start, self.policy, shelf=shelf)
        if records:
            resume(self.group, records[0])
        self.save()
        for member in self.members.values():
            self.group.join(member.number, "m", 8, 30.0, now=self.now)

    def crash(self) -> None:
        self.crashes += 1
        old, durable = self.epoch, self.log.durable if self.power else self.sealed
        self.files = self.files.survivor(power=self.power)
        for member in self.members.values():
            member.queue = [held for held in member.queue if self.rng.random() < 0.1]
        self._start()
        with LogReader(self.log.folder) as reader:
            known = reader.journal.find(old)
        assert known is not None
        assert known.stop is not None
        assert known.stop >= durable
        self.torn |= {(old, seq) for seq in range(durable, known.stop)}
        gone = {place for place in self.published if place[0] == old and place[1] >= known.stop}
        self.published = {p: what for p, what in self.published.items() if p not in gone}
        self.safe -= gone

    # --- what happens ---

    def publish(self) -> None:
        rng, first = self.rng, self.sealed
        count = rng.choice([1, 1, 5, 30])
        topics = [rng.choice(["t", "t", "u"]) for _ in range(count)]
        keys = {n: f"k{rng.randrange(4)}" for n in range(count) if rng.random() < 0.5}
        payloads = [b"%d" % (first + n) + bytes(50) for n in range(count)]
        wire_id = self.log._about.wire_id
        frame = encode_frame(wire_id, self.epoch, first, topics, payloads, 0, keys=keys)
        self.log.write(frame, first, first + count)
        self.sealed += count
        for n in range(count):
            self.published[self.epoch, first + n] = (topics[n], keys.get(n))
        self.buffer.append(first, self.sealed, frame)

    def join(self) -> None:
        if len(self.members) < 3:
            self.numbers += 1
            self.members[self.numbers] = SimMember(self.numbers)
            self.group.join(self.numbers, "m", 8, 30.0, now=self.now)

    def leave(self) -> None:
        if self.members:
            number = self.rng.choice(list(self.members))
            del self.members[number]
            self.group.leave(number, "left", now=self.now)

    def dispatch(self) -> None:
        group, line = self.group, self.group.shelf.line
        shipments = group.dispatch(self.sealed, now=self.now)
        self._bury()
        for first, stop, _ in group.losses:
            self.lost |= {line.place(n) for n in range(first, stop)}
        group.losses.clear()
        assert self.lost <= self.torn
        for number, work in shipments:
            for place, attempt in places_of(work):
                self.on_sent(place, attempt)
                self.members[number].queue.append((place, attempt))
        told = group.acked + group.filtered + group.dead + group.lost.total()
        assert told + group.pending(self.sealed) + group.in_flight == self.sealed - group.start
        assert all(line.number(*line.place(n)) == n for n in (group.floor, group.cursor))

    def _bury(self) -> None:
        for letter in self.group.dead_letters:
            self.dead.add((letter.frame.epoch, letter.seq))
        self.group.dead_letters.clear()

    def on_sent(self, place: Place, attempt: int) -> None:
        assert attempt >= self.attempts.get(place, 1), "the disk knew that it had been tried"
        assert place not in self.safe, f"{place} was settled, and the disk knew"
        self.repeated += place in self.handled
        topic, key = self.published[place]
        assert topic in self.policy.patterns
        if self.policy.order == "key" and key is not None:
            for other, (what, its) in self.published.items():
                if its == key and other < place and what in self.policy.patterns:
                    done = self.handled | self.dead | self.lost
                    assert other in done, f"{place} before {other}"

    def fetch(self) -> None:
        shelf = self.group.shelf
        if not shelf.wanted:
            return
        parts = [part for first, stop in shelf.wanted for part in shelf.line.split(first, stop)]
        part = parts[0]
        with LogReader(self.log.folder) as reader:
            ranges = [(part.first, part.stop)]
            found, gone, _ = find_frames(reader, part.epoch, ranges, bytes_max=5000)
        lost = [
            (first + part.offset, stop + part.offset, reason)
            for reason, ranges in gone.items()
            for first, stop in ranges
        ]
        frames = [Frame(data) for data in found]
        self.fetched += len(frames)
        shelf.put([(f.first + part.offset, f.stop + part.offset, f.data) for f in frames], lost)

    def work(self) -> None:
        """A member says what became of an event; perhaps of one that it was to forget."""
        member = self.rng.choice(list(self.members.values()) or [SimMember(0)])
        if not member.queue:
            return
        place, attempt = member.queue.pop(0)
        number = self.group.shelf.line.number(*place)
        if number is None:
            return  # of an epoch that is done with
        if self.rng.random() < self.nack:
            self.group.nack(member.number, number, attempt, 0.0, "no", now=self.now)
            return
        self.handled.add(place)
        self.group.ack(member.number, [(number, number + 1, attempt)], now=self.now)

    def save(self) -> None:
        self._bury()  # under one lock with what made them, and so before this
        record = record_of(self.group)
        self.log.flush()  # as the background does: dead letters and events first
        self.store.save(record)
        self.attempts = {(epoch, seq): n for epoch, seq, n in record.attempts}
        settled = [(e, seq) for e, a, b in record.settled for seq in range(a, b)]
        before = [place for place in self.published if place < record.floor]
        self.safe |= {*settled, *before}
        self.safe &= set(self.published)

    def run(self, steps: int) -> None:
        actions = [self.publish, self.dispatch, self.fetch, self.work, self.save]
        weights = [6, 10, 10, 40, 2]
        actions += [self.join, self.leave, self.crash, self.log_flush]
        weights += [2, 1, 1, 3]
        for _ in range(steps):
            self.now += 0.01
            self.rng.choices(actions, weights)[0]()
        self.settle_all()

    def log_flush(self) -> None:
        self.log.flush()

    def settle_all(self) -> None:
        """Let the group finish; every event is handled, given up, or not for it."""
        self.nack = 0.0
        self.join()
        for _ in range(100_000):
            self.now += 0.01
            if self.group.floor == self.sealed:
                break
            self.dispatch()
            self.fetch()
            for _ in range(8):
                self.work()
        wanted = {p for p, (topic, _) in self.published.items() if topic in self.policy.patterns}
        assert wanted - self.handled - self.dead - self.lost == set()
        assert self.group.floor == self.sealed


def places_of(work: Work) -> list[tuple[Place, int]]:
    frame = Frame(work.data)
    places = range(work.lo, work.hi) if work.chosen is None else work.chosen
    attempts = work.attempts or [work.attempt] * len(places)
    pairs = zip(places, attempts, strict=True)
    return [((frame.epoch, frame.first + place), attempt) for place, attempt in pairs]
