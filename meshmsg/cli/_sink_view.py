"""How `meshmsg sink` shows its figures and what a check found, to people."""

from __future__ import annotations

from typing import Any

from meshmsg.cli._figures import Figures, framed, lost_cell, print_now, waits
from meshmsg.cli._values import safe


def _head(figures: Figures) -> str:
    starting = "tries again" if figures["problem"] else "Spark starts"
    state = "running" if figures["ready"] else starting
    state = "ended" if figures.get("ended") else state
    text = f"{state}  in {figures['events_in']:,} events  {figures['events_in_s']:,}/s"
    return text + waits(figures)


def show_lines(figures: Figures) -> None:
    """A line for each output."""
    for row in figures["outputs"]:
        bad = "".join(f"  {key} {row[key]:,}" for key in ("lost", "quarantined") if row[key])
        print_now(
            f"{_head(figures)}  {safe(row['output'])}: {row['rows']:,} rows  lag "
            f"{row['lag_events']:,} events {row['lag_s']:.1f} s  batch {row['batch_ms']:.0f} ms"
            f"{bad}"
        )


def picture(figures: Figures) -> Any:
    """The outputs in a table, live in a terminal."""
    titles = ("output", "rows", "commits", "lag events", "lag s", "batch ms", "quarantined", "lost")
    rows = (
        (
            row["output"],
            f"{row['rows']:,}",
            f"{row['commits']:,}",
            f"{row['lag_events']:,}",
            f"{row['lag_s']:.1f}",
            f"{row['batch_ms']:.0f}",
            f"{row['quarantined']:,}",
            lost_cell(row["lost"]),
        )
        for row in figures["outputs"]
    )
    return framed(_head(figures), titles, rows)


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
