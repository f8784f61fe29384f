"""The command line of the multicast benchmark: what to measure, and where the results go."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import page
from benchmarks.command import FILE_WIDTH, measure, positive, show_failures
from benchmarks.machine import Neighbours, this_machine
from benchmarks.mcast import report
from benchmarks.mcast.case import all_cases, chosen_cases
from benchmarks.mcast.space import is_entered, missing_peers, peer_versions
from benchmarks.mcast.targets import TARGETS
from benchmarks.mcast.trial import QUICK, Effort, run_trial
from benchmarks.report import Table
from benchmarks.results import Results

EPILOG = """\
A full run takes about five minutes and brings docs/benchmarks-multicast.md and its picture up to
date, unless --no-docs is given.  A quick one, one of some cases only, or one that failed does not
touch them.

The exit status is 1 if anything was lost or failed, and, with --check, if a target was missed.

Cases (for --only; a part of the name, or a pattern with *):
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, write; returns the exit status."""
    options = _options(arguments)
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    cases = chosen_cases(options.only) if options.only else all_cases()
    if not cases:
        print(f"no case is called {' or '.join(options.only)}: see --help", file=sys.stderr)
        return 2
    missing = missing_peers()
    cases = [case for case in cases if case.way not in missing]
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    machine, neighbours, versions = this_machine(), Neighbours(), peer_versions()
    results, failures = measure(cases, effort, console, run_trial)
    words = "".join(f", {package} {number}" for package, number in versions.items())
    where = "In a network namespace with loopback only. " if is_entered() else "On loopback. "
    circumstances = f"{machine.text().rstrip('.')}{words}. {where}{neighbours.text()}".rstrip()
    found = report.tables(results, missing)
    console.print()
    for table in found:
        console.print(table.rich())
        console.print()
    console.print(circumstances)
    show_failures(failures, console)
    if options.json is not None:
        data = report.plain(results, machine, neighbours.part(), failures, versions, missing)
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    _write(options, results, _markdown(found, circumstances), whole=not failures)
    return 1 if failures or (options.check and not _all_met(results)) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/multicast.py",
        description="Measure meshmsg over multicast beside plain datagrams and other systems.",
        epilog=EPILOG + "\n".join(f"  {case.id}" for case in all_cases()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a fifth of the events, one round: about a minute")
    add("--rounds", type=positive, metavar="N", help="measure every case N times")
    add("--only", action="append", metavar="PATTERN", help="some cases; may be given again")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    add("--plot", type=Path, metavar="FILE", help="draw the results (svg, png, pdf)")
    add("--no-docs", action="store_true", help="leave the documentation as it is")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser.parse_args(arguments)


def _all_met(results: Results) -> bool:
    reached = [(t, results.ratio(t.case, t.base, t.measure)) for t in TARGETS]
    return all(spread is None or target.met(spread.median) for target, spread in reached)


def _markdown(tables: Sequence[Table], circumstances: str) -> str:
    parts = []
    for table in tables:
        parts += [f"### {table.title}", table.markdown()]
    return "\n\n".join([*parts, circumstances]) + "\n"


def _write(options: argparse.Namespace, results: Results, text: str, *, whole: bool) -> None:
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    pictures = [] if options.plot is None else [options.plot]
    if whole and not (options.no_docs or options.quick or options.only):
        page.write(text, page.MULTICAST_PAGE)
        pictures.append(page.MULTICAST_PICTURE)
    if pictures:
        from benchmarks.mcast.picture import draw  # needs matplotlib, which measuring does not

        for path in pictures:
            draw(results, path)
