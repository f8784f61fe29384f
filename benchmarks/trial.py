"""One measurement of one case: `run_trial` starts the processes and gives a `Measurement`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from benchmarks.case import IDLE_RATE, LOSS_RATE, ONE_WAY, RATES_OF, ROUND_TRIP, WIRE, Case
from benchmarks.crew import Crew
from benchmarks.machine import cores, kept_awake
from benchmarks.space import free_port, losing
from benchmarks.task import (
    ECHO,
    GO,
    PING,
    POOL_EVENTS,
    PUBLISH,
    RECEIVE,
    REPORT,
    Report,
    Task,
)

START_S = 120.0
MEASURE_S = 120.0
#: What a second is worth where payloads are large.
BYTES_A_SECOND = 600e6
#: Of the events, those that are sent where packets are dropped: some need time to mend it.
LOSS_SCALE = 0.5


class EventsMissing(Exception):
    """Not everything arrived, or the books do not add up."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 5
    """Times that every case is measured."""
    scale: float = 1.0
    """Of the events of a full run, the part that is sent."""

    def count(self, case: Case) -> int:
        """Events of a case, for about a second; to one subscriber more than a stream keeps."""
        if case.kind == ROUND_TRIP:
            trips = 10_000 if case.awake else 3000
            return self.warm_up(case) + round(trips * math.sqrt(self.scale))
        if case.kind == ONE_WAY:
            seconds = 1.5 if case.rate == IDLE_RATE else 1.0
            if case.awake and case.rate < LOSS_RATE:
                seconds = 3.0  # fewer events have no 99th percentile
            return self.warm_up(case) + round(case.rate * seconds * math.sqrt(self.scale))
        full = min(case.by.count, BYTES_A_SECOND / case.size_bytes)
        if case.subscribers > 1:
            full *= max(0.1, 1.6 / case.subscribers)
        if case.loss and case.loss_at == WIRE:
            full *= LOSS_SCALE
        if case.streams > 1 or case.topics > 1:
            full *= 0.5
        return max(1, round(full * self.scale / POOL_EVENTS)) * POOL_EVENTS

    def warm_up(self, case: Case) -> int:
        """Of them, those before the figures are taken.

        Awake, one way, what comes in the first second: a peer that starts looks for others.
        """
        if case.kind == ONE_WAY and case.awake:
            return case.rate
        return {ROUND_TRIP: 500, ONE_WAY: 20}.get(case.kind, 0)


QUICK = Effort(rounds=3, scale=0.4)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one trial found."""

    case: Case
    round: int
    events: int
    """Received, by all subscribers together."""
    rate: float = 0.0
    """Events a second, received by all subscribers together."""
    cpu_us: float = 0.0
    """User and system time of all processes for each event received."""
    frame_events: float = 0.0
    """Events in a frame, on average; 0 where there are no frames."""
    times_us: list[float] = field(default_factory=list)
    """Latencies, sorted."""
    lost: float = 0.0
    """Of the events, the part that was lost, where the way may."""
    notes: list[dict[str, int]] = field(default_factory=list)
    """What each receiver has to add."""

    def percentile_us(self, percent: float) -> float:
        """The latency that this part of the events did not exceed."""
        if not self.times_us:
            return 0.0
        at = min(len(self.times_us) - 1, int(len(self.times_us) * percent / 100))
        return self.times_us[at]


def measured(case: Case, number: int, reports: Sequence[Report]) -> Measurement:
    """What the reports of a trial come to; raises `EventsMissing`."""
    sender, *receivers = reports
    problems = [problem for report in (sender, *receivers) for problem in report.problems]
    if problems:
        raise EventsMissing("; ".join(problems))
    if case.kind == ROUND_TRIP:
        return _timed(case, number, sender, sender.times_ns)
    times_ns = [time_ns for report in receivers for time_ns in report.times_ns]
    if case.kind == ONE_WAY:
        return _timed(case, number, sender, times_ns, _lost(receivers))
    # From the first event that any of them took to the last: one clock for all processes.
    began_ns = min(report.began_ns for report in receivers)
    ended_ns = max(report.ended_ns for report in receivers)
    timed = sum((report.timed or report.events) - report.first for report in receivers)
    events = sum(report.events for report in receivers)
    cpu_s = sum(report.cpu_s for report in (sender, *receivers))
    return Measurement(
        case,
        number,
        events,
        rate=timed * 1e9 / (ended_ns - began_ns) if ended_ns > began_ns else 0.0,
        cpu_us=cpu_s * 1e6 / events,
        frame_events=_fill(sender),
        lost=_lost(receivers),
        notes=[report.notes for report in receivers],
    )


def _timed(
    case: Case, number: int, sender: Report, times_ns: list[int], lost: float = 0.0
) -> Measurement:
    times_us = sorted(time_ns / 1e3 for time_ns in times_ns)
    fill = _fill(sender)
    return Measurement(case, number, sender.events, frame_events=fill, times_us=times_us, lost=lost)


def _lost(receivers: Sequence[Report]) -> float:
    lost = sum(report.lost for report in receivers)
    return lost / max(1, lost + sum(report.events for report in receivers))


def _fill(sender: Report) -> float:
    return sender.events / sender.frames if sender.frames else 0.0


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
            port,
            0.0 if case.loss_at == WIRE else case.loss,
            case.parity,
            case.streams,
            case.topics,
            case.sealed,
            case.take,
        )
        for role, core in zip(roles, places(case, len(roles)), strict=True)
    ]


def places(case: Case, count: int) -> list[int | None]:
    """The processor for each process; any where throughput is measured.

    Waking a process on another processor takes longer than all that ZeroMQ does.  Where chance
    puts both on one, a round trip of raw pyzmq takes 70 us instead of 200: latency is measured
    with each of the two on its own, so that it is not chance that decides.
    """
    pinned = case.kind not in RATES_OF and hasattr(os, "sched_setaffinity")
    free = cores()
    return list(free[:count]) if pinned and len(free) >= count else [None] * count


def run_trial(case: Case, effort: Effort, number: int) -> Measurement:
    """Measure a case once; raises `CrewFailed`, `EventsMissing`, `Missing`."""
    wire = losing(case.loss) if case.loss and case.loss_at == WIRE else nullcontext()
    with kept_awake() if case.awake else nullcontext():
        return measured(case, number, run_tasks(tasks_of(case, effort), wire))


def run_tasks(
    tasks: Sequence[Task], wire: AbstractContextManager[object] | None = None
) -> list[Report]:
    """Have processes do these; nobody starts before all are connected and ready."""
    with Crew(tasks) as crew:
        everyone = crew.workers
        sender, receivers = everyone[:1], everyone[1:]
        addresses = crew.hear(everyone, START_S)
        crew.tell(receivers, addresses[:1])
        crew.tell(sender, addresses[1:])
        crew.hear(everyone, START_S)
        with wire or nullcontext():
            crew.tell(sender, GO)
            reports: list[Report] = crew.hear(receivers, MEASURE_S)
            crew.tell(sender, REPORT)
        reports[:0] = crew.hear(sender, START_S)
        crew.tell(everyone, "end")
        return reports
