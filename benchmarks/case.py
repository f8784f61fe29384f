"""`Case`: one thing that is measured, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

THROUGHPUT = "throughput"
ROUND_TRIP = "round-trip"
ONE_WAY = "one-way"

RAW = "raw"
SYNC = "sync"
SYNC_BATCHES = "sync-batches"
ASYNC = "async"
ASYNC_BATCHES = "async-batches"

#: How each way of sending and receiving is called in tables and pictures.
LABELS = {
    RAW: "raw pyzmq",
    SYNC: "publish / for event in",
    SYNC_BATCHES: "publish_many / batches()",
    ASYNC: "await publish / async for",
    ASYNC_BATCHES: "await publish_many / async batches()",
}

#: Events offered a second where latency is measured one way; the first counts as idle.
IDLE_RATE = 200
RATES = (IDLE_RATE, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, as it is made once in every round."""

    kind: str
    """`throughput`, `round-trip` or `one-way`."""
    way: str
    """A key of `LABELS`: who sends and receives, and how."""
    size_bytes: int = 64
    """Of each payload."""
    subscribers: int = 1
    """Processes that receive everything."""
    rate: int = 0
    """Events offered a second; 0: as fast as it goes."""

    @property
    def id(self) -> str:
        """Its name in options and in JSON."""
        return f"{self.group}/{self.way}"

    @property
    def group(self) -> str:
        """What it has in common with the cases that it is compared to."""
        parts = [self.kind, f"{self.size_bytes}B"]
        if self.kind == THROUGHPUT:
            parts.append(f"1-{self.subscribers}")
        if self.rate:
            parts.append(f"{self.rate}-a-second")
        return "/".join(parts)

    @property
    def label(self) -> str:
        """Its way, for people."""
        return LABELS[self.way]

    @property
    def base(self) -> Case:
        """The raw pyzmq case that it is measured against."""
        return Case(self.kind, RAW, self.size_bytes, self.subscribers, self.rate)

    @property
    def is_base(self) -> bool:
        """Whether others are measured against it."""
        return self.way == RAW

    @property
    def batches(self) -> bool:
        """Whether events go and come many at a time."""
        return self.way in (SYNC_BATCHES, ASYNC_BATCHES)


def all_cases() -> list[Case]:
    """Every case, those of a group together."""
    cases = [
        Case(THROUGHPUT, way, size_bytes, subscribers)
        for subscribers in (1, 4)
        for size_bytes in (64, 1024)
        for way in LABELS
    ]
    cases += [Case(ROUND_TRIP, way) for way in (RAW, SYNC, ASYNC)]
    for rate in RATES:
        ways = (RAW, SYNC, ASYNC) if rate == IDLE_RATE else (RAW, SYNC)
        cases += [Case(ONE_WAY, way, rate=rate) for way in ways]
    return cases


def chosen_cases(patterns: Iterable[str]) -> list[Case]:
    """The cases whose id has one of the patterns in it, and what they are measured against."""
    wanted = [pattern if "*" in pattern else f"*{pattern}*" for pattern in patterns]
    found = {
        case for case in all_cases() if any(fnmatchcase(case.id, pattern) for pattern in wanted)
    }
    found |= {case.base for case in found}
    return [case for case in all_cases() if case in found]


def in_round(cases: Iterable[Case], number: int) -> list[Case]:
    """The order of a round: group by group, and in each group another case goes first each time.

    Cases that are compared run close in time, so that a disturbance meets both or neither, and
    none of them always follows the same other one.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    ordered = []
    for group in groups.values():
        at = number % len(group)
        ordered += group[at:] + group[:at]
    return ordered
