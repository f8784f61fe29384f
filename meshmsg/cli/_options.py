"""Options that several verbs have: a flag and an environment variable for each setting."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import (
    ConfigError,
    Discovery,
    Feed,
    Monitor,
    Multicast,
    Peer,
    PeerConfig,
    Security,
    Stream,
    parse_time,
)
from meshmsg.cli._guard import note, usage
from meshmsg.cli._logs import name_peer

_MESH = "The mesh"
NO_MONITOR = "none"

Bind = Annotated[
    list[str] | None,
    typer.Option(
        "--bind",
        "-b",
        metavar="ADDR",
        envvar="MESHMSG_BIND",
        show_default=False,
        rich_help_panel=_MESH,
        help="Listen here: tcp://127.0.0.1:7000, tcp://127.0.0.1:* for a free port, ipc://PATH. "
        "May be given several times.",
    ),
]
Connect = Annotated[
    list[str] | None,
    typer.Option(
        "--connect",
        "-c",
        metavar="ADDR",
        envvar="MESHMSG_CONNECT",
        show_default=False,
        rich_help_panel=_MESH,
        help="Connect to the peer that listens here. May be given several times.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="MESHMSG_NAME",
        show_default=False,
        rich_help_panel=_MESH,
        help="Name of this peer, one in a mesh. A random one if not given.",
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        metavar="MESH",
        envvar="MESHMSG_MESH",
        show_default=False,
        rich_help_panel=_MESH,
        help="Peers of different meshes refuse each other. If not given, peers of this user and "
        "folder are looked for.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="MESHMSG_CONFIG",
        show_default=False,
        rich_help_panel=_MESH,
        help="A mesh.toml with the peer's settings and streams; flags win over the file.",
    ),
]
EdgeMeshBind = Annotated[
    list[str] | None,
    typer.Option(
        "--mesh-bind",
        metavar="ADDR",
        envvar="MESHMSG_BIND",
        show_default=False,
        rich_help_panel=_MESH,
        help="Listen here for other peers: tcp://127.0.0.1:7000. A free loopback port if neither "
        "this nor --connect is given.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="MESHMSG_DATA_DIR",
        show_default=False,
        rich_help_panel=_MESH,
        help="Folder for durable logs and cursors.",
    ),
]
Find = Annotated[
    str | None,
    typer.Option(
        "--discovery",
        metavar="HOW",
        envvar="MESHMSG_DISCOVERY",
        show_default=False,
        rich_help_panel=_MESH,
        help="How to find other peers: auto (zeroconf where no --connect is given, and what other "
        "peers know), zeroconf, gossip or none. Seeds may stand in MESHMSG_SEEDS.",
    ),
]
MulticastGroup = Annotated[
    str | None,
    typer.Option(
        "--multicast",
        metavar="GROUP:PORT",
        envvar="MESHMSG_MULTICAST",
        show_default=False,
        rich_help_panel=_MESH,
        help="Over UDP multicast: 239.255.7.7:30001 or [ff12::7:7]:30001.",
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface",
        "-i",
        metavar="IF",
        envvar="MESHMSG_INTERFACE",
        show_default=False,
        rich_help_panel=_MESH,
        help="Network interface, by address or name. 127.0.0.1 if not given.",
    ),
]
MonitorAt = Annotated[
    str | None,
    typer.Option(
        "--monitor",
        metavar="HOST:PORT",
        show_default=False,
        rich_help_panel=_MESH,
        help="Serve /metrics, /health, /ready and /stats here: 127.0.0.1:9401. Beyond loopback a "
        "token is needed, in the file MESHMSG_MONITOR_TOKEN_FILE. [env var: MESHMSG_MONITOR]",
    ),
]
Patterns = Annotated[
    list[str], typer.Argument(metavar="PATTERN", help="Topic patterns.", show_default=False)
]
EdgeTopics = Annotated[
    list[str], typer.Option("--topics", "-t", metavar="PATTERN", help="May be given often.")
]
EdgeOverflow = Annotated[
    str, typer.Option(help="When subscribers are too slow: buffer, block, drop_oldest, ...")
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", show_default=False, help="Stop when nothing came for this long: 5s, 500ms."
    ),
]
Every = Annotated[str, typer.Option(metavar="TIME", help="How often figures are shown.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No words on standard error.")]
Answer = Annotated[
    str, typer.Option(metavar="TIME", help="How long to wait for the peers to answer: 5s, 500ms.")
]

Look = Annotated[str, typer.Option(metavar="TIME", help="How long to look for peers at most.")]


def seconds(option: str, text: str) -> float:
    """A time as `500ms`, `5s`, `2m` or plain seconds; raises `ConfigError`."""
    try:
        return parse_time(option, float(text))
    except ValueError:
        return parse_time(option, text)


def multicast_of(group: str) -> Multicast:
    """The transport of `--multicast`; raises `ConfigError`."""
    try:
        return Multicast(group)
    except ConfigError as error:
        raise usage("--multicast", error.problem) from None


def peer_from(
    kind: str,
    *,
    bind: Sequence[str] | None,
    connect: Sequence[str] | None,
    name: str | None,
    mesh: str | None,
    config: Path | PeerConfig | None = None,
    streams: Sequence[Stream] = (),
    overflow: str | None = None,
    interface: str | None = None,
    feeds: Sequence[Feed] = (),
    multicast: str | None = None,
    data_dir: Path | None = None,
    discovery: str | None = None,
    monitor: str | None = NO_MONITOR,
) -> Peer:
    """A peer, not yet open, from a verb's options; raises `ConfigError`.

    `streams` are declared where the configuration declares none.  Verbs that run for long hand on
    `monitor`; of the others the port is not, whatever a file or the environment says.
    """
    random_name = _own_name(Security.from_env(os.environ)) or f"{kind}-{secrets.token_hex(3)}"
    settings = PeerConfig(random_name) if config is None else config
    if isinstance(settings, Path):
        settings = PeerConfig.from_toml(settings)
    given: dict[str, Any] = {
        "bind": bind,
        "connect": connect,
        "name": name,
        "mesh": mesh,
        "interface": interface,
        "feeds": tuple(feeds),
        "data_dir": None if data_dir is None else str(data_dir),
        "monitor": Monitor.of(monitor),
    }
    if settings.discovery is None or discovery:
        wanted = {"MESHMSG_DISCOVERY": discovery} if discovery else {}
        given["discovery"] = Discovery.from_env({**os.environ, **wanted})
    given["security"] = Security.from_env(os.environ)
    settings = replace(settings, **{key: value for key, value in given.items() if value})
    alone = not settings.feeds and multicast is None
    found = settings.discovery is not None and settings.discovery.is_on
    if alone and not found and not settings.bind and not settings.connect:
        raise usage(
            "--connect",
            "say where the other peers are: --connect tcp://HOST:PORT to go to one, or "
            "--bind tcp://127.0.0.1:7000 to wait for them, or leave out --discovery none",
        )
    declared = settings.streams or tuple(streams)
    if overflow is not None:
        declared = tuple(replace(stream, overflow=overflow) for stream in declared)
    if multicast is not None:
        transport = multicast_of(multicast)
        declared = tuple(replace(stream, transport=transport) for stream in declared)
    settings = replace(settings, streams=declared)
    name_peer(settings.name)
    return Peer.from_config(settings)


def tell_addresses(peer: Peer, *, quiet: bool) -> None:
    """Where an open peer can be connected to."""
    note(f"listening at {' '.join(peer.addresses)}", quiet=quiet)
    tell_monitor(peer.monitor, quiet=quiet)


def tell_monitor(monitor: Any, *, quiet: bool) -> None:
    """Where figures are shown, if they are."""
    if monitor is not None:
        host, port = monitor.address
        note(f"monitor at http://{f'[{host}]' if ':' in host else host}:{port}/", quiet=quiet)


def _own_name(security: Security | None) -> str:
    """What the allow-list calls the holder of our key; `desk-*` leaves the end to us."""
    from meshmsg.keys import own_name

    name = own_name(security)
    return (
        name[:-1] + secrets.token_hex(3) if name.endswith("*") and name != "*" else name.rstrip("*")
    )
