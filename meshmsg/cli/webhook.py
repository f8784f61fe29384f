"""`meshmsg webhook`: callbacks registered in a folder, and the process that posts to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshmsg import Stream
from meshmsg.cli import webhook_serve
from meshmsg.cli._edges import raise_file_limit, stay
from meshmsg.cli._guard import BAD, GOOD, guarded, note, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._options import (
    Config,
    Connect,
    DataDir,
    EdgeMeshBind,
    EdgeTopics,
    Find,
    Interface,
    Json,
    Mesh,
    MonitorAt,
    Name,
    Quiet,
    peer_from,
    tell_addresses,
)
from meshmsg.cli._secrets import SecretFile, read_secret_or, warn_of_secret
from meshmsg.cli._values import iso_time, safe, to_json

if TYPE_CHECKING:
    from meshmsg.webhooks import Delivery, Endpoint, WebhookRegistry

HELP = help_text(
    "Webhooks: events posted to registered callbacks, and events taken from callers.",
    "Callbacks are registered in a folder with add; run posts to them. Posts are signed by the "
    "Standard Webhooks specification and tried again for three days. serve takes such posts in.",
    examples=(
        "meshmsg webhook add https://example.com/hook --topics 'orders.**' --data-dir ./hooks",
        "meshmsg webhook run --data-dir ./hooks --connect tcp://127.0.0.1:7000",
        "meshmsg webhook deliveries --data-dir ./hooks --state dead",
        "meshmsg webhook serve --bind 127.0.0.1:8080 --topic hooks.github",
    ),
)
Hook = Annotated[str, typer.Argument(metavar="NAME", help="The webhook, as ls shows it.")]
Secret = Annotated[
    str | None,
    typer.Option(
        callback=warn_of_secret,
        show_default=False,
        help="whsec_... to sign with: better in a file. One is made if not given.",
    ),
]
LONG = 60


def register(app: typer.Typer) -> None:
    """Add the verb."""
    hooks = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    hooks.command("add", help="Register a callback and print its name and secret.")(guarded(add))
    hooks.command("ls", help="List callbacks, what waits for them and what became of the rest.")(
        guarded(ls)
    )
    hooks.command("rm", help="Forget a callback, and what waits for it.")(guarded(rm))
    hooks.command("enable", help="Post again to a callback that was disabled.")(guarded(enable))
    hooks.command("rotate", help="Sign with a new secret; the old ones hold for a while.")(
        guarded(rotate)
    )
    hooks.command("deliveries", help="List deliveries, the newest first.")(guarded(deliveries))
    hooks.command("resend", help="Send deliveries again, under the same message ids.")(
        guarded(resend)
    )
    hooks.command("run", help="Post events to the callbacks, until it is ended.")(guarded(run))
    webhook_serve.register(hooks)
    app.add_typer(hooks, name="webhook", help=HELP, short_help="Post events to callbacks.")


@contextmanager
def _registry(data_dir: Path | None) -> Iterator[WebhookRegistry]:
    from meshmsg.webhooks import WebhookRegistry

    if data_dir is None:
        raise usage("--data-dir", "say in which folder webhooks are registered")
    with WebhookRegistry(data_dir) as registry:
        yield registry


def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to post: https://...")],
    topics: EdgeTopics,
    name: Annotated[
        str | None, typer.Option(help="How it is called. Made from the host if not given.")
    ] = None,
    secret_file: SecretFile = None,
    secret: Secret = None,
    order: Annotated[
        str,
        typer.Option(help="none; all: one after the other, each until it is settled; key: by key."),
    ] = "none",
    concurrency: Annotated[int, typer.Option(help="Posts on the way at once.")] = 4,
    batch: Annotated[int, typer.Option(help="Events that one post may carry.")] = 1,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="To wait for an answer.")] = "15s",
    schedule: Annotated[
        str | None,
        typer.Option(metavar="TIMES", help="Waits before each attempt: 0s,5s,1m. Three days."),
    ] = None,
    backlog_max: Annotated[
        int, typer.Option(help="What may wait for it; the oldest go to the dead letters.")
    ] = 100_000,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A host, address or network that may be private, or plain http. Often.",
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> int:
    """Register a callback."""
    with _registry(data_dir) as registry:
        endpoint = registry.add(
            url,
            topics,
            name=name,
            secret=read_secret_or(secret_file, secret),
            order=order,
            concurrency=concurrency,
            batch=batch,
            timeout=timeout,
            schedule=schedule,
            backlog_max=backlog_max,
            allow=tuple(allow or ()),
        )
    if json:
        print(to_json({**_endpoint_object(endpoint), "secret": endpoint.secrets[0].text}))
    else:
        print(f"{endpoint.name}  {endpoint.secrets[0].text}")
    return GOOD


def ls(data_dir: DataDir = None, json: Json = False) -> int:
    """List callbacks; exit status 1 if their books do not add up."""
    with _registry(data_dir) as registry:
        endpoints, ledger = registry.endpoints(), registry.ledger()
    by_name: dict[str, list[Any]] = {one.name: [] for one in endpoints}
    for row in ledger.rows:
        by_name.setdefault(row.subscription.removeprefix("webhook "), []).append(row)
    if json:
        for one in endpoints:
            rows = [row.as_dict() for row in by_name[one.name]]
            print(to_json({**_endpoint_object(one), "ledger": rows}))
    else:
        _show_endpoints(endpoints, by_name)
    return GOOD if ledger.reconciles else BAD


def _show_endpoints(endpoints: list[Endpoint], by_name: dict[str, list[Any]]) -> None:
    from meshmsg.cli._tables import console, table

    numbers = ("waiting", "delivered", "dead", "lost")
    rows = table("", "name", "url", "topics", *numbers, "state", numbers=numbers)
    for one in endpoints:
        own = by_name[one.name]
        rows.add_row(
            one.name,
            safe(one.url),
            safe(" ".join(one.topics)),
            f"{sum(row.in_flight for row in own):,}",
            f"{sum(row.delivered for row in own):,}",
            f"{sum(row.dead for row in own):,}",
            f"{sum(sum(row.lost.values()) for row in own):,}",
            one.state + (f": {safe(one.reason)}" if one.reason else ""),
        )
    console().print(rows)


def rm(name: Hook, data_dir: DataDir = None, quiet: Quiet = False) -> int:
    """Forget a callback."""
    with _registry(data_dir) as registry:
        waiting = registry.remove(name)
    note(f"forgot {name}; {waiting:,} events were waiting for it", quiet=quiet)
    return GOOD


def enable(name: Hook, data_dir: DataDir = None) -> int:
    """Post again to a callback that was disabled."""
    with _registry(data_dir) as registry:
        registry.enable(name)
    return GOOD


def rotate(
    name: Hook,
    secret_file: SecretFile = None,
    secret: Secret = None,
    keep: Annotated[str, typer.Option(metavar="TIME", help="How long the old ones hold.")] = "24h",
    data_dir: DataDir = None,
) -> int:
    """Sign with a new secret."""
    with _registry(data_dir) as registry:
        print(registry.rotate(name, read_secret_or(secret_file, secret), keep=keep))
    return GOOD


def deliveries(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of one webhook only.")
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Only these: waiting, delivered or dead.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 50,
    data_dir: DataDir = None,
    json: Json = False,
) -> int:
    """List deliveries, the newest first."""
    with _registry(data_dir) as registry:
        found = registry.deliveries(name, state=state, limit=limit)
    if json:
        for one in found:
            print(to_json(_delivery_object(one)))
        return GOOD
    from meshmsg.cli._tables import console, table

    rows = table("", "id", "webhook", "message", "topic", "state", "tries", "last", "next")
    for one in found:
        last = one.error or ("" if one.status is None else f"status {one.status}")
        next_at = "" if one.due is None else iso_time(int(one.due * 1e9))[:19]
        rows.add_row(
            str(one.id),
            one.endpoint,
            one.message,
            safe(one.topic),
            one.state,
            str(one.attempts),
            safe(last)[:LONG],
            next_at,
        )
    console().print(rows)
    return GOOD


def resend(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", help="As deliveries shows them.")
    ] = None,
    dead: Annotated[
        str | None, typer.Option(metavar="NAME", help="All dead ones of this webhook.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> int:
    """Send deliveries again."""
    if bool(ids) == (dead is not None):
        raise usage("ID", "name deliveries by their ids, or a webhook with --dead")
    with _registry(data_dir) as registry:
        if dead is not None:
            found = registry.deliveries(dead, state="dead", limit=1_000_000)
            ids = [one.id for one in reversed(found)]
        count = registry.resend(*(ids or ()))
    note(f"{count:,} deliveries will be sent again", quiet=quiet)
    return GOOD


def run(
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="How long settled deliveries can be listed.")
    ] = "7d",
    hold: Annotated[
        bool,
        typer.Option(
            "--hold", help="Publishers keep what was not taken yet, whatever their retention."
        ),
    ] = False,
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
    """Post events to the callbacks."""
    from meshmsg.webhooks import Webhooks

    if data_dir is None and config is None:
        raise usage("--data-dir", "say in which folder webhooks are registered")
    raise_file_limit()
    peer = peer_from(
        "webhooks",
        bind=mesh_bind,
        connect=connect,
        name=name or (None if config else "webhooks"),
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        streams=[Stream("dead.webhook.**", durability="log")],
        data_dir=data_dir,
        monitor=monitor,
    )
    with peer, Webhooks(peer, keep=keep, hold=hold) as hooks:
        tell_addresses(peer, quiet=quiet)
        note(f"posting to {len(hooks.endpoints())} webhooks", quiet=quiet)
        return stay(hooks)


def _endpoint_object(endpoint: Endpoint) -> dict[str, Any]:
    """Without its secrets: listings are shown around."""
    return {
        "name": endpoint.name,
        "url": endpoint.url,
        "topics": list(endpoint.topics),
        "order": endpoint.order,
        "concurrency": endpoint.concurrency,
        "batch": endpoint.batch,
        "timeout_s": endpoint.timeout_s,
        "allow": list(endpoint.allow),
        "state": endpoint.state,
        "reason": endpoint.reason,
        "created": iso_time(int(endpoint.created * 1e9)),
    }


def _delivery_object(one: Delivery) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
