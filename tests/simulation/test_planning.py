"""Peers that share a stream come and go, record, lose and forget; a query reads all of it once.

A seed makes a world of some peers.  The reader is restarted, batches are run again, limits change.
In the end every peer answers, and each event that one of them has was read once or reported lost.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field

import pytest

from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source.peer_source import merged
from meshmsg.spark_sink.source.positions import (
    EPOCHS_KEPT,
    Epoch,
    Positions,
    StreamState,
    Survey,
    by_stream,
    check_offset,
)

SEEDS = int(os.environ.get("SEEDS", "300"))
Key = tuple[str, int, int]  # stream, epoch and number


@dataclass
class Kept:
    """One epoch in a log."""

    origin: int
    first: int
    stop: int
    lost: set[int] = field(default_factory=set)

    def has(self, seq: int) -> bool:
        return self.first <= seq < self.stop and seq not in self.lost


class Mate:
    """A peer with logs: epochs come in order, and the oldest events go first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.logs: dict[str, dict[int, Kept]] = {}

    def record(self, stream: str, epoch: int, seq: int, *, lost: bool) -> None:
        log = self.logs.setdefault(stream, {})
        kept = log.get(epoch)
        if kept is None:
            assert epoch > max(log, default=0)
            kept = log[epoch] = Kept(seq, seq, seq)
        kept.lost |= set(range(kept.stop, seq))  # what passed while it was not connected
        if lost:
            kept.lost.add(seq)
        kept.stop = seq + 1

    def expire(self, stream: str, count: int) -> None:
        for kept in self.logs.get(stream, {}).values():
            gone = min(count, kept.stop - kept.first)
            kept.first += gone
            count -= gone

    def epochs(self, stream: str) -> list[Epoch]:
        log = self.logs.get(stream, {})
        last = max(log, default=0)
        return [Epoch(e, k.origin, k.first, k.stop, e != last) for e, k in sorted(log.items())]

    def has(self, key: Key) -> bool:
        kept = self.logs.get(key[0], {}).get(key[1])
        return kept is not None and kept.has(key[2])


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mates = [Mate(f"peer{n}") for n in range(self.random.randint(2, 4))]
        self.streams = ["shop/a.**", "shop/b.**"][: self.random.randint(1, 2)]
        self.at = dict.fromkeys(self.streams, (0, 0))  # epoch and number that come next
        self.clock = 0
        self.offsets: list[str] = []
        self.initial: Positions | None = None
        self.rows: list[Key] = []
        self.lost: list[Key] = []
        self.due: set[Key] = set()  # recorded since the query knows the stream
        self.known: set[str] = set()
        self.mends = self.random.random()  # how often a peer comes back while a task waits

    # --- what happens ---

    def publish(self) -> None:
        stream = self.random.choice(self.streams)
        epoch, seq = self.at[stream]
        if not epoch or self.random.random() < 0.3:
            self.clock += self.random.randint(1, 5)
            epoch, seq = self.clock * 1000, 0
        seen = [m for m in self.mates if self.random.random() < 0.6]
        for _ in range(self.random.randint(1, 12)):
            for mate in seen:
                mate.record(stream, epoch, seq, lost=self.random.random() < 0.1)
            if stream in self.known and any(m.has((stream, epoch, seq)) for m in seen):
                self.due.add((stream, epoch, seq))
            seq += 1
        self.at[stream] = (epoch, seq)

    def step(self) -> None:
        kind = self.random.choices(
            ("publish", "up", "expire", "trigger", "again"), (6, 4, 1, 6, 1)
        )[0]
        if kind == "publish":
            self.publish()
        elif kind == "up":
            mate = self.random.choice(self.mates)
            mate.up = not mate.up
        elif kind == "expire":
            mate = self.random.choice(self.mates)
            mate.expire(self.random.choice(self.streams), self.random.randint(1, 20))
        elif kind == "trigger":
            self.trigger(self.random.choice((None, None, 1, 3, 10, 50)))
        elif self.offsets:
            self.check_again()

    # --- the query ---

    def survey(self) -> Survey:
        found = Survey(spread=True)
        for mate in self.mates:
            if not mate.up:
                found.problems[mate.name] = "away"
                continue
            for stream in mate.logs:
                state = found.streams.setdefault(stream, StreamState(stream, []))
                state.epochs = merged(state.epochs, mate.epochs(stream))
        return found

    def start(self) -> Positions:
        if self.offsets:
            return check_offset(json.loads(self.offsets[-1]))
        if self.initial is None:
            self.initial = planning.earliest(self.survey())
        return self.initial

    def trigger(self, limit: int | None) -> bool:
        start, survey = self.start(), self.survey()
        self.known |= survey.streams.keys()
        end = planning.next_offset(start, survey, survey, limit)
        if end == start:
            return False
        assert list(end) == sorted(end)
        wanted = events(start, end, survey)
        assert limit is None or len(wanted) <= limit
        self.offsets.append(json.dumps(end))
        for key in wanted:
            self.read(key, survey)
        return True

    def read(self, key: Key, survey: Survey) -> None:
        """What a task does: it asks all who answer, and waits a while for the others."""
        answering = [m for m in self.mates if m.up]
        if any(mate.has(key) for mate in answering):
            self.rows.append(key)
            return
        away = [m for m in self.mates if not m.up and m.has(key)]
        if away and self.random.random() < self.mends:
            away[0].up = True
            self.rows.append(key)
            return
        if away:  # only where somebody who answers has events before and behind it
            epoch = next(e for e in survey.streams[key[0]].epochs if e.epoch == key[1])
            place = planning.reached(json.loads(self.offsets[-1]))[key[0]]
            full = len(place.epochs[key[1]].owed) >= planning.OWED_MAX
            assert epoch.first <= key[2] < epoch.stop or full, key
        self.lost.append(key)

    def check_again(self) -> None:
        """A batch that is run again has the same rows, whoever answers now."""
        before = json.loads(self.offsets[-2]) if len(self.offsets) > 1 else self.initial
        end = json.loads(self.offsets[-1])
        again = events(before, end, self.survey())
        assert again == events(before, end, Survey(spread=True))
        assert set(again) <= {*self.rows, *self.lost}

    def finish(self) -> None:
        for mate in self.mates:
            mate.up = True
        for _ in range(10_000):
            if not self.trigger(self.random.choice((None, 7))):
                break

    def check(self) -> None:
        got = [*self.rows, *self.lost]
        assert len(set(got)) == len(got), "something came twice"
        there = {
            (stream, epoch, seq)
            for mate in self.mates
            for stream, log in mate.logs.items()
            for epoch, kept in log.items()
            for seq in range(kept.first, kept.stop)
            if kept.has(seq)
        }
        assert not there - set(got), "somebody has it, and it was never read"
        assert not self.due - set(got), "somebody had it, and nothing was said"


