"""Posts webhooks over HTTP: connects, sends, reads the answer.  Decides nothing.

Addresses are checked where the socket is made, on what the name has led to; redirects are not
followed, certificates are checked, no proxy is taken from the environment.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from meshmsg.webhooks.retry import Answer
from meshmsg.webhooks.urls import Allowed, check_url, refusal

#: Of an answer's body, for the delivery's record; more is not read.
BODY_BYTES_MAX = 512
KEEP_ALIVE_S = 15.0
_NO_MORE_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Refused(OSError):
    """An address that may not be connected to."""


class WebhookClient:
    """An HTTP client for many endpoints; use it inside one event loop, `close` it at the end."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        # Connections are kept for later requests, so each policy has its own: one that was
        # allowed for one endpoint is never lent to another.
        self._sessions: dict[Allowed | None, aiohttp.ClientSession] = {}

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        allowed: Allowed,
        timeout_s: float,
    ) -> Answer:
        """The answer, or what went wrong in words; never raises."""
        try:
            target = check_url(url, allowed)
            session = self._session(None if allowed.has_host(target.host or "") else allowed)
            async with session.post(
                target,
                data=body,
                headers=dict(headers),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                return await _answer(response)
        except TimeoutError:
            return Answer(error=f"no answer within {timeout_s:g} s")
        except aiohttp.ClientConnectorCertificateError as error:
            return Answer(error=f"certificate: {error.certificate_error}"[:300])
        except (aiohttp.ClientError, OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            return Answer(error=_words(error), local=number in _NO_MORE_SOCKETS)

    def _session(self, allowed: Allowed | None) -> aiohttp.ClientSession:
        session = self._sessions.get(allowed)
        if session is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections_max,
                keepalive_timeout=KEEP_ALIVE_S,
                socket_factory=None if allowed is None else _guard(allowed),
                ttl_dns_cache=10,
            )
            session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            self._sessions[allowed] = session
        return session

    async def close(self) -> None:
        """Close all connections."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()
        await asyncio.sleep(0)


def _guard(allowed: Allowed) -> Any:
    def make(info: Any) -> socket.socket:
        family, kind, proto, _, address = info
        if not allowed.has_address(str(address[0])):
            raise Refused(errno.EACCES, refusal(str(address[0]), str(address[0])))
        return socket.socket(family=family, type=kind, proto=proto)

    return make


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    good = 200 <= response.status < 300
    words = ""
    try:
        body = await response.content.read(BODY_BYTES_MAX)
        if not good:
            words = body.decode(errors="replace").strip()
        if not response.content.at_eof():
            response.close()  # the rest is not for us, and not worth waiting for
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # the status is the answer
    reason = f"status {response.status}" + (f": {words}" if words else "")
    retry_after = response.headers.get("Retry-After")
    return Answer(response.status, retry_after, "" if good else reason)


def _words(error: BaseException) -> str:
    """What went wrong, with what lies behind where that says more."""
    inner = getattr(error, "os_error", None) or error
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return " ".join(str(text).split())[:300]
