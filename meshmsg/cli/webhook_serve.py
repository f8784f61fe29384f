"""`meshmsg webhook serve`: posted events into the mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshmsg import Stream
from meshmsg.cli._edges import publishing_peer, raise_file_limit, stay
from meshmsg.cli._guard import guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Config,
    Connect,
    DataDir,
    EdgeMeshBind,
    EdgeOverflow,
    Find,
    Interface,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    tell_addresses,
)
from meshmsg.cli._secrets import SecretsFile, read_secrets, warn_of_secret

HELP = help_text(
    "Take posted webhooks as events, each once, and answer when they are in the stream.",
    "Signatures are checked: of the Standard Webhooks specification, or GitHub's. With --data-dir "
    "the stream is durable, and posts are answered when they are on the disk.",
    examples=(
        "meshmsg webhook serve --topic hooks.shop --secret-file shop.key --data-dir ./data",
        "meshmsg webhook serve --topic 'hooks.github.{type}' --scheme github --secret-file gh.key",
    ),
)


def register(hooks: typer.Typer) -> None:
    """Add the verb."""
    hooks.command("serve", help=HELP, short_help="Take posted webhooks as events.")(guarded(serve))


def serve(
    topic: Annotated[
        str, typer.Option(help="Topic of the events; {type} stands for the type of the post.")
    ],
    bind: Annotated[
        str, typer.Option("--bind", "-b", metavar="HOST:PORT", help="Listen here for posts.")
    ] = "127.0.0.1:8080",
    path: Annotated[str, typer.Option(help="The path that is posted to.")] = "/",
    secret_file: SecretsFile = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MESHMSG_WEBHOOK_SECRET",
            show_default=False,
            callback=warn_of_secret,
            help="What posts are signed with: better in a file, or in the environment.",
        ),
    ] = None,
    scheme: Annotated[
        str, typer.Option(help="standard, github, or none for posts without a signature.")
    ] = "standard",
    tolerance: Annotated[
        str, typer.Option(metavar="TIME", help="How far a post's time may be from now.")
    ] = "5m",
    body_max: Annotated[str, typer.Option(metavar="SIZE", help="Largest body taken.")] = "1MiB",
    remember: Annotated[
        int, typer.Option(min=1, metavar="N", help="Ids known again: those of the newest N posts.")
    ] = 100_000,
    overflow: EdgeOverflow = "buffer",
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS: PEM, certificate and key.")
    ] = None,
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
    """See `HELP`."""
    from meshmsg.webhooks import WebhookServer

    fixed, types, _ = topic.partition("{type}")
    pattern = f"{fixed}**" if types else topic
    raise_file_limit()
    peer = publishing_peer(
        "webhook-in",
        Stream(pattern, overflow=overflow),
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
    server = WebhookServer(
        peer,
        bind,
        topic=topic,
        secrets=(*read_secrets(secret_file), *(secret or ())),
        scheme=scheme,
        path=path,
        tolerance=tolerance,
        body_bytes_max=body_max,
        remember=remember,
        certificate=certificate,
    )
    with peer, server:
        note(f"taking posts at {server.url}", quiet=quiet)
        tell_addresses(peer, quiet=quiet)
        return stay(server)
