"""What `meshmsg top` shows of a view: tables, their columns, sorting, filtering, one row in detail.

Pure: rows in, cells out.  Drawing is `_top_screen`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshmsg._overview.rows import View
from meshmsg.cli._values import safe


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it shows of a row, and how wide it is; 0 takes what is left."""

    name: str
    of: Callable[[Any], Any]
    width: int = 8
    weight: int = 1
    """Columns of the greatest weight go first where there is no room."""


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of rows."""

    name: str
    rows: Callable[[View], Sequence[Any]]
    columns: tuple[Column, ...]
    sort: str
    """The column by which it is sorted at first, the greatest on top."""
    is_bad: Callable[[Any], bool] = lambda row: False


def _who(row: Any) -> str:
    return str(row.name)


def _stream(row: Any) -> str:
    return str(row.stream)


TABLES = (
    Table(
        "streams",
        lambda view: view.streams,
        (
            Column("stream", _stream, 0, 0),
            Column("ev/s", lambda row: row.published_s, 7, 0),
            Column("bytes/s", lambda row: row.bytes_s, 8, 3),
            Column("behind", lambda row: row.behind, 8, 0),
            Column("subs", lambda row: row.subscribers, 4, 4),
            Column("groups", lambda row: row.groups, 6, 5),
            Column("lost", lambda row: row.lost + row.dropped, 7, 1),
            Column("blocked by", lambda row: " ".join(row.blocked_by), 14, 2),
        ),
        "ev/s",
        lambda row: row.blocked,
    ),
    Table(
        "groups",
        lambda view: view.groups,
        (
            Column("group", _who, 0, 0),
            Column("stream", _stream, 16, 3),
            Column("lag", lambda row: row.lag, 8, 0),
            Column("in hand", lambda row: row.in_flight, 7, 4),
            Column("acked/s", lambda row: row.acked_s, 7, 1),
            Column("again", lambda row: row.redelivered, 7, 5),
            Column("dead", lambda row: row.dead, 6, 2),
            Column("lost", lambda row: row.lost, 6, 6),
            Column("members", lambda row: len(row.members), 7, 3),
        ),
        "lag",
        lambda row: bool(row.lag and not row.members),
    ),
    Table(
        "subscribers",
        lambda view: view.subscribers,
        (
            Column("subscriber", _who, 0, 0),
            Column("stream", _stream, 16, 3),
            Column("behind", lambda row: row.behind, 8, 0),
            Column("ev/s", lambda row: row.delivered_s, 7, 1),
            Column("repairs", lambda row: row.repaired_frames, 7, 5),
            Column("lost", lambda row: row.lost, 7, 2),
            Column("state", lambda row: row.state, 8, 1),
        ),
        "behind",
        lambda row: row.state in ("blocking", "evicted"),
    ),
    Table(
        "peers",
        lambda view: view.peers,
        (
            Column("peer", _who, 0, 0),
            Column("state", lambda row: row.state, 6, 0),
            Column("out/s", lambda row: row.published_s, 7, 1),
            Column("in/s", lambda row: row.delivered_s, 7, 1),
            Column("streams", lambda row: row.streams, 7, 3),
            Column("subs", lambda row: row.subscriptions, 4, 4),
            Column("problem", lambda row: row.problem, 20, 2),
        ),
        "out/s",
        lambda row: row.state != "here" or bool(row.problem),
    ),
    Table(
        "logs",
        lambda view: view.logs,
        (
            Column("log of", _stream, 0, 0),
            Column("kept by", lambda row: row.peer, 14, 3),
            Column("events", lambda row: row.events, 8, 2),
            Column("bytes", lambda row: row.disk_bytes, 8, 0),
            Column("oldest s", lambda row: row.oldest_s, 8, 1),
            Column("retention", lambda row: row.retention or "all", 10, 1),
            Column("held", lambda row: row.held_bytes, 8, 4),
            Column("problem", lambda row: row.problem, 14, 2),
        ),
        "bytes",
        lambda row: bool(row.problem) or not row.is_open,
    ),
    Table(
        "losses",
        lambda view: view.losses,
        (
            Column("of", _who, 0, 0),
            Column("stream", _stream, 20, 1),
            Column("reason", lambda row: row.reason, 10, 0),
            Column("events", lambda row: row.count, 9, 0),
            Column("first", lambda row: row.first, 10, 2),
            Column("stop", lambda row: row.stop, 10, 2),
        ),
        "events",
        lambda row: True,
    ),
    Table(
        "problems",
        lambda view: view.problems,
        (
            Column("what", lambda row: row.what, 18, 0),
            Column("problem", lambda row: row.problem, 0, 0),
            Column("for s", lambda row: row.for_s, 7, 1),
        ),
        "for s",
        lambda row: row.weight == "bad",
    ),
)


#: Numbers below the first have the unit, which stands for the second.
UNITS = ((1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"))


def cell(value: Any) -> str:
    """A value in few characters, whatever another peer has put into it."""
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return short(float(value))
    return safe(str(value))


def short(number: float) -> str:
    """A number in at most six characters.

    >>> short(0), short(1234), short(25_300), short(7.25), short(3_400_000)
    ('0', '1234', '25.3k', '7.2', '3.4M')
    """
    for limit, divisor, unit in UNITS:
        if abs(number) < limit:
            scaled = number / divisor
            is_whole = not unit and scaled == int(scaled)
            return f"{scaled:.{0 if is_whole or abs(scaled) >= 1000 else 1}f}{unit}"
    return f"{number:.0e}"


def chosen_rows(
    table: Table, view: View, *, sort: str, reverse: bool, wanted: str, within: str = ""
) -> list[Any]:
    """The rows that are shown: of one stream if it is drilled into, filtered, sorted."""
    rows = [row for row in table.rows(view) if not within or getattr(row, "stream", "") == within]
    if wanted:
        text = wanted.casefold()
        rows = [row for row in rows if text in _text_of(table, row)]
    column = next((c for c in table.columns if c.name == sort), table.columns[0])
    rows.sort(key=lambda row: _text_of(table, row))
    is_number = any(isinstance(column.of(row), int | float) for row in rows)
    key = (lambda row: column.of(row) or 0) if is_number else (lambda row: cell(column.of(row)))
    rows.sort(key=key, reverse=is_number != reverse)
    return rows


def _text_of(table: Table, row: Any) -> str:
    texts = (column.of(row) for column in table.columns)
    return " ".join(text.casefold() for text in texts if isinstance(text, str))


def fitting(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that there is room for, with their widths; the most important stay."""
    kept = list(columns)
    while len(kept) > 1:
        left = width - sum(column.width + 1 for column in kept)
        if left >= 12 or not any(column.width == 0 for column in kept):
            break
        last = max((c for c in kept if c.width), key=lambda c: c.weight, default=None)
        if last is None:
            break
        kept.remove(last)
    left = max(1, width - sum(column.width + 1 for column in kept))
    return [(column, column.width or left) for column in kept]
