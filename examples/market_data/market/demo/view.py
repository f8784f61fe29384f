"""How the demo looks while it runs: live in a terminal, lines in a log, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from market.demo.run import DESK, EXCHANGE, GATEWAY, ROLES, SINK, TAPE, Handling, Run
from market.exchange import FEED, ORDERS, TRADES
from market.handler import wrong_hashes
from market.simulator import OPEN_NS, Stock

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

LINE_S = 1.0
#: A full bar is at least this many messages behind.
BAR_SCALE_MIN = 5000
STOCKS = 6
NEWS = 4
#: Steps of the simulator in one mark of the rate.
MARK_STEPS = 4
_MARKS = "▁▂▃▄▅▆▇█"
_STATES = {
    "live": "green",
    "catching up": "yellow",
    "killed": "bold red",
    "starting": "cyan",
    "waiting": "dim",
    "done": "green",
}

Show = Callable[[Run], None]


@contextmanager
def live_view(out: Console) -> Iterator[Show]:
    """Drawn over and over in the same place."""
    from rich.live import Live

    with Live(console=out, auto_refresh=False) as live:
        yield lambda run: live.update(_picture(run), refresh=True)


@contextmanager
def plain_view(out: Console) -> Iterator[Show]:
    """A line when something happens, and one a second."""
    shown_at, phase, told = -LINE_S, "", 0

    def show(run: Run) -> None:
        nonlocal shown_at, phase, told
        for at_s, text in run.news[told:]:
            told += 1
            if text != run.phase:
                out.print(f"{at_s:5.1f} s  {text}", soft_wrap=True)
        if run.phase != phase:
            phase = run.phase
            out.print(f"{run.elapsed_s:5.1f} s  {phase}", soft_wrap=True)
        elif run.elapsed_s - shown_at >= LINE_S and run.simulator.messages:
            shown_at = run.elapsed_s
            out.print(f"{run.elapsed_s:5.1f} s    {_line(run)}", soft_wrap=True)

    yield show


@contextmanager
def no_view(out: Console) -> Iterator[Show]:
    """Nothing to see."""
    yield lambda run: None


def _line(run: Run) -> str:
    parts = [f"{run.simulator.messages:,} messages published"]
    for handling in run.handlers.values():
        if handling.state == "waiting":
            continue
        equal, wrong = _compared(run, handling)
        verdict = f"books DIFFER {wrong}x" if wrong else f"books equal {equal}x"
        parts.append(
            f"{handling.name} ({ROLES[handling.name]}) {handling.state}, "
            f"{run.behind(handling):,} behind, {handling.total('dropped'):,} lost, "
            f"{handling.total('repaired'):,} repaired, {verdict}"
        )
    handled = [int(said.get("handled", 0)) for said in run.desk.values()]
    parts.append("risk " + " + ".join(f"{count:,}" for count in handled))
    if run.spark.running:
        parts.append(f"Spark: {run.spark.words}")
    return " | ".join(parts)


def _compared(run: Run, handling: Handling) -> tuple[int, int]:
    """At how many checkpoints the books were those of the exchange, and at how many not."""
    made = handling.hashes.keys() & run.simulator.hashes.keys()
    wrong = len(wrong_hashes(run.simulator.hashes, handling.hashes))
    return len(made) - wrong, wrong


def _picture(run: Run) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    minutes, seconds = divmod(OPEN_NS / 1e9 + run.at_s, 60)
    clock = f"{int(minutes) // 60:02}:{int(minutes) % 60:02}:{seconds:04.1f}"
    head = Text.assemble((f"{clock}  ", "bold cyan"), (run.phase, "bold"))
    top = Columns([_rates(run), _stocks(run)], padding=(0, 3))
    body = Group(top, _handlers(run), _desk(run), Text(), _news(run))
    title = "a market"
    return Group(head, Panel(body, title=title, title_align="left", border_style="cyan"))


def _rates(run: Run) -> RenderableType:
    from rich.text import Text

    marks = list(run.rates)
    sums = [sum(marks[n : n + MARK_STEPS]) for n in range(0, len(marks) - 3, MARK_STEPS)]
    most = max([1, *sums])
    bars = "".join(_MARKS[min(7, count * 8 // most)] for count in sums)
    published = run.exchange.published if hasattr(run, "exchange") else {}
    sent = run.sent.get("feed.**", {})
    return Text.assemble(
        (f"{EXCHANGE}  ", "bold cyan"),
        (bars.rjust(30), "cyan"),
        "\n",
        (f"{published.get(FEED, 0):>11,}", "bold"),
        " book messages\n",
        (f"{published.get(TRADES, 0):>11,}", "bold"),
        " trades\n",
        (f"{published.get(ORDERS, 0):>11,}", "bold"),
        " orders\n",
        (f"{sent.get('packets', 0):>11,}", "bold"),
        " packets, each on lines A and B\n",
        (f"{sent.get('repairs', 0):>11,}", "bold green"),
        " sent again on request\n",
    )


def _stocks(run: Run) -> RenderableType:
    from rich.table import Table

    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("", "bid", "ask", "orders"):
        rows.add_column(name, justify="right" if name else "left", no_wrap=True)
    for stock in run.simulator.stocks[:STOCKS]:
        rows.add_row(*_stock(run, stock))
    return rows


def _stock(run: Run, stock: Stock) -> list[Text]:
    from rich.text import Text

    book = run.simulator.books.by_locate.get(stock.locate)
    bid = book.bids.best if book else None
    ask = book.asks.best if book else None
    return [
        Text(stock.name, "bold"),
        Text(_price(bid), "green"),
        Text(_price(ask), "red"),
        Text(str(len(stock.refs)), "dim"),
    ]


def _price(price: int | None) -> str:
    return "-" if price is None else f"{price / 10_000:,.2f}"


def _handlers(run: Run) -> RenderableType:
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, padding=(0, 1, 0, 0))
    for width in (5, 15, 11):
        rows.add_column("", no_wrap=True, min_width=width)
    for name in ("messages", "lost", "twice", "repaired", "behind"):
        rows.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    rows.add_column("", ratio=1)
    rows.add_column("books", justify="right", no_wrap=True, min_width=8)
    scale = max([BAR_SCALE_MIN, *(run.behind(one) for one in run.handlers.values())])
    for handling in run.handlers.values():
        behind = run.behind(handling)
        equal, wrong = _compared(run, handling)
        rows.add_row(
            Text(handling.name, "bold"),
            Text(ROLES[handling.name], "dim"),
            Text(handling.state, _STATES.get(handling.state, "")),
            f"{handling.figure('applied'):,}",
            Text(f"{handling.total('dropped'):,}", "red"),
            Text(f"{handling.total('duplicates'):,}", "dim"),
            Text(f"{handling.total('repaired'):,}", "green"),
            f"{behind:,}",
            ProgressBar(scale, behind, complete_style="yellow"),
            Text("DIFFER", "bold red") if wrong else Text(f"{equal} equal", "green"),
        )
    return rows


def _desk(run: Run) -> RenderableType:
    from rich.text import Text

    text = Text.assemble(("risk desk  ", "bold"))
    for name in DESK:
        text.append(f"{name} ", "dim")
        text.append(f"{int(run.desk[name].get('handled', 0)):,}  ", "bold")
    over = sum(int(said.get("over", 0)) for said in run.desk.values())
    text.append(f"orders, {over} accounts over their limit")
    mold = run.gateway.get("sent", {})
    text.append(f"\n{GATEWAY}    ", "bold")
    text.append(f"{int(mold.get('messages', 0)):,} messages as MoldUDP64, ")
    text.append(f"{int(mold.get('server_resent', 0)):,} sent again", "green")
    text.append(f"\n{TAPE}       ", "bold")
    text.append(f"{int(run.tape.get('trades', 0)):,} trades into one-second bars")
    text.append(f"\n{SINK}       ", "bold")
    text.append(f"Spark: {run.spark.words}")
    return text


def _news(run: Run) -> RenderableType:
    from rich.text import Text

    lines = [f"{at_s:5.1f} s  {text}" for at_s, text in list(run.news)[-NEWS:]]
    return Text("\n".join([*lines, *[""] * (NEWS - len(lines))]), "italic")
