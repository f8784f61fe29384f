"""The command line of the benchmarks: what to measure, and where the results go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import page, report
from benchmarks.case import (
    RATES_OF,
    RECEIVER,
    Case,
    all_cases,
    chosen_cases,
    headline_cases,
    in_round,
)
from benchmarks.crew import CrewFailed
from benchmarks.machine import Neighbours, this_machine
from benchmarks.record import Record
from benchmarks.results import Results
from benchmarks.section import SECTIONS, Section
from benchmarks.space import Missing, is_entered, missing_ways, versions
from benchmarks.table import Table, as_markdown
from benchmarks.target import verdicts
from benchmarks.trial import QUICK, Effort, EventsMissing, Measurement, run_trial

FILE_WIDTH = 150
#: Where what was measured is kept, so that a run can be taken up again.
FOLDER = page.ROOT / "build" / "benchmarks"

EPILOG = """\
A full run measures everything and takes most of an hour; --quick takes the 64 B cases of the
targets and a few minutes.  Every measurement is kept in a file as soon as it is made: --resume goes
on where a run was broken off (and with everything measured only writes the tables anew).

A full run brings docs/benchmarks up to date, unless --no-docs is given.  A quick one, or one of
some cases only, does so if --docs is given.

The exit status is 1 if meshmsg lost anything or failed, and, with --check, if a target was missed.
What a rival could not do is in the tables.

