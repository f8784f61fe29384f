"""What the multicast transport has to reach, as ratios within a run."""

from __future__ import annotations

from benchmarks.case import ROUND_TRIP, THROUGHPUT
from benchmarks.mcast.case import BATCHES, DATAGRAMS, DDS, EVENTS, LCM, LOSS, Case
from benchmarks.results import Target, percentile, rate


def _one(way: str, loss: float = 0.0) -> Case:
    return Case(THROUGHPUT, way, loss)


def _faster(ours: str, words: str, theirs: str, name: str) -> Target:
    return Target(f"{words}, of {name}", _one(ours), _one(theirs), rate, 1.0)


TARGETS = (
    Target("in batches, of plain datagrams", _one(BATCHES), _one(DATAGRAMS), rate, 5.0),
    _faster(EVENTS, "event by event", DDS, "Cyclone DDS"),
    _faster(EVENTS, "event by event", LCM, "LCM"),
    _faster(BATCHES, "in batches", DDS, "Cyclone DDS"),
    _faster(BATCHES, "in batches", LCM, "LCM"),
    Target(
        "round trip p50, of plain datagrams",
        Case(ROUND_TRIP, EVENTS),
        Case(ROUND_TRIP, DATAGRAMS),
        percentile(50),
        1.5,
        at_most=True,
    ),
    Target("in batches with 1% lost, of without", _one(BATCHES, LOSS), _one(BATCHES), rate, 0.8),
    Target("event by event with 1% lost, of without", _one(EVENTS, LOSS), _one(EVENTS), rate, 0.8),
    Target(
        "in batches and sealed, of in the clear",
        Case(THROUGHPUT, BATCHES, sealed=True),
        _one(BATCHES),
        rate,
        0.5,
    ),
)
