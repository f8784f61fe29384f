"""How `meshmsg sink` shows its figures: for programs, live in a terminal, or a line each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meshmsg.cli._values import safe, to_json


@contextmanager
def view(*, json: bool, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Something that shows figures."""
    if json:
        yield lambda figures: _print(to_json(figures))
    elif sys.stdout.isatty() and not quiet:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            yield lambda figures: live.update(_picture(figures), refresh=True)
    else:
        yield _show_lines


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _head(figures: dict[str, Any]) -> str:
    state = "running" if figures["ready"] else "Spark starts"
    state = "ended" if figures.get("ended") else state
    text = f"{state}  in {figures['events_in']:,} events  {figures['events_in_s']:,}/s"
    return text + (f"  waits: {safe(figures['problem'])}" if figures["problem"] else "")


def _show_lines(figures: dict[str, Any]) -> None:
    for row in figures["outputs"]:
        bad = "".join(f"  {key} {row[key]:,}" for key in ("lost", "quarantined") if row[key])
        _print(
            f"{_head(figures)}  {safe(row['output'])}: {row['rows']:,} rows  lag "
            f"{row['lag_events']:,} events {row['lag_s']:.1f} s  batch {row['batch_ms']:.0f} ms"
            f"{bad}"
        )


def _picture(figures: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(_head(figures)), title_justify="left", expand=False)
    titles = ("output", "rows", "commits", "lag events", "lag s", "batch ms", "quarantined", "lost")
    for title in titles:
        table.add_column(title, justify="left" if title == "output" else "right")
    for row in figures["outputs"]:
        lost = f"[bold red]{row['lost']:,}[/]" if row["lost"] else "0"
        table.add_row(
            escape(safe(row["output"])),
            f"{row['rows']:,}",
            f"{row['commits']:,}",
            f"{row['lag_events']:,}",
            f"{row['lag_s']:.1f}",
            f"{row['batch_ms']:.0f}",
            f"{row['quarantined']:,}",
            lost,
        )
    return table


def show_check(found: dict[str, Any]) -> None:
    """What a check found, for people."""
    for row in found["epochs"]:
        wrong = ", ".join(
            f"{row[key]:,} {key.replace('_', ' ')}"
            for key in ("missing", "duplicates", "out_of_range")
            if row[key]
        )
        known = f"  ({row['unverified']:,} only by count)" if row["unverified"] else ""
        aside = "".join(f"  {row[k]:,} {k}" for k in ("lost", "quarantined") if row[k])
        print(
            f"{safe(row['stream'])} epoch {row['epoch']}: {row['events']:,} events to "
            f"{row['next']:,}{aside}{known}  {wrong or 'good'}"
        )
    for problem in found["problems"]:
        print(f"PROBLEM  {safe(problem)}")
    words = "good" if found["good"] else "DIFFERS"
    waiting = f"  waiting {found['waiting']:,}" if found["waiting"] else ""
    print(
        f"{safe(found['output'])}: {words}  {found['rows']:,} rows  missing {found['missing']:,}  "
        f"duplicates {found['duplicates']:,}  out of range {found['out_of_range']:,}"
        f"{waiting}"
    )
