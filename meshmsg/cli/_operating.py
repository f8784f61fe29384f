"""What the operators' verbs have in common: running peers or a disk, orders, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import WaitTimeout
from meshmsg.cli._asking import asking
from meshmsg.cli._guard import BAD, GOOD, complain, note, usage
from meshmsg.cli._options import seconds
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import safe, to_json
from meshmsg.cli.sub import parse_where

Rows = list[dict[str, Any]]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        show_default=False,
        help="Instead of a running peer: the data directory of one that is stopped.",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option("--stream", metavar="STREAM", show_default=False, help="Only on this stream."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Change nothing: say what would happen.")
]
Where = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="earliest, live, last:N, a time (2026-01-31T12:00), how long ago (10m), or a position "
        "as --json prints it.",
    ),
]


def one_way(connect: Sequence[str] | None, data_dir: Path | None) -> bool:
    """Return True for a running peer, False for what is on disk; raises `ConfigError` for both."""
    if data_dir is not None and connect:
        raise usage("--data-dir", "goes without --connect: it is for a peer that is stopped")
    if data_dir is None and not connect:
        raise usage(
            "--connect",
            "say which peer: --connect tcp://127.0.0.1:7000, or --data-dir DIR of one that is "
            "stopped",
        )
    return data_dir is None


def order(
    connect: Sequence[str] | None,
    mesh: str | None,
    timeout: str,
    action: str,
    name: str = "",
    *,
    to: str | None = None,
    **more: Any,
) -> list[Mapping[str, Any]]:
    """Give an order to the peers at some addresses; returns their answers."""
    timeout_s = seconds("--timeout", timeout)
    start = None if to is None else parse_where(to, "--to")
    with asking(connect, mesh, timeout_s) as peer:
        answers = peer.operate(action, name, start=start, timeout=timeout_s, **more)
    found: list[Mapping[str, Any]] = []
    for address, answer in answers.items():
        good = isinstance(answer, dict) and isinstance(answer.get("done"), list)
        if not good or not all(isinstance(row, dict) for row in answer["done"]):
            raise WaitTimeout(f"{address} answered with something that is not an answer")
        found.append({"address": address, **answer})
    return found


def show(answers: Sequence[Mapping[str, Any]], *, json: bool, dry_run: bool) -> int:
    """Print what was done, or would be; exit status 1 where a peer did nothing."""
    status = GOOD
    for answer in answers:
        if answer.get("problem"):
            complain(f"{safe(str(answer.get('peer', '?')))}: {safe(str(answer['problem']))}")
            status = BAD
    rows = [
        {"peer": answer.get("peer", "?"), **row, **({"dry_run": True} if dry_run else {})}
        for answer in answers
        for row in answer["done"]
    ]
    show_rows(rows, json=json)
    if dry_run and rows:
        note("dry run: nothing was changed")
    return status


def show_rows(rows: Rows, *, json: bool) -> None:
    """Rows as objects, or as a table with a column for each key."""
    if json:
        for row in rows:
            print(to_json(row))
        return
    if not rows:
        return
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "dry_run"))
    shown = table("", *(column.replace("_", " ") for column in columns))
    for row in rows:
        shown.add_row(*(_cell(row.get(column)) for column in columns))
    console().print(shown)


def on_disk(act: Callable[[], Rows], missing: str, *, json: bool, dry_run: bool) -> int:
    """Do something on disk and show it; raises `LogError`, and `ConfigError` for nothing."""
    rows = act()
    if not rows:
        raise usage("NAME", missing)
    return show([{"peer": "(on disk)", "done": rows}], json=json, dry_run=dry_run)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return safe(" ".join(map(str, value)))
    return safe(str(value))
