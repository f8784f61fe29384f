"""The screen of `meshmsg top`: what a key changes, and the lines that are drawn.

Every text of another peer is made safe before it is measured: a name can neither move the cursor
nor push a column out of its place.
"""

from __future__ import annotations

from typing import Any

from rich.cells import set_cell_size
from rich.text import Text

from meshmsg.cli._top_tables import TABLES, Table, cell, chosen_rows, fitting, short
from meshmsg.overview import View

#: Lines that are no rows: totals, tables, head, foot.
FRAME_LINES = 4
FILTER_CHARS_MAX = 60
HELP = "q quit  tab table  ↑↓ row  enter into  esc back  s sort  r reverse  / filter  p pause"


class TopScreen:
    """What is shown of the newest view."""

    def __init__(self, *, table: str = "streams", sort: str = "", wanted: str = "") -> None:
        self.view: View | None = None
        self.is_over = False
        self.is_paused = False
        self._table = next(known for known in TABLES if known.name == table)
        self._sort = sort or self._table.sort
        self._reverse = False
        self._wanted = wanted
        self._is_typing = False
        self._row = 0
        self._within = ""  # a stream that was drilled into
        self._detail: tuple[str, str] | None = None  # a group, by stream and name

    def take(self, view: View) -> None:
        """A newer view is there; while paused, what is shown stays."""
        if not self.is_paused or self.view is None:
            self.view = view

    # --- keys ---

    def press(self, key: str) -> None:
        """What somebody types."""
        if self._is_typing:
            self._type(key)
        elif key in ("q", "ctrl-c"):
            self.is_over = True
        elif key in ("tab", "right", "left", "backtab"):
            self._turn(-1 if key in ("left", "backtab") else 1)
        elif key.isdecimal() and 1 <= int(key) <= len(TABLES):
            self._go(TABLES[int(key) - 1])
        elif key in ("down", "j", "up", "k", "pagedown", "pageup", "home"):
            step = {"down": 1, "j": 1, "pagedown": 10, "up": -1, "k": -1, "pageup": -10}.get(key)
            self._row = 0 if step is None else max(0, self._row + step)
        elif key == "enter":
            self._enter()
        elif key in ("esc", "backspace"):
            self._leave()
        elif key == "s":
            names = [column.name for column in self._table.columns]
            at = names.index(self._sort) if self._sort in names else -1
            self._sort = names[(at + 1) % len(names)]
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "/":
            self._is_typing = True
        elif key == "p":
            self.is_paused = not self.is_paused

    def _type(self, key: str) -> None:
        if key in ("enter", "ctrl-c"):
            self._is_typing = False
        elif key == "esc":
            self._is_typing, self._wanted = False, ""
        elif key == "backspace":
            self._wanted = self._wanted[:-1]
        elif len(key) == 1 and key.isprintable():
            self._wanted = (self._wanted + key)[:FILTER_CHARS_MAX]
        self._row = 0

    def _turn(self, step: int) -> None:
        self._go(TABLES[(TABLES.index(self._table) + step) % len(TABLES)])

    def _go(self, table: Table) -> None:
        self._table, self._sort, self._reverse, self._row = table, table.sort, False, 0
        self._detail = None

    def _enter(self) -> None:
        """Into a stream: its subscribers; into a group: its members."""
        rows = self._rows()
        if not rows or self._detail is not None:
            return
        row = rows[min(self._row, len(rows) - 1)]
        if self._table.name == "streams":
            self._within = row.stream
            self._go(next(table for table in TABLES if table.name == "subscribers"))
        elif self._table.name == "groups":
            self._detail = (row.stream, row.name)

    def _leave(self) -> None:
        if self._detail is not None:
            self._detail = None
        elif self._within:
            self._within = ""
            self._go(TABLES[0])
        else:
            self._wanted = ""

    # --- drawing ---

    def draw(self, width: int, height: int) -> Text:
        """All lines, none longer than the terminal is wide, no more than it is high."""
        if self.view is None:
            return Text("looking for the mesh ...")
        lines = [self._totals(self.view), self._tabs()]
        room = max(1, height - FRAME_LINES)
        if self._detail is not None:
            lines += self._details(self.view, self._detail)[: room + 1]
        else:
            lines += self._body(width, room)
        lines = lines[: max(1, height - 1)]
        lines += [Text("")] * (height - 1 - len(lines))
        lines.append(self._foot())
        for line in lines:
            line.truncate(width)
        return Text("\n").join(lines)

    def lines(self, width: int) -> list[Text]:
        """All rows, for a reader without a terminal."""
        assert self.view is not None
        found = [self._totals(self.view), *self._body(width, len(self._rows()))]
        self._row = 0
        return found

    def _totals(self, view: View) -> Text:
        total = view.totals
        line = Text(f"{cell(view.mesh)}  ", style="bold")
        for name, value in (
            ("peers", total.peers),
            ("out/s", total.published_s),
            ("in/s", total.delivered_s),
            ("behind", total.behind),
            ("lag", total.group_lag),
        ):
            line.append(f"{name} {short(value)}  ", style="not bold")
        for name, value in (
            ("blocked", total.blocked),
            ("lost", total.lost),
            ("gone", total.gone),
            ("dead", total.dead),
            ("unreconciled", total.unreconciled),
        ):
            if value:
                line.append(f"{name} {short(value)}  ", style="bold red")
        return line

    def _tabs(self) -> Text:
        line = Text()
        for number, table in enumerate(TABLES, 1):
            style = "reverse" if table is self._table else "dim"
            line.append(f"{number} {table.name}", style=style)
            line.append(" ")
        if self._within:
            line.append(f" of {cell(self._within)}", style="bold")
        if self.is_paused:
            line.append(" PAUSED", style="bold yellow")
        return line

    def _rows(self) -> list[Any]:
        assert self.view is not None
        return chosen_rows(
            self._table,
            self.view,
            sort=self._sort,
            reverse=self._reverse,
            wanted=self._wanted,
            within=self._within,
        )

    def _body(self, width: int, room: int) -> list[Text]:
        rows = self._rows()
        self._row = max(0, min(self._row, len(rows) - 1))
        first = max(0, self._row - room + 1)
        columns = fitting(self._table.columns, width)
        head = Text(style="underline")
        for column, size in columns:
            mark = ("▲" if self._reverse else "▼") if column.name == self._sort else ""
            head.append(_fit(column.name + mark, size, right=_is_number(column, rows)) + " ")
        lines = [head]
        for at, row in enumerate(rows[first : first + room], first):
            style = "reverse" if at == self._row else "red" if self._table.is_bad(row) else ""
            line = Text(style=style)
            for column, size in columns:
                value = column.of(row)
                right = isinstance(value, int | float)
                line.append(_fit(cell(value), size, right=right) + " ")
            lines.append(line)
        if not rows:
            lines.append(Text("nothing here" + (" that fits the filter" if self._wanted else "")))
        return lines

    def _details(self, view: View, wanted: tuple[str, str]) -> list[Text]:
        """One group, a line for each thing that is known of it."""
        group = next((g for g in view.groups if (g.stream, g.name) == wanted), None)
        if group is None:
            return [Text("it has gone")]
        lines = [Text(f"{cell(group.name)} of {cell(group.stream)}", style="bold")]
        for name in ("lag", "pending", "in_flight", "acked", "redelivered", "dead", "lost"):
            lines.append(Text(f"{name.replace('_', ' '):12} {getattr(group, name):,}"))
        lines += [Text(f"member       {cell(member)}") for member in group.members]
        return lines

    def _foot(self) -> Text:
        if self._is_typing or self._wanted:
            mark = "▏" if self._is_typing else "  (esc clears)"
            return Text(f"/{cell(self._wanted)}{mark}", style="bold")
        return Text(HELP, style="dim")


def _is_number(column: Any, rows: list[Any]) -> bool:
    return any(isinstance(column.of(row), int | float) for row in rows[:1])


def _fit(text: str, size: int, *, right: bool) -> str:
    """A text in exactly so many cells, where some characters take two."""
    shown = set_cell_size(text, size)
    if right and (spare := len(shown) - len(shown.rstrip(" "))):
        return " " * spare + shown.rstrip(" ")
    return shown
