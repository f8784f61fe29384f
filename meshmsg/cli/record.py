"""`meshmsg record`: keep the streams of other peers in logs of our own, and serve them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from meshmsg._config import Record
from meshmsg._errors import ConfigError
from meshmsg._event import Loss
from meshmsg._peer import Peer, config_arguments
from meshmsg.cli._guard import BAD, GOOD, guarded, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Bind,
    Config,
    Connect,
    Every,
    Find,
    Interface,
    Json,
    Mesh,
    Name,
    Patterns,
    Quiet,
    Timeout,
    peer_from,
    seconds,
    tell_addresses,
)
from meshmsg.cli._values import loss_object, safe, to_json

HELP = help_text(
    "Keep other peers' streams, verbatim, and serve them when their publishers are gone.",
    "Consumers that connect to the recorder get what they missed, and all of the past, from it; "
    "'meshmsg log' reads what it has written. It ends with Ctrl-C or SIGTERM, when all that came "
    "is written; exit status 1 if anything was lost.",
    examples=(
        "meshmsg record 'quotes.**' --data-dir ./data --connect tcp://127.0.0.1:7000",
        "meshmsg record '**' -d ./data -c tcp://127.0.0.1:7000 --bind tcp://127.0.0.1:7100",
        "meshmsg record 'orders.**' -d ./data -c tcp://127.0.0.1:7000 --retention 7d,10GB",
        "meshmsg record '**' -d ./data -c tcp://127.0.0.1:7000 --json --every 10s | jq .events_s",
        "meshmsg sub 'quotes.**' --start earliest --connect tcp://127.0.0.1:7100",
    ),
)

POLL_S = 0.05


def register(app: typer.Typer) -> None:
    """Add the verb."""
    short = "Keep other peers' streams, and serve them."
    app.command("record", help=HELP, short_help=short)(guarded(record))


def record(
    patterns: Patterns,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            metavar="DIR",
            envvar="MESHMSG_DATA_DIR",
            show_default=False,
            help="Where the logs are kept.",
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            show_default=False,
            help="How much of each stream is kept: 7d, 10GB or 7d,10GB. All of it if not given.",
        ),
    ] = None,
    fsync: Annotated[
        str, typer.Option(metavar="WORD", help="always, batch, interval:50ms or never.")
    ] = "batch",
    segment_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="The size of the logs' files.")
    ] = "64MiB",
    timeout: Timeout = None,
    every: Every = "1s",
    json: Json = False,
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    interface: Interface = None,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    timeout_s = None if timeout is None else seconds("--timeout", timeout)
    every_s = seconds("--every", every)
    plain = peer_from(
        "record",
        bind=bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        interface=interface,
        discovery=discovery,
    )
    where = plain.config.data_dir if data_dir is None else str(data_dir)
    if where is None:
        raise usage("--data-dir", "say where the logs are kept: --data-dir ./data")
    try:
        wanted = Record(
            tuple(patterns), fsync=fsync, retention=retention, segment_bytes=segment_bytes
        )
    except ConfigError as error:
        option = "PATTERN" if error.field == "topics" else f"--{error.field.replace('_', '-')}"
        raise usage(option, error.problem) from None
    settings = replace(plain.config, data_dir=where, record=wanted)
    with _stopping() as stop, Peer(**config_arguments(settings)) as peer:
        tell_addresses(peer, quiet=quiet)
        recorder = peer._open_node().recorder
        assert recorder is not None
        progress = Progress(peer)
        with _view(json=json, quiet=quiet) as show:
            _watch(progress, show, stop, every_s, timeout_s)
    lost = any(log.lost for log in recorder.logs.values())
    return BAD if lost or recorder.refused else GOOD


def _watch(
    progress: Progress,
    show: Callable[[dict[str, Any]], None],
    stop: threading.Event,
    every_s: float,
    timeout_s: float | None,
) -> None:
    """Show figures until it is told to end, or nothing comes any more."""
    shown = heard = time.monotonic()
    events = 0
    while not stop.wait(POLL_S):
        now = time.monotonic()
        if progress.events() != events:
            heard, events = now, progress.events()
        if now - shown >= every_s:
            shown = now
            show(progress.figures())
        if timeout_s is not None and now - heard >= timeout_s:
            break
    show(progress.figures())


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM: then what has come is written, and the exit status is our own."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # the second time it is meant: at once
            raise KeyboardInterrupt
        stop.set()

    old = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Progress:
    """What a recorder has done so far, and how quickly."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._at = time.monotonic()
        self._events = self._bytes = 0
        self._reported: Loss | None = None

    def events(self) -> int:
        """Events recorded since the start."""
        return sum(row["events"] for row in self._peer.stats()["recorder"]["streams"])

    def figures(self) -> dict[str, Any]:
        """Since the start, and a second since the last time."""
        stats = self._peer.stats()
        recorder = stats["recorder"]
        streams = recorder["streams"]
        events = sum(row["events"] for row in streams)
        size = sum(row["bytes"] for row in streams)
        now = time.monotonic()
        took, self._at = max(now - self._at, 1e-6), now
        rates = {
            "events_s": round((events - self._events) / took),
            "bytes_s": round((size - self._bytes) / took),
        }
        self._events, self._bytes = events, size
        node = self._peer._open_node()
        intake = None if node.recorder is None else node.recorder.intake
        losses = [] if intake is None else list(intake.losses)
        told = [n for n, loss in enumerate(losses, 1) if loss is self._reported]
        new = losses[told[-1] if told else 0 :]  # only the newest are kept: counting would not do
        self._reported = losses[-1] if losses else None
        return {
            "events": events,
            "bytes": size,
            "lost": sum(row["lost"] for row in streams),
            **rates,
            "peers": sum(link["state"] == "up" for link in stats["links"]),
            "problem": recorder["problem"] or _refusals(recorder["refused"]),
            "streams": streams,
            "losses": [loss_object(loss)["loss"] for loss in new],
        }


