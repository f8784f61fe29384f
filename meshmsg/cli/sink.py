"""`meshmsg sink`: record the mesh and write it into tables with Spark, each event once."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import ConfigError, Monitor, PeerConfig
from meshmsg.cli._figures import Figures, StopRequest, stopping, view
from meshmsg.cli._guard import BAD, GOOD, guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Bind,
    Connect,
    Every,
    Find,
    Interface,
    Json,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    peer_from,
    seconds,
    tell_addresses,
    tell_monitor,
)
from meshmsg.cli._sink_view import picture, show_check, show_lines
from meshmsg.cli._values import to_json

HELP = help_text(
    "Record streams and write them into a table with Spark: parquet, Delta Lake or Iceberg.",
    "What comes is in the daemon's own log before it counts, and each event is in the table once, "
    "whatever is killed and started again. Ctrl-C or SIGTERM finish the batch and end. "
    "Needs: pip install 'meshmsg[spark]'.",
    examples=(
        "meshmsg sink --topics 'quotes.**' --out ./lake/quotes -c tcp://127.0.0.1:7000",
        "meshmsg sink --topics 'quotes.**' --out ./lake/quotes -c tcp://127.0.0.1:7000 "
        "--partition-by topic,date --payload 'bid DOUBLE, ask DOUBLE'",
        "meshmsg sink --config sink.toml --monitor 127.0.0.1:9400",
        "meshmsg sink --from ./data --out ./lake/orders --once",
        "meshmsg sink --out ./lake/quotes --check",
    ),
)
POLL_S = 0.05
#: With --once: how long the first publisher may need.
CONNECT_S = 15.0
_OUT, _SPARK, _LOG = "The table", "Spark", "The log"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    short = "Write streams into a table with Spark, each event once."
    app.command("sink", help=HELP, short_help=short)(guarded(sink))


def _option(panel: str, *names: str, metavar: str, text: str, env: str | None = None) -> Any:
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, envvar=env
    )


def sink(
    topics: Annotated[
        list[str] | None,
        _option(_OUT, "--topics", "-t", metavar="PATTERN", text="Topic patterns; all if not said."),
    ] = None,
    out: Annotated[
        str | None,
        _option(_OUT, "--out", "-o", metavar="DIR", text="The table's folder.", env="MESHMSG_OUT"),
    ] = None,
    format: Annotated[
        str | None, _option(_OUT, "--format", metavar="WORD", text="parquet, delta or iceberg.")
    ] = None,
    partition_by: Annotated[
        str | None,
        _option(
            _OUT,
            "--partition-by",
            metavar="COLUMNS",
            text="Columns that become folders: topic,date. date and hour are those of the event.",
        ),
    ] = None,
    payload: Annotated[
        str | None,
        _option(
            _OUT,
            "--payload",
            metavar="WORDS",
            text="binary, json, variant, or columns: 'id BIGINT, price DOUBLE'.",
        ),
    ] = None,
    sql: Annotated[
        str | None,
        _option(_OUT, "--sql", metavar="SQL", text="Shapes the rows: SELECT ... FROM events."),
    ] = None,
    transform: Annotated[
        str | None,
        _option(
            _OUT,
            "--transform",
            metavar="MODULE:FUNCTION",
            text="Shapes the rows: takes a DataFrame and returns one.",
        ),
    ] = None,
    losses: Annotated[
        str | None,
        _option(_OUT, "--losses", metavar="DIR", text="The table of losses; OUT.losses."),
    ] = None,
    quarantine: Annotated[
        str | None,
        _option(_OUT, "--quarantine", metavar="DIR", text="Bad payloads; OUT.quarantine."),
    ] = None,
    max_events: Annotated[
        int | None,
        _option(_OUT, "--max-events", metavar="N", text="Most events in a batch; 1000000."),
    ] = None,
    trigger: Annotated[
        str | None,
        _option(_SPARK, "--trigger", metavar="TIME", text="The time between two batches; 1s."),
    ] = None,
    master: Annotated[
        str | None,
        _option(_SPARK, "--master", metavar="URL", text="local[*], local[4], spark://HOST:7077."),
    ] = None,
    spark: Annotated[
        list[str] | None,
        _option(_SPARK, "--spark", metavar="KEY=VALUE", text="A setting of Spark."),
    ] = None,
    state: Annotated[
        str | None,
        _option(_LOG, "--state", metavar="DIR", text="Log and checkpoints; OUT.sink."),
    ] = None,
    source: Annotated[
        str | None,
        _option(_LOG, "--from", metavar="DIR", text="Read these logs; nothing is recorded then."),
    ] = None,
    retention: Annotated[
        str | None,
        _option(
            _LOG,
            "--retention",
            metavar="WORDS",
            text="What the log keeps of what is in the table: 1d (default), 10GB, 7d,10GB or all.",
        ),
    ] = None,
    fsync: Annotated[
        str | None,
        _option(_LOG, "--fsync", metavar="WORD", text="always, batch, interval:50ms or never."),
    ] = None,
    fail_on_loss: Annotated[
        bool, typer.Option("--fail-on-loss", help="End with status 1 when events are lost.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Write what is there, and end.")] = False,
    idle: Annotated[
        str, typer.Option(metavar="TIME", help="With --once: nothing came for so long.")
    ] = "2s",
    check: Annotated[
        bool, typer.Option("--check", help="Compare the table with the log; 1 if they differ.")
    ] = False,
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="PORT", show_default=False, help="As --monitor; the host may be left out."
        ),
    ] = None,
    monitor: MonitorAt = None,
    every: Every = "1s",
    json: Json = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="A sink.toml; flags win over it."),
    ] = None,
    bind: Bind = None,
    connect: Connect = None,
    name: Name = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    if monitor is not None and metrics_port is not None:
        raise usage("--metrics-port", "is another word for --monitor: give one of them")
    given_sink = {
        "state": state,
        "source": source,
        "trigger": trigger,
        "master": master,
        "spark": _settings(spark),
        "retention": retention,
        "fsync": fsync,
        "metrics": metrics_port if monitor is None else monitor,
        "fail_on_loss": fail_on_loss,
        "once": once,
    }
    given_out = {
        "topics": _words(topics),
        "out": out,
        "format": format,
        "partition_by": _words(None if partition_by is None else [partition_by]),
        "payload": payload,
        "sql": sql,
        "transform": transform,
        "losses": losses,
        "quarantine": quarantine,
        "max_events": max_events,
    }
    made, settings = _configured(config, given_sink, given_out)
    if check:
        return _check(made, json=json)
    with _placed(config):
        _sink().check_plan(made)
    recording = None
    shown = None if made.metrics is None else _sink().metrics_address(made.metrics)
    if made.source is None:
        recording = peer_from(
            "sink",
            bind=bind,
            connect=connect,
            name=name,
            mesh=mesh,
            config=settings,
            interface=interface,
            discovery=discovery,
            monitor=shown,
        ).config
    return _run(
        made,
        recording,
        shown=shown,
        every_s=seconds("--every", every),
        idle_s=seconds("--idle", idle),
        json=json,
        quiet=quiet,
    )


def _sink() -> Any:
    """The package that needs Spark, found by name when it is asked for.

    A plain install has no Spark, and no other verb may need it.
    """
    return importlib.import_module("meshmsg.spark_sink.sink")


def _words(texts: list[str] | None) -> tuple[str, ...] | None:
    if texts is None:
        return None
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def _settings(texts: list[str] | None) -> dict[str, str] | None:
    found = {}
    for text in texts or ():
        key, mark, value = text.partition("=")
        if not mark:
            raise usage("--spark", f"{text!r} is not KEY=VALUE: write spark.driver.memory=4g")
        found[key.strip()] = value.strip()
    return found or None


def _configured(
    config: Path | None, given_sink: dict[str, Any], given_out: dict[str, Any]
) -> tuple[Any, PeerConfig | None]:
    settings = _sink()
    from_file: dict[str, Any] = {}
    outputs: list[dict[str, Any]] = []
    peer = None
    if config is not None:
        from_file, outputs, peer = settings.load_sink(config)
    new_sink = {key: value for key, value in given_sink.items() if value not in (None, False)}
    if "spark" in new_sink and isinstance(from_file.get("spark"), dict):
        new_sink["spark"] = {**from_file["spark"], **new_sink["spark"]}
    outputs = _outputs(config, outputs, given_out)
    with _placed(config):
        return settings.make_sink({**from_file, **new_sink}, outputs), peer


def _outputs(
    config: Path | None, from_file: list[dict[str, Any]], given: dict[str, Any]
) -> list[dict[str, Any]]:
    """The file's outputs; what options say goes for the only one."""
    new = {key: value for key, value in given.items() if value is not None}
    if len(from_file) > 1:
        if new:
            name = next(iter(new)).replace("_", "-")
            raise usage(f"--{name}", f"{config} has several outputs: write it there")
        return from_file
    if not from_file and "out" not in new:
        raise usage("--out", "say where the table is to be: --out ./lake/quotes")
    return [{**(from_file[0] if from_file else {}), **new}]


