"""`meshmsg peers`: what the peers at some addresses are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshmsg import WaitTimeout
from meshmsg.cli._asking import ask, asking
from meshmsg.cli._found import looking, show_changes, show_found, wait_for_found
from meshmsg.cli._guard import GOOD, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Answer, Connect, Find, Interface, Json, Look, Mesh, seconds
from meshmsg.cli._tables import by_reason, console, table
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from rich.console import Console

HELP = help_text(
    "Show peers. Without --connect: all that are found on this machine (or, with --interface, on "
    "the network), with their streams and groups. With --watch: who comes and goes.",
    "With --connect: what these peers are doing: their streams, who reads them, how far behind, "
    "and who blocks; work groups with their members, lag, what is in flight and what came again; "
    "multicast streams with their packets, requests and repairs.",
    examples=(
        "meshmsg peers                                 # who is there",
        "meshmsg peers --watch --json                  # who comes and goes",
        "meshmsg peers --figures                       # and what all of them are doing",
        "meshmsg peers --connect tcp://127.0.0.1:7000",
        "meshmsg peers -c tcp://127.0.0.1:7000 --json | jq .streams",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("peers", help=HELP, short_help="Show what peers are doing.")(guarded(peers))


def peers(
    connect: Connect = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, and show who comes and goes.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Ask all that are found what they are doing.")
    ] = False,
    wait: Look = "3s",
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    timeout_s = seconds("--timeout", timeout)
    if watch or not connect:
        with looking(connect, mesh, discovery, interface) as peer:
            if watch:
                return show_changes(peer, json=json)
            found = wait_for_found(peer, seconds("--wait", wait))
            if not figures or not found:
                return show_found(peer, found, json=json)
            answers = ask(peer, "stats", timeout_s)
    else:
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
    for taken in answer.get("name_in_use") or []:
        text = f"  nobody takes {taken['stream']}: another peer of its name is at"
        out.print(f"{text} {taken['address']}", style="bold red")
    streams = answer.get("streams") or {}
    subscriptions = answer.get("subscriptions") or []
    for name, stream in streams.items():
        _show_stream(out, name, stream)
    members = answer.get("members") or []
    if subscriptions:
        _show_subscriptions(out, subscriptions)
    if members:
        _show_members(out, members)
    if not streams and not subscriptions and not members:
        out.print("  publishes nothing and subscribes to nothing")
    counters = answer.get("counters") or {}
    if counters:
        out.print("  " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))
    out.print()


def _show_stream(out: Console, name: str, stream: Mapping[str, Any]) -> None:
    kept = stream["next"] - stream["first_available"]
    text = f"  {name} ({stream['overflow']}): {stream['published']:,} published, {kept:,} kept"
    out.print(text)
    if "multicast" in stream:
        _show_multicast(out, stream["multicast"])
    if stream["blocked_by"]:
        out.print(f"    blocked by {', '.join(stream['blocked_by'])}", style="bold red")
    groups = stream.get("groups") or []
    for group in groups:
        _show_group(out, group)
    if not stream["subscribers"]:
        if not groups:
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


def _show_multicast(out: Console, figures: Mapping[str, Any]) -> None:
    """How a stream is sent, and what its receivers asked for."""
    lines = " and ".join(
        f"{_host(line['group'])}:{line['port']} on {line['interface']}" for line in figures["lines"]
    )
    out.print(f"    multicast to {lines}: flow {figures['flow']}, {_receivers(figures)}")
    text = f"    {figures['sent']:,} packets sent, {figures.get('repairs', 0):,} sent again for "
    text += f"{figures.get('nacks', 0):,} requests"
    waiting = figures["next"] - figures["sent"]
    text += f", {waiting:,} wait for flow control" if waiting else ""
    errors = sum(line["send_errors"] for line in figures["lines"])
    text += f", {errors:,} send errors" if errors else ""
    out.print(text, style="red" if errors else None)
    for name in figures.get("unreached", ()):
        out.print(f"    packets do not reach {name}, though it reports", style="bold red")


def _host(group: str) -> str:
    return f"[{group}]" if ":" in group else group


def _receivers(figures: Mapping[str, Any]) -> str:
    count = figures["receivers"]
    text = f"{count:,} receiver{'' if count == 1 else 's'}"
    behind = figures["sent"] - figures["slowest"]
    return text + (f", the slowest {behind:,} packets behind" if behind > 0 else "")


def _show_group(out: Console, group: Mapping[str, Any]) -> None:
    numbers = ("delivered", "acked", "in flight", "prefetch")
    text = (
        f"    group {group['name']} ({group['order']}): lag {group['lag']:,}, in flight "
        f"{group['in_flight']:,}, acked {group['acked']:,}, redelivered {group['redelivered']:,}, "
        f"dead {group['dead']:,}, lost {by_reason(group['lost'])}"
    )
    out.print(text)
    if not group["members"]:
        out.print("      no members", style="bold red" if group["lag"] else None)
        return
    rows = table("", "      member", *numbers, numbers=numbers)
    for member in group["members"]:
        figures = (member["delivered"], member["acked"], member["in_flight"], member["prefetch"])
        rows.add_row(f"      {member['name']}", *(f"{figure:,}" for figure in figures))
    out.print(rows)


def _state(subscriber: Mapping[str, Any]) -> str:
    if subscriber["evicted"]:
        return "evicted"
    if subscriber["blocking"]:
        return f"blocks for {subscriber['blocked_s']:.1f} s"
    return "" if subscriber["attached"] else "not connected"


def _show_members(out: Console, members: list[Mapping[str, Any]]) -> None:
    numbers = ("delivered", "redelivered", "acked")
    rows = table("", "  member of", "stream", *numbers, numbers=numbers)
    for member in members:
        name = f"  {member['group']}: {member['name']} to {' '.join(member['topics'])}"
        if not member["sources"]:
            rows.add_row(name, "nobody yet", "", "", "")
        for source in member["sources"]:
            figures = [f"{source[number]:,}" for number in numbers]
            rows.add_row(name, source["stream"], *figures)
            name = ""
    out.print(rows)


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
    for subscription in subscriptions:
        for source in subscription["sources"]:
            if "multicast" in source:
                out.print(f"  {source['stream']} by multicast: {_packets(source['multicast'])}")


def _packets(figures: Mapping[str, Any]) -> str:
    """What became of a subscription's packets."""
    shown = [f"{figures.get('packets', 0):,} packets"]
    words = {
        "missing": "missing",
        "repaired": "repaired",
        "computed": "computed from parity",
        "nacks": "requests",
        "duplicates": "twice",
        "lost_packets": "lost",
    }
    shown += [f"{figures[key]:,} {word}" for key, word in words.items() if figures.get(key)]
    drops = sum(line["kernel_drops"] for line in figures["lines"])
    shown += [f"{drops:,} dropped by the kernel (raise net.core.rmem_max)"] if drops else []
    if len(figures["lines"]) > 1:
        first = " and ".join(f"{line.get('first', 0):,}" for line in figures["lines"])
        shown.append(f"first by line A and B: {first}")
    return ", ".join(shown)
