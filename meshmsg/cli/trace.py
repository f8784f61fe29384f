"""`meshmsg trace`: what became of one event, by its position."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import Batch, Loss, MeshError, MsgpackCodec, Peer, Position
from meshmsg.cli._asking import asking
from meshmsg.cli._found import looking, wait_for_found
from meshmsg.cli._guard import BAD, GOOD, guarded
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Answer, Connect, Find, Interface, Json, Mesh, seconds
from meshmsg.cli._tables import console
from meshmsg.cli._traced import BAD_STATES, is_good, put_together
from meshmsg.cli._values import iso_time, to_json

HELP = help_text(
    "Follow one event: published when and by whom; received, delivered, filtered or lost by each "
    "subscription; waiting, with which member, acknowledged or dead in each group; in which logs; "
    "in which commit of a sink's table.",
    "A position is what `publish` returns and `sub --json` shows. Asked are its publisher, "
    "subscribers and recorders, as far as they are found (--connect is where to begin). What "
    "nobody knows any more is said. The exit status is 1 if it is lost or dead anywhere, or if "
    "nothing is known of it.",
    examples=(
        "meshmsg trace 'shop/orders.**@1700000000000000:41'",
        "meshmsg trace 'shop/orders.**@1700000000000000:41' -c tcp://127.0.0.1:7000 --json",
        "meshmsg trace 'shop/orders.**@1700000000000000:41' --table ./tables/orders",
    ),
)
CODEC = MsgpackCodec()


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("trace", help=HELP, short_help="Show what became of one event.")(guarded(trace))


def trace(
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help="STREAM@EPOCH:NUMBER", show_default=False)
    ],
    table: Annotated[
        list[Path] | None,
        typer.Option(
            "--table",
            metavar="DIR",
            show_default=False,
            help="A table that meshmsg sink writes, on this machine. May be given several times.",
        ),
    ] = None,
    connect: Connect = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to look for peers at most.")
    ] = "3s",
    timeout: Answer = "5s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    place = Position.parse(position)
    timeout_s = seconds("--timeout", timeout)
    tables = [_table(path, place) for path in table or ()]
    with _found(connect, mesh, discovery, interface, seconds("--wait", wait), timeout_s) as peer:
        answers = list(ask_all(peer, place, timeout_s))
        logs = [
            log_of(answer, peer.config.mesh, place, timeout_s)
            for answer in answers
            if answer.get("has_log")
        ]
    found = put_together(place, answers, logs, tables)
    if json:
        print(to_json(found))
    else:
        _show(found)
    return GOOD if is_good(found) else BAD


@contextmanager
def _found(
    connect: Sequence[str] | None,
    mesh: str | None,
    discovery: str | None,
    interface: str | None,
    wait_s: float,
    timeout_s: float,
) -> Iterator[Peer]:
    """A peer that is connected to those named, and no others if nobody is to be looked for."""
    if discovery == "none":
        with asking(connect, mesh, timeout_s) as peer:
            yield peer
        return
    with looking(connect, mesh, discovery, interface) as peer:
        wait_for_found(peer, wait_s)
        yield peer


def ask_all(peer: Peer, place: Position, timeout_s: float) -> Iterator[dict[str, Any]]:
    """What each peer says; of one that says nothing, its address and the error."""
    found = peer.ask("trace", timeout_s, strict=False, event=place)
    for info in peer.peers():
        if not found.keys() & {*info.addresses, info.name}:
            yield {"address": info.name, "error": "no answer"}
    for address, answer in found.items():
        try:
            put_together(place, [answer], [], [])
        except (AttributeError, KeyError, TypeError, ValueError, MeshError):
            answer = {"error": "what it says is not of an event"}
        yield {**answer, "address": address}


# --- logs and tables ---


def log_of(
    answer: Mapping[str, Any], mesh: str, place: Position, timeout_s: float
) -> dict[str, Any]:
    """Whether a peer's log has the event, and the event itself."""
    from meshmsg.logs import ReplayClient

    kind = "recorder" if answer["publisher"] is None else "publisher"
    row: dict[str, Any] = {"peer": answer["peer"], "kind": kind}
    first, stop = place.seq, place.seq + 1
    try:
        with ReplayClient(answer["address"], mesh=mesh, timeout=timeout_s) as client:
            found = next((log for log in client.logs() if log.stream == place.stream), None)
            epochs = [] if found is None else [e for e in found.known if e.epoch == place.epoch]
            if not any(epoch.first <= place.seq < epoch.stop for epoch in epochs):
                return {**row, "state": "absent"}
            for item in client.read(place.stream, place.epoch, first, stop):
                if isinstance(item, Loss):
                    return {**row, "state": "gone", "reason": item.reason}
                (event,) = Batch(item.frame, place.stream, CODEC, item.lo, item.hi).events()
                shown = {"topic": event.topic, "time_ns": event.time_ns, "key": event.key}
                size = {"bytes": len(event.payload)}
                shown = {k: v for k, v in (shown | size).items() if v is not None}
                return {**row, "state": "there", "event": shown}
    except MeshError as error:
        return {**row, "state": "unknown", "reason": str(error)}
    return {**row, "state": "absent"}


def _table(path: Path, place: Position) -> dict[str, Any]:
    """In which commit of a table an event is; raises `ConfigError` where it is no table."""
    # By name: a plain install has no Spark, and says what is missing.
    commit = importlib.import_module("meshmsg.spark_sink.sink").find_commit(str(path), place)
    if commit is None:
        return {"table": str(path), "state": "not in it"}
    figures = {key: getattr(commit, key) for key in ("rows", "quarantined", "lost")}
    files = [file.path for file in commit.files]
    made = {"commit": commit.number, "batch": commit.batch, "files": files}
    time = iso_time(commit.time_ns)
    return {"table": str(path), "state": "committed", "time": time, **made, **figures}


# --- for people ---


def _show(found: Mapping[str, Any]) -> None:
    out, known = console(), found["published"]
    out.print(found["position"], style="bold")
    what = [f"{key} {known[key]}" for key in ("time", "topic", "key", "bytes") if key in known]
    out.print(f"  {known['state']} by {known['by']}" + (f": {', '.join(what)}" if what else ""))
    for title, rows in (
        ("subscription", found["subscriptions"]),
        ("group", found["groups"]),
        ("log of", [{**row, "name": f"{row['kind']} {row['peer']}"} for row in found["logs"]]),
        ("table", [{**row, "name": row["table"]} for row in found["tables"]]),
    ):
        for row in rows:
            style = "bold red" if row["state"] in BAD_STATES else None
            out.print(f"  {title} {row['name']}: {_words(row)}", style=style)
    for text in found["unknown"]:
        out.print(f"  not known: {text}")


def _words(row: Mapping[str, Any]) -> str:
    said = ("reason", "is", "member", "attempt", "commit", "time")
    more: Sequence[str] = [f"{key} {row[key]}" for key in said if row.get(key)]
    return str(row["state"]) + (f" ({', '.join(more)})" if more else "")
