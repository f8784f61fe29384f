"""What the verbs that show figures until they are ended (record, sink) have in common."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from meshmsg.cli._values import safe, to_json

Figures = dict[str, Any]


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM: then what has come is written, and the exit status is our own."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # the second time it is meant: at once
            raise KeyboardInterrupt
        stop.set()

    old = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def view(
    lines: Callable[[Figures], None],
    picture: Callable[[Figures], Any],
    *,
    json: bool,
    quiet: bool,
) -> Iterator[Callable[[Figures], None]]:
    """Something that shows figures: for programs, live in a terminal, or in lines."""
    if json:
        yield lambda figures: print_now(to_json(figures))
    elif sys.stdout.isatty() and not quiet:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            yield lambda figures: live.update(picture(figures), refresh=True)
    else:
        yield lines


def print_now(text: str) -> None:
    """A line that is seen at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def waits(figures: Figures) -> str:
    """What is in the way, to be put after a line of figures."""
    return f"  waits: {safe(figures['problem'])}" if figures["problem"] else ""


def framed(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table for a live view: names to the left, figures to the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", expand=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left")
    for name, *cells in rows:
        table.add_row(escape(safe(name)), *cells)
    return table


def lost_cell(count: int) -> str:
    """Losses in a table: nobody may overlook them."""
    return f"[bold red]{count:,}[/]" if count else "0"
