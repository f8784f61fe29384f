"""`meshmsg moldudp`: a stream sent as MoldUDP64, and a MoldUDP64 session published as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from meshmsg import Stream
from meshmsg.cli._guard import BAD, GOOD, guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Bind,
    Config,
    Connect,
    Find,
    Interface,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    peer_from,
    seconds,
    tell_addresses,
    tell_monitor,
)
from meshmsg.cli.sub import parse_where

if TYPE_CHECKING:
    from meshmsg.moldudp import MoldSender

HELP = help_text(
    "Meet feed handlers that speak Nasdaq's MoldUDP64, in either direction.",
    "Payloads are the messages. Event numbers and sequence numbers say the same; what is lost for "
    "good is told on both sides, and the exit status is 1.",
    examples=(
        "meshmsg moldudp send 'feed.**' --line 239.255.7.9:30801 --serve 127.0.0.1:30809 -c ADDR",
        "meshmsg moldudp recv feed.itch --line 239.255.7.9:30801 --server 127.0.0.1:30809 -b ADDR",
    ),
)
#: How long all that was published may take to be handed over at the end.
DRAIN_S = 30.0

Line = Annotated[
    list[str],
    typer.Option(
        "--line",
        "-l",
        metavar="GROUP:PORT",
        help="Multicast group and port; twice for lines A and B.",
    ),
]
Seconds = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="TIME", show_default=False, help="Stop after this time: 10s, 2m."
    ),
]


Count = Annotated[
    int | None,
    typer.Option("--count", "-n", min=1, show_default=False, help="Stop after this many messages."),
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    verbs.command("send", help="Send a stream as MoldUDP64, with a re-request server.")(
        guarded(send)
    )
    verbs.command("recv", help="Receive a MoldUDP64 session, and publish it.")(guarded(recv))
    app.add_typer(verbs, name="moldudp", help=HELP, short_help="Send and receive MoldUDP64.")


def send(
    pattern: Annotated[str, typer.Argument(help="Topics of one whole stream: 'feed.**'.")],
    line: Line,
    serve: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Answer requests here; port 0 is a free one.")
    ] = "127.0.0.1:0",
    start: Annotated[
        str, typer.Option("--start", "-s", metavar="WHERE", help="As of `meshmsg sub`.")
    ] = "earliest",
    session: Annotated[
        str | None,
        typer.Option(show_default=False, help="Name of the session; after the epoch if not given."),
    ] = None,
    count: Count = None,
    duration: Seconds = None,
    linger: Annotated[
        str, typer.Option(metavar="TIME", help="Answer requests for this long at the end.")
    ] = "2s",
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    interface: Interface = None,
    monitor: MonitorAt = None,
    quiet: Quiet = False,
) -> int:
    """Send until it is told to stop."""
    from meshmsg.moldudp import MeshToMold

    where, linger_s = parse_where(start), seconds("--linger", linger)
    go_on = _clock(duration)
    peer = peer_from(
        "mold",
        bind=bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        monitor=monitor,
    )
    with peer:
        if bind:
            tell_addresses(peer, quiet=quiet)
        else:
            tell_monitor(peer.monitor, quiet=quiet)
        bridge = MeshToMold(
            peer,
            pattern,
            line,
            start=where,
            session=session,
            serve=serve,
            interface=interface or "127.0.0.1",
        )

        def opened(sender: MoldSender) -> None:
            note(f"session {sender.session}, requests to {sender.address}", quiet=quiet)

        bridge.run(lambda: go_on() and not _enough(bridge.counters, count), opened, linger_s)
    note(f"sent {bridge.counters['messages']:,} messages{_lost(bridge.counters)}", quiet=quiet)
    return BAD if bridge.counters["lost"] else GOOD


def recv(
    topic: Annotated[str, typer.Argument(help="Where the messages are published.")],
    line: Line,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", show_default=False, help="The re-request server."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(show_default=False, help="Which session; the first one heard.")
    ] = None,
    first: Annotated[
        int, typer.Option(min=0, help="The first message wanted; 0: the first one heard.")
    ] = 1,
    wait: Annotated[int, typer.Option(min=0, help="Wait for this many subscribers.")] = 0,
    count: Count = None,
    duration: Seconds = None,
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    interface: Interface = None,
    monitor: MonitorAt = None,
    quiet: Quiet = False,
) -> int:
    """Receive until the session ends."""
    from meshmsg.moldudp import MoldListener, MoldToMesh

    go_on = _clock(duration)
    peer = peer_from(
        "mold",
        bind=bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        streams=[Stream("**")],
        monitor=monitor,
    )
    listener = MoldListener(
        line,
        server=server,
        session=session,
        first=first or None,
        interface=interface or "127.0.0.1",
    )
    with listener, peer:
        if bind:
            tell_addresses(peer, quiet=quiet)
        else:
            tell_monitor(peer.monitor, quiet=quiet)
        if wait:
            peer.wait_for_subscribers(topic, wait, timeout=None)
        bridge = MoldToMesh(peer, topic, listener)
        bridge.run(lambda: go_on() and not _enough(bridge.counters, count))
        peer.flush(timeout=DRAIN_S)
    note(f"published {bridge.counters['messages']:,} messages{_lost(bridge.counters)}", quiet=quiet)
    return BAD if bridge.counters["lost"] else GOOD


def _clock(duration: str | None) -> Callable[[], bool]:
    """Whether there is time left."""
    if duration is None:
        return lambda: True
    until = time.monotonic() + seconds("--for", duration)
    return lambda: time.monotonic() < until


def _enough(counters: Mapping[str, int], count: int | None) -> bool:
    return count is not None and counters["messages"] + counters["lost"] >= count


def _lost(counters: Mapping[str, int]) -> str:
    return f", {counters['lost']:,} LOST" if counters["lost"] else ", none lost"
