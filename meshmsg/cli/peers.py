"""`meshmsg peers`: what the peers at some addresses are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from meshmsg._errors import WaitTimeout
from meshmsg.cli._asking import ask, asking
from meshmsg.cli._guard import GOOD, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Answer, Connect, Json, Mesh, seconds
from meshmsg.cli._tables import by_reason, console, table
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from rich.console import Console

HELP = help_text(
    "Show peers: their streams, who reads them, how far behind, and who blocks.",
    examples=(
        "meshmsg peers --connect tcp://127.0.0.1:7000",
        "meshmsg peers -c tcp://127.0.0.1:7000 --json | jq .streams",
    ),
)


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
    for name, stream in streams.items():
        _show_stream(out, name, stream)
    if subscriptions:
        _show_subscriptions(out, subscriptions)
    if not streams and not subscriptions:
        out.print("  publishes nothing and subscribes to nothing")
    counters = answer.get("counters") or {}
    if counters:
        out.print("  " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))
    out.print()


def _show_stream(out: Console, name: str, stream: Mapping[str, Any]) -> None:
    kept = stream["next"] - stream["first_available"]
    text = f"  {name} ({stream['overflow']}): {stream['published']:,} published, {kept:,} kept"
    out.print(text)
    if stream["blocked_by"]:
        out.print(f"    blocked by {', '.join(stream['blocked_by'])}", style="bold red")
    if not stream["subscribers"]:
        out.print("    nobody subscribes to it")
        return
    numbers = ("delivered", "behind", "repaired frames")
    rows = table("", "    subscriber", *numbers, "lost", "", numbers=numbers)
    for subscriber in stream["subscribers"]:
        rows.add_row(
            f"    {subscriber['name']}",
            f"{subscriber['delivered']:,}",
            f"{subscriber['behind']:,}",
            f"{subscriber['repaired_frames']:,}",
            by_reason(subscriber["lost"]),
            _state(subscriber),
            style="red" if subscriber["blocking"] or subscriber["evicted"] else None,
        )
    out.print(rows)


def _state(subscriber: Mapping[str, Any]) -> str:
    if subscriber["evicted"]:
        return "evicted"
    if subscriber["blocking"]:
        return f"blocks for {subscriber['blocked_s']:.1f} s"
    return "" if subscriber["attached"] else "not connected"


def _show_subscriptions(out: Console, subscriptions: list[Mapping[str, Any]]) -> None:
    numbers = ("delivered", "missing", "repaired")
    rows = table("", "  subscription", "stream", *numbers, "lost", numbers=numbers)
    for subscription in subscriptions:
        name = f"  {subscription['name']} to {' '.join(subscription['topics'])}"
        if not subscription["sources"]:
            rows.add_row(name, "nobody yet", "", "", "", "")
        for source in subscription["sources"]:
            rows.add_row(
                name,
                source["stream"],
                f"{source['delivered']:,}",
                f"{source['missing']:,}",
                f"{source.get('repaired', 0):,}",
                by_reason(source["lost"]),
            )
            name = ""
    out.print(rows)
