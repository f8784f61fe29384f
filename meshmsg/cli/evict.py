"""`meshmsg evict`: a member, a subscription or a peer is put out, and its work goes to others."""

from __future__ import annotations

from typing import Annotated

import typer

from meshmsg.cli._guard import guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._operating import DryRun, order, show
from meshmsg.cli._options import Answer, Connect, Json, Mesh

HELP = help_text(
    "Put out a member of a work group, a subscription, or all of a peer, at the peers named.",
    "What it had comes again, for others. It is told, and does not ask again; started anew it may "
    "come back. To keep it out: `meshmsg keys revoke`.",
    examples=(
        "meshmsg evict desk/one#0a0b0c --dry-run -c tcp://127.0.0.1:7000",
        "meshmsg evict desk -c tcp://127.0.0.1:7000",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("evict", help=HELP, short_help="Put out a member or a peer.")(guarded(evict))


def evict(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="PEER, PEER/NAME or PEER/NAME#NUMBER."),
    ],
    connect: Connect = None,
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    answers = order(connect, mesh, timeout, "evict", name, dry_run=dry_run)
    return show(answers, json=json, dry_run=dry_run)
