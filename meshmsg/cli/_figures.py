"""What the verbs that show figures until they are ended (record, sink) have in common."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from meshmsg.cli._values import safe, to_json

Figures = dict[str, Any]

#: A verb that is to end waits so long for whoever reads what it prints.
READER_S = 3.0


class StopRequest:
    """Whether the verb was told to end.

    A signal's handler runs between two instructions of the main thread, which may hold any lock
    then.  `threading.Event` has one: a handler that sets an event for which the thread was about to
    wait would wait for that thread, which is itself.  So the request is a plain attribute.
    """

    def __init__(self) -> None:
        self.made = False
        self.prints = False  #: the thread is within `printing`

    def wait(self, time_s: float) -> bool:
        """Let a moment pass; returns whether the verb is to end."""
        if not self.made:
            time.sleep(time_s)
        return self.made

    @contextmanager
    def printing(self) -> Iterator[None]:
        """What is printed in the block may wait for its reader until there is a request.

        Then for `READER_S` at most, or a pipe that is full and that nobody reads would keep the
        verb from ending; raises `BrokenPipeError`.
        """
        self.prints = True
        try:
            yield
        finally:
            self.prints = False


@contextmanager
def stopping() -> Iterator[StopRequest]:
    """Made by Ctrl-C and SIGTERM: then what has come is written, and the exit status is our own."""
    stop = StopRequest()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.made:  # the second time it is meant: at once
            raise KeyboardInterrupt
        stop.made = True
        signal.setitimer(signal.ITIMER_REAL, READER_S, READER_S)

    def look(number: int, frame: FrameType | None) -> None:
        if stop.prints:
            raise BrokenPipeError

    handlers = {signal.SIGALRM: look, signal.SIGINT: end, signal.SIGTERM: end}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def view(
    lines: Callable[[Figures], None],
    picture: Callable[[Figures], Any],
    stop: StopRequest,
    *,
    json: bool,
    quiet: bool,
) -> Iterator[Callable[[Figures], None]]:
    """Something that shows figures: for programs, live in a terminal, or in lines."""

    def printed_by(put: Callable[[Figures], None]) -> Callable[[Figures], None]:
        def show(figures: Figures) -> None:
            with stop.printing():
                put(figures)

        return show

    if json:
        yield printed_by(lambda figures: print_now(to_json(figures)))
    elif sys.stdout.isatty() and not quiet:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            yield printed_by(lambda figures: live.update(picture(figures), refresh=True))
    else:
        yield printed_by(lines)


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
