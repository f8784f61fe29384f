"""`Results`: all measurements of a run, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.case import Case, all_cases
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
    """Measurements by case and round, and what could not be measured."""

    def __init__(self, order: Sequence[Case] = ()) -> None:
        self._order = order or all_cases()
        self._found: dict[Case, dict[int, Measurement]] = {}
        self.missing: dict[str, str] = {}
        """Ways that are not available here, and why."""
        self.failures: dict[Case, list[str]] = {}
        """What went wrong, in words."""

    def add(self, measurement: Measurement) -> None:
        """Take one in."""
        self._found.setdefault(measurement.case, {})[measurement.round] = measurement

    def fail(self, case: Case, problem: str) -> None:
        """Keep why a case was not measured in a round."""
        self.failures.setdefault(case, []).append(problem)

    def has(self, case: Case, number: int) -> bool:
        """Whether a case was measured in a round."""
        return number in self._found.get(case, {})

    def cases(self, kind: str = "") -> list[Case]:
        """The cases that were measured, of one kind or all."""
        return [case for case in self._order if case in self._found and kind in ("", case.kind)]

    def asked(self, kind: str = "") -> list[Case]:
        """The cases that were to be measured, of one kind or all."""
        return [case for case in self._order if kind in ("", case.kind)]

    def why_not(self, case: Case) -> str:
        """Why there is no figure, in a line; empty where there is one."""
        if case in self._found:
            return ""
        if case.way in self.missing:
            return f"not available: {self.missing[case.way]}"
        problems = self.failures.get(case)
        if not problems:
            return "not measured"
        return f"failed: {problems[0].strip().splitlines()[-1][:160]}"

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
