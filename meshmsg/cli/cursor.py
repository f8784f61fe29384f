"""`meshmsg cursor`: named cursors shown, moved and dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshmsg.cli._guard import guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._operating import Data, DryRun, Stream, Where, one_way, order, show
from meshmsg.cli._options import Answer, Connect, Json, Mesh
from meshmsg.cli.sub import parse_where
from meshmsg.logs import operate_cursors

HELP = help_text(
    "Cursors: how far named subscriptions have come, and what holds a log.",
    "Those of a running peer (--connect), or in a data directory (--data-dir). A cursor whose "
    "subscription is open is not moved: its next commit would move it back.",
    examples=(
        "meshmsg cursor ls --data-dir ./audit",
        "meshmsg cursor reset audit --to earliest --data-dir ./audit",
        "meshmsg cursor drop audit-peer/audit -c tcp://127.0.0.1:7000",
    ),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The cursor.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    cursor = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    cursor.command("ls", help="Show cursors, and what they hold.")(guarded(ls))
    cursor.command("reset", help="Move a cursor to a place.")(guarded(reset))
    cursor.command("drop", help="Forget a cursor: what it held may expire.")(guarded(drop))
    app.add_typer(cursor, name="cursor", help=HELP, short_help="Show and move cursors.")


def ls(
    connect: Connect = None,
    data_dir: Data = None,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Show all."""
    if one_way(connect, data_dir):
        return show(order(connect, mesh, timeout, "cursor ls"), json=json, dry_run=False)
    rows, _ = operate_cursors(str(data_dir), "cursor ls")
    return show([{"peer": "(on disk)", "done": rows}], json=json, dry_run=False)


def reset(
    name: Name,
    to: Where,
    connect: Connect = None,
    data_dir: Data = None,
    stream: Stream = None,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Move one."""
    return _do("cursor reset", name, to, connect, data_dir, stream, dry_run, mesh, timeout, json)


def drop(
    name: Name,
    connect: Connect = None,
    data_dir: Data = None,
    stream: Stream = None,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Forget one."""
    return _do("cursor drop", name, None, connect, data_dir, stream, dry_run, mesh, timeout, json)


def _do(
    action: str,
    name: str,
    to: str | None,
    connect: list[str] | None,
    data_dir: Path | None,
    stream: str | None,
    dry_run: bool,
    mesh: str | None,
    timeout: str,
    json: bool,
) -> int:
    at = stream or ""
    if one_way(connect, data_dir):
        answers = order(connect, mesh, timeout, action, name, to=to, stream=at, dry_run=dry_run)
    else:
        start = None if to is None else parse_where(to, "--to")
        rows, problem = operate_cursors(
            str(data_dir), action, name, stream=at, start=start, dry_run=dry_run
        )
        answers = [{"peer": "(on disk)", "done": rows, "problem": problem}]
    return show(answers, json=json, dry_run=dry_run)
