"""The results as a picture: throughput beside raw pyzmq, and latency by percentile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.case import ASYNC, LABELS, RAW, ROUND_TRIP, SYNC, THROUGHPUT, Case
from benchmarks.results import Results, Spread, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib.use("Agg")

COLOURS = dict(zip(LABELS, ("#4d4d4d", "#1f77b4", "#0b3c5d", "#ff9f40", "#b35900"), strict=True))
#: Where the percentile axis is marked.  Each nine takes as much room as the one before.
TICKS = (0.0, 50.0, 90.0, 99.0, 99.9)


def draw(results: Results, path: Path) -> None:
    """Draw what was measured; the ending of the name says in which format."""
    painters = {THROUGHPUT: _throughput, ROUND_TRIP: _round_trips}
    kinds = [kind for kind in painters if results.cases(kind)]
    widths = [1.5 if kind == THROUGHPUT else 1.0 for kind in kinds] or [1.0]
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "benchmarks", "axes.axisbelow": True}):
        figure, axes = plt.subplots(
            1,
            len(widths),
            figsize=(4.6 * sum(widths), 4.4),
            width_ratios=widths,
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
    cases = results.cases(THROUGHPUT)
    groups = list(dict.fromkeys((case.size_bytes, case.subscribers) for case in cases))
    ways = [way for way in LABELS if way != RAW and any(case.way == way for case in cases)]
    width = 0.8 / max(1, len(ways))
    for n, way in enumerate(ways):
        for at, (size_bytes, subscribers) in enumerate(groups):
            case = Case(THROUGHPUT, way, size_bytes, subscribers)
            ratio = results.ratio(case, case.base, rate)
            if ratio is not None:
                _bar(axes, way, ratio, at + (n - (len(ways) - 1) / 2) * width, width)
        axes.bar(0, 0, color=COLOURS[way], label=LABELS[way])  # for the legend
    axes.axhline(1.0, color=COLOURS[RAW], linewidth=1.2, linestyle="--", label=LABELS[RAW])
    axes.set_xticks(range(len(groups)), [_group_name(*group) for group in groups])
    axes.set_ylabel("events a second, times raw pyzmq")
    axes.set_title("Throughput (median of rounds; whiskers: least and greatest)", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.margins(y=0.08)
    axes.legend(fontsize=8, frameon=False)


def _bar(axes: Axes, way: str, ratio: Spread, x: float, width: float) -> None:
    whiskers = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
    axes.bar(x, ratio.median, width * 0.92, color=COLOURS[way])
    axes.errorbar(x, ratio.median, whiskers, color="#999999", capsize=2, linewidth=1)
    axes.annotate(
        f"{ratio.median:.1f}",
        (x, ratio.high),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )


def _group_name(size_bytes: int, subscribers: int) -> str:
    size = f"{size_bytes // 1024} KiB" if size_bytes >= 1024 else f"{size_bytes} B"
    return f"{size}, 1 \N{RIGHTWARDS ARROW} {subscribers}"


def _round_trips(results: Results, axes: Axes) -> None:
    highest = 0.0
    for way in (RAW, SYNC, ASYNC):
        case = Case(ROUND_TRIP, way)
        times_us = sorted(time for m in results.of(case) for time in m.times_us)
        if not times_us:
            continue
        nines = line_of(axes, times_us, color=COLOURS[way], label=LABELS[way])
        highest = max(highest, nines)
    by_percentile(axes, highest)
    axes.set_title("Round trip of one 64 B event (all rounds)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def line_of(axes: Axes, times_us: Sequence[float], **style: Any) -> float:
    """Draw sorted times by percentile; returns how far to the right it reaches."""
    # The last ones are single events: what they show is chance.
    shown = [(n, us) for n, us in enumerate(times_us) if len(times_us) - n >= 3]
    nines = [len(times_us) / (len(times_us) - n) for n, _ in shown]
    axes.plot(nines, [us for _, us in shown], **style)
    return nines[-1]


def by_percentile(axes: Axes, highest: float) -> None:
    """Label the axes of a picture of times by percentile."""
    marks = [p for p in TICKS if 100 / (100 - p) <= highest * 1.01]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([100 / (100 - p) for p in marks], [f"{p:g}" for p in marks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("percentile")
    axes.set_ylabel("microseconds")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
