"""`meshmsg pub`: publish events from arguments or from standard input."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from meshmsg._config import Stream
from meshmsg._errors import PeerRefused, WaitTimeout
from meshmsg._peer import Peer
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
        "meshmsg pub orders.eu 7 --data-dir ./data --wait 0    keep it for who comes later",
        "meshmsg pub ticks.{n} x --count 1000 --drop 0.1   lose 10 %, see it repaired",
        "meshmsg pub ticks.{n} x -n 1000 --multicast 239.255.7.7:30001 -b 'tcp://127.0.0.1:*'",
    ),
)

_SOURCE = "Events"
_PACE = "Pace"
_TRY = "Trying out recovery"
#: After this long a person should know what the command is waiting for.
EXPLAIN_AFTER_S = 1.0
POLL_S = 0.1


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
    wait_s = seconds("--wait-timeout", wait_timeout)
    drain_s = seconds("--drain-timeout", drain_timeout)
    pacer = Pacer(rate) if rate else None
    with peer:
        if bind:
            tell_addresses(peer, quiet=quiet)
        with Tally(peer, quiet=quiet) as tally, _losing(peer, drop, seed, tally):
            for item in items:
                if tally.events == 0:
                    if wait:
                        wait_for_subscribers(peer, item.topic, wait, wait_s, quiet)
                    tally.start()
                if pacer is not None:
                    pacer.wait()
                peer.publish(item.topic, item.data, key=item.key, headers=item.headers)
                tally.events += 1
            peer.flush(timeout=drain_s)
        peer.close(timeout=drain_s)
    return GOOD


class Tally:
    """What was published, told in one line when the block is left, by Ctrl-C too."""

    def __init__(self, peer: Peer, *, quiet: bool) -> None:
        self.events = 0
        self.dropped: int | None = None
        self._peer = peer
        self._quiet = quiet
        self._started = 0.0

    def start(self) -> None:
        """Publishing begins: the wait for subscribers does not count."""
        self._started = time.monotonic()

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, *_: object) -> None:
        if self.events:
            note(self._summary(time.monotonic() - self._started), quiet=self._quiet)

    def _summary(self, took_s: float) -> str:
        plural = "" if self.events == 1 else "s"
        text = f"published {self.events:,} event{plural} in {took_s:.2f} s"
        if self.events > 1:
            text += f" ({self.events / max(took_s, 1e-6):,.0f}/s)"
        if self.dropped is not None:
            text += f"; {self.dropped:,} of {self._sent()} were dropped on purpose"
        return text

    def _sent(self) -> str:
        streams = self._peer.stats()["streams"].values()
        packets = sum(stream.get("multicast", {}).get("sent", 0) for stream in streams)
        if packets:
            return f"{packets:,} packets"
        return f"{sum(stream['frames'] for stream in streams):,} frames"


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


def wait_for_subscribers(peer: Peer, topic: str, count: int, timeout_s: float, quiet: bool) -> None:
    """As the peer's own, and tells meanwhile what it waits for, and why in vain."""
    started = time.monotonic()
    explained = quiet
    while True:
        left = timeout_s - (time.monotonic() - started)
        try:
            peer.wait_for_subscribers(topic, count, timeout=max(0.0, min(left, POLL_S)))
            return
        except WaitTimeout:
            links = peer.stats()["links"]
        _check_refused(links)
        if left <= 0:
            raise WaitTimeout(_nobody(peer, topic, count, timeout_s, links))
        if not explained and time.monotonic() - started > EXPLAIN_AFTER_S:
            explained = True
            note(f"waiting for {_subscribers(count)} of {topic} ({timeout_s:g} s at most)")


def _check_refused(links: list[dict[str, Any]]) -> None:
    if links and all(link["state"] == "refused" for link in links):
        raise PeerRefused(links[0]["address"], links[0]["reason"])


def _nobody(
    peer: Peer, topic: str, count: int, timeout_s: float, links: list[dict[str, Any]]
) -> str:
    silent = [link["address"] for link in links if link["state"] in ("dialling", "greeting")]
    if silent:
        why = f"nobody answers at {', '.join(silent)}"
    elif links:
        why = "the peer there does not subscribe to it, or cannot reach us: see --bind"
    else:
        why = f"start one with: meshmsg sub {topic} --connect {peer.address}"
    return (
        f"no {_subscribers(count)} of {topic} after {timeout_s:g} s: {why}; "
        f"--wait 0 publishes all the same"
    )


def _subscribers(count: int) -> str:
    return "subscriber" if count == 1 else f"{count} subscribers"