def events(start: Positions, end: Positions, survey: Survey) -> list[Key]:
    ranges = planning.backlog(start, end, survey)
    return [(r.stream, r.epoch, seq) for r in ranges for seq in range(r.first, r.stop)]


def run(seed: int, steps: int = 120) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.finish()
    world.check()
    return world


@pytest.mark.parametrize("part", range(10))
def test_every_event_is_read_once_or_reported_lost(part: int) -> None:
    for seed in range(part, SEEDS, 10):
        try:
            run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", [180, 2542, 13571, 15510])
def test_worlds_that_once_went_wrong(seed: int) -> None:
    """Run again with fewer rows; forgot what was owed; took what came since for what had gone."""
    run(seed)


def test_so_it_is_where_an_offset_may_name_few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "EPOCHS_MAX", EPOCHS_KEPT + 4)
    for seed in range(100):
        try:
            world = run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for offset in world.offsets:
            named = by_stream(json.loads(offset)).values()
            assert max(len(epochs) for epochs in named) <= EPOCHS_KEPT + 4, seed


def test_publisher_that_restarts_often_leaves_a_small_offset() -> None:
    world = World(1)
    world.streams = world.streams[:1]
    world.mates = world.mates[:2]
    for turn in range(400):
        world.clock += 1
        world.at[world.streams[0]] = (world.clock * 1000, 0)
        for mate in world.mates[turn % 2 :]:
            mate.record(world.streams[0], world.clock * 1000, 0, lost=False)
        world.trigger(None)
        assert len(world.offsets[-1]) < 1000
    assert len(world.rows) == 400


def test_stream_waits_where_a_peer_is_away_through_too_many_restarts() -> None:
    world = World(1)
    stream = world.streams[0]
    world.mates[1].up = False
    restarts = planning.EPOCHS_MAX + 50
    for n in range(1, restarts + 1):
        world.mates[0].record(stream, 2 * n, 0, lost=False)
        world.mates[1].record(stream, 2 * n + 1, 0, lost=False)
        if n % 10 == 0:
            world.trigger(None)
    assert planning.full_streams(world.start()) == [stream]
    assert len(world.rows) == planning.EPOCHS_MAX
    world.finish()
    world.check()
    assert len(world.rows) == 2 * restarts
    assert planning.full_streams(world.start()) == []
