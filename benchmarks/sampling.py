"""Tables of where the time of a publisher and of a subscriber goes, for `profile.py`."""

from __future__ import annotations

import argparse
import linecache
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.case import THROUGHPUT, Case
from benchmarks.page import ROOT
from benchmarks.table import Table
from benchmarks.task import Report
from benchmarks.trial import Effort, run_tasks, tasks_of
from benchmarks.way import LABELS, SYNC

WIDTH = 150
SOURCE_CHARACTERS = 48
PLACE_CHARACTERS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one case, and show it."""
    parser = argparse.ArgumentParser(prog="benchmarks/profile.py", description=__doc__)
    parser.add_argument("--way", choices=list(LABELS), default=SYNC, help="default: %(default)s")
    parser.add_argument("--size", type=int, default=64, metavar="BYTES")
    parser.add_argument("--subscribers", type=int, default=1, metavar="N")
    parser.add_argument("--lines", type=int, default=14, metavar="N", help="lines of each table")
    parser.add_argument("--scale", type=float, default=1.0, help="of the events of a full run")
    options = parser.parse_args(arguments)
    case = Case(THROUGHPUT, options.way, options.size, options.subscribers)
    reports = run_tasks(tasks_of(case, Effort(scale=options.scale), sampled=True))
    console = Console(highlight=False, emoji=False, markup=False, width=WIDTH)
    console.print(f"{case.label}, {options.size} B, 1 -> {options.subscribers}\n")
    for name, report in zip(("publisher", "subscriber"), reports, strict=False):
        for problem in report.problems:
            console.print(f"PROBLEM: {problem}")
        for table in (by_thread(name, report), by_line(name, report, options.lines)):
            console.print(table.rich())
            console.print()
    return 0


def by_thread(name: str, report: Report) -> Table:
    """What the threads of a process used."""
    threads = sorted(report.threads, key=lambda thread: -thread.cpu_s)
    each = 1e6 / max(1, report.events)
    rows = [
        (
            thread.name,
            f"{thread.cpu_s:.2f}",
            f"{thread.cpu_s * each:.2f}",
            f"{thread.waited_s:.2f}",
        )
        for thread in threads
        if thread.cpu_s >= 0.005
    ]
    title = f"{name}: {report.events:,} events, by thread"
    return Table(title, ("thread", "CPU s", "CPU us/event", "s ready, not running"), rows)


def by_line(name: str, report: Report, count: int) -> Table:
    """Where the main thread of a process was."""
    samples = report.samples
    if samples is None or not samples.count:
        return Table(f"{name}: too short to be seen", ("line",), [])
    each_ns = samples.seconds * 1e9 / max(1, report.events)
    rows = []
    for (file, line, function), seen in sorted(samples.lines.items(), key=lambda i: -i[1])[:count]:
        part = seen / samples.count
        source = linecache.getline(file, line).strip()[:SOURCE_CHARACTERS]
        rows.append(
            (_place(file, line), _last(function), source, f"{part:.1%}", f"{part * each_ns:.0f}")
        )
    title = f"{name}: its main thread, {samples.seconds:.2f} s, {each_ns:.0f} ns/event"
    return Table(title, ("line", "function", "source", "part", "ns/event"), rows, words=3)


def _place(file: str, line: int) -> str:
    """File and line, short enough for a table; of a path, the end matters most."""
    path = Path(file).resolve()
    text = f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"
    return text if len(text) <= PLACE_CHARACTERS else f"...{text[3 - PLACE_CHARACTERS :]}"


def _last(function: str) -> str:
    return function.rpartition(".")[2]
