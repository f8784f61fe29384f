"""A real HTTP server on loopback that takes webhooks, or fails, stalls, resets as it is told.

In a test it runs in a thread; as a program (`python tests/support/hooks.py PORT FILE SECRET`) it
writes the id of each message that it took into a file, and can be killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook

Behaviour = Callable[["Post"], Any]


@dataclass
class Post:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    """How many came to this path before."""

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    def verify(self, secret: str) -> Any:
        """What the reference library makes of it; raises if the signature is wrong."""
        return Webhook(secret).verify(self.body, self.headers)


HANG, RESET = "hang", "reset"


class Receiver:
    """`behaviour(post)` gives a status, a pair of status and headers, HANG or RESET."""

    def __init__(self, behaviour: Behaviour = lambda post: 204, ssl_context: Any = None) -> None:
        self.posts: list[Post] = []
        self.taken: list[Post] = []
        self.behaviour = behaviour
        self._ssl = ssl_context
        self._count: dict[str, int] = defaultdict(int)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        scheme = "https" if self._ssl else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Receiver:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/{tail:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048, ssl_context=self._ssl)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        post = Post(request.path, headers, body, self._count[request.path])
        self._count[request.path] += 1
        self.posts.append(post)
        answer = self.behaviour(post)
        if answer == HANG:
            await asyncio.sleep(3600)
        if answer == RESET:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        status, more = answer if isinstance(answer, tuple) else (answer, {})
        if 200 <= status < 300:
            self.taken.append(post)
        return web.Response(status=status, headers=more)


def _main() -> None:
    port, path, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        Webhook(secret).verify(body, dict(request.headers))
        with open(path, "a", encoding="utf-8") as file:
            event = json.loads(body)
            file.write(f"{request.headers['webhook-id']} {event['data']}\n")
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/", handle)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    _main()
