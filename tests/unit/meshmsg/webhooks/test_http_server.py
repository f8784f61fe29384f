"""The inlet alone, with a `take` of the test's own, and real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from meshmsg import BindError
from meshmsg.webhooks import http_server
from meshmsg.webhooks.http_server import Reply, Take, WebhookInlet
from tests.support.waiting import wait_until

BODY_BYTES_MAX = 1_000
PATIENCE_S = 30


async def agree(headers: Mapping[str, str], body: bytes) -> Reply:
    return Reply(204)


def inlet_at(port: int, take: Take = agree) -> WebhookInlet:
    return WebhookInlet("127.0.0.1", port, "/hook", take, Counter(), body_bytes_max=BODY_BYTES_MAX)


@contextmanager
def listening(take: Take = agree, port: int = 0) -> Iterator[WebhookInlet]:
    inlet = inlet_at(port, take)
    inlet.start()
    try:
        yield inlet
    finally:
        inlet.close()


def ask(
    inlet: WebhookInlet, body: bytes = b"{}", path: str = "/hook", method: str = "POST"
) -> tuple[int, str, str | None]:
    """Status, text and `Retry-After`."""
    connection = http.client.HTTPConnection(*inlet.address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"X-Name": "Value"})
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers["Retry-After"]
    finally:
        connection.close()


def test_what_is_taken_is_handed_on_and_the_reply_is_written() -> None:
    taken = []

    async def take(headers: Mapping[str, str], body: bytes) -> Reply:
        taken.append((headers["x-name"], body))
        return Reply(503, "later", 5) if body == b"2" else Reply(204)

    with listening(take) as inlet:
        assert ask(inlet, b"1") == (204, "", None)
        assert ask(inlet, b"2") == (503, "later\n", "5")
        assert inlet.counters == {"requests": 2}
    assert taken == [("Value", b"1"), ("Value", b"2")]


def test_other_paths_and_methods_are_strange() -> None:
    with listening() as inlet:
        assert ask(inlet, path="/")[0] == 404
        assert ask(inlet, path="/hook/")[0] == 404
        assert ask(inlet, method="PUT")[0] == 405
        assert ask(inlet, path="/hook?a=b")[0] == 204
        assert inlet.counters == {"requests": 4, "strange_requests": 3}


def test_a_body_may_be_as_large_as_was_said_and_no_larger() -> None:
    with listening() as inlet:
        assert ask(inlet, b"x" * BODY_BYTES_MAX)[0] == 204
        assert ask(inlet, b"x" * (BODY_BYTES_MAX + 1))[:2] == (413, "more than 1,000 bytes\n")
        assert inlet.counters == {"requests": 2, "too_large": 1}


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as inlet:
        monkeypatch.setattr(http_server, "READ_TIMEOUT_S", 0.05)  # of bodies: it has started
        with socket.create_connection(inlet.address, timeout=PATIENCE_S) as sock:
            sock.sendall(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert inlet.counters == {"requests": 1, "malformed": 1}


def test_what_is_no_http_and_who_hangs_up_are_counted_once_each() -> None:
    with listening() as inlet:
        with socket.create_connection(inlet.address, timeout=PATIENCE_S) as sock:
            sock.sendall(b"\x00\x01\x02\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.0 400 ")
        with socket.create_connection(inlet.address, timeout=PATIENCE_S) as sock:
            sock.sendall(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            wait_until(lambda: inlet.counters["requests"] == 2, PATIENCE_S, "the second is read")
        wait_until(lambda: inlet.counters["malformed"] == 2, PATIENCE_S, "both are counted")
        assert ask(inlet)[0] == 204
        assert inlet.counters == {"requests": 3, "malformed": 2}


def test_more_requests_at_once_than_there_is_room_for_are_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "REQUESTS_MAX", 1)
    begun, go_on = threading.Event(), threading.Event()

    async def take(headers: Mapping[str, str], body: bytes) -> Reply:
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return Reply(204)

    with listening(take) as inlet, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, inlet)
        try:
            assert begun.wait(PATIENCE_S)
            assert ask(inlet) == (503, "too many requests at once\n", "1")
        finally:
            go_on.set()
        assert first.result()[0] == 204
        assert ask(inlet)[0] == 204
        assert inlet.counters == {"requests": 3, "requests_full": 1}


def test_an_address_that_is_taken_is_an_error_and_leaves_no_thread() -> None:
    with listening() as inlet:
        port = inlet.address[1]
        second = inlet_at(port)
        with pytest.raises(BindError) as caught:
            second.start()
        assert caught.value.address == f"127.0.0.1:{port}"
        second.close()
        assert (second.alive, inlet.alive) == (False, True)
    with listening(port=port) as again:
        assert again.address == ("127.0.0.1", port)


def test_it_may_be_closed_before_it_starts_and_twice() -> None:
    inlet = inlet_at(0)
    inlet.close()
    assert not inlet.alive
    inlet.start()
    assert inlet.alive
    inlet.close()
    inlet.close()
    assert not inlet.alive
