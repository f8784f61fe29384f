"""`meshmsg demo`: losses on purpose, repair, and the ledger at the end; three acts."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshmsg.cli import ledger as ledger_verb
from meshmsg.cli._guard import BAD, GOOD, complain, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Json
from meshmsg.cli._tables import console, table, tick
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from meshmsg.cli._market_story import Check
    from meshmsg.recovery.stream.ledger import Ledger

HELP = help_text(
    "See it work: losses on purpose, repair, and a ledger that adds up. Three acts.",
    "mesh: one publisher, three subscribers over ZeroMQ, frames dropped, one stall. Two streams "
    "with different answers to 'what if a subscriber is too slow': quotes.** drops the oldest, "
    "orders.** buffers.",
    "feed: quotes over UDP multicast to three receivers that each throw away a part of the "
    "packets; requests, repairs and suppression as they happen, and nothing missing at the end.",
    "market: an exchange with order books, feed handlers that are slow, late or killed, a risk "
    "desk that shares its work, MoldUDP64 and, where it is installed, Spark; at the end "
    "everything is compared with the exchange's own record.",
    "At the end the ledger shows what became of every event. The exit status is 1 if it does not "
    "add up or a healthy subscriber missed anything.",
    examples=(
        "meshmsg demo",
        "meshmsg demo feed",
        "meshmsg demo feed --drop 0.3 --seconds 20",
        "meshmsg demo market",
        "meshmsg demo --plain > demo.log",
    ),
)


class Act(enum.StrEnum):
    """What is shown."""

    mesh = "mesh"
    feed = "feed"
    market = "market"


#: How long an act publishes, unless told otherwise.
SECONDS = {Act.mesh: 12.0, Act.feed: 8.0, Act.market: 30.0}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo", help=HELP, short_help="See repair, loss reports and the ledger.")(
        guarded(demo)
    )


def demo(
    act: Annotated[Act, typer.Argument(metavar="[ACT]", help="mesh, feed or market.")] = Act.mesh,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            show_default=False,
            help="How long to publish, about: 12 for mesh, 8 for feed, 30 for market.",
        ),
    ] = None,
    drop: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=0.9,
            metavar="RATIO",
            help="Part of the frames (mesh) or of each receiver's packets to be dropped.",
        ),
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(help="Which ones are dropped, and what happens in the market.")
    ] = 7,
    stocks: Annotated[
        int, typer.Option(min=1, max=10_000, help="market: how many stocks are traded.")
    ] = 300,
    rate: Annotated[
        float, typer.Option(min=50, max=100_000, help="market: what happens in a second, about.")
    ] = 4000.0,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            show_default=False,
            help="market: with Spark or without it; if not given, with it where it is installed.",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a live view, as in a log.")
    ] = False,
    json: Json = False,
) -> int:
    """See `HELP`."""
    shown_s = SECONDS[act] if seconds is None else seconds
    run, view, tale = {Act.mesh: _mesh, Act.feed: _feed, Act.market: _market}[act]()
    more = {"stocks": stocks, "rate": rate, "spark": spark} if act is Act.market else {}
    out = console()
    if json:
        shown = view.no_view()
    elif plain or not sys.stdout.isatty():
        shown = view.plain_view(out)
    else:
        shown = view.live_view(out)
    with shown as show:
        outcome = run(shown_s, drop, seed, show, **more).go()
    wrong = tale.problems(outcome)
    if json:
        for row in outcome.ledger.rows:
            print(to_json(row.as_dict()))
        print(to_json(tale.summary(outcome, wrong)))
    else:
        _tell(tale.story(outcome), outcome.ledger, wrong)
        if act is Act.market:
            _reconcile(tale.checks(outcome))
    for problem in wrong:
        complain(problem)
    return BAD if wrong else GOOD


def _mesh() -> tuple[Any, Any, Any]:
    """The run, the view and the story of an act."""
    from meshmsg.cli import _demo_story, _demo_view
    from meshmsg.cli._demo_run import Run

    return Run, _demo_view, _demo_story


def _feed() -> tuple[Any, Any, Any]:
    from meshmsg.cli import _demo_feed_story, _demo_feed_view
    from meshmsg.cli._demo_feed_run import Run

    return Run, _demo_feed_view, _demo_feed_story


def _market() -> tuple[Any, Any, Any]:
    from meshmsg.cli import _market_story, _market_view
    from meshmsg.cli._market_run import Run

    return Run, _market_view, _market_story


def _reconcile(checks: Iterable[Check]) -> None:
    """Everything beside the exchange's own record, line by line."""
    from rich.text import Text

    out = console()
    rows = table("Reconciliation", "", "what", "figure", "", numbers=("figure",))
    for check in checks:
        mark = "" if check.good is None else tick(check.good, out.encoding)
        style = "" if check.good is None else "green" if check.good else "bold red"
        rows.add_row(Text(mark, style), Text(check.what, "bold"), check.figure, check.words)
    out.print()
    out.print(rows)


def _tell(story: Sequence[str], ledger: Ledger, wrong: list[str]) -> None:
    from rich.padding import Padding

    out = console()
    out.print()
    out.print("What you saw", style="bold")
    for sentence in story:
        out.print(Padding(sentence, (0, 0, 0, 2)))
    out.print()
    ledger_verb.show(ledger, "The ledger: published = delivered + filtered + lost + in flight")
    if wrong:
        out.print(f"Something is wrong ({len(wrong)}).", style="bold red")
    elif ledger.lost:
        out.print(
            "Every event is accounted for: delivered, or reported lost. None is just missing.",
            style="bold green",
        )
    else:
        out.print("Every event reached every receiver. None is missing.", style="bold green")
