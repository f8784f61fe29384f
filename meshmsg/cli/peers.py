"""`meshmsg peers`: what the peers at some addresses are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from meshmsg._errors import WaitTimeout
from meshmsg.cli._asking import ask, asking
from meshmsg.cli._guard import GOOD, guarded
from meshmsg.cli._options import Answer, Connect, Json, Mesh, seconds
from meshmsg.cli._tables import by_reason, console, table
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from rich.console import Console

HELP = """Show peers: their streams, who reads them, how far behind, and who blocks.

\b
Examples:
  meshmsg peers --connect tcp://127.0.0.1:7000
  meshmsg peers -c tcp://127.0.0.1:7000 -c tcp://127.0.0.1:7001 --json | jq .streams
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("peers", help=HELP, short_help="Show what peers are doing.")(guarded(peers))


def peers(
    connect: Connect = None, mesh: Mesh = None, timeout: Answer = "5s", json: Json = False
) -> int:
    """See `HELP`."""
    timeout_s = seconds("--timeout", timeout)
    with asking(connect, mesh, timeout_s) as peer:
        answers = ask(peer, "stats", timeout_s)
    if json:
        for answer in answers:
            print(to_json(answer))
        return GOOD
    out = console()
    for answer in answers:
        try:
            _show(out, answer)
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = "answered with something that is not its figures"
            raise WaitTimeout(f"{answer['address']} {problem}") from None
    return GOOD


def _show(out: Console, answer: Mapping[str, Any]) -> None:
    out.print(f"{answer.get('peer', '?')} at {answer['address']}", style="bold")
    streams = answer.get("streams") or {}
    subscriptions = answer.get("subscriptions") or []
    if streams:
        _show_streams(out, streams)
    if subscriptions:
        _show_subscriptions(out, subscriptions)
    if not streams and not subscriptions:
        out.print("  publishes nothing and subscribes to nothing", style="dim")
    counters = answer.get("counters") or {}
    if counters:
        out.print("  " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))
    out.print()


def _show_streams(out: Console, streams: Mapping[str, Any]) -> None:
    numbers = ("published", "kept", "behind", "repaired frames")
    rows = table(
        "", "stream", "overflow", "published", "kept", "subscriber", "behind", "repaired frames",
        "lost", "blocked by", numbers=numbers,
    )  # fmt: skip
    for name, stream in streams.items():
        head = [
            name,
            str(stream["overflow"]),
            f"{stream['published']:,}",
            f"{stream['next'] - stream['first_available']:,}",
        ]
        blocked_by = ", ".join(stream["blocked_by"]) or "-"
        if not stream["subscribers"]:
            rows.add_row(*head, "nobody", "", "", "", blocked_by)
        for subscriber in stream["subscribers"]:
            rows.add_row(
                *head,
                subscriber["name"],
                f"{subscriber['behind']:,}",
                f"{subscriber['repaired_frames']:,}",
                by_reason(subscriber["lost"]),
                blocked_by,
                style="red" if subscriber["blocking"] or subscriber["evicted"] else None,
            )
            head, blocked_by = ["", "", "", ""], ""
    out.print(rows)


def _show_subscriptions(out: Console, subscriptions: list[Mapping[str, Any]]) -> None:
    numbers = ("delivered", "missing", "repaired")
    rows = table(
        "", "subscription", "topics", "from stream", "delivered", "missing", "repaired", "lost",
        numbers=numbers,
    )  # fmt: skip
    for subscription in subscriptions:
        head = [subscription["name"], " ".join(subscription["topics"])]
        if not subscription["sources"]:
            rows.add_row(*head, "nobody yet", "", "", "", "")
        for source in subscription["sources"]:
            rows.add_row(
                *head,
                source["stream"],
                f"{source['delivered']:,}",
                f"{source['missing']:,}",
                f"{source.get('repaired', 0):,}",
                by_reason(source["lost"]),
            )
            head = ["", ""]
    out.print(rows)