Cases and sections (for --only; a part of the name, or a pattern with *):
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, write; returns the exit status."""
    options = _options(arguments)
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    cases, sections = chosen(options)
    if not cases and not sections:
        print(f"no case is called {' or '.join(options.only)}: see --help", file=sys.stderr)
        return 2
    machine, neighbours = this_machine(), Neighbours()
    effort = _effort(options)
    record = Record(options.folder / f"{kind_of_run(options)}.jsonl", effort)
    todo = replace(effort, rounds=0) if options.no_measure else effort
    resume = options.resume or options.no_measure
    results = measure(cases, todo, console, record=record, resume=resume)
    others, problems = measure_sections(sections, options, console)
    found = report.tables(results) if cases else []
    found += [table for tables in others.values() for table in tables]
    meanwhile = "" if options.no_measure else neighbours.text()
    around = circumstances(machine.text(), meanwhile)
    show([*found, *failed_sections(problems)], around, console)
    show_failures(results, console)
    data = report.plain(results, machine, neighbours.part(), versions())
    data["sections"] = {s.name: s.read(options.folder / f"{s.name}.json") for s in sections}
    data["failed_sections"] = problems
    gaps = not_in_this_run(results, others)
    write(options, results, data, [*found, *failed_sections(problems), *gaps], around)
    ours_failed = any(case.ours for case in results.failures)
    missed = options.check and not all(met for *_, met in verdicts(results))
    return 1 if ours_failed or missed or (problems and not options.quick) else 0


def kind_of_run(options: argparse.Namespace) -> str:
    """Each kind has a record of its own: a short run does not wipe out a long one."""
    return "some" if options.only else "quick" if options.quick else "full"


def chosen(options: argparse.Namespace) -> tuple[list[Case], list[Section]]:
    """What is measured."""
    if not options.only:
        if options.quick:
            return headline_cases(), []
        return all_cases(), list(SECTIONS)
    sections = [s for s in SECTIONS if any(word in (s.name, "sections") for word in options.only)]
    patterns = [word for word in options.only if word not in {s.name for s in sections}]
    patterns = [word for word in patterns if word != "sections"]
    return chosen_cases(patterns) if patterns else [], sections


def circumstances(machine: str, others: str) -> str:
    """Where and when, with whom, in a line."""
    words = "".join(f", {package} {number}" for package, number in versions().items())
    where = "In a network namespace with loopback only." if is_entered() else "On loopback."
    return f"{machine.rstrip('.')}{words}. {where} {others}".rstrip()


def measure(
    cases: Sequence[Case],
    effort: Effort,
    console: Console,
    trial: Callable[[Case, Effort, int], Measurement] = run_trial,
    record: Record | None = None,
    resume: bool = False,
) -> Results:
    """Every case in every round that was not measured yet."""
    results = Results(cases)
    results.missing = missing_ways()
    if record is not None:
        if resume:
            record.read_into(results, cases)
        elif cases:
            record.clear()
    began = time.monotonic()
    for number in range(effort.rounds):
        for case in in_round(cases, number):
            if case.way in results.missing or results.has(case, number):
                continue
            if len(results.failures.get(case, ())) > 1:  # not a third time
                continue
            try:
                measured = trial(case, effort, number)
            except (CrewFailed, EventsMissing, Missing) as error:
                results.fail(case, f"{case.id} in round {number + 1}: {error}")
                words = f"FAILED: {str(error).strip().splitlines()[-1]}"
            else:
                results.add(measured)
                words = in_words(measured)
                if record is not None:
                    record.add(measured)
            passed = f"{time.monotonic() - began:.0f} s, round {number + 1} of {effort.rounds}"
            console.print(f"{passed}: {case.id} {words}", soft_wrap=True)
    return results


def in_words(measured: Measurement) -> str:
    """The figure that counts."""
    if measured.case.kind in RATES_OF:
        return f"{measured.rate:,.0f} events/s"
    return f"p50 {measured.percentile_us(50):,.0f} us"


def measure_sections(
    sections: Sequence[Section], options: argparse.Namespace, console: Console
) -> tuple[dict[str, list[Table]], dict[str, str]]:
    """The tables of every section, and what went wrong."""
    tables: dict[str, list[Table]] = {}
    problems: dict[str, str] = {}
    for section in sections:
        file = options.folder / f"{section.name}.json"
        if not (options.no_measure or (options.resume and file.exists())):
            console.print(f"{section.name}: {section.script}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            words = [f"--gb={gb:g}" for gb in options.log_gb] if section.sizes else []
            if section.writes_page and not writes_docs(options):
                words.append("--no-docs")
            problem = section.run(file, options.quick, options.rounds, words)
            if problem:
                problems[section.name] = problem
                console.print(f"{section.name} FAILED: {problem}", soft_wrap=True)
        data = section.read(file)
        if data is not None:
            tables[section.name] = section.tables(data)
    return tables, problems


def failed_sections(problems: dict[str, str]) -> list[Table]:
    """What could not be measured."""
    rows = [(name, f"not available: {problem}") for name, problem in problems.items()]
    return [Table("Not measured", ("section", "because"), rows, words=2)] if rows else []


def not_in_this_run(results: Results, sections: Container[str]) -> list[Table]:
    """What a full run measures and this one did not: a page that leaves it out says so."""
    measured = {_kind_of(case) for case in results.cases()}
    wanted = dict.fromkeys(_kind_of(c) for c in all_cases() if c.way not in results.missing)
    rows = [(kind,) for kind in wanted if kind not in measured]
    rows += [(section.name,) for section in SECTIONS if section.name not in sections]
    return [Table("Not in this run", ("case or section",), rows)] if rows else []


def _kind_of(case: Case) -> str:
    """Its group, and what else sets it apart from the others there."""
    apart = [f"loss-{case.loss:g}"] if case.loss and case.loss_at == RECEIVER else []
    apart += ["parity"] if case.parity else []
    apart += ["sealed"] if case.sealed else []
    return "/".join([case.group, *apart])


def show(tables: Sequence[Table], around: str, console: Console) -> None:
    """On the terminal."""
    console.print()
    for table in tables:
        console.print(table.rich())
        console.print()
    console.print(around, soft_wrap=True)


def show_failures(results: Results, console: Console) -> None:
    """What went wrong, the first of each case."""
    if results.failures:
        console.print(f"\n{len(results.failures)} cases failed at least once:")
    for problems in results.failures.values():
        console.print(problems[0], soft_wrap=True)


def writes_docs(options: argparse.Namespace) -> bool:
    """Whether the pages are brought up to date."""
    if options.no_docs:
        return False
    return bool(options.docs or not (options.quick or options.only))


def write(
    options: argparse.Namespace,
    results: Results,
    data: dict[str, Any],
    tables: Sequence[Table],
    around: str,
) -> None:
    """Everything that was asked for."""
    text = json.dumps(data, indent=1) + "\n"
    files = [] if options.json is None else [options.json]
    pictures = [] if options.plot is None else [options.plot]
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(tables, around), encoding="utf-8")
    if pictures:
        from benchmarks.picture import draw  # needs matplotlib, which measuring does not

        for path in pictures:
            draw(results, path)
    if writes_docs(options):
        files.append(page.DATA)
        write_docs(results, tables, around)
    for file in files:
        file.write_text(text, encoding="utf-8")


def write_docs(results: Results, tables: Sequence[Table], around: str) -> None:
    """The pages and their pictures."""
    from benchmarks import picture

    first = ("Targets", "Throughput, 64 B", "Round trip", "Not in this run")
    page.write(as_markdown([t for t in tables if t.title.startswith(first)], around))
    page.write(as_markdown(tables, around), page.TABLES_PAGE)
    for draw, path in (
        (picture.draw, page.PICTURE),
        (picture.draw_times, page.TIMES_PICTURE),
        (picture.draw_growth, page.GROWTH_PICTURE),
    ):
        for ending in picture.ENDINGS:
            draw(results, path.with_suffix(ending))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rounds: at least 1")
    return number


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [case.id for case in all_cases()] + [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure meshmsg beside others: separate processes, loopback only.",
        epilog=EPILOG + "\n".join(f"  {name}" for name in names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="the 64 B cases of the targets, fewer events")
    add("--rounds", type=positive, metavar="N", help="measure everything N times")
    add("--scale", type=float, metavar="X", help="of the events of a full run, the part sent")
    add("--only", action="append", metavar="PATTERN", help="some cases; may be given again")
    add("--resume", action="store_true", help="go on with the run that was broken off")
    add("--no-measure", action="store_true", help="only write what was measured so far")
    add("--log-gb", type=float, action="append", default=[], metavar="N", help="size of a log")
    add("--folder", type=Path, default=FOLDER, help="where measurements are kept meanwhile")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    add("--plot", type=Path, metavar="FILE", help="draw the results (svg, png, pdf)")
    add("--docs", action="store_true", help="write the documentation after a part of a run, too")
    add("--no-docs", action="store_true", help="leave the documentation as it is")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser.parse_args(arguments)


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    if options.scale is not None:
        effort = replace(effort, scale=options.scale)
    return effort