def _refusals(refused: list[dict[str, str]]) -> str | None:
    return "; ".join(f"{row['stream']} {row['reason']}" for row in refused[:3]) or None


@contextmanager
def _view(*, json: bool, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """How figures are shown: for programs, live in a terminal, or a line each."""
    if json:
        yield lambda figures: _print(to_json(figures))
    elif sys.stdout.isatty() and not quiet:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            yield lambda figures: live.update(_picture(figures), refresh=True)
    else:
        yield _show_line


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show_line(figures: dict[str, Any]) -> None:
    for loss in figures["losses"]:
        _print(
            f"LOSS  {loss['count']:,} events of {safe(loss['stream'])} (epoch {loss['epoch']}, "
            f"{loss['first']} to {loss['stop'] - 1}): {loss['reason']}"
        )
    _print(_summary(figures))


def _summary(figures: dict[str, Any]) -> str:
    count = len(figures["streams"])
    text = (
        f"{count} {'stream' if count == 1 else 'streams'}  {figures['events']:,} events  "
        f"{figures['bytes'] / 1e6:,.1f} MB  {figures['events_s']:,}/s  lost {figures['lost']:,}"
    )
    return text + (f"  waits: {safe(figures['problem'])}" if figures["problem"] else "")


def _picture(figures: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(_summary(figures)), title_justify="left", expand=False)
    for column in ("stream", "next", "events", "MB", "lost"):
        table.add_column(column, justify="left" if column == "stream" else "right")
    for row in figures["streams"]:
        lost = f"[bold red]{row['lost']:,}[/]" if row["lost"] else "0"
        table.add_row(
            escape(safe(row["stream"])),
            f"{row['next']:,}",
            f"{row['events']:,}",
            f"{row['bytes'] / 1e6:,.1f}",
            lost,
        )
    return table
