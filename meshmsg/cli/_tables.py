"""Tables for people, wide enough for a log file and folded to fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshmsg.cli._values import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

FILE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """Standard output as rich sees it; where it is no terminal, lines are not cut at 80.

    Most of what is shown was said by other peers: all text is made safe, in tables too.
    """
    from rich.console import Console

    class SafeConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(safe(text), **options)

    found = SafeConsole(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not found.is_terminal:
        found.width = FILE_WIDTH
    return found


def table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An empty table; columns named in `numbers` are set to the right."""
    from rich.table import Table

    made = Table(
        title=title or None,
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        title_justify="left",
        title_style="bold",
        header_style="underline",
    )
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


def by_reason(lost: Mapping[str, int]) -> str:
    """Losses as `overflow 12, gone 3`; a dash where there are none."""
    found = ", ".join(f"{reason} {count:,}" for reason, count in sorted(lost.items()) if count)
    return found or "-"


def tick(good: bool, encoding: str) -> str:
    """A tick or a cross, in words where the encoding has neither."""
    mark = "✔" if good else "✘"
    try:
        mark.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return "ok" if good else "BAD"
    return mark