@contextmanager
def _placed(config: Path | None) -> Iterator[None]:
    """Name the field of an error where its reader finds it: in the file, or as an option."""
    try:
        yield
    except ConfigError as error:
        if config is not None:
            raise ConfigError(f"{config}: {error.field}", error.problem) from None
        renamed = {"source": "from", "metrics": "monitor"}
        field = renamed.get(error.field, error.field.replace("_", "-"))
        raise usage(f"--{field}", error.problem) from None


def _check(made: Any, *, json: bool) -> int:
    status = GOOD
    for output in made.outputs:
        found = _sink().check_output(output, made.log)
        if json:
            print(to_json(found))
        else:
            show_check(found)
        if not found["good"]:
            status = BAD
    return status


def _run(
    made: Any,
    peer: PeerConfig | None,
    *,
    shown: str | None,
    every_s: float,
    idle_s: float,
    json: bool,
    quiet: bool,
) -> int:
    with ExitStack() as stack:
        stop = stack.enter_context(stopping())
        daemon = stack.enter_context(_sink().SinkDaemon(made, peer))
        _monitor(daemon, made, shown, stack, quiet=quiet)
        show = stack.enter_context(view(show_lines, picture, stop, json=json, quiet=quiet))
        try:
            if made.once and _settle(daemon, stop, idle_s):
                daemon.drive()
            _watch(daemon, show, stop, every_s, quiet)
            daemon.close()  # the batch that it finishes now counts as well
        finally:
            _tell(daemon, stop, quiet)
        figures = {**daemon.figures(), "ended": True}
        show(figures)
        lost = sum(row["lost"] for row in figures["outputs"])
    return BAD if lost else GOOD


