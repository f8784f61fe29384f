"""Heads of requests, whole and in pieces, and what is none."""

from __future__ import annotations

import pytest

from meshmsg.monitor.http_messages import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    Answer,
    BadRequest,
    read_head,
    write_head,
)

GOOD = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a:1\r\nX-Y:  z \r\n\r\n"


def test_a_request_is_read_once_it_is_whole() -> None:
    for stop in range(len(GOOD)):
        assert read_head(GOOD[:stop]) is None
    request = read_head(GOOD + b"what follows is not read")
    assert request is not None
    assert (request.method, request.path) == ("GET", "/metrics")
    assert request.headers == {"host": "a:1", "x-y": "z"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES_MAX, 431),
        (b"z" * HEAD_BYTES_MAX, 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        read_head(data)
    assert caught.value.status == status


def test_an_answer_says_how_long_it_is_and_that_it_is_the_last() -> None:
    head = write_head(Answer(503, b"12345", headers=(("Retry-After", "1"),))).decode()
    assert head.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    for line in ("Content-Length: 5", "Connection: close", "Retry-After: 1"):
        assert f"{line}\r\n" in head
    assert head.endswith("\r\n\r\n")
