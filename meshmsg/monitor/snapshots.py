"""What the live page is sent: the view of the mesh as server-sent events, each of bounded size.

| field | |
|---|---|
| `time`, `step_s` | when it was taken, in seconds since 1970, and when the next will be |
| `view` | the mesh: see `meshmsg/overview/rows.py`; `null` in a program that has no peer |
| `sink` | figures of a sink's tables, where there are any |
| `left_out` | rows that had no place, by table |
| `history` | points of the plots so far, in the first event of a connection |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from meshmsg.overview.history import History
from meshmsg.overview.rows import View

#: Rows of one table.
ROWS_MAX = 500
#: An event that is longer goes with half of its rows, and so on.
SNAPSHOT_BYTES_MAX = 1024 * 1024
#: Streams whose plots a page gets at its start.
PLOTS_MAX = 300

#: What matters most comes first, should there not be room for all.
_ORDERS: dict[str, Callable[[Any], Any]] = {
    "peers": lambda row: (row.state == "here", not row.is_self),
    "flows": lambda row: (not row.blocking, -row.delivered_s),
    "streams": lambda row: (not row.blocked, -row.behind, -row.published_s, row.stream),
    "subscribers": lambda row: (row.state in ("live", "gone"), -row.behind, row.stream, row.name),
    "groups": lambda row: (-row.lag, row.stream, row.name),
    "receivers": lambda row: (-row.lost, -row.loss, row.stream, row.name),
    "ledger": lambda row: (row.reconciles, row.stream, row.name),
}
_TABLES = ("problems", "links", "senders", "logs", "losses", *_ORDERS)


class Snapshots:
    """Makes events; `counters["snapshots_cut"]` are those that had to go without some rows."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._counters = counters

    def event(
        self,
        view: View | None,
        sink: Any,
        *,
        time: float,
        step_s: float,
        history: History | None = None,
    ) -> bytes:
        """One event of the stream."""
        rows_max = ROWS_MAX
        while True:
            cut, left_out = (None, {}) if view is None else _cut(view, rows_max)
            body: dict[str, Any] = {"time": time, "step_s": step_s, "view": cut, "sink": sink}
            body["left_out"] = left_out
            if cut is not None and history is not None:
                body["history"] = _points(cut, history, rows_max)
            data = msgspec.json.encode(body)
            if len(data) <= SNAPSHOT_BYTES_MAX or rows_max <= 1:
                break
            rows_max //= 2
        if rows_max < ROWS_MAX or left_out:
            self._counters["snapshots_cut"] += 1
        return b"data: " + data + b"\n\n"


def _cut(view: View, rows_max: int) -> tuple[View, dict[str, int]]:
    """The same with so many rows of each table, and how many were left out."""
    kept, left_out = {}, {}
    for table in _TABLES:
        rows = getattr(view, table)
        if table in _ORDERS:
            rows = sorted(rows, key=_ORDERS[table])
        if len(rows) > rows_max:
            left_out[table] = len(rows) - rows_max
        kept[table] = rows[:rows_max]
    return msgspec.structs.replace(view, **kept), left_out


def _points(view: View, history: History, rows_max: int) -> dict[str, Any]:
    plots = min(PLOTS_MAX, rows_max)
    return {
        "mesh": {
            name: _rounded(history.points(("mesh", name)))
            for name in ("published_s", "delivered_s", "behind", "lost")
        },
        "streams": {
            row.stream: [
                _rounded(history.points(("rate", row.stream))),
                _rounded(history.points(("behind", row.stream))),
            ]
            for row in view.streams[:plots]
        },
        "groups": [
            [row.stream, row.name, _rounded(history.points(("lag", row.stream, row.name)))]
            for row in view.groups[:plots]
        ],
    }


def _rounded(points: list[float | None]) -> list[float | None]:
    return [None if point is None else float(f"{point:.4g}") for point in points]
