"""`meshmsg log`: look into durable logs on this machine, also while they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from meshmsg import Event, Loss, Position
from meshmsg.cli._guard import BAD, GOOD, guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._log_cursors import cursor_object, drop_cursors, show_cursors
from meshmsg.cli._log_groups import drop_groups, group_object, show_groups
from meshmsg.cli._log_problems import complain_of, status_of
from meshmsg.cli._options import Json, Quiet
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import loss_object, safe, to_json
from meshmsg.cli.sub import BATCH_MAX, Screen, parse_where
from meshmsg.logs import (
    LogFolder,
    LogReader,
    Report,
    Summary,
    find_logs,
    group_of,
    summarize,
    verify,
)

HELP = help_text(
    "Look into the logs in a data directory, or into the folder of one stream.",
    "Reading changes nothing, and works while a peer writes the log.",
    examples=(
        "meshmsg log ls ./data",
        "meshmsg log cat ./data --stream 'pricing/orders.**' --start 10m",
        "meshmsg log tail './data/pricing%2Forders.%2A%2A' --follow",
        "meshmsg log verify ./data",
        "meshmsg log cursors ./data --drop audit-peer/audit",
        "meshmsg log groups ./data --drop billing",
    ),
)
POLL_S = 0.1

Dir = Annotated[
    str, typer.Argument(metavar="DIR", help="A data directory, or a stream's folder in one.")
]
StreamName = Annotated[
    str | None,
    typer.Option(
        "--stream", metavar="STREAM", show_default=False, help="Which, where there are several."
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-n", min=1, show_default=False, help="Stop after this many events."),
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    logs = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    logs.command("ls", help="Show which logs there are and what they hold.")(guarded(ls))
    logs.command(
        "cat", help="Print the events of a log; a loss stands in its place, exit status 1."
    )(guarded(cat))
    logs.command("tail", help="Print the newest events of a log, and with --follow what comes.")(
        guarded(tail)
    )
    logs.command(
        "verify", help="Read every byte, and name every range that is damaged: exit status 1."
    )(guarded(check))
    logs.command("cursors", help="Show named cursors and what they hold; --drop lets go of one.")(
        guarded(cursors)
    )
    logs.command(
        "groups", help="Show work groups and what they have yet to do; --drop forgets one."
    )(guarded(groups))
    app.add_typer(logs, name="log", help=HELP, short_help="Look into durable logs.")


# --- ls ---


def ls(directory: Dir, json: Json = False) -> int:
    """Show what there is."""
    found = [summarize(folder) for folder in _logs(directory)]
    if json:
        for summary in found:
            print(to_json(_summary_object(summary)))
    else:
        _show_summaries(found)
    for summary in found:
        complain_of(summary)
    return status_of(found)


def _summary_object(summary: Summary) -> dict[str, Any]:
    return {
        "stream": summary.stream,
        "mesh": summary.mesh,
        "path": summary.path,
        "segments": summary.segments,
        "bytes": summary.bytes,
        "events": summary.events,
        "epochs": [
            {"epoch": e.epoch, "origin": e.origin, "first": e.first, "stop": e.stop}
            for e in summary.epochs
        ],
        "cursors": [cursor_object(summary, cursor) for cursor in summary.cursors],
        "groups": [group_object(summary, group) for group in summary.groups],
        "problems": summary.problems,
    }


def _show_summaries(found: list[Summary]) -> None:
    numbers = ("events", "segments", "bytes", "epochs")
    rows = table("", "stream", *numbers, "from", "to", numbers=numbers)
    for summary in found:
        ends = ["-", "-"]
        if summary.epochs:
            first, last = summary.epochs[0], summary.epochs[-1]
            ends = [f"{first.epoch}:{first.first}", f"{last.epoch}:{last.stop}"]
        rows.add_row(
            safe(summary.stream),
            f"{summary.events:,}",
            f"{summary.segments:,}",
            f"{summary.bytes:,}",
            f"{len(summary.epochs):,}",
            *ends,
        )
        for group in summary.groups:
            backlog, size = summary.backlog(group)
            place = f"{group.floor[0]}:{group.floor[1]}"
            label = f"  group {safe(group.name)}"
            rows.add_row(label, f"{backlog:,}", "", f"{size:,}", "", place, "")
        for cursor in summary.cursors:
            if group_of(cursor.name) is not None:
                continue
            events, size = summary.behind(cursor)
            held = " (holds)" if cursor.hold else ""
            place = f"{cursor.epoch}:{cursor.seq}"
            label = f"  cursor {safe(cursor.name)}{held}"
            rows.add_row(label, f"{events:,}", "", f"{size:,}", "", place, "")
    console().print(rows)


# --- cat and tail ---


def cat(
    directory: Dir,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            "-s",
            metavar="WHERE",
            help="earliest, last:N, a time (2026-01-31T12:00), how long ago (10m), or a position "
            "as --json prints it.",
        ),
    ] = "earliest",
    count: Count = None,
    stream: StreamName = None,
    json: Json = False,
) -> int:
    """Print events."""
    with LogReader(choose(directory, stream)) as reader:
        seek(reader, start)
        return _print(reader, Screen(json=json), count, follow=False)


def tail(
    directory: Dir,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="How many of the newest events.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as events are written.")
    ] = False,
    stream: StreamName = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Print the newest events."""
    with LogReader(choose(directory, stream)) as reader:
        reader.seek_last(count)
        if follow:
            note(f"following {safe(reader.stream)}", quiet=quiet)
        return _print(reader, Screen(json=json), None, follow=follow)


