"""`meshmsg demo`: losses on purpose, repair, and the ledger at the end; two acts, mesh and feed."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshmsg.cli import ledger as ledger_verb
from meshmsg.cli._guard import BAD, GOOD, complain, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Json
from meshmsg.cli._tables import console
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from meshmsg.recovery.ledger import Ledger

HELP = help_text(
    "See it work: losses on purpose, repair, and a ledger that adds up. Two acts.",
    "mesh: one publisher, three subscribers over ZeroMQ, frames dropped, one stall. Two streams "
    "with different answers to 'what if a subscriber is too slow': quotes.** drops the oldest, "
    "orders.** buffers.",
    "feed: quotes over UDP multicast to three receivers that each throw away a part of the "
    "packets; requests, repairs and suppression as they happen, and nothing missing at the end.",
    "At the end the ledger shows what became of every event. The exit status is 1 if it does not "
    "add up or a healthy subscriber missed anything.",
    examples=(
        "meshmsg demo",
        "meshmsg demo feed",
        "meshmsg demo feed --drop 0.3 --seconds 20",
        "meshmsg demo --plain > demo.log",
    ),
)


class Act(enum.StrEnum):
    """What is shown."""

    mesh = "mesh"
    feed = "feed"


#: How long an act publishes, unless told otherwise.
SECONDS = {Act.mesh: 12.0, Act.feed: 8.0}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo", help=HELP, short_help="See repair, loss reports and the ledger.")(
        guarded(demo)
    )


def demo(
    act: Annotated[Act, typer.Argument(metavar="[ACT]", help="mesh or feed.")] = Act.mesh,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            show_default=False,
            help="How long to publish, about: 12 for mesh, 8 for feed if not given.",
        ),
    ] = None,
    drop: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=0.9,
            metavar="RATIO",
            help="Part of the frames (mesh) or of each receiver's packets (feed) to be dropped.",
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Which ones are dropped.")] = 7,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a live view, as in a log.")
    ] = False,
    json: Json = False,
) -> int:
    """See `HELP`."""
    shown_s = SECONDS[act] if seconds is None else seconds
    run, view, tale = _mesh() if act is Act.mesh else _feed()
    out = console()
    if json:
        shown = view.no_view()
    elif plain or not sys.stdout.isatty():
        shown = view.plain_view(out)
    else:
        shown = view.live_view(out)
    with shown as show:
        outcome = run(shown_s, drop, seed, show).go()
    wrong = tale.problems(outcome)
    if json:
        for row in outcome.ledger.rows:
            print(to_json(row.as_dict()))
        print(to_json(tale.summary(outcome, wrong)))
    else:
        _tell(tale.story(outcome), outcome.ledger, wrong)
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