def _monitor(daemon: Any, made: Any, shown: str | None, stack: ExitStack, *, quiet: bool) -> None:
    """Show the daemon's figures: beside those of its peer, or alone where it has none."""
    if daemon.peer is None:
        config = Monitor.from_env(shown, os.environ)
        server = None if config is None or not config.is_on else _sink().open_monitor(config)
        if server is not None:
            stack.enter_context(closing(server))
            tell_monitor(server, quiet=quiet)
    else:
        server = daemon.peer.monitor
        tell_addresses(daemon.peer, quiet=quiet)
    if server is not None:
        server.add(_sink().sink_part(daemon.figures, made, server.config))


def _settle(daemon: Any, stop: StopRequest, idle_s: float) -> bool:
    """With `--once`: wait until nothing comes any more; `False` if we are to end."""
    began = heard = time.monotonic()
    events = 0
    while daemon.peer is not None:
        if stop.wait(POLL_S):
            return False
        now = time.monotonic()
        if daemon.recorded() != events:
            heard, events = now, daemon.recorded()
        if now - heard >= idle_s and daemon.connected():
            break
        if not events and now - began >= max(CONNECT_S, idle_s):
            note(f"no publisher answered within {now - began:.0f} s: what the log has is written")
            break
    return True


def _tell(daemon: Any, stop: StopRequest, quiet: bool) -> None:
    with stop.printing():
        while daemon.notes:
            note(daemon.notes.popleft(), quiet=quiet)


def _watch(
    daemon: Any,
    show: Callable[[Figures], None],
    stop: StopRequest,
    every_s: float,
    quiet: bool,
) -> None:
    shown = time.monotonic()
    while not stop.wait(POLL_S) and daemon.poll():
        _tell(daemon, stop, quiet)
        if time.monotonic() - shown >= every_s:
            shown = time.monotonic()
            show(daemon.figures())
    sys.stdout.flush()