def seek(reader: LogReader, start: str, option: str = "--start") -> None:
    """Go where `--start` says; raises `ConfigError`."""
    where = parse_where(start, option)
    if isinstance(where, Position):
        if where.stream != reader.stream:
            raise usage(option, f"{start!r} is of another stream than {reader.stream}")
        reader.seek(where.epoch, where.seq)
    elif isinstance(where, datetime):
        reader.seek_time(int(where.timestamp() * 1e9))
    elif isinstance(where, float):
        reader.seek_time(int(where * 1e9))
    elif where == "earliest":
        reader.seek_earliest()
    elif where == "live":
        raise usage(option, f"{start!r} is not a place in a log: try earliest or last:10")
    else:
        reader.seek_last(int(str(where).removeprefix("last:")))


def _print(reader: LogReader, screen: Screen, count: int | None, *, follow: bool) -> int:
    while True:
        for item in reader.batches():
            if isinstance(item, Loss):
                screen.show_loss(item)
                continue
            for events in _pieces(item.events(), count, screen):
                screen.show(events)
            if count is not None and screen.events >= count:
                return BAD if screen.lost else GOOD
        if not follow:
            return BAD if screen.lost else GOOD
        screen.check_reader()
        time.sleep(POLL_S)


def _pieces(events: list[Event], count: int | None, screen: Screen) -> Iterator[list[Event]]:
    wanted = len(events) if count is None else min(len(events), count - screen.events)
    for at in range(0, wanted, BATCH_MAX):
        yield events[at : min(wanted, at + BATCH_MAX)]


# --- verify ---


def check(directory: Dir, stream: StreamName = None, json: Json = False) -> int:
    """Read everything."""
    folders = chosen(directory, stream)
    status = GOOD
    for folder in folders:
        report = verify(folder)
        if json:
            print(to_json(_report_object(report)))
        else:
            _show_report(report)
        status = status if report.is_good else BAD
    return status


def _report_object(report: Report) -> dict[str, Any]:
    return {
        "stream": report.stream,
        "path": report.path,
        "good": report.is_good,
        "frames": report.frames,
        "events": report.events,
        "bytes": report.bytes,
        "tail_bytes": report.tail_bytes,
        "losses": [loss_object(loss)["loss"] for loss in report.losses],
        "problems": report.problems,
    }


def _show_report(report: Report) -> None:
    word = "good" if report.is_good else "DAMAGED"
    print(
        f"{safe(report.stream)}: {word}, {report.events:,} events in {report.frames:,} frames, "
        f"{report.bytes:,} bytes"
    )
    for loss in report.losses:
        print(f"  {safe(str(loss))}")
    for problem in report.problems:
        print(f"  {safe(problem)}")
    if report.tail_bytes:
        print(f"  {report.tail_bytes:,} bytes at the end are no record yet, or were torn")


# --- cursors and groups ---


def _drop(text: str) -> Any:
    return typer.Option("--drop", metavar="NAME", show_default=False, help=text)


def cursors(
    directory: Dir,
    name: Annotated[str | None, _drop("Forget this cursor: what it held may expire.")] = None,
    stream: StreamName = None,
    json: Json = False,
) -> int:
    """Show cursors, or drop one."""
    folders = chosen(directory, stream)
    if name is not None:
        return drop_cursors(folders, name)
    return show_cursors([summarize(folder) for folder in folders], json=json)


def groups(
    directory: Dir,
    name: Annotated[str | None, _drop("Forget this group, and all that it has yet to do.")] = None,
    stream: StreamName = None,
    json: Json = False,
) -> int:
    """Show groups, or drop one."""
    folders = chosen(directory, stream)
    if name is not None:
        return drop_groups(folders, name)
    return show_groups([summarize(folder) for folder in folders], json=json)


# --- which ---


def _logs(directory: str) -> list[LogFolder]:
    try:
        found = find_logs(directory)
    except OSError as error:
        raise usage("DIR", f"{directory!r} cannot be read: {error.strerror}") from None
    if not found:
        raise usage("DIR", f"there is no log in {directory!r}")
    return found


def chosen(directory: str, stream: str | None) -> list[LogFolder]:
    """The one that is named, or all that there are."""
    return _logs(directory) if stream is None else [choose(directory, stream)]


def choose(directory: str, stream: str | None) -> LogFolder:
    """The log that is meant; raises `ConfigError`."""
    found = _logs(directory)
    names = {}
    for folder in found:
        about = folder.about()
        names["?" if about is None else about.stream] = folder
    if stream is not None:
        if stream not in names:
            known = ", ".join(sorted(names))
            raise usage("--stream", f"{stream!r} is not one of {known}")
        return names[stream]
    if len(found) > 1:
        raise usage("--stream", f"say which one: {', '.join(sorted(names))}")
    return found[0]
