"""`meshmsg log cursors`: who reads a log by a named cursor, what it holds, and letting go of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from meshmsg.cli._guard import GOOD, usage
from meshmsg.cli._log_problems import complain_of, not_here, status_of
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import safe, to_json
from meshmsg.logs import Cursor, LogFolder, Summary, drop_cursor, group_of, summarize


def cursor_object(summary: Summary, cursor: Cursor) -> dict[str, Any]:
    """A cursor for `--json`; `events` and `bytes` are what stands behind it."""
    events, size = summary.behind(cursor)
    return {
        "name": cursor.name,
        "epoch": cursor.epoch,
        "seq": cursor.seq,
        "hold": cursor.hold,
        "time": cursor.time_ns / 1e9,
        "events": events,
        "bytes": size,
    }


def show_cursors(found: Sequence[Summary], *, json: bool) -> int:
    """All cursors of these logs."""
    rows = table("", "cursor", "stream", "at", "moved", "holds", "events", "bytes", numbers=NUMBERS)
    for summary in found:
        for cursor in summary.cursors:
            if json:
                print(to_json({"stream": summary.stream, **cursor_object(summary, cursor)}))
                continue
            events, size = summary.behind(cursor)
            ago_s = time.time() - cursor.time_ns / 1e9
            rows.add_row(
                safe(cursor.name),
                safe(summary.stream),
                f"{cursor.epoch}:{cursor.seq}",
                f"{ago_s:,.0f} s ago" if cursor.time_ns else "-",
                "yes" if cursor.hold else "no",
                f"{events:,}",
                f"{size:,}",
            )
        complain_of(summary)
    if not json:
        console().print(rows)
    return status_of(found)


NUMBERS = ("events", "bytes")


def drop_cursors(folders: Sequence[LogFolder], name: str) -> int:
    """Forget a cursor, also while the log is written: its writer notices."""
    if (group := group_of(name)) is not None:
        raise usage("--drop", f"is of a work group: meshmsg log groups DIR --drop {group}")
    dropped = [cursor for folder in folders for cursor in drop_cursor(folder, name)]
    for cursor in dropped:
        print(f"dropped {safe(name)} of {safe(cursor.stream)}")
    if not dropped:
        known = [cursor for folder in folders for cursor in summarize(folder).cursors]
        raise not_here("cursor", name, [cursor.name for cursor in known])
    return GOOD
