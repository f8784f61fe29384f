"""`meshmsg drain`: a peer takes no more work, settles what it has, and closes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from meshmsg import WaitTimeout
from meshmsg.cli._asking import asking
from meshmsg.cli._guard import GOOD, guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._operating import DryRun, show
from meshmsg.cli._options import Answer, Connect, Json, Mesh, Quiet, seconds

HELP = help_text(
    "Have the peers at these addresses end in order: they take no more work, finish what their "
    "application has in hand, hand over what they have published, and close.",
    "The command returns when they have gone. Their programs see their subscriptions end, as after "
    "close(). What is not finished within the time goes to others.",
    examples=(
        "meshmsg drain -c tcp://127.0.0.1:7001 --dry-run",
        "meshmsg drain -c tcp://127.0.0.1:7001 --within 2m",
    ),
)
POLL_S = 0.02
#: Beyond the time that a drain may take: for the good-byes.
GRACE_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("drain", help=HELP, short_help="Have a peer end in order.")(guarded(drain))


def drain(
    connect: Connect = None,
    within: Annotated[
        str, typer.Option(metavar="TIME", help="How long it may take: 30s, 2m.")
    ] = "30s",
    dry_run: DryRun = False,
    mesh: Mesh = None,
    timeout: Answer = "5s",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    timeout_s, within_s = seconds("--timeout", timeout), seconds("--within", within)
    with asking(connect, mesh, timeout_s) as peer:
        done = peer.operate("drain", within=within_s, dry_run=dry_run, timeout=timeout_s)
        answers = [{"address": address, **answer} for address, answer in done.items()]
        status = show(answers, json=json, dry_run=dry_run)
        if status != GOOD or dry_run:
            return status
        deadline = time.monotonic() + within_s + GRACE_S
        while left := [link for link in peer.stats()["links"] if link["state"] == "up"]:
            if time.monotonic() >= deadline:
                names = ", ".join(link["address"] for link in left)
                raise WaitTimeout(f"still there after {within}: {names}")
            time.sleep(POLL_S)
    note("drained", quiet=quiet)
    return GOOD
