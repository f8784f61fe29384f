"""`Case`: one thing that is measured, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from benchmarks.way import (
    ASYNC,
    C_GSO,
    C_TCP,
    DATAGRAMS,
    DDS,
    DURABLE,
    GSO,
    LABELS,
    LCM,
    MULTICAST,
    MULTICAST_BATCHES,
    NATS,
    NNG,
    OURS,
    RAW,
    RAW_LIST,
    SYNC,
    SYNC_BATCHES,
    WAYS,
    ZENOH,
    Way,
)

THROUGHPUT = "throughput"
ROUND_TRIP = "round-trip"
ONE_WAY = "one-way"
GROWTH = "growth"
#: Where what counts is events a second.
RATES_OF = (THROUGHPUT, GROWTH)

#: Events offered a second where latency is measured one way; the first counts as idle.
IDLE_RATE = 200
LOSS_RATE = 10_000  # where it is measured with loss, too
RATES = (IDLE_RATE, LOSS_RATE, 100_000)
#: Where the processors are kept awake.
AWAKE_RATES = (1_000, 10_000, 50_000, 100_000)
#: The verbs with which a consumer takes an event of a round trip.
TAKES = ("get(timeout=)", "for event in", "get_many", "batches")
SIZES = (64, 1024, 65_536)

#: Of the packets, the part that is dropped where loss is injected.
LOSS = 0.01
PARITY = "16+1"
RECEIVER = "receiver"
WIRE = "wire"

#: Whose round trip is not that of another way, in larger clothes.
ROUND_TRIPS = tuple(
    way.name
    for way in WAYS.values()
    if way.name not in (RAW_LIST, GSO, SYNC_BATCHES, DURABLE, MULTICAST_BATCHES, "async-batches")
)
#: Who is asked to do it with a part of the packets dropped by the kernel.
LOSING = (
    RAW,
    RAW_LIST,
    SYNC,
    SYNC_BATCHES,
    MULTICAST,
    MULTICAST_BATCHES,
    ZENOH,
    NNG,
    NATS,
    DDS,
    LCM,
    DATAGRAMS,
)
GROWING_SUBSCRIBERS = (1, 8, 32)
GROWING_STREAMS = (1, 100, 1000)
GROWING_TOPICS = (1, 1000, 100_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, as it is made once in every round."""

    kind: str
    """`throughput`, `round-trip`, `one-way` or `growth`."""
    way: str
    """A key of `WAYS`: who sends and receives, and how."""
    size_bytes: int = 64
    """Of each payload."""
    subscribers: int = 1
    """Processes that receive everything."""
    rate: int = 0
    """Events offered a second; 0: as fast as it goes."""
    loss: float = 0.0
    """Of the packets, the part that is dropped."""
    loss_at: str = RECEIVER
    """`receiver`: it drops packets before it looks at them; `wire`: the kernel drops them."""
    parity: str = ""
    """Multicast: forward error correction of the stream."""
    streams: int = 1
    """Streams of the publisher, used in turn."""
    topics: int = 1
    """Topics of the stream, used in turn."""
    sealed: bool = False
    """Multicast: whether packets are sealed, with `Security` at both ends."""
    awake: bool = False
    """Whether the processors are kept from sleeping, whose waking up would be most of a latency."""
    take: str = ""
    """Round trips: one of `TAKES`; empty for the way's own."""

    @property
    def id(self) -> str:
        """Its name in options and in JSON."""
        parts = [self.way]
        if self.loss and self.loss_at == RECEIVER:
            parts.append(f"loss-{self.loss:g}")
        if self.parity:
            parts.append(f"parity-{self.parity}")
        if self.sealed:
            parts.append("sealed")
        if self.take:
            parts.append(self.take.partition("(")[0].replace(" ", "-"))
        return f"{self.group}/{'-'.join(parts)}"

    @property
    def group(self) -> str:
        """What it has in common with the cases that it is compared to."""
        parts = [self.kind, f"{self.size_bytes}B"]
        if self.awake:
            parts.append("awake")
        if self.kind in RATES_OF:
            parts.append(f"1-{self.subscribers}")
        if self.rate:
            parts.append(f"{self.rate}-a-second")
        if self.loss and self.loss_at == WIRE:
            parts.append(f"wire-loss-{self.loss:g}")
        if self.streams > 1:
            parts.append(f"{self.streams}-streams")
        if self.topics > 1:
            parts.append(f"{self.topics}-topics")
        return "/".join(parts)

    @property
    def by(self) -> Way:
        """Who sends and receives."""
        return WAYS[self.way]

    @property
    def label(self) -> str:
        """Its way, for people."""
        words = LABELS[self.way]
        if self.parity:
            words += f", parity {self.parity}"
        if self.loss and self.loss_at == RECEIVER:
            words += f", {self.loss:.0%} lost"
        if self.sealed:
            words += ", sealed"
        return f"{words}, taken by {self.take}" if self.take else words

    @property
    def base(self) -> Case:
        """The raw pyzmq case that it is measured against."""
        loss = self.loss if self.loss_at == WIRE else 0.0
        plain = replace(self, loss=loss, parity="", streams=1, topics=1, sealed=False)
        return replace(plain, way=RAW, take="")

    @property
    def whole(self) -> Case:
        """The same without any loss, and in the clear."""
        return replace(self, loss=0.0, loss_at=RECEIVER, parity="", sealed=False)

    @property
    def is_base(self) -> bool:
        """Whether others are measured against it."""
        return self.way == RAW

    @property
    def ours(self) -> bool:
        """Whether it is meshmsg that is measured."""
        return self.by.family == OURS

    @property
    def lossy(self) -> bool:
        """Whether events may be missing."""
        return self.by.lossy

    @property
    def batches(self) -> bool:
        """Whether events go and come many at a time."""
        return self.by.batches


