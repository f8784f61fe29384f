"""`Target`: what meshmsg has to reach, as a ratio within a run, and the list of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.case import AWAKE_RATES, LOSS, ONE_WAY, ROUND_TRIP, TAKES, THROUGHPUT, Case
from benchmarks.results import Measure, Results, Spread, cpu_us, percentile, rate
from benchmarks.way import (
    ASYNC,
    ASYNC_BATCHES,
    DATAGRAMS,
    DDS,
    DURABLE,
    LABELS,
    LCM,
    MULTICAST,
    MULTICAST_BATCHES,
    RAW,
    RAW_LIST,
    RIVAL_WAYS,
    SYNC,
    SYNC_BATCHES,
    WAYS,
    ZENOH,
)


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

    def reached(self, results: Results) -> Spread | None:
        """The ratio, by round; `None` where one of the two was not measured."""
        return results.ratio(self.case, self.base, self.measure)


def _at_64(way: str, subscribers: int = 1, loss: float = 0.0) -> Case:
    return Case(THROUGHPUT, way, 64, subscribers, loss=loss)


def _trip(way: str) -> Case:
    return Case(ROUND_TRIP, way)


def _faster(ours: str, theirs: str, bound: float, subscribers: int = 1) -> Target:
    return Target(
        f"events/s{f', 1 -> {subscribers}' if subscribers > 1 else ''}: {LABELS[ours]}"
        f" / {LABELS[theirs]}",
        _at_64(ours, subscribers),
        _at_64(theirs, subscribers),
        rate,
        bound,
    )


def _cheaper(ours: str, theirs: str) -> Target:
    text = f"CPU an event: {LABELS[ours]} / {LABELS[theirs]}"
    return Target(text, _at_64(ours), _at_64(theirs), cpu_us, 1.0, at_most=True)


def _quicker(ours: str, theirs: str, bound: float) -> Target:
    text = f"round trip p50: {LABELS[ours]} / {LABELS[theirs]}"
    return Target(text, _trip(ours), _trip(theirs), percentile(50), bound, at_most=True)


def _awake(take: str, percent: float, bound: float) -> Target:
    ours = Case(ROUND_TRIP, SYNC, awake=True, take=take)
    text = f"round trip p{percent:g}, awake: publish / {take} / {LABELS[RAW]}"
    return Target(text, ours, ours.base, percentile(percent), bound, at_most=True)


def _one_way(at: int, percent: float, bound: float) -> Target:
    ours = Case(ONE_WAY, SYNC, rate=at, awake=True)
    text = f"one way p{percent:g} at {at:,} events/s, awake: {LABELS[SYNC]} / {LABELS[RAW]}"
    return Target(text, ours, ours.base, percentile(percent), bound, at_most=True)


def _lossless(way: str) -> Target:
    text = f"events/s with 1% of the packets lost / without: {LABELS[way]}"
    return Target(text, _at_64(way, loss=LOSS), _at_64(way), rate, 0.8)


#: Of a round trip, each percentile and what it may be of raw pyzmq's.
AWAKE_TAILS = ((50, 1.5), (99, 2.0), (99.9, 4.0))
ONE_WAY_TAILS = ((50, 1.8), (99, 1.5))

#: What the project holds itself to beside others, at 64 B with all guarantees on.
TARGETS = (
    _faster(SYNC, RAW, 1.2),
    _faster(SYNC, ZENOH, 2.0),
    _faster(DURABLE, RAW, 1.2),
    _faster(SYNC_BATCHES, RAW, 5.0),
    _faster(SYNC_BATCHES, RAW_LIST, 1.2),
    _faster(MULTICAST, RAW, 2.0, subscribers=4),
    _faster(MULTICAST_BATCHES, RAW, 2.0, subscribers=4),
    _quicker(MULTICAST, DATAGRAMS, 1.3),
    *(
        _quicker(MULTICAST, way, 1.0)
        for way in RIVAL_WAYS
        if WAYS[way].networked and not WAYS[way].batches
    ),
    # What goes one by one beside what does, and in batches beside everybody.
    *(_cheaper(SYNC, way) for way in RIVAL_WAYS if not WAYS[way].batches),
    _cheaper(SYNC_BATCHES, RAW_LIST),
    _faster(MULTICAST_BATCHES, DATAGRAMS, 5.0),
    _faster(MULTICAST, DDS, 1.0),
    _faster(MULTICAST, LCM, 1.0),
    _quicker(SYNC, RAW, 1.5),
    _faster(ASYNC, SYNC, 0.7),
    _faster(ASYNC_BATCHES, SYNC_BATCHES, 0.7),
    *(_awake(take, percent, most) for take in TAKES for percent, most in AWAKE_TAILS),
    Target(
        f"round trip p50, awake: {LABELS[ASYNC]} / publish / {TAKES[0]}",
        Case(ROUND_TRIP, ASYNC, awake=True),
        Case(ROUND_TRIP, SYNC, awake=True, take=TAKES[0]),
        percentile(50),
        1.5,
        at_most=True,
    ),
    *(_one_way(at, percent, most) for at in AWAKE_RATES for percent, most in ONE_WAY_TAILS),
    _lossless(MULTICAST_BATCHES),
    _lossless(MULTICAST),
    Target(
        f"events/s sealed / in the clear: {LABELS[MULTICAST_BATCHES]}",
        Case(THROUGHPUT, MULTICAST_BATCHES, sealed=True),
        _at_64(MULTICAST_BATCHES),
        rate,
        0.5,
    ),
)


def verdicts(
    results: Results, targets: Sequence[Target] = TARGETS
) -> list[tuple[Target, Spread, bool]]:
    """Every target that was measured, what was reached, and whether that is enough."""
    found = [(target, target.reached(results)) for target in targets]
    return [(t, spread, t.met(spread.median)) for t, spread in found if spread is not None]
