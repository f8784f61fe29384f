"""`meshmsg nng`: messages of nanomsg and NNG as events, and events as messages."""

from __future__ import annotations

from typing import Annotated

import typer

from meshmsg import Stream
from meshmsg.cli._edges import publishing_peer, stay
from meshmsg.cli._guard import guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Config,
    Connect,
    DataDir,
    EdgeMeshBind,
    EdgeOverflow,
    EdgeTopics,
    Find,
    Interface,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    peer_from,
    tell_addresses,
    tell_monitor,
)

HELP = help_text(
    "Messages of nanomsg and NNG sockets as events, and events as messages.",
    "in receives from a pub or push socket of theirs, out sends to their sub or pull sockets.",
    examples=(
        "meshmsg nng in tcp://127.0.0.1:5555 --topic 'nng.{topic}' --mesh-bind ADDR",
        "meshmsg nng in tcp://127.0.0.1:5556 --kind pull --listen --topic jobs.nng -c ADDR",
        "meshmsg nng out tcp://127.0.0.1:5557 --topics 'orders.**' --connect ADDR",
        "meshmsg nng out tcp://127.0.0.1:5558 --kind push --dial --topics 'jobs.**' -c ADDR",
    ),
)
Url = Annotated[
    str, typer.Argument(metavar="URL", help="tcp://127.0.0.1:5555, ipc:///tmp/name, ...")
]
Listen = Annotated[bool, typer.Option("--listen/--dial", help="Listen at the URL, or dial it.")]
Separator = Annotated[
    str, typer.Option(metavar="TEXT", help="Between topic and payload in a message.")
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    bridges = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    bridges.command("in", help="Publish what a sub or pull socket receives.")(guarded(take))
    bridges.command("out", help="Send events through a pub or push socket.")(guarded(send))
    app.add_typer(bridges, name="nng", help=HELP, short_help="Bridge nanomsg and NNG sockets.")


def take(
    url: Url,
    kind: Annotated[str, typer.Option(help="sub or pull.")] = "sub",
    listen: Listen = False,
    topic: Annotated[
        str, typer.Option(help="Topic of the events; {topic} is what stands before the separator.")
    ] = "nng.{topic}",
    separator: Separator = "|",
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Of messages that a sub socket wants. All if not given."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Decode payloads that are JSON.")] = False,
    overflow: EdgeOverflow = "buffer",
    mesh_bind: EdgeMeshBind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    interface: Interface = None,
    data_dir: DataDir = None,
    monitor: MonitorAt = None,
    quiet: Quiet = False,
) -> int:
    """Publish what a socket receives."""
    from meshmsg.nanomsg import NanomsgIn

    peer = publishing_peer(
        "nng",
        Stream("**", overflow=overflow),
        mesh_bind=mesh_bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        data_dir=data_dir,
        monitor=monitor,
    )
    bridge = NanomsgIn(
        peer,
        url,
        kind=kind,
        listen=listen,
        topic=topic,
        separator=separator,
        prefixes=tuple(prefix or ("",)),
        json=json,
    )
    with peer, bridge:
        note(f"{kind} at {bridge.url}", quiet=quiet)
        tell_monitor(peer.monitor, quiet=quiet)
        tell_addresses(peer, quiet=quiet)
        return stay(bridge)


def send(
    url: Url,
    topics: EdgeTopics,
    kind: Annotated[str, typer.Option(help="pub or push.")] = "pub",
    listen: Listen = True,
    separator: Separator = "|",
    format: Annotated[
        str, typer.Option(help="data, or event: JSON with position, key and headers.")
    ] = "data",
    cursor: Annotated[
        str, typer.Option(metavar="NAME", help="Go on after restarts; needs --data-dir.")
    ] = "",
    mesh_bind: EdgeMeshBind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    interface: Interface = None,
    data_dir: DataDir = None,
    monitor: MonitorAt = None,
    quiet: Quiet = False,
) -> int:
    """Send events through a socket."""
    from meshmsg.nanomsg import NanomsgOut

    if cursor and data_dir is None and config is None:
        raise usage("--cursor", "needs a place: --data-dir")
    peer = peer_from(
        "nng",
        bind=mesh_bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        data_dir=data_dir,
        monitor=monitor,
    )
    bridge = NanomsgOut(
        peer, url, topics, kind=kind, listen=listen, separator=separator, format=format, name=cursor
    )
    with peer, bridge:
        note(f"{kind} at {bridge.url}", quiet=quiet)
        tell_monitor(peer.monitor, quiet=quiet)
        return stay(bridge)
