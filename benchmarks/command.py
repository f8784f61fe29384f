"""The command line of the benchmarks: what to measure, and where the results go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import page, report
from benchmarks.case import Case, all_cases, chosen_cases, in_round
from benchmarks.crew import CrewFailed
from benchmarks.machine import Neighbours, this_machine
from benchmarks.results import TARGETS, Results
from benchmarks.trial import QUICK, Effort, EventsMissing, Measurement, run_trial

FILE_WIDTH = 140

EPILOG = """\
A full run takes about five minutes and brings docs/benchmarks.md and its picture up to date, unless
--no-docs is given.  A quick one, one of some cases only, or one that failed does not touch them.

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
    machine, neighbours = this_machine(), Neighbours()
    results, failures = measure(cases, _effort(options), console)
    circumstances = f"{machine.text()} {neighbours.text()}".rstrip()
    report.show(results, circumstances, console)
    show_failures(failures, console)
    data = report.plain(results, machine, neighbours.part(), failures)
    _write(options, results, data, report.markdown(results, circumstances))
    missed = options.check and not all_met(results)
    return 1 if failures or missed else 0


def show_failures(failures: Sequence[str], console: Console) -> None:
    if failures:
        console.print(f"\n{len(failures)} measurements failed. The first one:\n{failures[0]}")
        for failure in failures[1:]:
            console.print(f"{failure.partition(': ')[0]}: {failure.strip().splitlines()[-1]}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure meshmsg beside raw pyzmq: separate processes, tcp on loopback.",
        epilog=EPILOG + "\n".join(f"  {case.id}" for case in all_cases()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a fifth of the events, one round: less than a minute")
    add("--rounds", type=positive, metavar="N", help="measure every case N times")
    add("--only", action="append", metavar="PATTERN", help="some cases; may be given again")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    add("--plot", type=Path, metavar="FILE", help="draw the results (svg, png, pdf)")
    add("--no-docs", action="store_true", help="leave the documentation as it is")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rounds: at least 1")
    return number


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else Effort()
    return effort if options.rounds is None else replace(effort, rounds=options.rounds)


def measure(
    cases: Sequence[Case],
    effort: Effort,
    console: Console,
    trial: Callable[[Case, Effort, int], Measurement] = run_trial,
) -> tuple[Results, list[str]]:
    """Every case in every round; what failed, in words."""
    results = Results(cases)
    failures = []
    began = time.monotonic()
    with console.status("starting") as status:
        for number in range(effort.rounds):
            for case in in_round(cases, number):
                passed_s = time.monotonic() - began
                status.update(f"round {number + 1} of {effort.rounds}, {passed_s:.0f} s: {case.id}")
                try:
                    results.add(trial(case, effort, number))
                except (CrewFailed, EventsMissing) as error:
                    failures.append(f"{case.id} in round {number + 1}: {error}")
    return results, failures


def all_met(results: Results) -> bool:
    """Whether every target that was measured was reached."""
    reached = [(t, results.ratio(t.case, t.base, t.measure)) for t in TARGETS]
    return all(spread is None or target.met(spread.median) for target, spread in reached)


def _write(options: argparse.Namespace, results: Results, data: dict[str, Any], text: str) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    pictures = [] if options.plot is None else [options.plot]
    if not (options.no_docs or options.quick or options.only or data["failures"]):
        page.write(text)
        pictures.append(page.PICTURE)
    if pictures:
        from benchmarks.picture import draw  # needs matplotlib, which measuring does not

        for path in pictures:
            draw(results, path)
