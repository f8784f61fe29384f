"""`Results`: all measurements of a run, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.case import (
    ASYNC,
    ASYNC_BATCHES,
    RAW,
    ROUND_TRIP,
    SYNC,
    SYNC_BATCHES,
    THROUGHPUT,
    Case,
    all_cases,
)
from benchmarks.trial import Measurement

Measure = Callable[[Measurement], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few values, the smallest and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """`None` of no values."""
        found = list(values)
        return cls(median(found), min(found), max(found)) if found else None


class Results:
    """Measurements by case and round."""

    def __init__(self, order: Sequence[Case] = ()) -> None:
        self._order = order or all_cases()
        self._found: dict[Case, dict[int, Measurement]] = {}

    def add(self, measurement: Measurement) -> None:
        """Take one in."""
        self._found.setdefault(measurement.case, {})[measurement.round] = measurement

    def cases(self, kind: str = "") -> list[Case]:
        """The cases that were measured, of one kind or all."""
        return [case for case in self._order if case in self._found and kind in ("", case.kind)]

    def of(self, case: Case) -> list[Measurement]:
        """All measurements of a case, by round."""
        rounds = self._found.get(case, {})
        return [rounds[number] for number in sorted(rounds)]

    def spread(self, case: Case, measure: Measure) -> Spread | None:
        """A figure of a case over the rounds."""
        return Spread.of(map(measure, self.of(case)))

    def ratio(self, case: Case, base: Case, measure: Measure) -> Spread | None:
        """A figure of a case over that of another: divided round by round, then looked at.

        The machine is not the same from one minute to the next, so a case is compared with what
        the other one reached at about that time and not with its median.
        """
        ours, theirs = self._found.get(case, {}), self._found.get(base, {})
        pairs = [(measure(ours[n]), measure(theirs[n])) for n in sorted(ours.keys() & theirs)]
        return Spread.of(mine / other for mine, other in pairs if other > 0)


def rate(measurement: Measurement) -> float:
    """Events a second."""
    return measurement.rate


def cpu_us(measurement: Measurement) -> float:
    """Processor time for an event."""
    return measurement.cpu_us


def frame_events(measurement: Measurement) -> float:
    """Events in a frame."""
    return measurement.frame_events


def lost(measurement: Measurement) -> float:
    """The part of the events that was lost."""
    return measurement.lost


def percentile(percent: float) -> Measure:
    """A percentile of the latencies."""
    return lambda measurement: measurement.percentile_us(percent)


@dataclass(frozen=True, slots=True)
class Target:
    """What a case has to reach, as a ratio to another one."""

    text: str
    case: Case
    base: Case
    measure: Measure
    bound: float
    at_most: bool = False

    @property
    def wanted(self) -> str:
        """The bound, for people."""
        return f"{'at most' if self.at_most else 'at least'} {self.bound:g}x"

    def met(self, reached: float) -> bool:
        """Whether this is good enough."""
        return reached <= self.bound if self.at_most else reached >= self.bound


def _at_64(way: str) -> Case:
    return Case(THROUGHPUT, way, 64, 1)


TARGETS = (
    Target("publish / for event in, of raw pyzmq", _at_64(SYNC), _at_64(RAW), rate, 1.0),
    Target("publish_many / batches(), of raw pyzmq", _at_64(SYNC_BATCHES), _at_64(RAW), rate, 5.0),
    Target(
        "round trip p50, of raw pyzmq",
        Case(ROUND_TRIP, SYNC),
        Case(ROUND_TRIP, RAW),
        percentile(50),
        1.5,
        at_most=True,
    ),
    Target("event by event, AsyncPeer of Peer", _at_64(ASYNC), _at_64(SYNC), rate, 0.7),
    Target("in batches, AsyncPeer of Peer", _at_64(ASYNC_BATCHES), _at_64(SYNC_BATCHES), rate, 0.7),
)
