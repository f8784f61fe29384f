"""`meshmsg ledger`: ask peers whether every event is accounted for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from meshmsg import Ledger, LedgerRow, Peer, WaitTimeout
from meshmsg.cli._asking import ask
from meshmsg.cli._found import answering, show_found
from meshmsg.cli._guard import BAD, GOOD, complain, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Answer, Connect, Find, Interface, Json, Look, Mesh, seconds
from meshmsg.cli._tables import by_reason, console, table, tick
from meshmsg.cli._values import to_json
from meshmsg.overview import merge_ledgers

HELP = help_text(
    "Ask peers for their ledger: published = delivered + filtered + lost + in flight. Without "
    "--connect: all that are found, as by `meshmsg peers`.",
    "One row for each subscription on each stream, and for each work group, where delivered is "
    "what was acknowledged and dead letters are one term more. The exit status is 1 if a row does "
    "not add up, if --settle is given and events stay in flight, or if a peer does not answer. A "
    "declared loss is accounted for, so it is shown and is not an error.",
    examples=(
        "meshmsg ledger                            # of all peers that are found",
        "meshmsg ledger --connect tcp://127.0.0.1:7000",
        "meshmsg ledger -c tcp://127.0.0.1:7000 --settle 10s   # let all arrive first",
        "meshmsg ledger -c tcp://127.0.0.1:7000 -c tcp://127.0.0.1:7001 --json",
    ),
)

SETTLE_POLL_S = 0.05
_NUMBERS = ("published", "delivered", "filtered", "in flight")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ledger", help=HELP, short_help="Check that every event is accounted for.")(
        guarded(ledger)
    )


def ledger(
    connect: Connect = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="Wait until nothing is in flight, this long at most.",
        ),
    ] = None,
    wait: Look = "3s",
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    timeout_s = seconds("--timeout", timeout)
    settle_s = None if settle is None else seconds("--settle", settle)
    wait_s = seconds("--wait", wait)
    with answering(connect, mesh, discovery, interface, timeout_s, wait_s) as peer:
        if not connect and not peer.peers():
            return show_found(peer, [], json=json)
        found = _settled(peer, timeout_s, settle_s)
    if json:
        for row in found.rows:
            print(to_json(row.as_dict()))
    else:
        show(found)
    return verdict(found, settle_s)


def verdict(found: Ledger, settle_s: float | None = None) -> int:
    """The exit status for a ledger, with words about what is wrong."""
    status = GOOD
    for row in found.rows:
        if not row.reconciles:
            complain(f"does not add up: {_sum_text(row)}")
            status = BAD
    if settle_s is not None and found.in_flight:
        complain(f"{found.in_flight:,} events are still in flight after {settle_s:g} s")
        status = BAD
    return status


def show(found: Ledger) -> None:
    """A ledger as a table."""
    out = console()
    if not found.rows:
        out.print("no subscriptions, so there is nothing to account for")
        return
    ordered = sorted(found.rows, key=lambda row: (row.stream, row.epoch, row.subscription))
    states = ("state",) if any(row.state != "live" for row in ordered) else ()
    dead = ("dead",) if any(row.dead for row in ordered) else ()
    numbers = (*_NUMBERS, *dead)
    rows = table("", "subscription", *numbers, "lost", *states, numbers=numbers)
    stream = None
    for row in ordered:
        if (row.stream, row.epoch) != stream:
            stream = (row.stream, row.epoch)
            rows.add_row(row.stream, style="bold")
        rows.add_row(
            f"{tick(row.reconciles, out.encoding)} {row.subscription}",
            f"{row.published:,}",
            f"{row.delivered:,}",
            f"{row.filtered:,}",
            f"{row.in_flight:,}",
            *([f"{row.dead:,}"] if dead else []),
            by_reason(row.lost),
            *([row.state] if states else []),
            style=None if row.reconciles else "bold red",
        )
    out.print(rows)


def merge(answers: Iterable[Mapping[str, Any]]) -> Ledger:
    """One ledger of all answers; raises `WaitTimeout` for an answer that is not a ledger."""
    answers = list(answers)
    for answer in answers:
        try:
            merge_ledgers([answer])
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = "answered with something that is not a ledger"
            raise WaitTimeout(f"{answer.get('address', '?')} {problem}") from None
    return merge_ledgers(answers)


def _settled(peer: Peer, timeout_s: float, settle_s: float | None) -> Ledger:
    deadline = time.monotonic() + (settle_s or 0)
    while True:
        found = merge(ask(peer, "ledger", timeout_s))
        if not found.in_flight or time.monotonic() >= deadline:
            return found
        time.sleep(SETTLE_POLL_S)


def _sum_text(row: LedgerRow) -> str:
    return (
        f"{row.stream} to {row.subscription}: published {row.published:,}, but delivered "
        f"{row.delivered:,} + filtered {row.filtered:,} + dead {row.dead:,} + "
        f"lost {sum(row.lost.values()):,} + in flight {row.in_flight:,} = {row.accounted:,}"
    )
