"""Who may connect is asked for each key that somebody shows; all else is refused at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.zap import ADDRESS, VERSION, ZapRequest, ZapServer

KEY = b"k" * 32


@pytest.fixture
def ends() -> Iterator[tuple[ZapServer, zmq.Socket[bytes]]]:
    context = Context()
    server = ZapServer(context)
    asker = context.zmq.socket(zmq.DEALER)
    asker.setsockopt(zmq.LINGER, 0)
    asker.connect(ADDRESS)
    yield server, asker
    asker.close()
    server.close()
    context.zmq.destroy(linger=0)


def ask(asker: zmq.Socket[bytes], mechanism: bytes = b"CURVE", *shown: bytes) -> None:
    asker.send_multipart([b"", VERSION, b"7", b"data", b"10.0.0.1", b"id", mechanism, *shown])


def next_of(server: ZapServer) -> ZapRequest | None:
    server.pollable.poll(30_000)
    return server.recv()


@pytest.mark.parametrize(
    ("verb", "code", "user"),
    [("accept", b"200", b"somebody"), ("refuse", b"400", b""), ("put_off", b"300", b"")],
)
def test_a_key_is_judged(
    ends: tuple[ZapServer, zmq.Socket[bytes]], verb: str, code: bytes, user: bytes
) -> None:
    server, asker = ends
    ask(asker, b"CURVE", KEY)
    request = next_of(server)
    assert request is not None
    assert (request.domain, request.host, request.key) == (b"data", "10.0.0.1", KEY)
    getattr(server, verb)(request, *([user] if user else []))
    assert asker.poll(30_000)
    _, version, number, got, _, who, _ = asker.recv_multipart()
    assert (version, number, got, who) == (VERSION, b"7", code, user)
    assert server.recv() is None


@pytest.mark.parametrize(
    ("mechanism", "shown"),
    [(b"NULL", ()), (b"PLAIN", (b"user", b"password")), (b"CURVE", ()), (b"CURVE", (b"short",))],
)
def test_what_shows_no_key_is_refused_without_being_asked_about(
    ends: tuple[ZapServer, zmq.Socket[bytes]], mechanism: bytes, shown: tuple[bytes, ...]
) -> None:
    server, asker = ends
    ask(asker, mechanism, *shown)
    assert next_of(server) is None
    assert asker.poll(30_000)
    assert asker.recv_multipart()[3] == b"400"


def test_too_few_parts_are_passed_over(ends: tuple[ZapServer, zmq.Socket[bytes]]) -> None:
    server, asker = ends
    asker.send_multipart([b"", VERSION])
    ask(asker, b"CURVE", KEY)
    request = next_of(server)
    assert request is not None
    assert request.key == KEY
