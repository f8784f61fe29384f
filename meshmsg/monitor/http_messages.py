"""As much of HTTP as a monitor needs: the head of a GET in, an answer out, one a connection.

An answer that is followed by more has no length, and ends with its connection.

Bytes only: no socket, no clock.  A head is refused for what it is (too long, no HTTP) before
anything looks at what it asks for; bodies are not read, as no path takes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

#: Prometheus sends less than 500.
HEAD_BYTES_MAX = 8_192
HEADERS_MAX = 64
_END = b"\r\n\r\n"


class Request(NamedTuple):
    """What was asked for; the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    follows: bool = False
    """Whether more is to come: the connection stays, and is sent what all such are sent."""


class BadRequest(Exception):
    """A head that is refused; `status` says how."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def read_head(data: bytes) -> Request | None:
    """The request that has come, `None` while more of it is to come; raises `BadRequest`."""
    end = data.find(_END, 0, HEAD_BYTES_MAX)
    if end < 0:
        if len(data) >= HEAD_BYTES_MAX:
            raise BadRequest(431, f"more than {HEAD_BYTES_MAX:,} bytes of headers")
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or words[1][:1] != "/":
        raise BadRequest(400, "this is not a request of HTTP/1.1")
    if len(lines) > HEADERS_MAX:
        raise BadRequest(431, f"more than {HEADERS_MAX} headers")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, "a header is not one")
        headers[name.lower()] = value.strip()
    return Request(words[0], words[1].partition("?")[0], headers)


def write_head(answer: Answer) -> bytes:
    """What goes before the body; the connection ends after that."""
    status = HTTPStatus(answer.status)
    headers = (
        ("Content-Type", answer.content_type),
        *(() if answer.follows else (("Content-Length", str(len(answer.body))),)),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *answer.headers,
    )
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in headers)]
    return "\r\n".join(lines).encode("latin-1") + _END
