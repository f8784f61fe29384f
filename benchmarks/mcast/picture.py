"""The results of the multicast benchmark as a picture: throughput, and latency with loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.pyplot as plt

from benchmarks.case import ONE_WAY, ROUND_TRIP, THROUGHPUT
from benchmarks.mcast.case import BATCHES, DATAGRAMS, DDS, EVENTS, LCM, ZMQ, Case
from benchmarks.picture import by_percentile, line_of
from benchmarks.results import Results, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib.use("Agg")

COLOURS = {
    DATAGRAMS: "#4d4d4d",
    ZMQ: "#999999",
    DDS: "#c49c94",
    LCM: "#d9b38c",
    EVENTS: "#1f77b4",
    BATCHES: "#0b3c5d",
}
LOSS_COLOUR = "#d62728"
PARITY_COLOUR = "#2ca02c"


def draw(results: Results, path: Path) -> None:
    """Draw what was measured; the ending of the name says in which format."""
    painters = {THROUGHPUT: _throughput, ROUND_TRIP: _round_trips, ONE_WAY: _one_way}
    kinds = [kind for kind in painters if results.cases(kind)]
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "benchmarks", "axes.axisbelow": True}):
        figure, axes = plt.subplots(
            1,
            max(1, len(kinds)),
            figsize=(5.4 * max(1, len(kinds)), 4.6),
            squeeze=False,
            layout="constrained",
            facecolor="white",
        )
        for kind, place in zip(kinds, axes[0], strict=False):
            painters[kind](results, place)
        # Without a date the same results give the same file.
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _throughput(results: Results, axes: Axes) -> None:
    cases = [case for case in results.cases(THROUGHPUT) if case.subscribers == 1]
    for at, case in enumerate(cases):
        spread = results.spread(case, rate)
        if spread is None:
            continue
        hatch = "//" if case.loss else None
        middle, low, high = (value / 1e3 for value in (spread.median, spread.low, spread.high))
        axes.barh(at, middle, color=COLOURS[case.way], hatch=hatch, edgecolor="white")
        axes.errorbar(middle, at, None, [[middle - low], [high - middle]], color="#777777")
        axes.annotate(
            f"{middle:,.0f}", (high, at), xytext=(4, -3), textcoords="offset points", fontsize=8
        )
    axes.set_yticks(range(len(cases)), [case.label for case in cases], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("1000 events a second (median of rounds; whiskers: least and greatest)")
    axes.set_title("64 B events to one receiver", fontsize=10)
    axes.grid(axis="x", alpha=0.3)


def _colour(case: Case) -> str:
    if case.parity:
        return PARITY_COLOUR
    return LOSS_COLOUR if case.loss else COLOURS[case.way]


def _lines(results: Results, axes: Axes, kind: str) -> None:
    highest = 1.0
    for case in results.cases(kind):
        times_us = sorted(time for m in results.of(case) for time in m.times_us)
        if len(times_us) > 3:
            far = line_of(axes, times_us, color=_colour(case), label=case.label)
            highest = max(highest, far)
    by_percentile(axes, highest)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def _round_trips(results: Results, axes: Axes) -> None:
    _lines(results, axes, ROUND_TRIP)
    axes.set_title("Round trip of one 64 B event (all rounds)", fontsize=10)


def _one_way(results: Results, axes: Axes) -> None:
    _lines(results, axes, ONE_WAY)
    axes.set_title("One way, 10,000 events a second (all rounds)", fontsize=10)
