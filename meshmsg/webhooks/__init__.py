"""Webhooks at the edge of the mesh: events posted to registered callbacks, and taken from callers.

>>> from meshmsg import Peer
>>> from meshmsg.webhooks import Webhooks
>>> with Peer("hooks", connect=address, data_dir="./data") as peer:            # doctest: +SKIP
...     with Webhooks(peer) as hooks:
...         hooks.add("https://example.com/hook", "orders.**")

Needs `pip install 'meshmsg[webhooks]'`.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshmsg._bridge.lifecycle import Closing
from meshmsg._model.errors import ClosedError, ConfigError, WaitTimeout
from meshmsg._model.extras import need
from meshmsg._model.units import one_of, parse_time, several
from meshmsg._peer.peer import Peer
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.webhooks.server import WebhookServer
from meshmsg.webhooks.types import Delivery, Endpoint

if TYPE_CHECKING:
    from meshmsg.webhooks.runner import Runner
    from meshmsg.webhooks.store import Book

__all__ = ["Delivery", "Endpoint", "WebhookRegistry", "WebhookServer", "Webhooks"]

POLL_S = 0.02
#: A new endpoint gets events from so long before it was added, if they were not taken yet: the
#: publisher's clock may be behind, and its first event must not be missed for that.
SKEW_S = 60.0
ROTATE_S = 86_400.0


class WebhookRegistry(Closing):
    """The webhooks registered in a folder: add, list, remove; look at deliveries, send again.

    Works beside a running `Webhooks` of the same folder, from another process too.
    """

    def __init__(self, data_dir: str | Path) -> None:
        need("aiohttp", "webhooks", "webhooks")
        need("standardwebhooks", "webhooks", "webhooks")
        from meshmsg.webhooks.store import Book

        self._book: Book = Book(data_dir)

    def __enter__(self) -> WebhookRegistry:
        """Nothing more is opened."""
        return self

    def close(self) -> None:
        """Close the book.  Safe to call again."""
        self._book.close()

    def add(
        self,
        url: str,
        topics: str | Sequence[str],
        *,
        name: str | None = None,
        secret: str | None = None,
        order: str = "none",
        concurrency: int = 4,
        batch: int = 1,
        timeout: float | str = 15.0,
        allow: str | Sequence[str] = (),
        since: float | None = None,
        schedule: Iterable[float | str] | None = None,
        backlog_max: int = 100_000,
    ) -> Endpoint:
        """Register a callback for events of these topics, published from now on (or `since`).

        `order="all"` posts one after the other, each until it is settled, `order="key"` those of
        one key; `batch` is how many events a post may carry; `allow` names hosts or networks that
        are not public.  The secret is made if none is given: `endpoint.secrets[0].text`.  Raises
        `ConfigError`.
        """
        from meshmsg.webhooks import types
        from meshmsg.webhooks.urls import Allowed, check_url

        allowed = several("allow", allow, str, "a host or a list of hosts")
        target = check_url(url, Allowed.parse(allowed))
        now = time.time()
        key = types.check_secret(secret) if secret is not None else new_secret()
        endpoint = types.Endpoint(
            name=name if name is not None else _name_from(target.host or "hook"),
            url=str(target),
            topics=several("topics", topics, str, "a pattern or a list of patterns"),
            secrets=(types.Secret(key),),
            order=order,
            concurrency=concurrency,
            batch=batch,
            timeout_s=parse_time("timeout", timeout),
            allow=allowed,
            since=now - SKEW_S if since is None else since,
            schedule_s=types.schedule_from(schedule),
            backlog_max=backlog_max,
            created=now,
        )
        self._book.put(types.check_endpoint(endpoint), new=True)
        return endpoint

    def endpoints(self) -> list[Endpoint]:
        """All that are registered, by name."""
        return self._book.endpoints()

    def remove(self, name: str) -> int:
        """Forget a webhook; how many events were still waiting for it.  Raises `ConfigError`."""
        return self._book.remove(name)

    def enable(self, name: str) -> None:
        """Deliver again to one that was disabled, events from now on.  Raises `ConfigError`."""
        endpoint = self._book.endpoint(name)
        # What came while it was disabled may not have been taken yet, if nobody else wanted it.
        since = endpoint.since if endpoint.state == "active" else time.time() - SKEW_S
        since = max(since, endpoint.since)
        self._book.put(msgspec.structs.replace(endpoint, state="active", reason="", since=since))

    def rotate(self, name: str, secret: str | None = None, *, keep: float | str = ROTATE_S) -> str:
        """Sign with a new secret, and for `keep` with the old ones as well; returns the new one."""
        from meshmsg.webhooks import types

        endpoint = self._book.endpoint(name)
        new = types.check_secret(secret) if secret is not None else new_secret()
        now = time.time()
        until = now + parse_time("keep", keep)
        old = [
            types.Secret(one.text, min(until, one.until or until))
            for one in endpoint.secrets
            if one.text != new and (one.until is None or now < one.until)
        ]
        kept = (types.Secret(new), *old)[: types.SECRETS_MAX]
        self._book.put(msgspec.structs.replace(endpoint, secrets=kept))
        return new

    def deliveries(
        self, name: str | None = None, *, state: str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """The newest deliveries, as far as they are kept; `state` is waiting, delivered or dead."""
        from meshmsg.webhooks.types import STATES

        if state is not None:
            one_of("state", state, STATES)
        if name is not None:
            self._book.endpoint(name)
        return self._book.deliveries(name, state, limit)

    def resend(self, *ids: int) -> int:
        """Send deliveries again, by their ids, under the same message ids; raises `ConfigError`."""
        return self._book.resend(ids, now=time.time())

    def waiting(self) -> dict[str, int]:
        """How many deliveries each endpoint has waiting."""
        return self._book.waiting()

    def ledger(self) -> Ledger:
        """Taken = delivered + filtered + dead + lost + in flight, for each endpoint and stream."""
        return self._book.ledger()


class Webhooks(WebhookRegistry):
    """Delivers events of the mesh to the webhooks registered in the peer's `data_dir`.

    Has all verbs of `WebhookRegistry`.  Dead letters are published by the peer, at
    `dead.webhook.<name>`.  `keep` is how long settled deliveries can be listed and sent again.
    With `hold` publishers keep what was not taken yet in their logs, whatever their retention says.
    Raises `ConfigError`.
    """

    def __init__(self, peer: Peer, *, keep: float | str = "7d", hold: bool = False) -> None:
        data_dir = peer.config.data_dir
        if data_dir is None:
            raise ConfigError("data_dir", "webhooks need one: Peer(..., data_dir='./data')")
        streams = peer.config.streams
        if streams and not any(one.pattern.matches("dead.webhook.x") for one in streams):
            problem = "none takes dead letters: add Stream('dead.webhook.**', durability='log')"
            raise ConfigError("streams", problem)
        super().__init__(data_dir)
        self._peer = peer
        self._keep_s = parse_time("keep", keep)
        self._hold = hold
        self._runner: Runner | None = None

    def __enter__(self) -> Webhooks:
        """Deliver from here on."""
        from meshmsg.webhooks.runner import Runner

        if self._runner is not None:
            raise ClosedError("webhooks are opened once: make new ones")
        data_dir = str(self._peer.config.data_dir)
        runner = Runner(self._peer, data_dir, self._keep_s, hold=self._hold)
        try:
            runner.start()
        except BaseException:  # Ctrl-C too: its threads must not outlive the peer
            runner.stop()
            super().close()
            raise
        self._runner = runner
        return self

    def close(self) -> None:
        """Stop delivering.  What is not delivered stays in the book.  Safe to call again."""
        if self._runner is not None:
            self._runner.stop()
        super().close()

    @property
    def alive(self) -> bool:
        """Whether it delivers."""
        return self._runner is not None and self._runner.alive

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was taken is settled: delivered or dead.  Raises `WaitTimeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting := self.waiting():
            if deadline is not None and time.monotonic() >= deadline:
                total = sum(waiting.values())
                raise WaitTimeout(f"{total} deliveries still wait after {timeout:g} s")
            time.sleep(POLL_S)

    def stats(self) -> dict[str, Any]:
        """Counters since the start, requests on the way, deliveries waiting by endpoint."""
        figures = {} if self._runner is None else self._runner.figures()
        return {**figures, "waiting": self.waiting()}


def new_secret() -> str:
    """A fresh `whsec_...` secret."""
    import base64

    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _name_from(host: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', host).strip('-')[:40]}-{secrets.token_hex(3)}"
