"""`Table`: a table, whatever it is shown in, and how figures are written in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from benchmarks.results import Spread

NONE = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the columns after the first `words` are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def markdown(self) -> str:
        """For a page."""
        rule = ["---"] * self.words + ["---:"] * (len(self.columns) - self.words)
        lines = [_line(self.columns), f"|{'|'.join(rule)}|", *map(_line, self.rows)]
        return "\n".join(lines)

    def rich(self) -> RichTable:
        """For a terminal."""
        made = RichTable(title=self.title, title_justify="left", title_style="bold", box=None)
        for n, column in enumerate(self.columns):
            made.add_column(column, justify="left" if n < self.words else "right", no_wrap=True)
        for row in self.rows:
            made.add_row(*row)
        return made


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def as_markdown(tables: Sequence[Table], last: str) -> str:
    """Tables as part of a page, and a last line."""
    parts = []
    for table in tables:
        parts += [f"### {table.title}", table.markdown()]
    return "\n\n".join([*parts, last]) + "\n"


def size_words(size_bytes: int) -> str:
    """64 B, 1 KiB."""
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 else f"{size_bytes} B"


def fixed(spread: Spread | None, digits: int) -> str:
    """The median, and the range where there is one."""
    if spread is None:
        return NONE
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def thousands(spread: Spread | None) -> str:
    """In thousands, with a digit more where that says something."""
    if spread is None:
        return NONE
    scaled = Spread(spread.median / 1e3, spread.low / 1e3, spread.high / 1e3)
    return fixed(scaled, 0 if scaled.median >= 10 else 1)


def ratio_words(spread: Spread | None) -> str:
    """A ratio and its range."""
    return fixed(spread, 2)
