"""`meshmsg doctor`: proves or disproves, step by step, that meshmsg can work here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshmsg.cli._found import wait_for_found
from meshmsg.cli._guard import BAD, GOOD, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Connect, Find, Interface, Json, Look, Mesh, peer_from, seconds
from meshmsg.cli._tables import console, tick
from meshmsg.cli._values import to_json
from meshmsg.doctor import FAIL, OK, SKIP, WARN, Finding, check_machine, check_mesh

if TYPE_CHECKING:
    from rich.console import Console

HELP = help_text(
    "Check, step by step, what meshmsg needs: interface, multicast, socket buffers, MTU, mDNS, "
    "open files, disk, Spark; what discovery finds; and ports, versions and clocks of peers. "
    "Beside each thing that is not well stands what would mend it.",
    "Nothing is sent beyond this machine unless an interface or a peer is named. Exit status 1 if "
    "a check fails.",
    examples=(
        "meshmsg doctor                                   # this machine",
        "meshmsg doctor --interface eth0                  # and the network at eth0",
        "meshmsg doctor --connect tcp://10.0.0.7:7000     # and that peer: ports, version, clock",
        "meshmsg doctor --data-dir ./data --spark --json",
    ),
)
COLOURS = {OK: "green", WARN: "yellow", FAIL: "bold red", SKIP: "dim"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", help=HELP, short_help="Find out what is in the way.")(guarded(doctor))


def doctor(
    connect: Connect = None,
    mesh: Mesh = None,
    interface: Interface = None,
    discovery: Find = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Check space and speed of this disk."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Java and Spark must be there, too.")
    ] = False,
    wait: Look = "3s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    wait_s = seconds("--wait", wait)
    found = _findings(connect or [], mesh, interface, discovery, data_dir, spark, wait_s)
    worst = OK
    out = None if json else console()
    for finding in found:
        if finding.status == FAIL:
            worst = FAIL
        if out is None:
            print(to_json(finding.as_dict()), flush=True)
        else:
            _show(out, finding)
    if out is not None:
        text = "something is in the way: see above" if worst == FAIL else "nothing is in the way"
        out.print(text, style=COLOURS[worst])
    return BAD if worst == FAIL else GOOD


def _findings(
    connect: list[str],
    mesh: str | None,
    interface: str | None,
    discovery: str | None,
    data_dir: Path | None,
    spark: bool,
    wait_s: float,
) -> Iterator[Finding]:
    yield from check_machine(
        interface or "127.0.0.1",
        data_dir=data_dir,
        spark=spark,
        mdns=discovery not in ("none", "gossip"),
    )
    if discovery == "none" and not connect:
        yield Finding("discovery", SKIP, "off, and no --connect")
        return
    with peer_from(
        "doctor",
        bind=None,
        connect=connect,
        name=None,
        mesh=mesh,
        interface=interface,
        discovery=discovery,
    ) as peer:
        wait_for_found(peer, wait_s)
        yield from check_mesh(peer, connect)


def _show(out: Console, finding: Finding) -> None:
    encoding = out.encoding
    mark = {
        OK: tick(True, encoding),
        FAIL: tick(False, encoding),
        WARN: "!",
        SKIP: "-",
    }[finding.status]
    out.print(f"{mark:3} {finding.check:15} {finding.found}", style=COLOURS[finding.status])
    if finding.fix and finding.status in (WARN, FAIL):
        out.print(f"    {'':15} fix: {finding.fix}")
