"""The results as tables: for a terminal, as Markdown for the pages, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.case import IDLE_RATE, ONE_WAY, ROUND_TRIP, THROUGHPUT, Case
from benchmarks.machine import Machine
from benchmarks.results import (
    TARGETS,
    Measure,
    Results,
    Spread,
    cpu_us,
    frame_events,
    percentile,
    rate,
)

PERCENTILES = (50.0, 99.0, 99.9)
NONE = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, whatever it is shown in; the columns after the first `words` are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def markdown(self) -> str:
        """For a page."""
        rule = ["---"] * self.words + ["---:"] * (len(self.columns) - self.words)
        lines = [_line(self.columns), f"|{'|'.join(rule)}|", *map(_line, self.rows)]
        return "\n".join(lines)

    def rich(self) -> RichTable:
        """For a terminal."""
        made = RichTable(title=self.title, title_justify="left", title_style="bold", box=None)
        for n, column in enumerate(self.columns):
            made.add_column(column, justify="left" if n < self.words else "right", no_wrap=True)
        for row in self.rows:
            made.add_row(*row)
        return made


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(results: Results) -> list[Table]:
    """All tables that have something in them."""
    found = [targets(results), throughput(results), round_trips(results), one_way(results)]
    return [table for table in found if table.rows]


def targets(results: Results) -> Table:
    """What is to be reached at 64 B from one publisher to one subscriber, and what was."""
    rows = []
    for target in TARGETS:
        reached = results.ratio(target.case, target.base, target.measure)
        if reached is not None:
            met = "met" if target.met(reached.median) else "NOT MET"
            rows.append((target.text, target.wanted, ratio_words(reached), met))
    return Table("Targets, at 64 B and 1 -> 1", ("target", "wanted", "reached", ""), rows, words=1)


def throughput(results: Results) -> Table:
    """Events a second, processor time and fill of frames."""
    rows = [
        (
            size_words(case.size_bytes),
            f"1 -> {case.subscribers}",
            case.label,
            rate_words(results.spread(case, rate)),
            ratio_to_base(results, case, rate),
            fixed(results.spread(case, cpu_us), 2),
            fill_words(results, case),
        )
        for case in results.cases(THROUGHPUT)
    ]
    columns = (
        "payload",
        "processes",
        "way",
        "1000 events/s",
        "x raw",
        "CPU us/event",
        "events/frame",
    )
    return Table("Throughput, all subscribers together", columns, rows, words=3)


def round_trips(results: Results) -> Table:
    """There and back."""
    rows = [
        (
            case.label,
            *(fixed(results.spread(case, percentile(p)), 0) for p in PERCENTILES),
            ratio_to_base(results, case, percentile(50)),
        )
        for case in results.cases(ROUND_TRIP)
    ]
    columns = ("way", *(f"p{p:g} us" for p in PERCENTILES), "p50 x raw")
    return Table("Round trip of one 64 B event", columns, rows)


def one_way(results: Results) -> Table:
    """From the call that publishes to the consumer, by the rate of events."""
    rows = [
        (
            "idle (200)" if case.rate == IDLE_RATE else f"{case.rate:,}",
            case.label,
            *(fixed(results.spread(case, percentile(p)), 0) for p in (50.0, 99.0)),
            ratio_to_base(results, case, percentile(50)),
            fill_words(results, case),
        )
        for case in results.cases(ONE_WAY)
    ]
    columns = ("events/s offered", "way", "p50 us", "p99 us", "p50 x raw", "events/frame")
    return Table("One way, 64 B", columns, rows, words=2)


def size_words(size_bytes: int) -> str:
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 else f"{size_bytes} B"


def rate_words(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    return fixed(Spread(spread.median / 1e3, spread.low / 1e3, spread.high / 1e3), 0)


def fixed(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return NONE
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def ratio_words(spread: Spread | None) -> str:
    return fixed(spread, 2)


def ratio_to_base(results: Results, case: Case, measure: Measure) -> str:
    return NONE if case.is_base else ratio_words(results.ratio(case, case.base, measure))


def fill_words(results: Results, case: Case) -> str:
    spread = results.spread(case, frame_events)
    return f"{spread.median:,.0f}" if spread is not None and spread.median else NONE


# --- where it goes ---


def show(results: Results, circumstances: str, console: Console) -> None:
    """On the terminal."""
    console.print()
    for table in tables(results):
        console.print(table.rich())
        console.print()
    console.print(circumstances)


def markdown(results: Results, circumstances: str) -> str:
    """As part of a page."""
    parts = []
    for table in tables(results):
        parts += [f"### {table.title}", table.markdown()]
    parts.append(circumstances)
    return "\n\n".join(parts) + "\n"


def plain(
    results: Results, machine: Machine, others: float | None, failures: Sequence[str]
) -> dict[str, Any]:
    """Everything, for JSON: each measurement and the ratios."""
    return {
        "machine": machine.as_dict(),
        "used_by_others": None if others is None else round(others, 3),
        "failures": list(failures),
        "measurements": [_plain(results, case) for case in results.cases()],
        "targets": list(_plain_targets(results)),
    }


def _plain(results: Results, case: Case) -> dict[str, Any]:
    found = results.of(case)
    entry: dict[str, Any] = {"id": case.id, "label": case.label}
    entry["rounds"] = [m.round for m in found]
    entry["events"] = [m.events for m in found]
    if case.kind == THROUGHPUT:
        entry["events_per_s"] = [round(m.rate) for m in found]
        entry["cpu_us_per_event"] = [round(m.cpu_us, 4) for m in found]
    else:
        for p in PERCENTILES:
            entry[f"p{p:g}_us"] = [round(m.percentile_us(p), 1) for m in found]
    if any(m.frame_events for m in found):
        entry["events_per_frame"] = [round(m.frame_events, 1) for m in found]
    if not case.is_base:
        measure = rate if case.kind == THROUGHPUT else percentile(50)
        ratio = results.ratio(case, case.base, measure)
        entry["ratio_to_raw"] = None if ratio is None else round(ratio.median, 3)
    return entry


def _plain_targets(results: Results) -> Iterator[dict[str, Any]]:
    for target in TARGETS:
        reached = results.ratio(target.case, target.base, target.measure)
        if reached is not None:
            yield {
                "text": target.text,
                "wanted": target.wanted,
                "reached": round(reached.median, 3),
                "met": target.met(reached.median),
            }
