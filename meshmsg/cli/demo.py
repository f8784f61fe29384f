"""`meshmsg demo`: losses on purpose, repair, a stalled subscriber, and the ledger at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from meshmsg.cli import ledger as ledger_verb
from meshmsg.cli._guard import BAD, GOOD, complain, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Json
from meshmsg.cli._tables import console
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from meshmsg.cli._demo_run import Outcome

HELP = help_text(
    "See it work: one publisher, three subscribers, frames dropped on purpose, one stall.",
    "Two streams with different answers to 'what if a subscriber is too slow': quotes.** drops "
    "the oldest, orders.** buffers. At the end the ledger shows what became of every event. The "
    "exit status is 1 if it does not add up or a healthy subscriber missed anything.",
    examples=(
        "meshmsg demo",
        "meshmsg demo --seconds 30 --drop 0.3",
        "meshmsg demo --plain > demo.log",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo", help=HELP, short_help="See repair, loss reports and the ledger.")(
        guarded(demo)
    )


def demo(
    seconds: Annotated[
        float, typer.Option(min=1, max=3600, help="How long to publish, about.")
    ] = 12.0,
    drop: Annotated[
        float,
        typer.Option(min=0.01, max=0.9, metavar="RATIO", help="Part of the frames to be dropped."),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Which frames are dropped.")] = 7,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a live view, as in a log.")
    ] = False,
    json: Json = False,
) -> int:
    """See `HELP`."""
    from meshmsg.cli import _demo_view
    from meshmsg.cli._demo_run import Run
    from meshmsg.cli._demo_story import problems, summary

    out = console()
    if json:
        view = _demo_view.no_view()
    elif plain or not sys.stdout.isatty():
        view = _demo_view.plain_view(out)
    else:
        view = _demo_view.live_view(out)
    with view as show:
        outcome = Run(seconds, drop, seed, show).go()
    wrong = problems(outcome)
    if json:
        for row in outcome.ledger.rows:
            print(to_json(row.as_dict()))
        print(to_json(summary(outcome, wrong)))
    else:
        _tell(outcome, wrong)
    for problem in wrong:
        complain(problem)
    return BAD if wrong else GOOD


def _tell(outcome: Outcome, wrong: list[str]) -> None:
    from rich.padding import Padding

    from meshmsg.cli._demo_story import story

    out = console()
    out.print()
    out.print("What you saw", style="bold")
    for sentence in story(outcome):
        out.print(Padding(sentence, (0, 0, 0, 2)))
    out.print()
    ledger_verb.show(
        outcome.ledger, "The ledger: published = delivered + filtered + lost + in flight"
    )
    if wrong:
        out.print(f"Something is wrong ({len(wrong)}).", style="bold red")
    else:
        out.print(
            "Every event is accounted for: delivered, or reported lost. None is just missing.",
            style="bold green",
        )
