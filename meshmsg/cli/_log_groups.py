"""`meshmsg log groups`: work groups that a durable stream remembers, and dropping one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshmsg.cli._guard import GOOD
from meshmsg.cli._log_problems import complain_of, not_here, status_of
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import safe, to_json
from meshmsg.logs import GroupRecord, LogFolder, Summary, drop_group, summarize

NUMBERS = ("backlog", "bytes", "retries")


def group_object(summary: Summary, group: GroupRecord) -> dict[str, Any]:
    """A group for `--json`; `backlog` are events that it has yet to settle."""
    backlog, size = summary.backlog(group)
    return {
        "name": group.name,
        "epoch": group.floor[0],
        "seq": group.floor[1],
        "backlog": backlog,
        "bytes": size,
        "retries": len(group.attempts),
        "order": group.order,
        "max_attempts": group.max_attempts,
        "topics": list(group.patterns),
    }


def show_groups(found: Sequence[Summary], *, json: bool) -> int:
    """All groups of these logs."""
    rows = table("", "group", "stream", "floor", *NUMBERS, "order", "topics", numbers=NUMBERS)
    for summary in found:
        for group in summary.groups:
            about = group_object(summary, group)
            if json:
                print(to_json({"stream": summary.stream, **about}))
                continue
            rows.add_row(
                safe(group.name),
                safe(summary.stream),
                f"{about['epoch']}:{about['seq']}",
                *(f"{about[name]:,}" for name in NUMBERS),
                group.order,
                safe(" ".join(group.patterns)),
            )
        complain_of(summary)
    if not json:
        console().print(rows)
    return status_of(found)


def drop_groups(folders: Sequence[LogFolder], name: str) -> int:
    """Forget a group and what it has yet to do; a peer that is running notices."""
    known: list[str] = []
    dropped = 0
    for folder in folders:
        summary = summarize(folder)
        for group in summary.groups:
            known.append(group.name)
            if group.name == name:
                backlog, _ = summary.backlog(group)
                drop_group(folder, name)
                print(f"dropped {safe(name)} of {safe(summary.stream)}: {backlog:,} events")
                dropped += 1
    if not dropped:
        raise not_here("group", name, known)
    return GOOD
