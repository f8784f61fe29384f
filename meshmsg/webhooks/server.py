"""Webhooks in: a post is checked, published, and answered when it is in the stream.

What was taken is known again by the ids in the stream's own log, so that there is one truth: an
event is in the log, or its post was not answered with success and comes again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshmsg._bridge.lifecycle import Closing
from meshmsg._bridge.plaintext import check_plain
from meshmsg._bridge.trace_context import trace_headers
from meshmsg._model.errors import (
    ClosedError,
    ConfigError,
    EventTooLarge,
    LogError,
    MeshError,
    PayloadError,
    TopicError,
)
from meshmsg._model.event import Loss
from meshmsg._model.extras import need
from meshmsg._model.topics import check_topic
from meshmsg._model.units import one_of, parse_size, parse_time, several, split_host
from meshmsg._peer.peer import Peer, node_of
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.webhooks.acceptance import (
    SCHEMES,
    TOLERANCE_MAX_S,
    Claim,
    Memory,
    Refusal,
    examine,
    topic_for,
)
from meshmsg.webhooks.types import check_secret

if TYPE_CHECKING:
    from meshmsg.webhooks.http_server import Reply, WebhookInlet

log = logging.getLogger("meshmsg.webhooks")

ID_HEADER = "webhook.id"
PUBLISH_TIMEOUT_S = 10.0
RETRY_AFTER_S = 5
#: Posts that wait for the disk at the same time share one sync.
PUBLISHERS = 16
_decode = msgspec.json.Decoder().decode


class WebhookServer(Closing):
    """Takes posted webhooks as events of a topic, each once.

    `secrets` are those that posts may be signed with; `scheme` is `standard` (Standard Webhooks),
    `github`, or `none` for posts that are not signed.  In `topic`, `{type}` stands for the type of
    the post.  Raises `ConfigError`, `BindError`.

    >>> with WebhookServer(peer, "127.0.0.1:8080", topic="hooks.shop", secrets=secret):
    ...     ...                                                               # doctest: +SKIP
    """

    def __init__(
        self,
        peer: Peer,
        bind: str = "127.0.0.1:8080",
        *,
        topic: str,
        secrets: str | Sequence[str] = (),
        scheme: str = "standard",
        path: str = "/",
        tolerance: float | str = "5m",
        body_bytes_max: int | str = "1MiB",
        remember: int = 100_000,
        certificate: str | Path | None = None,
    ) -> None:
        need("aiohttp", "webhooks", "webhooks")
        need("standardwebhooks", "webhooks", "webhooks")
        self._peer = peer
        self._place = split_host("bind", bind)
        self._topic = topic
        sample = check_topic(topic_for(topic, "x"))
        streams = peer.config.streams
        if streams and not any(stream.pattern.matches(sample) for stream in streams):
            raise ConfigError("topic", f"none of the peer's streams takes {sample!r}")
        self._scheme = one_of("scheme", scheme, SCHEMES)
        self._secrets = several("secrets", secrets, str, "a secret or a list of them")
        self._check_secrets()
        if not path.startswith("/"):
            raise ConfigError("path", f"{path!r} does not begin with /")
        self._path = path
        self._tolerance_s = parse_time("tolerance", tolerance)
        if not 0 < self._tolerance_s <= TOLERANCE_MAX_S:
            raise ConfigError("tolerance", f"more than 0 and at most {TOLERANCE_MAX_S:g} seconds")
        self._body_bytes_max = parse_size("body_bytes_max", body_bytes_max)
        if not isinstance(remember, int) or remember < 1:
            raise ConfigError("remember", f"{remember!r} is not a number of posts: at least 1")
        self._remember = remember
        self._tls = None if certificate is None else _tls(certificate)
        if self._tls is None or self._scheme == "none":  # others can read posts, or make them up
            check_plain(peer, "webhooks", self._place[0])
        self._memory = Memory(remember)
        #: Posts that are in the stream, and of which it is not known that the disk has them.
        self._unsafe: set[str] = set()
        self._under_way: dict[str, asyncio.Future[Reply]] = {}
        self.counters: Counter[str] = Counter()
        self._inlet: WebhookInlet | None = None
        self._publishers: ThreadPoolExecutor | None = None

    def _check_secrets(self) -> None:
        if (self._scheme == "none") == bool(self._secrets):
            problem = "give at least one, or say scheme='none' for posts that are not signed"
            raise ConfigError("secrets", problem)
        if self._scheme == "standard":
            for secret in self._secrets:
                check_secret(secret, "secrets")

    def __enter__(self) -> WebhookServer:
        """Listen from here on."""
        from meshmsg.webhooks.http_server import WebhookInlet

        if self._inlet is not None:
            raise ClosedError("a webhook server is opened once: make a new one")
        self._recall()
        self._publishers = ThreadPoolExecutor(PUBLISHERS, thread_name_prefix="meshmsg-webhook-in")
        self._inlet = WebhookInlet(
            *self._place,
            self._path,
            self._take,
            self.counters,
            body_bytes_max=self._body_bytes_max,
            tls=self._tls,
        )
        try:
            self._inlet.start()
        except BaseException:
            self._publishers.shutdown()
            raise
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens at."""
        if self._inlet is None:
            raise ClosedError("the webhook server is not open: use a with block")
        return self._inlet.address

    @property
    def url(self) -> str:
        """Where to post to."""
        host, port = self.address
        shown = f"[{host}]" if ":" in host else host
        return f"http{'s' if self._tls else ''}://{shown}:{port}{self._path}"

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return self._inlet is not None and self._inlet.alive

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return {name: self.counters[name] for name in COUNTERS}

    def close(self) -> None:
        """Answer what has come, and stop listening.  Safe to call again."""
        if self._inlet is not None:
            self._inlet.close()
        if self._publishers is not None:
            self._publishers.shutdown()

    def _recall(self) -> None:
        """Know again what was taken before a restart: it is in the log."""
        config = self._peer.config
        for stream in config.streams:
            if stream.durability != "log" or config.data_dir is None:
                continue
            name = f"{config.name}/{stream.name or stream.topics}"
            try:
                with LogReader(LogFolder.of(config.data_dir, name)) as reader:
                    reader.seek_last(self._remember)
                    for run in reader.runs():
                        if isinstance(run, Loss):
                            continue
                        for index in range(run.lo, run.hi):
                            ident = run.frame.headers_at(index).get(ID_HEADER)
                            if isinstance(ident, str):
                                self._memory.add(ident)
            except LogError as error:
                log.warning("what was taken before is not known: %s", error)

    # In the server's event loop --------------------------------------------------------------

    async def _take(self, headers: Mapping[str, str], body: bytes) -> Reply:
        from meshmsg.webhooks.http_server import Reply
        from meshmsg.webhooks.signing import verify

        try:
            claim = examine(
                self._scheme,
                self._secrets,
                headers,
                body,
                now=time.time(),
                tolerance_s=self._tolerance_s,
                verify=verify,
            )
        except Refusal as refusal:
            self.counters[refusal.counter] += 1
            return Reply(refusal.status, str(refusal))
        if not claim.id:  # not signed and without an id: nothing to know it by
            return await self._publish(claim, headers, body)
        if claim.id in self._memory and claim.id not in self._unsafe:
            self.counters["duplicates"] += 1
            return Reply(204)
        other = self._under_way.get(claim.id)
        if other is not None:  # the same post at the same time: one answer for both
            self.counters["duplicates"] += 1
            return await asyncio.shield(other)
        future = asyncio.get_running_loop().create_future()
        self._under_way[claim.id] = future
        try:
            reply = await self._publish(claim, headers, body)
            future.set_result(reply)
            return reply
        finally:
            del self._under_way[claim.id]
            if not future.done():
                future.set_result(Reply(503, "interrupted", RETRY_AFTER_S))

    async def _publish(self, claim: Claim, headers: Mapping[str, str], body: bytes) -> Reply:
        from meshmsg.webhooks.http_server import Reply

        assert self._publishers is not None
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._publishers, self._put, claim, headers, body)
        try:
            # A caller that hangs up does not undo what is under way.
            await asyncio.shield(work)
        except (EventTooLarge, TopicError) as error:
            large = isinstance(error, EventTooLarge)
            self.counters["too_large" if large else "malformed"] += 1
            return Reply(413 if large else 400, str(error))
        except MeshError as error:
            self.counters["unpublished"] += 1
            log.error("a webhook could not be published: %s", error)
            return Reply(503, "it cannot be taken now", RETRY_AFTER_S)
        return Reply(204)

    def _put(self, claim: Claim, headers: Mapping[str, str], body: bytes) -> None:
        """In a thread: publish, and wait until it is as safe as the stream promises."""
        if claim.id not in self._unsafe:
            data, kind = _content(headers, body)
            topic = topic_for(self._topic, claim.type or kind)
            more: dict[str, Any] = {"webhook.message": claim.message, **trace_headers(headers)}
            if claim.id:
                more[ID_HEADER] = claim.id
            if claim.time is not None:
                more["webhook.timestamp"] = claim.time
            options: dict[str, Any] = {"headers": more, "timeout": PUBLISH_TIMEOUT_S}
            try:
                self._peer.publish(topic, data, **options)
            except PayloadError:  # JSON that no payload can be, such as numbers of 30 digits
                self._peer.publish(topic, body, **options)
            if claim.id:
                self._unsafe.add(claim.id)
                self._memory.add(claim.id)
        node_of(self._peer).publisher.durable.flush(PUBLISH_TIMEOUT_S)
        self._unsafe.discard(claim.id)
        self.counters["taken"] += 1  # and not before: each request counts in one way


COUNTERS = (
    "requests",
    "taken",
    "duplicates",
    "bad_signatures",
    "stale",
    "malformed",
    "too_large",
    "strange_requests",
    "requests_full",
    "unpublished",
)


def _content(headers: Mapping[str, str], body: bytes) -> tuple[Any, str]:
    """The data of the event, JSON decoded, and the type that it names."""
    if "json" not in headers.get("content-type", "json"):
        return body, ""
    try:
        data = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, ""
    kind = data.get("type") if isinstance(data, dict) else None
    return data, kind if isinstance(kind, str) else ""


def _tls(path: str | Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        problem = f"{path} is not a certificate with its key in one PEM file: {error}"
        raise ConfigError("certificate", problem) from None
    return context
