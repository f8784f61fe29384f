"""How `meshmsg demo` looks while it runs: a live view in a terminal, a line a second in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshmsg.cli._demo_run import PUBLISHER, Run, Subscriber
from meshmsg.cli._demo_show import Views

if TYPE_CHECKING:
    from rich.console import RenderableType

#: A full bar is at least this many events behind.
BAR_SCALE_MIN = 5000
_STATE_STYLES = {
    "reading": "green",
    "frozen": "bold blue",
    "catching up": "yellow",
    "done": "green",
}


def _line(run: Run) -> str:
    sent = sum(run.published.values())
    parts = [f"{sent:,} published, {run.drops.dropped:,} of {run.frames():,} frames dropped"]
    for subscriber in run.subscribers:
        words = [f"{subscriber.name} {subscriber.total('received'):,}"]
        words.append(f"{subscriber.report.get('repaired', 0):,} repaired")
        if subscriber.total("lost"):
            words.append(f"{subscriber.total('lost'):,} lost")
        if subscriber.state != "reading":
            words.append(f"{subscriber.state}, {_behind(run, subscriber):,} behind")
        parts.append(", ".join(words))
    return " | ".join(parts)


def _behind(run: Run, subscriber: Subscriber) -> int:
    return sum(run.behind(subscriber, kind) for kind in run.published)


def _picture(run: Run) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    head = Text.assemble(
        (f"{run.elapsed_s:5.1f} s  ", "dim"),
        (run.phase, "bold"),
    )
    body = Group(_publisher(run), _subscribers(run))
    return Group(head, Panel(body, title="meshmsg demo", title_align="left", border_style="cyan"))


def _publisher(run: Run) -> RenderableType:
    from rich.text import Text

    again = run.stats.get("counters", {}).get("repaired_frames", 0)
    return Text.assemble(
        (f"{PUBLISHER}  ", "bold cyan"),
        (f"{run.published['quotes']:,}", "bold"),
        " quotes and ",
        (f"{run.published['orders']:,}", "bold"),
        " orders published\n" + " " * (len(PUBLISHER) + 2),
        f"{run.frames():,} frames: ",
        (f"{run.drops.dropped:,} dropped on purpose", "red"),
        ", ",
        (f"{again:,} sent again on request", "green"),
    )


def _subscribers(run: Run) -> RenderableType:
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, padding=(0, 1))
    rows.add_column("", min_width=5)
    rows.add_column("", min_width=11)
    for name in ("quotes", "orders", "repaired", "lost", "behind"):
        rows.add_column(name, justify="right", min_width=6, no_wrap=True)
    rows.add_column("", ratio=1)
    behind = {subscriber.name: _behind(run, subscriber) for subscriber in run.subscribers}
    scale = max([BAR_SCALE_MIN, *behind.values()])
    for subscriber in run.subscribers:
        lost = subscriber.total("lost")
        rows.add_row(
            Text(subscriber.name, "bold"),
            Text(subscriber.state, _STATE_STYLES.get(subscriber.state, "")),
            f"{subscriber.figure('quotes', 'received'):,}",
            f"{subscriber.figure('orders', 'received'):,}",
            Text(f"{subscriber.report.get('repaired', 0):,}", "green"),
            Text(f"{lost:,}", "bold red" if lost else "dim"),
            f"{behind[subscriber.name]:,}",
            ProgressBar(scale, behind[subscriber.name], complete_style="yellow"),
        )
    return rows


_views = Views(_picture, _line, begun=lambda run: run.frames())
live_view, plain_view, no_view = _views.live, _views.plain, _views.none
