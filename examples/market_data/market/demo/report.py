"""What is printed at the end: what was seen, the ledger, and the reconciliation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from market.demo.run import Outcome
from market.demo.story import Check, checks, story
from meshmsg import Ledger

#: Of lines that go to a file.
FILE_WIDTH = 200
TITLE = "The ledger: published = delivered + filtered + lost + in flight"
NUMBERS = ("published", "delivered", "filtered", "in flight")


def console() -> Console:
    """Standard output; where it is no terminal, lines are not cut at 80."""
    found = Console(highlight=False, emoji=False, markup=False)
    if not found.is_terminal:
        found.width = FILE_WIDTH
    return found


def tell(outcome: Outcome, wrong: list[str]) -> None:
    """Print all of it."""
    out = console()
    out.print()
    out.print("What you saw", style="bold")
    for sentence in story(outcome):
        out.print(Padding(sentence, (0, 0, 0, 2)))
    out.print()
    out.print(_ledger(outcome.ledger, out.encoding))
    if wrong:
        out.print(f"Something is wrong ({len(wrong)}).", style="bold red")
    else:
        out.print("Every event reached every receiver. None is missing.", style="bold green")
    out.print()
    out.print(_reconciliation(checks(outcome), out.encoding))


def _ledger(ledger: Ledger, encoding: str) -> Table:
    rows = _table(TITLE, "subscription", *NUMBERS, "lost", "state", numbers=NUMBERS)
    stream = ""
    for row in sorted(ledger.rows, key=lambda row: (row.stream, row.subscription)):
        if row.stream != stream:
            stream = row.stream
            rows.add_row(stream, style="bold")
        rows.add_row(
            f"{_tick(row.reconciles, encoding)} {row.subscription}",
            *(f"{n:,}" for n in (row.published, row.delivered, row.filtered, row.in_flight)),
            _by_reason(row.lost),
            row.state,
            style=None if row.reconciles else "bold red",
        )
    return rows


def _reconciliation(found: Iterable[Check], encoding: str) -> Table:
    """Everything beside the exchange's own record, line by line."""
    rows = _table("Reconciliation", "", "what", "figure", "", numbers=("figure",))
    for check in found:
        mark = "" if check.good is None else _tick(check.good, encoding)
        style = "" if check.good is None else "green" if check.good else "bold red"
        rows.add_row(Text(mark, style), Text(check.what, "bold"), check.figure, check.words)
    return rows


def _table(title: str, *columns: str, numbers: tuple[str, ...]) -> Table:
    made = Table(
        title=title,
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        title_justify="left",
        title_style="bold",
        header_style="underline",
    )
    for column in columns:
        number = column in numbers
        made.add_column(column, justify="right" if number else "left", no_wrap=number)
    return made


def _by_reason(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(lost.items())) or "-"


def _tick(good: bool, encoding: str) -> str:
    mark = "✔" if good else "✘"
    try:
        mark.encode(encoding)
    except UnicodeEncodeError:
        return "ok" if good else "BAD"
    return mark
