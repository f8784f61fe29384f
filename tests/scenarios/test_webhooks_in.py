"""Webhooks in: posts signed by the reference library, a real HTTP client, kills and fuzz."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook

from meshmsg import LogFull, Peer, Stream, Subscription
from meshmsg.webhooks import Webhooks, WebhookServer
from meshmsg.webhooks import http_server as webhook_in
from tests.support import processes
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" * 2
OTHER = "whsec_" + "C2FVsBQIhrscChlQIMV+b5sSYspob7oD" * 2
PATIENCE_S = 30


def signed(
    ident: str, body: bytes, *, secret: str = SECRET, at: float | None = None
) -> dict[str, str]:
    moment = datetime.fromtimestamp(int(time.time() if at is None else at), UTC)
    return {
        "content-type": "application/json",
        "webhook-id": ident,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Webhook(secret).sign(ident, moment, body.decode()),
    }


def post(url: str, body: bytes, headers: dict[str, str], method: str = "POST") -> int:
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[tuple[WebhookServer, Peer, Subscription]]:
    options = {"topic": "hooks.shop", "secrets": SECRET} | options
    with (
        Peer(
            "edge", streams=[Stream("hooks.**", durability="log")], data_dir=folder / "edge"
        ) as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("hooks.**", start="earliest") as events,
        WebhookServer(peer, "127.0.0.1:0", **options) as server,
    ):
        yield server, peer, events


def reconciles(server: WebhookServer) -> bool:
    """Every request is accounted for: the ledger of the edge."""
    found = server.stats()
    return found["requests"] == sum(found.values()) - found["requests"]


def test_a_post_is_an_event_when_it_is_answered(tmp_path: Path) -> None:
    body = b'{"type": "user.created", "data": {"id": 7}}'
    with serving(tmp_path, topic="hooks.{type}") as (server, peer, events):
        assert post(server.url, body, signed("msg_1", body)) == 204
        log = peer.stats()["streams"]["hooks.**"]
        assert log["published"] == 1
        event = events.get(timeout=PATIENCE_S)
        assert event is not None
        assert event.topic == "hooks.user.created"
        assert event.data == json.loads(body)
        assert event.headers["webhook.id"] == event.headers["webhook.message"] == "msg_1"
        assert reconciles(server)


def test_repeated_ids_are_taken_once_also_after_a_restart(tmp_path: Path) -> None:
    body = b"{}"
    for _ in range(2):
        with serving(tmp_path) as (server, _, events):
            for _ in range(3):
                assert post(server.url, body, signed("msg_1", body)) == 204
            assert events.get(timeout=PATIENCE_S) is not None
            assert events.get(timeout=0.2) is None
            assert server.stats()["duplicates"] >= 2
            assert reconciles(server)


def test_the_same_post_twice_at_the_same_time_is_one_event(tmp_path: Path) -> None:
    body = b"{}"
    with serving(tmp_path) as (server, _, _events):

        async def race() -> list[int]:
            async with aiohttp.ClientSession() as session:

                async def one() -> int:
                    headers = signed("msg_1", body)
                    async with session.post(server.url, data=body, headers=headers) as response:
                        return response.status

                return await asyncio.gather(*(one() for _ in range(20)))

        assert asyncio.run(race()) == [204] * 20
        assert (server.stats()["taken"], server.stats()["duplicates"]) == (1, 19)


def test_what_is_refused_and_why(tmp_path: Path) -> None:
    body = b"{}"
    with serving(tmp_path, body_bytes_max=1000, tolerance="60s") as (server, peer, _):
        url, now = server.url, time.time()
        good = signed("m", body)
        cases: list[tuple[bytes, dict[str, str], int, str]] = [
            (b"{ }", good, 401, "bad_signatures"),
            (body, signed("m", body, secret=OTHER), 401, "bad_signatures"),
            (body, good | {"webhook-id": "other"}, 401, "bad_signatures"),
            (body, good | {"webhook-signature": "junk"}, 401, "bad_signatures"),
            (body, good | {"webhook-signature": "v1,"}, 401, "bad_signatures"),
            (body, good | {"webhook-signature": "v1,%%%"}, 401, "bad_signatures"),
            (body, signed("m", body, at=now - 120), 401, "stale"),
            (body, signed("m", body, at=now + 120), 401, "stale"),
            (body, signed("m", body, at=now - 3600), 401, "stale"),
            (body, {}, 400, "malformed"),
            (body, good | {"webhook-timestamp": "soon"}, 400, "malformed"),
            (body, good | {"webhook-timestamp": "9" * 30}, 400, "malformed"),
            (body, signed("x" * 300, body), 400, "malformed"),
            (b" " * 2000, signed("m", b" " * 2000), 413, "too_large"),
            (b"\xff\xfe", good, 401, "bad_signatures"),
        ]
        for sent, headers, status, counter in cases:
            before = server.stats()[counter]
            assert post(url, sent, headers) == status, headers
            assert server.stats()[counter] == before + 1, headers
        assert post(url + "elsewhere", body, good) == 404
        assert post(url, body, good, method="PUT") == 405
        assert peer.stats()["streams"]["hooks.**"]["published"] == 0
        assert reconciles(server)


def test_two_secrets_while_one_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, secrets=[SECRET, OTHER]) as (server, _, _events):
        assert post(server.url, b"{}", signed("a", b"{}", secret=SECRET)) == 204
        assert post(server.url, b"{}", signed("b", b"{}", secret=OTHER)) == 204


def test_github_signs_in_its_own_way_and_a_replay_is_known_by_what_is_signed(
    tmp_path: Path,
) -> None:
    body = b'{"action": "opened"}'
    digest = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "x-hub-signature-256": f"sha256={digest}",
        "x-github-delivery": "72d3162e",
        "x-github-event": "pull_request",
    }
    options: dict[str, Any] = {"scheme": "github", "secrets": "s3cret", "topic": "hooks.{type}"}
    with serving(tmp_path, **options) as (server, _, events):
        assert post(server.url, body, headers) == 204
        assert post(server.url, body, headers | {"x-github-delivery": "another"}) == 204
        assert post(server.url, b"{}", headers) == 401
        assert post(server.url, body, {}) == 401
        event = events.get(timeout=PATIENCE_S)
        assert event is not None
        assert (event.topic, event.headers["webhook.message"]) == ("hooks.pull_request", "72d3162e")
        assert (server.stats()["taken"], server.stats()["duplicates"]) == (1, 1)


def test_a_post_that_cannot_be_published_is_not_answered_with_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (server, peer, events):
        publish = peer.publish

        def full(*_: Any, **__: Any) -> Any:
            raise LogFull("data", "no space")

        monkeypatch.setattr(peer, "publish", full)
        assert post(server.url, b"{}", signed("m", b"{}")) == 503
        monkeypatch.setattr(peer, "publish", publish)

        # In the log, but the disk did not say so in time: the retry does not make it two.
        durable = peer._open_node().publisher.durable
        flush = durable.flush

        def failing(*_: Any) -> None:
            raise LogFull("data", "no sync")

        monkeypatch.setattr(durable, "flush", failing)
        assert post(server.url, b"{}", signed("m", b"{}")) == 503
        assert post(server.url, b"{}", signed("m", b"{}")) == 503
        monkeypatch.setattr(durable, "flush", flush)
        assert post(server.url, b"{}", signed("m", b"{}")) == 204
        assert events.get(timeout=PATIENCE_S) is not None
        assert events.get(timeout=0.2) is None
        assert (server.stats()["taken"], server.stats()["unpublished"]) == (1, 3)
        assert reconciles(server)


def test_fuzzed_requests_are_counted_and_never_end_the_server(tmp_path: Path) -> None:
    rng = random.Random(17)
    whole = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nwebhook-id: a\r\n\r\n{}"
    with serving(tmp_path) as (server, _, _events):
        for n in range(150):
            data = bytearray(whole) if n % 3 else bytearray(rng.randbytes(200))
            for _ in range(rng.randrange(6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with socket.create_connection(server.address, timeout=PATIENCE_S) as sock:
                sock.sendall(data[: rng.randrange(len(data)) + 1])
                if n % 2:
                    sock.shutdown(socket.SHUT_WR)
                    try:
                        sock.recv(65536)
                    except OSError:
                        pass
        assert post(server.url, b"{}", signed("m", b"{}")) == 204
        assert server.stats()["malformed"] > 20
        assert server.stats()["taken"] == 1


def test_callers_that_send_a_byte_now_and_then_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_in, "READ_TIMEOUT_S", 0.5)
    beginnings = [
        b"",
        b"POST / HTTP/1.1\r\nHost: x\r\nwebhook-",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    ]
    with serving(tmp_path) as (server, _, _events):
        for beginning in beginnings:
            with socket.create_connection(server.address, timeout=PATIENCE_S) as sock:
                try:
                    sock.sendall(beginning)
                    end = sock.recv(65536)  # raises if it is not ended
                except ConnectionError:  # this side was slower than half a second
                    end = b""
            assert end[:12] == b"" or (b"Length" in beginning and end[:12] == b"HTTP/1.1 408")
        assert reconciles(server)


def test_more_connections_than_there_is_room_for_are_closed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_in, "CONNECTIONS_MAX", 10)
    with serving(tmp_path) as (server, _, _events):
        sockets = [socket.create_connection(server.address, timeout=PATIENCE_S) for _ in range(14)]
        wait_until(lambda: server.stats()["requests_full"] == 4, PATIENCE_S, "four too many")
        for sock in sockets:
            sock.close()
        wait_until(
            lambda: _taken(server, b"{}", signed("m", b"{}")), PATIENCE_S, "there is room again"
        )
        assert reconciles(server)


def _taken(server: WebhookServer, body: bytes, headers: dict[str, str]) -> bool:
    try:
        return post(server.url, body, headers) == 204
    except OSError:
        return False


def test_json_that_no_payload_can_be_is_taken_as_it_is(tmp_path: Path) -> None:
    body = b'{"type": "big", "n": 123456789012345678901234567890}'
    with serving(tmp_path, topic="hooks.{type}") as (server, _, events):
        assert post(server.url, body, signed("m", body)) == 204
        event = events.get(timeout=PATIENCE_S)
        assert event is not None
        assert (event.topic, event.data) == ("hooks.big", body)
        assert reconciles(server)


@pytest.mark.timeout(600)
def test_killed_between_taking_and_answering_it_is_taken_once(tmp_path: Path) -> None:
    """Posts are repeated until they are answered, and the server is killed in the middle."""
    port = free_port()
    bind = ("--bind", f"127.0.0.1:{port}", "--data-dir", str(tmp_path), "--quiet")
    key = tmp_path / "shop.key"
    key.write_text(SECRET)
    key.chmod(0o600)
    command = ("webhook", "serve", "--topic", "hooks.shop", "--secret-file", str(key), *bind)

    def start() -> subprocess.Popen[bytes]:
        return processes.start([sys.executable, "-m", "meshmsg", "--log", "off", *command])

    done: list[int] = []
    over = threading.Event()

    def send(first: int) -> None:
        for n in range(first, 20, 2):
            body = json.dumps({"n": n}).encode()
            while not over.is_set():
                try:
                    if post(f"http://127.0.0.1:{port}/", body, signed(f"msg_{n}", body)) == 204:
                        break
                except OSError:
                    time.sleep(0.2)
            done.append(n)

    server = start()
    senders = [threading.Thread(target=send, args=(first,), daemon=True) for first in range(2)]
    for sender in senders:
        sender.start()
    try:
        wait_until(lambda: len(done) >= 8, 200, "some posts")
        server.kill()  # with two of them on the way, or nearly
        server.wait()
        server = start()
        for sender in senders:
            sender.join(200)
        assert len(done) == 20
    finally:
        over.set()
        server.kill()
        server.wait()
    with (
        Peer(
            "webhook-in", streams=[Stream("hooks.shop", durability="log")], data_dir=tmp_path
        ) as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("hooks.**", start="earliest") as events,
    ):
        found = [events.get(timeout=PATIENCE_S) for _ in range(20)]
        assert sorted(event.data["n"] for event in found if event) == list(range(20))
        assert events.get(timeout=0.3) is None, "none of them twice"


def test_from_mesh_to_mesh_over_http(tmp_path: Path) -> None:
    """The two edges together: what one posts the other takes, each event once."""
    with serving(tmp_path) as (server, _, events):
        orders = Stream("orders.**", durability="log")
        with (
            Peer("shop", streams=[orders], data_dir=tmp_path / "shop") as shop,
            Peer("out", connect=shop.address, data_dir=tmp_path / "out") as out,
            Webhooks(out) as hooks,
        ):
            options: dict[str, Any] = {"secret": SECRET, "order": "all", "allow": "127.0.0.1"}
            hooks.add(server.url, "orders.**", **options)
            shop.publish_many("orders.eu", range(50))
            found = [events.get(timeout=PATIENCE_S) for _ in range(50)]
            assert [event.data["data"] for event in found if event] == list(range(50))
            hooks.flush(timeout=PATIENCE_S)
            assert hooks.ledger().reconciles
            assert hooks.ledger().rows[0].delivered == server.stats()["taken"] == 50
        assert reconciles(server)
