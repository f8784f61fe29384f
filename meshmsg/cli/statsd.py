"""`meshmsg statsd`: StatsD metrics as events; or peers' statistics as StatsD metrics."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated, Any

import typer

from meshmsg import Stream, WaitTimeout
from meshmsg.cli._edges import publishing_peer, stay
from meshmsg.cli._guard import GOOD, complain, guarded, loading, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Config,
    Connect,
    DataDir,
    EdgeMeshBind,
    Find,
    Interface,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    seconds,
    tell_addresses,
)
from meshmsg.cli._secrets import SecretFile, read_secret_or, warn_of_secret

HELP = help_text(
    "Receive StatsD metrics over UDP and publish them as events, added up for each interval.",
    "Figures of a metric come at statsd.aggregate.NAME, what the server saw at statsd.server, and "
    "with --raw each sample at statsd.raw.NAME. UDP loses what finds the socket full: how many "
    "datagrams stands in each event as dropped_packets.",
    "With --to it goes the other way: the statistics of the peers given by --connect are sent to "
    "a StatsD server.",
    examples=(
        "meshmsg statsd --bind 127.0.0.1:8125 --mesh-bind tcp://127.0.0.1:7000",
        "meshmsg statsd --interval 1s --raw --connect tcp://127.0.0.1:7000",
        "meshmsg statsd --to 127.0.0.1:8125 --connect tcp://127.0.0.1:7000",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    short = "Take StatsD metrics in, or send statistics out."
    app.command("statsd", help=HELP, short_help=short)(guarded(statsd))


def statsd(
    bind: Annotated[
        str | None,
        typer.Option(
            "--bind",
            "-b",
            metavar="HOST:PORT",
            show_default=False,
            help="Take metrics here. 127.0.0.1:8125 if not given.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Send peers' statistics to this StatsD server."),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="How long to add up: 10s, 500ms.")
    ] = "10s",
    prefix: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="First level of topics (statsd) or of metrics (meshmsg)."
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Each sample as an event, too.")] = False,
    secret_file: SecretFile = None,
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="MESHMSG_STATSD_SECRET",
            show_default=False,
            callback=warn_of_secret,
            help="Take packets only if they are signed with this, as Brubeck's are.",
        ),
    ] = None,
    overflow: Annotated[
        str, typer.Option(help="When subscribers are too slow: drop_oldest, block, buffer, ...")
    ] = "drop_oldest",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="End after so many intervals; 0: never.")
    ] = 0,
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
    interval_s = seconds("--interval", interval)
    if interval_s <= 0:
        raise usage("--interval", "must be more than 0 seconds")
    secret = read_secret_or(secret_file, secret)
    if to is not None:
        if bind or raw or secret:
            raise usage("--to", "sends: --bind, --raw and secrets are for receiving")
        return _send(to, prefix or "meshmsg", interval_s, count, connect, mesh, quiet)
    from meshmsg.statsd import StatsdServer

    with loading():
        StatsdServer.load()
    first = prefix or "statsd"
    peer = publishing_peer(
        "statsd",
        Stream(f"{first}.**", overflow=overflow),
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
    options: dict[str, Any] = {"prefix": first, "interval": interval_s, "raw": raw}
    with peer, StatsdServer(peer, bind or "127.0.0.1:8125", secret=secret, **options) as server:
        host, port = server.address
        note(f"metrics at {host}:{port} (UDP)", quiet=quiet)
        tell_addresses(peer, quiet=quiet)
        if not count:
            return stay(server)
        time.sleep(interval_s * count)
    return GOOD


def _send(
    to: str,
    prefix: str,
    interval_s: float,
    count: int,
    connect: list[str] | None,
    mesh: str | None,
    quiet: bool,
) -> int:
    from meshmsg.cli._asking import ask, asking
    from meshmsg.statsd import ReportSender

    with asking(connect, mesh, 5.0) as peer, closing(ReportSender(to, prefix)) as sender:
        note(f"sending to {to}", quiet=quiet)
        done = 0
        while True:
            try:
                for answer in ask(peer, "stats", 5.0):
                    sender.send(answer)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise WaitTimeout("a peer's answer is not its figures") from None
            except WaitTimeout as error:  # a peer that is away now may be back for the next one
                if count:
                    raise
                complain(str(error))
            done += 1
            if count and done >= count:
                return GOOD
            time.sleep(interval_s)
