"""The results as pictures: who is how fast, latency by percentile, and what grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.case import GROWTH, ONE_WAY, ROUND_TRIP, THROUGHPUT, Case
from benchmarks.report import event_ns
from benchmarks.results import Results, Spread, percentile, rate
from benchmarks.table import size_words
from benchmarks.way import LIMIT, OURS, RAW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib.use("Agg")

OUR_COLOUR = "#1f77b4"
OUR_BATCHES_COLOUR = "#0b3c5d"
RAW_COLOUR = "#4d4d4d"
RIVAL_COLOUR = "#c49c94"
LIMIT_COLOUR = "#d9d9d9"
#: Lines of a picture, in turn.
LINES = (
    *("#4d4d4d", "#1f77b4", "#ff9f40", "#0b3c5d", "#2ca02c", "#d62728", "#9467bd", "#8c564b"),
    *("#17becf", "#bcbd22", "#e377c2"),
)
#: Where the percentile axis is marked.  Each nine takes as much room as the one before.
TICKS = (0.0, 50.0, 90.0, 99.0, 99.9)
ENDINGS = (".svg", ".png")
Painter = Callable[[Results, "Axes"], None]


def draw(results: Results, path: Path) -> None:
    """Draw who is how fast; the ending of the name says in which format."""
    painters: list[Painter] = []
    for size_bytes, subscribers in ((64, 1), (64, 4), (1024, 1), (65_536, 1)):
        cases = whole_cases(results, size_bytes, subscribers)
        if cases:
            title = f"{size_words(size_bytes)}, 1 \N{RIGHTWARDS ARROW} {subscribers}"
            painters.append(lambda r, a, c=cases, t=title: _rates(r, a, c, t))
    if results.cases(ROUND_TRIP):
        painters.append(_trips)
    _figure(results, painters, path, columns=2)


def draw_times(results: Results, path: Path) -> None:
    """Draw latencies by percentile."""
    painters: list[Painter] = []
    if results.cases(ROUND_TRIP):
        painters.append(_round_trip_lines)
    for number in dict.fromkeys(case.rate for case in results.cases(ONE_WAY)):
        painters.append(lambda r, a, n=number: _one_way_lines(r, a, n))
    _figure(results, painters, path, columns=2)


def draw_growth(results: Results, path: Path) -> None:
    """Draw the time of an event, the more there is of something."""
    painters = [
        lambda r, a, n=name: _growing(r, a, n) for name in ("subscribers", "streams", "topics")
    ]
    _figure(results, painters if results.cases(GROWTH) else [], path, columns=3)


def _figure(results: Results, painters: Sequence[Painter], path: Path, columns: int) -> None:
    if not painters:  # a part of a run: better the picture that is there than an empty one
        return
    columns = min(columns, len(painters))
    rows = -(-len(painters) // columns)
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "benchmarks", "axes.axisbelow": True}):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(7.6 * columns, 4.6 * rows),
            squeeze=False,
            layout="constrained",
            facecolor="white",
        )
        places = [place for row in axes for place in row]
        for place in places[len(painters) :]:
            place.set_axis_off()
        for paint, place in zip(painters, places, strict=False):
            paint(results, place)
        # Without a date the same results give the same file.
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def whole_cases(results: Results, size_bytes: int, subscribers: int) -> list[Case]:
    """Those of one table of throughput."""
    return [
        case
        for case in results.cases(THROUGHPUT)
        if case.size_bytes == size_bytes
        and case.subscribers == subscribers
        and not (case.loss or case.parity or case.sealed)
    ]


def colour_of(case: Case) -> str:
    """By who is measured."""
    if case.by.family == OURS:
        return OUR_BATCHES_COLOUR if case.batches else OUR_COLOUR
    if case.by.family == LIMIT:
        return LIMIT_COLOUR
    return RAW_COLOUR if case.way == RAW else RIVAL_COLOUR


def words_of(case: Case) -> str:
    """Its way, and whether it is ours."""
    return f"meshmsg, {case.label}" if case.ours else case.label


def _rates(results: Results, axes: Axes, cases: Sequence[Case], title: str) -> None:
    spreads = [(case, results.spread(case, rate)) for case in cases]
    shown = sorted(((c, s) for c, s in spreads if s), key=lambda pair: -pair[1].median)
    _bars(axes, [(c, Spread(s.median / 1e3, s.low / 1e3, s.high / 1e3)) for c, s in shown])
    axes.set_xlabel("1000 events/s (median; least, greatest round)")
    axes.set_title(f"Throughput, {title}", fontsize=10)


def _trips(results: Results, axes: Axes) -> None:
    spreads = [(case, results.spread(case, percentile(50))) for case in results.cases(ROUND_TRIP)]
    _bars(axes, sorted(((c, s) for c, s in spreads if s), key=lambda pair: pair[1].median))
    axes.set_xlabel("microseconds (p50; least, greatest round)")
    axes.set_title("Round trip of one 64 B event", fontsize=10)


def _bars(axes: Axes, shown: Sequence[tuple[Case, Spread]]) -> None:
    for at, (case, spread) in enumerate(shown):
        axes.barh(at, spread.median, color=colour_of(case))
        reach = [[spread.median - spread.low], [spread.high - spread.median]]
        axes.errorbar(spread.median, at, None, reach, color="#999999", capsize=2, linewidth=1)
        words = f"{spread.median:,.0f}"
        place = {"xytext": (4, -3), "textcoords": "offset points", "fontsize": 8}
        axes.annotate(words, (spread.high, at), **place)
    axes.set_yticks(range(len(shown)), [words_of(case) for case, _ in shown], fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.grid(axis="x", alpha=0.3)


def _round_trip_lines(results: Results, axes: Axes) -> None:
    _lines(results, axes, [c for c in results.cases(ROUND_TRIP) if c.by.family != LIMIT])
    axes.set_title("Round trip of one 64 B event (all rounds)", fontsize=10)


def _one_way_lines(results: Results, axes: Axes, number: int) -> None:
    _lines(results, axes, [case for case in results.cases(ONE_WAY) if case.rate == number])
    axes.set_title(f"One way, {number:,} events a second (all rounds)", fontsize=10)


def _lines(results: Results, axes: Axes, cases: Sequence[Case]) -> None:
    highest = 1.0
    for n, case in enumerate(cases):
        times_us = sorted(time for m in results.of(case) for time in m.times_us)
        if len(times_us) > 3:
            style = "-" if case.ours else "--"
            colour = LINES[n % len(LINES)]
            far = line_of(axes, times_us, color=colour, label=words_of(case), linestyle=style)
            highest = max(highest, far)
    by_percentile(axes, highest)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)


def line_of(axes: Axes, times_us: Sequence[float], **style: Any) -> float:
    """Draw sorted times by percentile; returns how far to the right it reaches."""
    # The last ones are single events: what they show is chance.
    shown = [(n, us) for n, us in enumerate(times_us) if len(times_us) - n >= 3]
    shown = _thin(shown)
    nines = [len(times_us) / (len(times_us) - n) for n, _ in shown]
    axes.plot(nines, [us for _, us in shown], **style)
    return nines[-1]


def _thin(shown: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Fewer of the many in the middle, all of the few at the end."""
    kept, total = [], len(shown)
    for at, point in enumerate(shown):
        left = total - at
        if left < 300 or not at % max(1, left // 300):
            kept.append(point)
    return kept


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


def _growing(results: Results, axes: Axes, name: str) -> None:
    one = [case for case in results.cases(GROWTH) if case == Case(GROWTH, case.way)]
    more = [case for case in results.cases(GROWTH) if getattr(case, name) > 1]
    ways = dict.fromkeys(case.way for case in more)
    for n, way in enumerate(ways):
        cases = [case for case in (*one, *more) if case.way == way]
        points = [(getattr(c, name), results.spread(c, event_ns)) for c in cases]
        found = sorted((x, s) for x, s in points if s is not None)
        xs, ys = [x for x, _ in found], [s.median for _, s in found]
        reach = [[s.median - s.low for _, s in found], [s.high - s.median for _, s in found]]
        colour = LINES[n % len(LINES)]
        axes.errorbar(xs, ys, reach, color=colour, label=words_of(cases[0]), marker="o", capsize=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(name)
    axes.set_ylabel("ns for each event delivered")
    axes.grid(alpha=0.3)
    if ways:
        axes.legend(fontsize=7, frameon=False)
    axes.set_title(f"1 to many {name}", fontsize=10)
