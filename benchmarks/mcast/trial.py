"""One measurement of one case over multicast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.case import ROUND_TRIP, THROUGHPUT
from benchmarks.mcast.case import BATCHES, DATAGRAMS, DDS, LCM, MODULES, ZMQ, Case
from benchmarks.mcast.space import free_port
from benchmarks.task import ECHO, PING, POOL_EVENTS, PUBLISH, RECEIVE, Task
from benchmarks.trial import Measurement, measured, places, run_tasks

#: Events for a good second of each way, to one subscriber.
COUNTS = {DATAGRAMS: 150_000, ZMQ: 800_000, DDS: 40_000, LCM: 120_000, BATCHES: 2_500_000}
COUNT = 800_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 5
    """Times that every case is measured."""
    scale: float = 1.0
    """Of the events of a full run, the part that is sent."""

    def count(self, case: Case) -> int:
        """Events of a case."""
        if case.kind == ROUND_TRIP:
            return self.warm_up(case) + round(3000 * math.sqrt(self.scale))
        if case.kind != THROUGHPUT:
            return self.warm_up(case) + round(case.rate * 2 * math.sqrt(self.scale))
        full = COUNTS.get(case.way, COUNT) * (0.4 if case.subscribers > 1 else 1.0)
        return max(1, round(full * self.scale / POOL_EVENTS)) * POOL_EVENTS

    def warm_up(self, case: Case) -> int:
        """Of them, those before the figures are taken."""
        return 0 if case.kind == THROUGHPUT else 500


QUICK = Effort(rounds=1, scale=0.2)


def tasks_of(case: Case, effort: Effort, *, sampled: bool = False) -> list[Task]:
    """The processes of a case, the one that sends first."""
    roles = [PING, ECHO] if case.kind == ROUND_TRIP else [PUBLISH, *[RECEIVE] * case.subscribers]
    port = free_port()
    return [
        Task(
            role,
            case.way,
            case.size_bytes,
            effort.count(case),
            effort.warm_up(case),
            case.subscribers,
            case.rate,
            case.batches,
            sampled,
            core,
            MODULES[case.way],
            port,
            case.loss,
            case.parity,
            case.sealed,
        )
        for role, core in zip(roles, places(case, len(roles)), strict=True)
    ]


def run_trial(case: Case, effort: Effort, number: int) -> Measurement:
    """Measure a case once; raises `CrewFailed`, `EventsMissing`."""
    return measured(case, number, run_tasks(tasks_of(case, effort)))
