"""A durable work group whose publisher is killed at any moment while its members live on.

The cores of both sides and the real log writer, in one thread under a seed.  Everything that lies
between two sides is a step of its own, and a kill may fall between any two: an event is appended,
dealt out, on its way, received, given to the application, done, said, heard, saved, confirmed.

What an application was given must not be given to any again, unless it was refused, or whoever had
it has died, left, or was too late.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from meshmsg._groups.group_messages import on_line
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.groups.claims import WorkClaims
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.recall import Failure
from meshmsg.recovery.groups.resume import line_of, record_of, resume
from meshmsg.recovery.groups.store import GroupStore
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer
from tests.simulation.resume_world import SETTINGS, STREAM, Place, places_of

Held = tuple[Place, int]


class Nack(NamedTuple):
    seq: int
    attempt: int


class Settled(NamedTuple):
    """One message of a member: of each epoch, what is done and what was refused."""

    number: int
    epoch: int
    acks: list[tuple[int, int, int]]
    nacks: list[Nack]


@dataclass
class Worker:
    """A member that lives on, with an application that takes its time."""

    number: int
    ticket: int = 0
    joined: bool = False
    late: bool = False  #: others have got its work
    said: int = 0
    unopened: list[Held] = field(default_factory=list)
    in_hand: list[Held] = field(default_factory=list)
    unsaid: list[Held] = field(default_factory=list)  #: acknowledged by the application
    claims: defaultdict[int, WorkClaims] = field(default_factory=lambda: defaultdict(WorkClaims))
    words: deque[Settled] = field(default_factory=deque)  #: on their way to the publisher
    work: deque[tuple[int, list[Held]]] = field(default_factory=deque)  #: to it, by ticket


class RecallWorld:
    """One run."""

    def __init__(self, seed: int, *, deaths: bool = True) -> None:
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.files = FaultyFiles(Random(seed))
        self.policy = GroupPolicy(rng.choice(["none", "key"]), 1000, ("t", "u")[: 1 + seed % 2])
        self.buffer_bytes = rng.choice([2_000, 1_000_000])
        self.prefetch = rng.choice([1, 4, 40])
        self.nack = rng.choice([0.0, 0.0, 0.05])
        self.deaths = deaths and rng.random() < 0.5
        self.published: dict[Place, tuple[str, str | None]] = {}
        self.given: dict[Place, int] = {}  #: to whose application
        self.excused: set[Place] = set()
        self.handled: set[Place] = set()
        self.safe: set[Place] = set()  #: settled, and the disk knows
        self.workers: dict[int, Worker] = {}
        self.numbers = self.epoch = 0
        self.repeated = self.kills = self.recalled = 0
        self._start()

    # --- lives of the publisher ---

    def _start(self) -> None:
        self.log = LogWriter(
            "data", STREAM, settings=SETTINGS, files=self.files, background=False, clock=lambda: 1
        )
        self.log.open()
        self.epoch = self.log.begin(self.epoch + 1)
        self.sealed = 0
        self.buffer = RetransmitBuffer(self.buffer_bytes)
        self.store = GroupStore(self.log.folder, STREAM)
        records = self.store.load()
        line = Line(self.epoch)
        if records:
            with LogReader(self.log.folder) as reader:
                line = line_of(records[0], reader.journal.epochs, self.epoch, 0)
        shelf = Shelf(self.buffer, line, durable=True)
        self.group = WorkGroup("g", self.buffer, line.start, self.policy, shelf=shelf)
        self.group.limit = line.start
        self.names: set[int] = set()
        self.tickets: dict[int, int] = {}
        self.entering: set[int] = set()
        self.heard: dict[int, int] = {}
        self.kept: list[dict[int, int]] = []  #: saved, and yet to be told
        if records:
            resume(self.group, records[0])
            self.group.limit = self.group.dealt  # the disk has it
            self.names = set(records[0].members)
        self.awaited = set(self.names)
        self.group.recalling = bool(self.awaited)
        if not records:
            self.save()

    def kill(self) -> None:
        self.kills += 1
        self.recalled += self.group.recalled
        self.files = self.files.survivor(power=False)
        for worker in self.workers.values():
            self._break(worker)
        self._start()

    def _break(self, worker: Worker) -> None:
        """The connection is gone, with what was on its way to the publisher; the rest may come."""
        worker.joined = False
        worker.words.clear()

    # --- the publisher ---

    def publish(self) -> None:
        rng, first = self.rng, self.sealed
        count = rng.choice([1, 1, 5, 30])
        topics = [rng.choice(["t", "t", "u"]) for _ in range(count)]
        keys = {n: f"k{rng.randrange(4)}" for n in range(count) if rng.random() < 0.5}
        wire_id = self.log._about.wire_id
        frame = encode_frame(wire_id, self.epoch, first, topics, [bytes(50)] * count, 0, keys=keys)
        self.log.write(frame, first, first + count)
        self.sealed += count
        for n in range(count):
            self.published[self.epoch, first + n] = (topics[n], keys.get(n))
        self.buffer.append(first, self.sealed, frame)

    def dispatch(self) -> None:
        group = self.group
        for number, work in group.dispatch(self.sealed, now=self.now):
            worker = self.workers.get(number)
            if worker is not None:
                worker.work.append((self.tickets[number], places_of(work)))
        assert not group.losses
        told = group.acked + group.filtered + group.dead
        assert told + group.pending(self.sealed) + group.in_flight == self.sealed - group.start

    def fetch(self) -> None:
        shelf = self.group.shelf
        if not shelf.wanted:
            return
        parts = [part for first, stop in shelf.wanted for part in shelf.line.split(first, stop)]
        part = self.rng.choice(parts)
        with LogReader(self.log.folder) as reader:
            found, _, _ = find_frames(reader, part.epoch, [(part.first, part.stop)], bytes_max=5000)
        frames = [Frame(data) for data in found]
        shelf.put([(f.first + part.offset, f.stop + part.offset, f.data) for f in frames], [])

    def save(self) -> None:
        mark = self.group.mark()
        record = record_of(self.group, self.names, mark)
        self.group.limit = mark
        heard, self.heard = self.heard, {}
        self.store.save(record)
        self.kept.append(heard)
        settled = {(e, seq) for e, a, b in record.settled for seq in range(a, b)}
        self.safe |= settled | {place for place in self.published if place < record.floor}
        for number in self.entering & self.names:
            self.group.join(number, "m", self.prefetch, 30.0, now=self.now)
        self.entering.clear()

    def confirm(self) -> None:
        """Tell the members what is kept."""
        if self.kept:
            for number, said in self.kept.pop(0).items():
                if number in self.workers:
                    for claims in self.workers[number].claims.values():
                        claims.confirm(said)

    def give_up(self) -> None:
        """Whoever is not back by now is taken for dead."""
        if self.awaited and self.deaths:
            for number in self.awaited:
                self._excuse(number)
                if number in self.workers:
                    self.workers[number].late = True
            self.names -= self.awaited
            self.group.doubt()
            self._all_back()

    def _all_back(self) -> None:
        self.awaited.clear()
        self.group.recalling = False

    def _excuse(self, number: int) -> None:
        self.excused |= {p for p, who in self.given.items() if who == number} - self.safe

    # --- between the two ---

    def any(self) -> Worker | None:
        return self.rng.choice(list(self.workers.values())) if self.workers else None

    def hear(self) -> None:
        """The publisher hears of a member."""
        worker = self.any()
        if worker is None or not worker.words or not worker.joined:
            return
        number, epoch, acks, nacks = worker.words.popleft()
        line, sub = self.group.shelf.line, worker.number
        assert line.offset(epoch) is not None
        for nack in nacks:
            at = line.number(epoch, nack.seq)
            assert at is not None
            self.group.nack(sub, at, nack.attempt, 0.0, "no", now=self.now)
        stale = self.group.ack(sub, on_line(line, epoch, acks), now=self.now)
        assert not stale or self.deaths, "what a member has is its own"
        self.heard[sub] = number

    def receive(self) -> None:
        worker = self.any()
        if worker is None or not worker.work:
            return
        ticket, held = worker.work.popleft()
        if ticket == worker.ticket and worker.joined:
            worker.unopened += held
            for (epoch, seq), attempt in held:
                worker.claims[epoch].take([(seq, seq + 1, attempt)])

    def come_back(self) -> None:
        """A member joins, or joins again: it says what it has done and has in hand."""
        away = [worker for worker in self.workers.values() if not worker.joined]
        if not away:
            return
        worker = self.rng.choice(away)
        worker.ticket += 1
        worker.joined, worker.late = True, False
        for (epoch, seq), attempt in worker.unopened:
            worker.claims[epoch].let_go([(seq, seq + 1, attempt)])
        worker.unopened.clear()
        self._say(worker)
        worker.words.clear()
        sub, line = worker.number, self.group.shelf.line
        self.group.detach(sub, now=self.now)
        self.group.join(sub, "m", self.prefetch, 30.0, now=self.now)
        self.group.pause(sub)
        self.tickets[sub] = worker.ticket
        done_by_epoch: list[tuple[int, int, int]] = []
        held_by_epoch: list[tuple[int, int, int]] = []
        failed_by_epoch: list[Failure] = []
        for epoch, claims in worker.claims.items():
            if line.offset(epoch) is None:
                continue
            failed = [
                Failure(line.number(epoch, n.seq) or 0, n.attempt, 0.0, "no")
                for n in claims.failed()
            ]
            done = on_line(line, epoch, claims.done())
            held = on_line(line, epoch, claims.held())
            done_by_epoch += done
            held_by_epoch += held
            failed_by_epoch += failed
        self.group.recall(
            sub,
            done_by_epoch,
            held_by_epoch,
            failed_by_epoch,
            awaited=sub in self.awaited,
            most=self.prefetch,
            sealed=self.sealed,
            now=self.now,
        )
        self.heard[sub] = worker.said
        self.names.add(sub)
        self.entering.add(sub)
        self.awaited.discard(sub)
        if not self.awaited:
            self.group.recalling = False

    def lose_connection(self) -> None:
        worker = self.any()
        if worker is not None and worker.joined:
            self._break(worker)

    def suspect(self) -> None:
        """A member is taken for dead, though it lives: others get its work."""
        worker = self.any()
        if worker is not None and worker.joined and self.deaths:
            worker.joined, worker.late = False, True
            worker.words.clear()
            self._excuse(worker.number)
            self.group.leave(worker.number, "silent", now=self.now)
            self.names.discard(worker.number)
            self.entering.discard(worker.number)

    def lie(self) -> None:
        """A stranger joins, and says that it has done, has in hand and has refused anything."""
        stranger, group = 1_000_000 + self.rng.randrange(3), self.group
        first = group.start + self.rng.randrange(max(1, self.sealed - group.start))
        said = [(first, self.rng.choice([first + 5, 1 << 62]), self.rng.choice([1, 2, 7]))]
        done, held, failed = self.rng.choice([(said, [], []), ([], said, []), ([], [], said)])
        acked = group.acked
        group.join(stranger, "liar", 100, 30.0, now=self.now)
        group.pause(stranger)
        failures = [Failure(a, n, 0.0, "no") for a, _, n in failed]
        group.recall(
            stranger,
            done,
            held,
            failures,
            awaited=stranger in self.awaited,
            most=100,
            sealed=self.sealed,
            now=self.now,
        )
        group.ack(stranger, said, now=self.now)
        group.give_back(stranger, said, now=self.now)
        assert (group.acked, group.members[stranger].in_flight) == (acked, 0)
        group.leave(stranger, "gone", now=self.now)

    # --- members ---

    def join(self) -> None:
        if len(self.workers) < 3:
            self.numbers += 1
            self.workers[self.numbers] = Worker(self.numbers)

    def open(self) -> None:
        """An application takes an event."""
        worker = self.any()
        if worker is None or not worker.unopened:
            return
        held = worker.unopened.pop(0)
        place = held[0]
        if place in self.given and place not in self.excused and not worker.late:
            raise AssertionError(f"{place} was given to {self.given[place]}, and is again")
        self.repeated += place in self.given
        self.excused.discard(place)
        if worker.late:
            self.excused.add(place)
        self._check_key(place)
        self.given[place] = worker.number
        worker.in_hand.append(held)

    def _check_key(self, place: Place) -> None:
        topic, key = self.published[place]
        assert topic in self.policy.patterns
        if self.policy.order == "key" and key is not None and place not in self.given:
            for other, (what, its) in self.published.items():
                if its == key and other < place and what in self.policy.patterns:
                    done = other in self.handled or other in self.excused
                    assert done, f"{place} before {other}"

    def finish(self) -> None:
        """An application is done with an event, in any order."""
        worker = self.any()
        if worker is None or not worker.in_hand:
            return
        held = worker.in_hand.pop(self.rng.randrange(len(worker.in_hand)))
        (epoch, seq), attempt = held
        if self.rng.random() < self.nack:
            self.excused.add(held[0])
            self._say(worker)
            nack = Nack(seq, attempt)
            self._post(worker, Settled(worker.said + 1, epoch, [], [nack]))
        else:
            self.handled.add(held[0])
            worker.unsaid.append(held)

    def say(self) -> None:
        worker = self.any()
        if worker is not None and worker.joined:
            self._say(worker)

    def _say(self, worker: Worker) -> None:
        for (epoch, seq), attempt in worker.unsaid:
            self._post(worker, Settled(worker.said + 1, epoch, [(seq, seq + 1, attempt)], []))
        worker.unsaid.clear()

    def _post(self, worker: Worker, words: Settled) -> None:
        worker.said = words.number
        worker.claims[words.epoch].say(words.number, words.acks, words.nacks)
        if worker.joined:
            worker.words.append(words)

    def die(self) -> None:
        """A member is gone, in order or not; the publisher sees it, unless it is away itself."""
        worker = self.any()
        if worker is None or not self.deaths:
            return
        del self.workers[worker.number]
        self._excuse(worker.number)
        if worker.number in self.group.members:
            self.group.leave(worker.number, "died", now=self.now)
            self.names.discard(worker.number)
            self.entering.discard(worker.number)

    # --- a run ---

    def run(self, steps: int) -> None:
        actions = [self.publish, self.dispatch, self.fetch, self.receive, self.open, self.finish]
        weights = [4.0, 10, 10, 20, 30, 25]
        actions += [self.say, self.hear, self.save, self.confirm, self.come_back, self.join]
        weights += [10, 15, 4, 4, 6, 2]
        actions += [self.kill, self.lose_connection, self.die, self.give_up, self.suspect]
        actions += [self.lie]
        weights += [1, 1, 1, 1, 0.5, 1]
        for _ in range(steps):
            self.now += 0.001
            self.rng.choices(actions, weights)[0]()
        self.finish_all()

    def finish_all(self) -> None:
        """No more kills: all is done in the end."""
        self.nack = 0.0
        self.join()
        self.deaths = True
        for _ in range(20_000):
            self.now += 0.001
            if self.group.floor == self.sealed:
                break
            self.come_back()
            if all(worker.joined for worker in self.workers.values()):
                self.give_up()
            for step in (self.dispatch, self.fetch, self.save, self.confirm):
                step()
            for step in (self.receive, self.open, self.finish, self.say, self.hear):
                for _ in range(4):
                    step()
        wanted = {p for p, (topic, _) in self.published.items() if topic in self.policy.patterns}
        assert wanted == self.handled
        assert self.group.floor == self.sealed
        self.recalled += self.group.recalled
