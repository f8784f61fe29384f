"""An HTTP server for posted webhooks: reads a request, hands it on, writes the answer.

It runs an event loop in a thread of its own.  What is taken is for others to say.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from meshmsg._model.errors import BindError

log = logging.getLogger("meshmsg.transports")

#: Requests that are read or answered at once; more are told to come back.
REQUESTS_MAX = 1_000
#: Connections at once, fewer where the system grants fewer files; more are closed.
CONNECTIONS_MAX = 4_000
#: For the head of a request, for its body, and between two requests of a connection: a caller
#: that sends a byte now and then, to hold what others need, is ended.
READ_TIMEOUT_S = 30.0
START_S = 30.0
BACKLOG = 1_024
HEADER_BYTES_MAX = 16_384


class Reply(NamedTuple):
    """What is answered; `retry_after_s` is for a failure that will pass."""

    status: int
    text: str = ""
    retry_after_s: int | None = None


#: Called in the server's event loop with headers (names in lower case) and body.
Take = Callable[[Mapping[str, str], bytes], Awaitable[Reply]]


class WebhookInlet:
    """Listens at one address and path."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        take: Take,
        counters: Counter[str],
        *,
        body_bytes_max: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._place = (host, port)
        self._path = path
        self._take = take
        self.counters = counters
        self._body_bytes_max = body_bytes_max
        self._tls = tls
        self._busy = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="meshmsg-webhook-in", daemon=True)
        self.address = ("", 0)

    def start(self) -> None:
        """Listen; raises `BindError`."""
        self._thread.start()
        self._ready.wait(START_S)
        if self._error is not None:
            host, port = self._place
            problem = self._error.strerror or str(self._error)
            raise BindError(f"{host}:{port}", problem)

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Answer what is being read, then end.  Safe to call again."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # it has ended already
                pass
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = _Server(
            self.counters,
            self._handle,
            request_factory=self._request,
            access_log=None,
            logger=_Complaints(self.counters),
            auto_decompress=False,
            max_field_size=HEADER_BYTES_MAX,
            keepalive_timeout=READ_TIMEOUT_S,
        )
        runner = web.ServerRunner(server, shutdown_timeout=5.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, *self._place, ssl_context=self._tls, backlog=BACKLOG)
            await site.start()
            self.address = _address(runner)
            self._ready.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        loop, most = asyncio.get_running_loop(), self._body_bytes_max
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=most)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.counters["requests"] += 1
        if self._busy >= REQUESTS_MAX:
            self.counters["requests_full"] += 1
            return _response(Reply(503, "too many requests at once", 1))
        self._busy += 1
        try:
            return _response(await self._answer(request))
        finally:
            self._busy -= 1

    async def _answer(self, request: web.BaseRequest) -> Reply:
        if request.path != self._path:
            self.counters["strange_requests"] += 1
            return Reply(404, "nothing is here")
        if request.method != "POST":
            self.counters["strange_requests"] += 1
            return Reply(405, "post it")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            self.counters["too_large"] += 1
            return Reply(413, f"more than {self._body_bytes_max:,} bytes")
        except TimeoutError:
            self.counters["malformed"] += 1
            return Reply(408, "the body did not come")
        except (web.RequestPayloadError, OSError, ValueError) as error:  # or the caller hung up
            self.counters["malformed"] += 1
            return Reply(400, f"the body cannot be read: {error}")
        except BaseException:  # the server ends in the middle
            self.counters["malformed"] += 1
            raise
        headers = {name.lower(): value for name, value in request.headers.items()}
        return await self._take(headers, body)


class _Server(web.Server):
    """Refuses connections beyond a bound, so that there is a file left for everything else."""

    def __init__(self, counters: Counter[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counters = counters
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = CONNECTIONS_MAX if files < 0 else max(10, min(CONNECTIONS_MAX, files - 200))

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self._most:
            self._counters["requests"] += 1
            self._counters["requests_full"] += 1
            transport.abort()


class _Complaints:
    """What aiohttp logs: of requests that are no HTTP it tells nobody else."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own name
        return True

    def _say(self, message: str, *values: Any, **more: Any) -> None:
        if message.startswith("Error handling request"):
            self._counters["requests"] += 1
            self._counters["malformed"] += 1
        log.debug(message, *values, **more)

    debug = info = warning = error = exception = _say


def _response(reply: Reply) -> web.Response:
    headers = {} if reply.retry_after_s is None else {"Retry-After": str(reply.retry_after_s)}
    if reply.status == 204:
        return web.Response(status=204)
    return web.Response(status=reply.status, text=reply.text + "\n", headers=headers)


def _address(runner: web.ServerRunner) -> tuple[str, int]:
    found = runner.addresses[0]
    if isinstance(found, str):  # pragma: no cover - a socket with a path
        return found, 0
    return str(found[0]), int(found[1])
