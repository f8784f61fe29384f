"""`meshmsg sub`: show the events of one or several topic patterns as they come."""

from __future__ import annotations

import contextlib
import enum
import math
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from meshmsg import (
    ConfigError,
    Event,
    EventsLost,
    Feed,
    Loss,
    Position,
    StartFrom,
    Subscription,
    parse_time,
)
from meshmsg.cli._guard import BAD, GOOD, guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Bind,
    Config,
    Connect,
    Find,
    Interface,
    Json,
    Mesh,
    MonitorAt,
    MulticastGroup,
    Name,
    Patterns,
    Quiet,
    Timeout,
    multicast_of,
    peer_from,
    seconds,
    tell_addresses,
    tell_monitor,
)
from meshmsg.cli._values import (
    clock_time,
    data_text,
    event_object,
    loss_object,
    safe,
    to_json,
)

HELP = help_text(
    "Show events as they come; a loss is shown in its place and makes the exit status 1.",
    "A pattern is a topic in which * stands for one level and ** for any number of levels.",
    examples=(
        "meshmsg sub 'greetings.**' --bind tcp://127.0.0.1:7000",
        "meshmsg sub 'quotes.*.AAPL' 'orders.**' -c tcp://127.0.0.1:7000",
        "meshmsg sub '**' --json --count 10 --timeout 5s | jq .data",
        "meshmsg sub 'orders.**' --start earliest      # all that the publisher kept",
        "meshmsg sub 'orders.**' --start 10m           # the last ten minutes of it",
        "meshmsg sub 'orders.**' --start 2026-01-31T12:00",
        "meshmsg sub 'quotes.**' --multicast 239.255.7.7:30001 --from pricing   # no connection",
        "meshmsg sub 'jobs.**' --group workers         # share the work with the group's members",
        "meshmsg sub dead.workers --start earliest     # what the group gave up, and why",
    ),
)

BATCH_MAX = 1000
#: While nothing comes, look this often whether somebody still reads our output.
LOOK_S = 0.25
EXPLAIN_AFTER_S = 1.0


class Ack(enum.StrEnum):
    """When an event of a group counts as done."""

    shown = "shown"
    never = "never"


class Order(enum.StrEnum):
    """The order within a group."""

    key = "key"
    none = "none"


class OnLoss(enum.StrEnum):
    """What a loss does."""

    report = "report"
    raise_ = "raise"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("sub", help=HELP, short_help="Show events as they come.")(guarded(sub))


def sub(
    patterns: Patterns,
    json: Json = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            show_default=False,
            help="Stop after this many events; exit status 1 if --timeout comes first.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            "-s",
            metavar="WHERE",
            help="live, earliest, last:N, a time (2026-01-31T12:00), how long ago (10m), or a "
            "position as --json prints it.",
        ),
    ] = "live",
    timeout: Timeout = None,
    on_loss: Annotated[
        OnLoss, typer.Option(help="Go on after a loss is reported, or stop there.")
    ] = OnLoss.report,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Be a member of this work group: each event goes to one of its members.",
        ),
    ] = None,
    ack: Annotated[
        Ack,
        typer.Option(
            help="With --group: acknowledge what was shown, or look only, and give it all back "
            "in the end (which counts as an attempt)."
        ),
    ] = Ack.shown,
    order: Annotated[
        Order, typer.Option(help="With --group: events of a key one after the other, or not.")
    ] = Order.key,
    prefetch: Annotated[
        int, typer.Option(min=1, help="With --group: events on their way at once.")
    ] = 64,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="With --group: then an event goes to dead.NAME.")
    ] = 5,
    stats: Annotated[
        bool, typer.Option("--stats", help="At the end, figures on standard error.")
    ] = False,
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    config: Config = None,
    discovery: Find = None,
    multicast: MulticastGroup = None,
    publisher: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PUBLISHER",
            show_default=False,
            rich_help_panel="The mesh",
            help="With --multicast and no connection: the publishing peer's name, or "
            "PUBLISHER/STREAM where the stream is not '**'.",
        ),
    ] = None,
    interface: Interface = None,
    monitor: MonitorAt = None,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    where = parse_where(start)
    timeout_s = None if timeout is None else seconds("--timeout", timeout)
    peer = peer_from(
        "sub",
        bind=bind,
        connect=connect,
        name=name,
        mesh=mesh,
        config=config,
        interface=interface,
        discovery=discovery,
        feeds=_feeds(multicast, publisher),
        monitor=monitor,
    )
    screen = Screen(json=json)
    with peer:
        if bind:
            tell_addresses(peer, quiet=quiet)
        else:
            tell_monitor(peer.monitor, quiet=quiet)
        losses = screen.show_loss if on_loss is OnLoss.report else "raise"
        options = _group_options(group, ack, order, prefetch, max_attempts)
        with peer.subscribe(*patterns, start=where, on_loss=losses, **options) as events:
            done = events.ack if group is not None and ack is Ack.shown else None
            reader = Reader(events, screen, count, timeout_s, quiet=quiet, done=done)
            _read(reader, screen, stats=stats)
    if count is not None and screen.events < count and on_loss is OnLoss.report:
        note(f"{screen.events} of {count} events came within {timeout}", quiet=quiet)
        return BAD
    return BAD if screen.lost else GOOD


