"""`meshmsg pub`: publish events from arguments or from standard input."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from meshmsg import Peer, Stream
from meshmsg.cli._guard import GOOD, guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._items import Form, Item, from_argument, from_lines, parse_headers
from meshmsg.cli._options import (
    Bind,
    Config,
    Connect,
    DataDir,
    Find,
    Interface,
    Mesh,
    MulticastGroup,
    Name,
    Quiet,
    peer_from,
    seconds,
    tell_addresses,
)
from meshmsg.cli._pacer import Pacer
from meshmsg.cli._publishing import Audience, Tally, publish_all

HELP = help_text(
    "Publish events: one from the arguments, or one for each line of standard input.",
    "DATA is text unless --json is given. Without DATA, or with '-', events are read from "
    "standard input. In DATA, TOPIC and --key, {n} stands for the event's number; with --json, "
    "{field} in TOPIC and --key stands for a field of the event's data.",
    examples=(
        "meshmsg pub greetings.world hello -c tcp://127.0.0.1:7000",
        "meshmsg pub orders.eu '{\"id\": {n}}' --json --count 1000 --rate 100",
        "tail -f app.log | meshmsg pub logs.app -c tcp://127.0.0.1:7000",
        "meshmsg pub 'quotes.{symbol}' --key '{symbol}' --json < quotes.jsonl",
        "meshmsg sub 'a.**' --json -c ADDR | meshmsg pub --events -c OTHER",
        "meshmsg pub orders.eu 7 --data-dir ./data --wait 0    # keep it for who comes later",
        "meshmsg pub 'ticks.{n}' x --count 1000 --drop 0.1   # lose 10 %, see it repaired",
        "meshmsg pub 'ticks.{n}' x -n 1000 --multicast 239.255.7.7:30001 -b 'tcp://127.0.0.1:*'",
    ),
)

_SOURCE = "Events"
_PACE = "Pace"
_TRY = "Trying out recovery"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("pub", help=HELP, short_help="Publish events.")(guarded(pub))


def pub(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", show_default=False, help="For example quotes.eu.AAPL."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", show_default=False, help="The payload; '-' reads lines."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="The event's key.", rich_help_panel=_SOURCE)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            show_default=False,
            rich_help_panel=_SOURCE,
            help="A header. May be given several times.",
        ),
    ] = None,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            rich_help_panel=_SOURCE,
            help="Each line of standard input is the text of an event (the default).",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            "--jsonl",
            rich_help_panel=_SOURCE,
            help="DATA, or each line, is a JSON value.",
        ),
    ] = False,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            rich_help_panel=_SOURCE,
            help="Each line is an event as `meshmsg sub --json` prints it: the line says topic, "
            "key, headers and data.",
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=10_000_000,
            rich_help_panel=_PACE,
            show_default=False,
            help="Events per second, evenly spaced. As fast as possible if not given.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=0,
            rich_help_panel=_PACE,
            show_default=False,
            help="Publish DATA this many times, or stop after this many lines. 0: until Ctrl-C.",
        ),
    ] = None,
    wait: Annotated[
        int,
        typer.Option(
            min=0,
            rich_help_panel=_PACE,
            help="Wait for this many subscribers of the first event's topic before publishing.",
        ),
    ] = 1,
    wait_timeout: Annotated[
        str, typer.Option(metavar="TIME", rich_help_panel=_PACE, help="And how long.")
    ] = "5s",
    drain_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            rich_help_panel=_PACE,
            help="At the end, how long subscribers may take to receive everything.",
        ),
    ] = "30s",
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    data_dir: DataDir = None,
    multicast: MulticastGroup = None,
    interface: Interface = None,
    overflow: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            envvar="MESHMSG_OVERFLOW",
            rich_help_panel="The mesh",
            show_default=False,
            help="When a subscriber is too slow: block, buffer, drop_oldest, drop_newest or spill. "
            "'buffer' if not given.",
        ),
    ] = None,
    drop: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="RATIO",
            rich_help_panel=_TRY,
            help="Lose this part of the frames (with --multicast: of the packets) on purpose, "
            "before they reach anybody.",
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(rich_help_panel=_TRY, help="Which frames: the same for the same seed.")
    ] = 0,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    form = Form(topic, key, parse_headers(header or ()), json, events)
    items = _items(form, data, count, lines=lines, quiet=quiet)
    peer = peer_from(
        "pub",
        bind=bind,
        connect=connect,
        # A durable stream belongs to a name: a random one would begin a new log each time.
        name=name or (None if config or data_dir is None else "pub"),
        mesh=mesh,
        config=config,
        streams=[Stream("**", durability="none" if data_dir is None else "log")],
        data_dir=data_dir,
        overflow=overflow,
        multicast=multicast,
        interface=interface,
        discovery=discovery,
    )
    audience = Audience(wait, seconds("--wait-timeout", wait_timeout), quiet)
    drain_s = seconds("--drain-timeout", drain_timeout)
    with peer:
        if bind:
            tell_addresses(peer, quiet=quiet)
        with Tally(peer, quiet=quiet) as tally, _losing(peer, drop, seed, tally):
            publish_all(peer, items, tally, audience, _turns(rate))
            peer.flush(timeout=drain_s)
        peer.close(timeout=drain_s)
    return GOOD


def _items(
    form: Form, data: str | None, count: int | None, *, lines: bool, quiet: bool
) -> Iterator[Item]:
    if form.topic is None and not form.events:
        raise usage("TOPIC", "is missing: meshmsg pub TOPIC [DATA]")
    if lines and (form.json or form.events):
        raise usage("--lines", "does not go with --json or --events: a line is read in one way")
    if data is not None and data != "-":
        if lines or form.events:
            word = "--lines" if lines else "--events"
            raise usage(word, "reads standard input: leave out DATA")
        return from_argument(form, data, 1 if count is None else count)
    if sys.stdin is None:
        raise usage("DATA", "is missing, and there is no standard input to read lines from")
    if sys.stdin.isatty():
        note("reading lines from the terminal; Ctrl-D ends", quiet=quiet)
    return from_lines(form, sys.stdin.buffer, count or 0)


def _turns(rate: float | None) -> Callable[[Item], None] | None:
    """What lets each event wait for its turn, if there is a rate."""
    if not rate:
        return None
    pacer = Pacer(rate)
    return lambda item: pacer.wait()


@contextlib.contextmanager
def _losing(peer: Peer, ratio: float, seed: int, tally: Tally) -> Iterator[None]:
    if not ratio:
        yield
        return
    from meshmsg.testing import lose_frames, lose_packets

    with lose_frames(peer, ratio, seed) as link, lose_packets(peer, ratio, seed) as path:
        try:
            yield
        finally:
            tally.dropped = link.dropped + path.dropped
