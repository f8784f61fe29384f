"""Publishers, the members of their groups, and all that happens to them, from a seed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.simulation.group_member import SimMember
from tests.simulation.group_options import GroupOptions, topic_of
from tests.simulation.group_publisher import GroupPublisher
from tests.simulation.network import Clock

QUIET_AFTER_S = 600.0
Place = tuple[int, int]


class GroupWorld:
    """All of it, from a seed."""

    def __init__(self, seed: int, **chosen: Any) -> None:
        self.rng = random.Random(seed)
        self.options = replace(GroupOptions.draw(self.rng), **chosen)
        self.clock = Clock()
        self.counters: Counter[str] = Counter()
        self.naps = 5
        self.handled: dict[Place, Counter[int]] = defaultdict(Counter)
        self.suspected: dict[Place, set[int]] = defaultdict(set)
        self.returned: dict[Place, set[int]] = defaultdict(set)
        self.nacked: set[tuple[int, int, int]] = set()
        self.publishers = [GroupPublisher(self, n) for n in range(self.options.publishers)]
        self.members: list[SimMember] = []
        self.made = 0
        for group in range(self.options.groups):
            for _ in range(self.options.members):
                self.clock.at(self.rng.random() * 0.3, lambda group=group: self.add(group))
        span = 2.0
        for _ in range(self.options.kills):
            self.clock.at(self.rng.random() * span, self.kill_one)
        for _ in range(self.options.cuts):
            self.clock.at(self.rng.random() * span, self.cut_one)
        for _ in range(self.options.leaves):
            self.clock.at(self.rng.random() * span, self.leave_one)

    def add(self, group: int) -> None:
        self.made += 1
        self.members.append(SimMember(self, self.made, group))

    def _any(self) -> SimMember | None:
        alive = [member for member in self.members if member.alive]
        return self.rng.choice(alive) if alive else None

    def kill_one(self) -> None:
        member = self._any()
        if member is not None:
            member.kill()
            self.clock.at(self.clock.now + self.rng.random(), lambda: self.add(member.group))

    def leave_one(self) -> None:
        member = self._any()
        if member is not None:
            member.leave()
            self.clock.at(self.clock.now + self.rng.random(), lambda: self.add(member.group))

    def cut_one(self) -> None:
        """A partition: nothing comes or goes for a while, then what was under way arrives."""
        member = self._any()
        if member is not None:
            member.cut_until = self.clock.now + self.rng.choice((0.1, 0.5, 3.0))

    def suspect(self, publisher: int, group: int, seqs: Iterable[int]) -> None:
        """These may come a second time, and rightly so."""
        self.suspected[publisher, group].update(seqs)

    def on_handled(
        self, member: SimMember, publisher: GroupPublisher, seq: int, attempt: int
    ) -> None:
        place = (publisher.number, member.group)
        times = self.handled[place]
        if times[seq]:
            excused = seq in self.suspected[place] or (*place, seq) in self.nacked
            assert excused, f"event {seq} came again, though nobody was suspected"
            assert attempt > 1, "it came again and does not say so"
            self.counters["again"] += 1
        times[seq] += 1

    def run(self) -> GroupWorld:
        while not (all(p.is_quiet() for p in self.publishers) and self.clock.now > 3.0):
            before = int(self.clock.now)
            while int(self.clock.now) == before:
                self.clock.step()
            assert self.clock.now < QUIET_AFTER_S, f"not quiet after {QUIET_AFTER_S:g} s"
        for publisher in self.publishers:
            for index, group in enumerate(publisher.groups):
                self.check_end(publisher, index)
                self.counters["acked"] += group.acked
                self.counters["dead"] += group.dead
                self.counters["lost"] += group.lost.total()
                self.counters["redelivered"] += group.redelivered
                self.counters["timed_out"] += group.timed_out
        return self

    def check_end(self, publisher: GroupPublisher, index: int) -> None:
        group = publisher.groups[index]
        assert not group.in_flight
        assert not group.pending(publisher.sender.next)
        assert not group._trouble
        assert not group._keys
        assert not group._keys._lines
        times = self.handled[publisher.number, index]
        wanted = [s for s in range(publisher.sender.next) if topic_of(s) == "j.work"]
        assert group.filtered + len(wanted) == publisher.sender.next or group.lost
        never = [seq for seq in wanted if not times[seq]]
        # At least once: who was never handled is dead (its members died with it) or lost.
        unhandled = set(never) - set(publisher.dead[index])
        assert len(unhandled) <= group.lost.total(), "an event was forgotten"
        assert len(publisher.dead[index]) == len(set(publisher.dead[index])) == group.dead


def simulate_groups(seed: int, **chosen: Any) -> GroupWorld:
    """One world; a failure names the seed that brings it back."""
    world = GroupWorld(seed, **chosen)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"seed {seed}: {world.options}")
        raise
