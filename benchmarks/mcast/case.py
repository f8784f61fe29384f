"""`Case`: one thing that is measured over multicast, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from benchmarks.case import ONE_WAY, ROUND_TRIP, THROUGHPUT

DATAGRAMS = "datagrams"
ZMQ = "raw"
DDS = "dds"
LCM = "lcm"
EVENTS = "events"
BATCHES = "batches"

#: How each way of sending and receiving is called in tables and pictures.
LABELS = {
    DATAGRAMS: "plain datagrams, one an event",
    ZMQ: "raw pyzmq PUB/SUB (tcp)",
    DDS: "Cyclone DDS, reliable",
    LCM: "LCM",
    EVENTS: "publish / for event in",
    BATCHES: "publish_many / batches()",
}
#: Where the processes of each way are written.
MODULES = {
    DATAGRAMS: "benchmarks.mcast.datagrams",
    ZMQ: "benchmarks.raw",
    DDS: "benchmarks.mcast.dds",
    LCM: "benchmarks.mcast.lcm_events",
    EVENTS: "benchmarks.mcast.ours",
    BATCHES: "benchmarks.mcast.ours",
}
OURS = (EVENTS, BATCHES)
#: These may lose events and say nothing: how many is shown beside the figure.
LOSSY = (DATAGRAMS, LCM)

#: Of the packets, the part that the receiver drops where loss is injected.
LOSS = 0.01
PARITY = "16+1"
#: Events offered a second where latency is measured one way.
RATE = 10_000


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, as it is made once in every round."""

    kind: str
    """`throughput`, `round-trip` or `one-way`."""
    way: str
    """A key of `LABELS`: who sends and receives, and how."""
    loss: float = 0.0
    """Of the packets, the part that each receiver drops before it looks at them."""
    parity: str = ""
    """Forward error correction of the stream."""
    subscribers: int = 1
    """Processes that receive everything."""
    size_bytes: int = 64
    """Of each payload."""
    rate: int = 0
    """Events offered a second; 0: as fast as it goes."""
    sealed: bool = False
    """Whether packets are sealed: `Security` is on at both ends."""

    @property
    def id(self) -> str:
        """Its name in options and in JSON."""
        parts = [self.way]
        if self.loss:
            parts.append(f"loss-{self.loss:g}")
        if self.parity:
            parts.append(f"parity-{self.parity}")
        if self.sealed:
            parts.append("sealed")
        return f"{self.group}/{'-'.join(parts)}"

    @property
    def group(self) -> str:
        """What it has in common with the cases that it is compared to."""
        parts = [self.kind]
        if self.kind == THROUGHPUT:
            parts.append(f"1-{self.subscribers}")
        if self.rate:
            parts.append(f"{self.rate}-a-second")
        return "/".join(parts)

    @property
    def label(self) -> str:
        """Its way, for people."""
        words = LABELS[self.way]
        if self.parity:
            words += f", parity {self.parity}"
        if self.loss:
            words += f", {self.loss:.0%} lost"
        if self.sealed:
            words += ", sealed"
        return words

    @property
    def base(self) -> Case:
        """The case of plain datagrams that it is measured against."""
        return replace(self, way=DATAGRAMS, loss=0.0, parity="", sealed=False)

    @property
    def whole(self) -> Case:
        """The same without any loss, and in the clear."""
        return replace(self, loss=0.0, parity="", sealed=False)

    @property
    def is_base(self) -> bool:
        """Whether others are measured against it."""
        return self.way == DATAGRAMS

    @property
    def batches(self) -> bool:
        """Whether events go and come many at a time."""
        return self.way == BATCHES


def all_cases() -> list[Case]:
    """Every case, those of a group together."""
    cases = [Case(THROUGHPUT, way) for way in LABELS]
    cases += [Case(THROUGHPUT, way, LOSS) for way in OURS]
    cases += [Case(THROUGHPUT, BATCHES, loss, PARITY) for loss in (0.0, LOSS)]
    cases += [Case(THROUGHPUT, way, sealed=True) for way in OURS]
    cases += [Case(THROUGHPUT, way, subscribers=4) for way in LABELS]
    cases += [Case(ROUND_TRIP, way) for way in LABELS if way != BATCHES]
    cases.append(Case(ROUND_TRIP, EVENTS, sealed=True))
    cases.append(Case(ONE_WAY, DATAGRAMS, rate=RATE))
    for loss, parity in ((0.0, ""), (LOSS, ""), (LOSS, PARITY)):
        cases.append(Case(ONE_WAY, EVENTS, loss, parity, rate=RATE))
    return cases


def chosen_cases(patterns: Iterable[str]) -> list[Case]:
    """The cases whose id has one of the patterns in it, and what they are measured against."""
    wanted = [pattern if "*" in pattern else f"*{pattern}*" for pattern in patterns]
    found = {c for c in all_cases() if any(fnmatchcase(c.id, pattern) for pattern in wanted)}
    found |= {case.base for case in found} | {case.whole for case in found}
    return [case for case in all_cases() if case in found]
