"""`meshmsg group`: work groups shown, paused, let go on, reset, and given their dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg.cli._asking import ask, asking
from meshmsg.cli._guard import BAD, GOOD, guarded, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._log_groups import drop_groups, show_groups
from meshmsg.cli._operating import (
    Data,
    DryRun,
    Rows,
    Stream,
    Where,
    on_disk,
    one_way,
    order,
    show,
    show_rows,
)
from meshmsg.cli._options import Answer, Connect, Json, Mesh, seconds
from meshmsg.cli.log import chosen, seek
from meshmsg.logs import GroupMoves, summarize

HELP = help_text(
    "Work groups of running peers (--connect), or on the disk of one that is stopped (--data-dir).",
    "A reset begins anew at a place: what members had before is refused. A redrive gives dead "
    "letters back to their group, each once. With --dry-run nothing changes. With an allow-list, "
    "a key needs operate = true.",
    examples=(
        "meshmsg group ls -c tcp://127.0.0.1:7000",
        "meshmsg group pause billing -c tcp://127.0.0.1:7000",
        "meshmsg group reset billing --to earliest --dry-run -c tcp://127.0.0.1:7000",
        "meshmsg group redrive billing -c tcp://127.0.0.1:7000",
        "meshmsg group reset billing --to 2026-01-31T12:00 --data-dir ./data",
    ),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The group.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("ls", help="Show the groups, with their lag and members.")(guarded(ls))
    group.command("show", help="Show one group, with each of its members.")(guarded(show_one))
    group.command("pause", help="Deal out nothing more; what members have they finish.")(
        guarded(pause)
    )
    group.command("resume", help="Deal out again.")(guarded(resume))
    group.command("reset", help="Begin anew at a place of the stream.")(guarded(reset))
    group.command("redrive", help="Give dead letters back to the group, each once.")(
        guarded(redrive)
    )
    group.command("drop", help="Forget a group on disk, and all that it has yet to do.")(
        guarded(drop)
    )
    app.add_typer(group, name="group", help=HELP, short_help="Show and operate work groups.")


def ls(
    connect: Connect = None,
    data_dir: Data = None,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Show all."""
    if not one_way(connect, data_dir):
        found = [summarize(folder) for folder in chosen(str(data_dir), None)]
        return show_groups(found, json=json)
    rows = _groups(connect, mesh, timeout)
    show_rows([{k: v for k, v in row.items() if k != "each"} for row in rows], json=json)
    return GOOD


def show_one(
    name: Name,
    connect: Connect = None,
    stream: Stream = None,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Show one, and its members."""
    rows = [
        row
        for row in _groups(connect, mesh, timeout)
        if row["group"] == name and stream in (None, row["stream"])
    ]
    if not rows:
        raise usage("NAME", f"{name!r} is not a group there: meshmsg group ls")
    for row in rows:
        members = row.pop("each")
        show_rows([{**row, "each": members}] if json else [row], json=json)
        if not json:
            show_rows(members, json=False)
    return GOOD


def pause(
    name: Name,
    connect: Connect = None,
    data_dir: Data = None,
    stream: Stream = None,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Pause."""
    return _set_paused(name, True, connect, data_dir, stream, dry_run, mesh, timeout, json)


def resume(
    name: Name,
    connect: Connect = None,
    data_dir: Data = None,
    stream: Stream = None,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Go on."""
    return _set_paused(name, False, connect, data_dir, stream, dry_run, mesh, timeout, json)


def _set_paused(
    name: str,
    paused: bool,
    connect: list[str] | None,
    data_dir: Path | None,
    stream: str | None,
    dry_run: bool,
    mesh: str | None,
    timeout: str,
    json: bool,
) -> int:
    if one_way(connect, data_dir):
        action = "group pause" if paused else "group resume"
        answers = order(connect, mesh, timeout, action, name, stream=stream or "", dry_run=dry_run)
        return show(answers, json=json, dry_run=dry_run)

    def act() -> Rows:
        moves = map(GroupMoves, chosen(str(data_dir), stream))
        return [row for one in moves for row in one.pause(name, paused, dry_run=dry_run)]

    return on_disk(act, f"{name!r} is not a group there", json=json, dry_run=dry_run)


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
    """Begin anew."""
    if one_way(connect, data_dir):
        answers = order(
            connect,
            mesh,
            timeout,
            "group reset",
            name,
            to=to,
            stream=stream or "",
            dry_run=dry_run,
        )
        return show(answers, json=json, dry_run=dry_run)

    def act() -> Rows:
        moves = map(GroupMoves, chosen(str(data_dir), stream))
        place = lambda reader: reader.seek_latest() if to == "live" else seek(reader, to, "--to")  # noqa: E731
        return [row for one in moves for row in one.reset(name, place, dry_run=dry_run)]

    return on_disk(act, f"{name!r} is not a group there", json=json, dry_run=dry_run)


def redrive(
    name: Name,
    connect: Connect = None,
    stream: Stream = None,
    most: Annotated[
        int, typer.Option("--count", min=0, help="At most so many; 0: all that there are.")
    ] = 0,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """Give dead letters back, in as many turns as that takes."""
    status, left = GOOD, most
    while True:
        answers = order(
            connect,
            mesh,
            timeout,
            "group redrive",
            name,
            stream=stream or "",
            most=left,
            dry_run=dry_run,
        )
        status = max(status, show(answers, json=json, dry_run=dry_run))
        rows = [row for answer in answers for row in answer["done"]]
        taken = max((_number(row, "letters") for row in rows), default=0)
        if dry_run or status == BAD or not taken or not any(_number(r, "left") for r in rows):
            return status
        if most and (left := left - taken) <= 0:
            return status


def drop(name: Name, data_dir: Data = None, stream: Stream = None) -> int:
    """Forget a group; a peer that is running notices, unless the group has members there."""
    if data_dir is None:
        raise usage("--data-dir", "say where the group's log is: --data-dir ./data")
    return drop_groups(chosen(str(data_dir), stream), name)


def _number(row: dict[str, Any], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _groups(connect: list[str] | None, mesh: str | None, timeout: str) -> Rows:
    """All groups of the peers at these addresses."""
    timeout_s = seconds("--timeout", timeout)
    with asking(connect, mesh, timeout_s) as peer:
        answers = ask(peer, "stats", timeout_s)
    rows = []
    for answer in answers:
        streams = answer.get("streams")
        for label, stream in streams.items() if isinstance(streams, dict) else ():
            for group in stream.get("groups") or []:
                each = group.get("members") or []
                lost = group.get("lost") or {}
                row = {
                    "peer": answer.get("peer", "?"),
                    "group": group.get("name", "?"),
                    "stream": f"{answer.get('peer', '?')}/{label}",
                    "state": "paused" if group.get("paused") else "live",
                    "members": len(each),
                    **{k: group.get(k, 0) for k in ("lag", "in_flight", "acked", "redelivered")},
                    "dead": group.get("dead", 0),
                    "lost": sum(lost.values()),
                }
                rows.append({**row, "each": each})
    return rows