def _group_options(
    group: str | None, ack: Ack, order: Order, prefetch: int, max_attempts: int
) -> dict[str, Any]:
    """What a member of a work group subscribes with; nothing for who is none."""
    if group is None:
        if ack is not Ack.shown:
            raise usage("--ack", "goes with --group NAME")
        return {}
    return {
        "group": group,
        "order": order.value,
        "prefetch": prefetch,
        "max_attempts": max_attempts,
    }


def _read(reader: Reader, screen: Screen, *, stats: bool) -> None:
    """Show all that is wanted, or all before the loss that ends it."""
    try:
        reader.run()
    except EventsLost as stop:
        screen.show_loss(stop.loss)
    finally:
        if stats:
            note(reader.summary())


def _feeds(group: str | None, publisher: str | None) -> list[Feed]:
    """The stream that is received by hand, if one is."""
    if group is None:
        if publisher is not None:
            raise usage("--from", "goes with --multicast GROUP:PORT")
        return []
    if publisher is None:
        raise usage(
            "--from",
            "whose stream? --from PUBLISHER; with --connect ADDR instead, the group is learnt "
            "from the publisher",
        )
    peer, _, stream = publisher.partition("/")
    transport = multicast_of(group)
    try:
        return [Feed(peer, "**", transport, name=stream or None)]
    except ConfigError as error:
        raise usage("--from", error.problem) from None


class Screen:
    """Standard output: lines for people or for programs."""

    def __init__(self, *, json: bool) -> None:
        self.events = 0
        self.lost: Counter[str] = Counter()
        self._line = _json_line if json else _colour_line if sys.stdout.isatty() else _plain_line
        self._json = json
        self._pipe: select.poll | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._pipe = select.poll()
            self._pipe.register(sys.stdout.fileno(), 0)  # errors only

    def show(self, events: list[Event]) -> None:
        """Print events, and have them seen."""
        line = self._line
        self.events += len(events)
        sys.stdout.write("".join([line(event) + "\n" for event in events]))
        sys.stdout.flush()

    def show_loss(self, loss: Loss) -> None:
        """Print a loss in its place."""
        self.lost[loss.reason] += loss.count
        text = to_json(loss_object(loss)) if self._json else f"LOSS  {safe(str(loss))}"
        if not self._json and sys.stdout.isatty():
            text = typer.style(text, fg="red", bold=True)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def check_reader(self) -> None:
        """Raise `BrokenPipeError` if whoever read our output has gone (`| head`)."""
        if self._pipe is not None and any(
            flags & (select.POLLERR | select.POLLNVAL) for _, flags in self._pipe.poll(0)
        ):
            raise BrokenPipeError


