"""`meshmsg demo`: says where the demo is now; the verb goes with the next release."""

from __future__ import annotations

from typing import Annotated

import typer

from meshmsg.cli._guard import USAGE, complain, guarded


def register(app: typer.Typer) -> None:
    """Add the verb, which no help names."""
    anything = {"ignore_unknown_options": True}
    app.command("demo", hidden=True, context_settings=anything)(guarded(demo))


def demo(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ACT]", hidden=True)] = None,
) -> int:
    """The demo is no part of the installed package: run `make demo` in a checkout of meshmsg."""
    complain(
        "the demo is no part of the command any more: in a checkout of meshmsg, run `make demo` "
        "or `python examples/market_data/demo.py` (--help says what it can do)"
    )
    return USAGE
