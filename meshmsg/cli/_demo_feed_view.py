"""How `meshmsg demo feed` looks while it runs: live in a terminal, a line a second in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshmsg.cli._demo_feed_run import PUBLISHER, Receiver, Run
from meshmsg.cli._demo_show import Views

if TYPE_CHECKING:
    from rich.console import RenderableType

#: A full bar is at least this many packets missing.
BAR_SCALE_MIN = 20
#: Columns for each receiver, and where they come from.
COLUMNS = {
    "packets": "packets",
    "NACKs": "nacks",
    "repaired": "repaired",
    "suppressed": "suppressed",
    "twice": "duplicates",
    "missing": "missing",
}


def _line(run: Run) -> str:
    sent = run.sent
    parts = [f"{run.published:,} quotes in {sent.get('packets', 0):,} packets"]
    parts[0] += f", {sent.get('repairs', 0):,} sent again"
    for receiver in run.receivers:
        parts.append(
            f"{receiver.name} lost {receiver.figure('dropped_data'):,}, "
            f"{receiver.packets('nacks'):,} NACKs, {receiver.packets('suppressed'):,} suppressed, "
            f"{receiver.packets('repaired'):,} repaired, "
            f"{receiver.packets('missing'):,} missing"
        )
    return " | ".join(parts)


def _picture(run: Run) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    head = Text.assemble((f"{run.elapsed_s:5.1f} s  ", "dim"), (run.phase, "bold"))
    body = Group(_publisher(run), _receivers(run))
    title = "meshmsg demo feed"
    return Group(head, Panel(body, title=title, title_align="left", border_style="cyan"))


def _publisher(run: Run) -> RenderableType:
    from rich.text import Text

    sent = run.sent
    indent = "\n" + " " * (len(PUBLISHER) + 2)
    return Text.assemble(
        (f"{PUBLISHER}  ", "bold cyan"),
        (f"{run.published:,}", "bold"),
        " quotes in ",
        (f"{sent.get('packets', 0):,}", "bold"),
        f" packets to {run.group}, once for all",
        indent,
        f"{sent.get('nacks', 0):,} NACKs heard, ",
        (f"{sent.get('repairs', 0):,} packets sent again", "green"),
        f", {sent.get('suppressed', 0):,} not sent twice, {sent.get('heartbeats', 0):,} heartbeats",
    )


def _receivers(run: Run) -> RenderableType:
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, padding=(0, 1))
    rows.add_column("", min_width=5)
    for name in ("quotes", "lost", *COLUMNS):
        rows.add_column(name, justify="right", min_width=6, no_wrap=True)
    rows.add_column("", ratio=1)
    scale = max([BAR_SCALE_MIN, *(receiver.packets("missing") for receiver in run.receivers)])
    for receiver in run.receivers:
        rows.add_row(
            Text(receiver.name, "bold"),
            f"{receiver.figure('received'):,}",
            Text(f"{receiver.figure('dropped_data'):,}", "red"),
            *(_cell(receiver, name) for name in COLUMNS),
            ProgressBar(scale, receiver.packets("missing"), complete_style="yellow"),
        )
    return rows


def _cell(receiver: Receiver, column: str) -> RenderableType:
    from rich.text import Text

    value = receiver.packets(COLUMNS[column])
    style = {"repaired": "green", "missing": "yellow" if value else "dim"}.get(column, "")
    return Text(f"{value:,}", style)


_views = Views(_picture, _line, begun=lambda run: run.published)
live_view, plain_view, no_view = _views.live, _views.plain, _views.none