class Reader:
    """Takes events until it has enough, or nothing came for long enough."""

    def __init__(
        self,
        events: Subscription,
        screen: Screen,
        count: int | None,
        timeout_s: float | None,
        *,
        quiet: bool,
        done: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self._events = events
        self._done = done
        self._screen = screen
        self._count = count
        self._timeout_s = timeout_s
        self._quiet = quiet
        self._started = time.monotonic()
        self._heard = self._first = self._started

    def run(self) -> None:
        """Read and show."""
        while self._count is None or self._screen.events < self._count:
            most = BATCH_MAX
            if self._count is not None:
                most = min(most, self._count - self._screen.events)
            found = self._events.get_many(most, timeout=self._patience())
            if found:
                if not self._screen.events:
                    self._first = time.monotonic()
                self._screen.show(found)
                if self._done is not None:
                    self._done(found)
                self._heard = time.monotonic()
                continue
            self._screen.check_reader()
            now = time.monotonic()
            if self._timeout_s is not None and now - self._heard >= self._timeout_s:
                return
            self._explain(now)

    def _patience(self) -> float:
        if self._timeout_s is None:
            return LOOK_S
        left = self._heard + self._timeout_s - time.monotonic()
        return max(0.0, min(LOOK_S, left))

    def _explain(self, now: float) -> None:
        """Tell a person, once, why there is nothing to see."""
        if self._quiet or now - self._started < EXPLAIN_AFTER_S or self._screen.events:
            return
        self._quiet = True
        if not self._events.stats()["sources"]:
            note("no publisher of these topics yet")

    def summary(self) -> str:
        """One line of figures."""
        took = max(self._heard - self._first, 1e-6)
        sources = self._events.stats()["sources"]
        repaired = sum(source.get("repaired", 0) for source in sources)
        lost = self._screen.lost
        streams = "stream" if len(sources) == 1 else "streams"
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(lost.items()))
        return (
            f"{self._screen.events:,} events in {took:.2f} s "
            f"({self._screen.events / took:,.0f}/s) from {len(sources)} {streams}; "
            f"repaired {repaired:,}, lost {lost.total():,}"
            + (f" ({reasons})" if reasons else "")
            + _packets(sources)
        )


def _packets(sources: list[dict[str, Any]]) -> str:
    """What became of multicast packets, where there were any."""
    figures = [source["multicast"] for source in sources if "multicast" in source]
    if not figures:
        return ""
    total: Counter[str] = Counter()
    for one in figures:
        total.update({k: one.get(k, 0) for k in ("packets", "nacks", "repaired", "computed")})
    text = f"; {total['packets']:,} packets, {total['repaired']:,} repaired by {total['nacks']:,} "
    text += "request" if total["nacks"] == 1 else "requests"
    return text + (f", {total['computed']:,} by parity" if total["computed"] else "")


def parse_where(text: str, option: str = "--start") -> StartFrom:
    """`--start` as the library takes it; raises `ConfigError` that says what can be written."""
    with contextlib.suppress(ValueError):
        moment = float(text)
        if 0 <= moment < math.inf:
            return moment
    if text[-1:] in "smhd" and text[:1].isdigit():
        with contextlib.suppress(ConfigError):
            return time.time() - parse_time(option, text)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    if text == "committed":
        raise usage(option, "'committed' is for programs: this command keeps no cursors")
    if "@" in text:
        return Position.parse(text)
    if text in ("live", "earliest") or (text.startswith("last:") and text[5:].isdecimal()):
        return text
    raise usage(
        option,
        f"{text!r} is not live, earliest, last:N, a time such as 2026-01-31T12:00, "
        f"how long ago such as 10m, or a position such as pricing/**@1700000000000000:41",
    )


def _json_line(event: Event) -> str:
    return to_json(event_object(event))


def _plain_line(event: Event) -> str:
    return "  ".join(text for text, _ in _parts(event))


def _colour_line(event: Event) -> str:
    return "  ".join(typer.style(text, fg=colour) for text, colour in _parts(event))


def _parts(event: Event) -> list[tuple[str, str | None]]:
    parts: list[tuple[str, str | None]] = [
        (clock_time(event.time_ns), "bright_black"),
        (safe(event.topic), "cyan"),
    ]
    if event.attempt > 1:
        parts.append((f"attempt {event.attempt}", "red"))
    if event.key is not None:
        parts.append((f"[{safe(event.key)}]", "yellow"))
    if event.headers:
        parts.append((safe(" ".join(_header(*pair) for pair in event.headers.items())), "magenta"))
    parts.append((data_text(event), None))
    return parts


def _header(name: str, value: Any) -> str:
    return f"{name}={value if isinstance(value, str) else to_json(value)}"