def all_cases() -> list[Case]:
    """Every case, those of a group together."""
    cases = [
        Case(THROUGHPUT, way, size_bytes, subscribers)
        for size_bytes in SIZES
        for subscribers in (1, 4)
        for way in WAYS
        if size_bytes <= WAYS[way].size_bytes_max
    ]
    cases += [Case(ROUND_TRIP, way) for way in ROUND_TRIPS]
    cases.append(Case(ROUND_TRIP, MULTICAST, sealed=True))
    cases += [Case(THROUGHPUT, way, sealed=True) for way in (MULTICAST, MULTICAST_BATCHES)]
    for rate in RATES:
        cases += [Case(ONE_WAY, way, rate=rate) for way in (RAW, SYNC, MULTICAST, DATAGRAMS)]
        if rate == IDLE_RATE:
            cases.append(Case(ONE_WAY, ASYNC, rate=rate))
        if rate == LOSS_RATE:
            for parity in ("", PARITY):
                cases.append(Case(ONE_WAY, MULTICAST, rate=rate, loss=LOSS, parity=parity))
    cases += awake_cases()
    cases += [Case(THROUGHPUT, way, loss=LOSS) for way in (MULTICAST, MULTICAST_BATCHES)]
    cases += [Case(THROUGHPUT, MULTICAST_BATCHES, loss=x, parity=PARITY) for x in (0.0, LOSS)]
    cases += [Case(THROUGHPUT, way, loss=LOSS, loss_at=WIRE) for way in LOSING]
    return cases + growing_cases()


def awake_cases() -> list[Case]:
    """What a user types first, one event at a time, with the processors kept awake."""
    cases = [Case(ROUND_TRIP, way, awake=True) for way in (RAW, ASYNC)]
    cases += [Case(ROUND_TRIP, SYNC, awake=True, take=take) for take in TAKES]
    ways = (RAW, SYNC)
    return cases + [Case(ONE_WAY, w, rate=r, awake=True) for r in AWAKE_RATES for w in ways]


def growing_cases() -> list[Case]:
    """What costs more, the more of something there is, or does not."""
    cases = [
        Case(GROWTH, way, subscribers=count)
        for count in GROWING_SUBSCRIBERS
        for way in (RAW, RAW_LIST, SYNC_BATCHES, MULTICAST_BATCHES, ZENOH)
    ]
    cases += [Case(GROWTH, SYNC, streams=count) for count in GROWING_STREAMS]
    cases += [Case(GROWTH, SYNC, topics=count) for count in GROWING_TOPICS[1:]]
    return cases


def headline_cases() -> list[Case]:
    """Those of the targets and of the first table: 64 B, 1 -> 1 and 1 -> 4, and round trips.

    And how long a repair keeps events waiting: one way, beside the same without loss.
    """
    return [case for case in all_cases() if case.size_bytes == 64 and _is_headline(case)]


def _is_headline(case: Case) -> bool:
    if case.parity or case.loss_at == WIRE:
        return False
    if case.awake:
        return True
    if case.kind == ONE_WAY:
        return case.rate == LOSS_RATE and case.way in (RAW, MULTICAST)
    if case.kind == ROUND_TRIP:
        return not case.sealed
    if case.sealed:
        return case.kind == THROUGHPUT and case.way == MULTICAST_BATCHES
    return case.kind == THROUGHPUT and (case.subscribers == 1 or case.way not in (C_TCP, C_GSO))


def chosen_cases(patterns: Iterable[str], among: Iterable[Case] | None = None) -> list[Case]:
    """The cases whose id has one of the patterns in it, and what they are measured against."""
    known = all_cases()
    offered = known if among is None else list(among)
    wanted = [pattern if "*" in pattern else f"*{pattern}*" for pattern in patterns]
    found = {case for case in offered if any(fnmatchcase(case.id, pattern) for pattern in wanted)}
    found |= {case.base for case in found} | {case.whole for case in found}
    return [case for case in known if case in found]


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
