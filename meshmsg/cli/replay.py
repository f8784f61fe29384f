"""`meshmsg replay`: publish again what a durable log has, at its own pace or another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from meshmsg import Event, Loss, Stream
from meshmsg.cli._guard import BAD, GOOD, complain, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Bind,
    Config,
    Connect,
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
from meshmsg.cli._publishing import Audience, Tally, publish_all
from meshmsg.cli._values import safe
from meshmsg.cli.log import Count, Dir, StreamName, choose, seek
from meshmsg.logs import LogReader

HELP = help_text(
    "Publish the events of a log again, with their topics, keys and headers.",
    "They are new events of this peer, with positions and times of their own. What the log has "
    "lost is told, and the exit status is 1.",
    examples=(
        "meshmsg replay ./data --start 10m --bind tcp://127.0.0.1:7000",
        "meshmsg replay ./data --stream 'pricing/orders.**' --speed 10 -c tcp://127.0.0.1:7000",
        "meshmsg replay ./data --start 2026-01-31T12:00 --end 2026-01-31T13:00 -c ADDR",
        "meshmsg replay ./data --speed 0 --count 1000 -c ADDR      # as fast as possible",
    ),
)
DRAIN_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("replay", help=HELP, short_help="Publish a log's events again.")(guarded(replay))


def replay(
    directory: Dir,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            "-s",
            metavar="WHERE",
            help="earliest, last:N, a time (2026-01-31T12:00), how long ago (10m), or a position.",
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option(
            "--end",
            "-e",
            metavar="WHERE",
            show_default=False,
            help="Stop before the event there: written as for --start. The log's end if not given.",
        ),
    ] = None,
    count: Count = None,
    stream: StreamName = None,
    speed: Annotated[
        float,
        typer.Option(
            min=0,
            max=1_000_000,
            metavar="TIMES",
            help="How many times faster than it was; 0: as fast as possible.",
        ),
    ] = 1.0,
    wait: Annotated[
        int, typer.Option(min=0, help="Wait for this many subscribers of the first topic.")
    ] = 1,
    wait_timeout: Annotated[str, typer.Option(metavar="TIME", help="And how long.")] = "5s",
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    multicast: MulticastGroup = None,
    interface: Interface = None,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    audience = Audience(wait, seconds("--wait-timeout", wait_timeout), quiet)
    with LogReader(choose(directory, stream)) as reader:
        stop = None
        if end is not None:
            seek(reader, end, "--end")
            stop = (reader.epoch, reader.next)
        seek(reader, start)
        peer = peer_from(
            "replay",
            bind=bind,
            connect=connect,
            name=name,
            mesh=mesh,
            config=config,
            streams=[Stream("**")],
            multicast=multicast,
            interface=interface,
            discovery=discovery,
        )
        losses: list[Loss] = []
        events = _events(reader, count, stop, losses)
        clock = Clock(speed)
        with peer:
            if bind:
                tell_addresses(peer, quiet=quiet)
            with Tally(peer, quiet=quiet) as tally:
                publish_all(peer, events, tally, audience, lambda event: clock.wait(event.time_ns))
                peer.flush(timeout=DRAIN_S)
            peer.close(timeout=DRAIN_S)
    for loss in losses:
        complain(safe(str(loss)))
    return BAD if losses else GOOD


class Clock:
    """Lets events through as far apart as they were, so many times faster."""

    def __init__(
        self,
        speed: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speed = speed
        self._clock = clock
        self._sleep = sleep
        self._began: tuple[float, int] | None = None

    def wait(self, time_ns: int) -> None:
        """Until it is this event's turn; the first one's is at once."""
        if not self._speed:
            return
        now = self._clock()
        if self._began is None:
            self._began = (now, time_ns)
        began_s, first_ns = self._began
        left_s = began_s + (time_ns - first_ns) / 1e9 / self._speed - now
        if left_s > 0:
            self._sleep(left_s)


def _events(
    reader: LogReader, count: int | None, stop: tuple[int, int] | None, losses: list[Loss]
) -> Iterator[Event]:
    left = count
    for item in reader.batches():
        if isinstance(item, Loss):
            if stop is None or (item.epoch, item.first) < stop:
                losses.append(item)
            continue
        for event in item.events():
            if stop is not None and (event.position.epoch, event.position.seq) >= stop:
                return
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield event
