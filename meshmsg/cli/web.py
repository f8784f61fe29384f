"""`meshmsg web`: the live page of a mesh, from a peer that only looks on."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from meshmsg.cli._guard import GOOD, guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Connect, Find, Interface, Mesh, Name, Quiet, peer_from

HELP = help_text(
    "Show a mesh in a browser: a page with its peers, streams, subscribers, groups, losses and "
    "what needs attention, live. It takes part in the mesh, publishes nothing and subscribes to "
    "nothing. Ctrl-C ends it.",
    "Beyond loopback a token is needed, in the file MESHMSG_MONITOR_TOKEN_FILE; the page asks for "
    "it.",
    examples=(
        "meshmsg web                                   # the mesh of this folder",
        "meshmsg web --connect tcp://127.0.0.1:7000 --port 9401",
        "meshmsg web --mesh prod --interface eth0      # all that are found there",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("web", help=HELP, short_help="Show the mesh in a browser.")(guarded(web))


def web(
    connect: Connect = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")
    ] = 0,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where the page is served.")
    ] = "127.0.0.1",
    name: Name = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    peer = peer_from(
        "web",
        bind=None,
        connect=connect,
        name=name,
        mesh=mesh,
        discovery=discovery,
        interface=interface,
        monitor=place,
    )
    with peer:
        shown, at = peer.monitor.address
        note("the page asks other peers for their figures while it is open", quiet=quiet)
        print(f"http://{f'[{shown}]' if ':' in shown else shown}:{at}/", flush=True)
        threading.Event().wait()
    return GOOD
