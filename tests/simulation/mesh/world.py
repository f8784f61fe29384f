"""A mesh of whole peers in one simulated world: a publisher, readers, a work group, a recorder.

The publisher publishes while connections break, the network is cut and it is killed itself.  In
the end all is well again, and everybody must have got what they should have.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from random import Random
from typing import Any

from meshmsg import Event, MeshError, Multicast, Peer, Record, Stream, WaitTimeout
from meshmsg.testing import MemoryMesh
from tests.simulation.mesh.consumers import Member, Published, Reader
from tests.simulation.mesh.options import Options, draw

ADDRESS = "tcp://127.0.0.1:5000"
KEYS = ("a", "b", "c")
#: What is waited for in the end, in the time of the mesh.
SETTLES_S = 120.0


class MeshWorld:
    """One run."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.seed = seed
        self.options: Options = dataclasses.replace(draw(seed), **changes)
        self.counters: Counter[str] = Counter()
        self.trace: list[str] = []
        self.rng = Random(f"events {seed}")
        self.published: Published = {}  #: that `publish` has returned for
        self.kept: Published = {}  #: and that nothing may lose any more
        self.keys: dict[tuple[int, int], str] = {}
        start = "earliest" if self.options.durable else "live"
        count = self.options.subscribers
        self.readers = [Reader(f"reader{n}", ADDRESS, start) for n in range(count)]
        self.done: Published = {}
        self.last_of_key: dict[str, tuple[int, int]] = {}
        self.members = [
            Member(f"member{n}", ADDRESS, self.options.order, self.done)
            for n in range(self.options.members)
        ]
        self.number = 0
        self.publisher: Peer | None = None

    def run(self) -> None:
        """Raises if what must hold does not."""
        options = self.options
        self.mesh = MemoryMesh(
            self.seed,
            loss=options.loss,
            jitter=options.jitter_s,
            duplication=options.duplication,
        )
        self.mesh.platform.scheduler.trace = self.trace.append
        with self.mesh:
            try:
                self._play()
            except BaseException as error:
                error.add_note(f"seed {self.seed}: {options}")
                raise

    def _play(self) -> None:
        options, mesh = self.options, self.mesh
        self._open()
        recorder = None
        if options.recorder:
            recorder = Peer(
                "recorder", connect=ADDRESS, record=Record("q.**"), data_dir="data"
            ).open()
        tasks = [mesh.start(reader.run, on=reader.name) for reader in self.readers]
        for member in self.members:
            rng = Random(f"{member.name} {self.seed}")
            tasks.append(mesh.start(member.run, rng, self.on_first, on=member.name))
        mesh.wait_until(self._all_there, SETTLES_S)
        faults = self._faults()
        for step in range(options.events):
            self._publish()
            for fault in faults.get(step, ()):
                fault()
            if self.rng.random() < 0.3:
                mesh.sleep(self.rng.random() * 0.05)
        self._settle()
        for consumer in (*self.readers, *self.members):
            consumer.stopping = True
        for task in tasks:
            task.join(SETTLES_S)
            assert task.over or mesh.platform.scheduler.failures, f"{task.name} does not end"
        if recorder is not None:
            recorder.close()
        self._publisher().close()
        self._check()

    def _open(self) -> None:
        options = self.options
        stream = Stream(
            "q.**",
            transport=Multicast("239.1.1.1:9000") if options.multicast else None,
            **(
                {"durability": "log", "fsync": options.fsync, "segment_bytes": 65536}
                if options.durable
                else {}
            ),
        )
        data_dir = "data" if options.durable else None
        self.publisher = Peer("pub", streams=[stream], bind=ADDRESS, data_dir=data_dir).open()

    def _publisher(self) -> Peer:
        assert self.publisher is not None
        return self.publisher

    def _all_there(self) -> bool:
        ready = all(consumer.is_ready for consumer in (*self.readers, *self.members))
        if not ready:
            return False
        streams = self._publisher().stats()["streams"]["q.**"]
        groups = (
            sum(len(group["members"]) for group in streams["groups"]) if streams["groups"] else 0
        )
        there = len(streams["subscribers"]) >= len(self.readers) + self.options.recorder
        return there and groups >= len(self.members)

    def _publish(self) -> None:
        key = self.rng.choice(KEYS)
        try:
            position = self._publisher().publish("q.a", self.number, key=key, timeout=SETTLES_S)
        except MeshError:
            self.counters["refused"] += 1
            raise
        at = (position.epoch, position.seq)
        assert at not in self.published, f"{at} was given twice"
        self.published[at] = self.number
        self.keys[at] = key
        self.number += 1
        self.counters["published"] += 1

    # --- what goes wrong ---

    def _faults(self) -> dict[int, list[Any]]:
        options, plan = self.options, dict[int, list[Any]]()
        kinds = [
            (self._drop, options.drops),
            (self._cut, options.cuts),
            (self._kill, options.kills),
        ]
        for fault, count in kinds:
            for _ in range(count):
                plan.setdefault(self.rng.randrange(options.events), []).append(fault)
        return plan

    def _someone(self) -> str:
        return self.rng.choice([one.name for one in (*self.readers, *self.members)])

    def _drop(self) -> None:
        self.counters["dropped"] += self.mesh.drop_connections(self._someone())

    def _cut(self) -> None:
        self.counters["cuts"] += 1
        self.mesh.cut("pub", self._someone(), one_way=self.rng.random() < 0.5)
        when = self.mesh.now + self.rng.random() * 4
        self.mesh.platform.scheduler.at(when, self.mesh.heal)

    def _kill(self) -> None:
        options = self.options
        self.counters["kills"] += 1
        self.mesh.kill("pub", power=options.power, disk=options.disk)
        self.mesh.sleep(self.rng.random() * 3)
        self._open()

    # --- the end ---

    def _settle(self) -> None:
        """Make all well, and wait until everybody has what they should have."""
        mesh = self.mesh
        mesh.heal()
        for way in mesh.platform.network.ways():
            way.loss = way.jitter_s = 0.0
        mesh.sleep(20)  # whoever lost the connection is back
        self._publish()
        last = max(self.published)
        with contextlib.suppress(WaitTimeout):  # what is missing then, `_check` says
            mesh.wait_until(lambda: self._all_done(last), SETTLES_S)

    def _all_done(self, last: tuple[int, int]) -> bool:
        if self.mesh.platform.scheduler.failures:
            return True
        if not all(last in reader.data for reader in self.readers):
            return False
        return not self.members or self._wanted() <= set(self.done)

    def _wanted(self) -> set[tuple[int, int]]:
        """What nothing may have lost."""
        if self.options.keeps_all:
            return set(self.published)
        newest = max(self.published)[0]
        return {max(at for at in self.published if at[0] == newest)}

    def on_first(self, event: Event) -> None:
        """An event is done for the first time."""
        at = (event.position.epoch, event.position.seq)
        if self.options.order == "key" and event.key is not None:
            before = self.last_of_key.get(event.key, (0, 0))
            assert at > before, f"key {event.key}: {at} after {before}"
            self.last_of_key[event.key] = at

    def _check(self) -> None:
        for reader in self.readers:
            reader.check(self.published)
            missing = self._wanted() - set(reader.data)
            assert not missing, f"{reader.name} never got {sorted(missing)[:5]}: {reader.lost[:3]}"
            assert reader.errors == 0, f"{reader.name}: {reader.errors} errors"
            self.counters["delivered"] += len(reader.data)
            self.counters["lost"] += sum(loss.count for loss in reader.lost)
        if self.members:
            undone = self._wanted() - set(self.done)
            assert not undone, f"nobody has done {sorted(undone)[:5]}"
        self.counters["done"] += len(self.done)


def simulate(seed: int, **changes: Any) -> MeshWorld:
    """Run the world of a seed; raises if what must hold does not."""
    world = MeshWorld(seed, **changes)
    world.run()
    return world
