"""`meshmsg record`: keep the streams of other peers in logs of our own, and serve them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import ConfigError, Loss, Peer, Record
from meshmsg.cli._figures import (
    Figures,
    StopRequest,
    framed,
    lost_cell,
    print_now,
    stopping,
    view,
    waits,
)
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
    MonitorAt,
    Name,
    Patterns,
    Quiet,
    Timeout,
    peer_from,
    seconds,
    tell_addresses,
)
from meshmsg.cli._values import loss_object, safe

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
    monitor: MonitorAt = None,
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
        monitor=monitor,
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
    with stopping() as stop, Peer.from_config(settings) as peer:
        tell_addresses(peer, quiet=quiet)
        recorder = peer.recorder
        assert recorder is not None
        progress = Progress(peer)
        with view(_show_lines, _picture, stop, json=json, quiet=quiet) as show:
            _watch(progress, show, stop, every_s, timeout_s)
    return BAD if recorder.lost or recorder.refused else GOOD


def _watch(
    progress: Progress,
    show: Callable[[Figures], None],
    stop: StopRequest,
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

    def figures(self) -> Figures:
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
        losses = [] if self._peer.recorder is None else self._peer.recorder.losses
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


def _show_lines(figures: Figures) -> None:
    for loss in figures["losses"]:
        print_now(
            f"LOSS  {loss['count']:,} events of {safe(loss['stream'])} (epoch {loss['epoch']}, "
            f"{loss['first']} to {loss['stop'] - 1}): {loss['reason']}"
        )
    print_now(_summary(figures))


def _summary(figures: Figures) -> str:
    count = len(figures["streams"])
    return (
        f"{count} {'stream' if count == 1 else 'streams'}  {figures['events']:,} events  "
        f"{figures['bytes'] / 1e6:,.1f} MB  {figures['events_s']:,}/s  lost {figures['lost']:,}"
        f"{waits(figures)}"
    )


def _picture(figures: Figures) -> Any:
    rows = (
        (
            row["stream"],
            f"{row['next']:,}",
            f"{row['events']:,}",
            f"{row['bytes'] / 1e6:,.1f}",
            lost_cell(row["lost"]),
        )
        for row in figures["streams"]
    )
    return framed(_summary(figures), ("stream", "next", "events", "MB", "lost"), rows)
