"""Posts to real servers on loopback: what came back, or what went wrong, in words."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from meshmsg.webhooks.http_client import BODY_BYTES_MAX, WebhookClient
from meshmsg.webhooks.http_server import Reply, WebhookInlet
from meshmsg.webhooks.retry import Answer
from meshmsg.webhooks.urls import Allowed
from tests.support.hooks import HANG, RESET, Receiver
from tests.support.ports import free_port

LOCAL = Allowed.parse(["127.0.0.1"])
PATIENCE_S = 30.0


async def posted(
    client: WebhookClient, url: str, allowed: Allowed = LOCAL, timeout_s: float = PATIENCE_S
) -> Answer:
    headers = {"webhook-id": "msg_1"}
    return await client.post(url, b"{}", headers, allowed=allowed, timeout_s=timeout_s)


def post(url: str, **options: Any) -> Answer:
    async def run() -> Answer:
        client = WebhookClient(10)
        try:
            return await posted(client, url, **options)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (204, Answer(204)),
        (299, Answer(299)),
        (500, Answer(500, error="status 500")),
        ((503, {"Retry-After": "7"}), Answer(503, "7", "status 503")),
        ((302, {"Location": "/other"}), Answer(302, error="status 302")),
    ],
)
def test_a_status_is_the_answer_and_redirects_are_not_followed(said: Any, answer: Answer) -> None:
    with Receiver(lambda post: said) as receiver:
        assert post(f"{receiver.url}/hook") == answer
        (sent,) = receiver.posts
    assert (sent.path, sent.id, sent.body) == ("/hook", "msg_1", b"{}")


def test_no_answer_in_time_and_a_broken_connection_are_errors_of_the_endpoint() -> None:
    with Receiver(lambda post: HANG) as receiver:
        assert post(receiver.url, timeout_s=0.1) == Answer(error="no answer within 0.1 s")
    with Receiver(lambda post: RESET) as receiver:
        reset = post(receiver.url)
    refused = post(f"http://127.0.0.1:{free_port()}/")
    for answer in (reset, refused):
        assert answer.status is None
        assert answer.error
        assert not answer.local


def test_of_a_long_answer_only_the_beginning_is_kept() -> None:
    async def take(headers: Mapping[str, str], body: bytes) -> Reply:
        return Reply(500, "x" * 100_000)

    inlet = WebhookInlet("127.0.0.1", 0, "/", take, Counter(), body_bytes_max=10)
    inlet.start()
    try:
        answer = post(f"http://127.0.0.1:{inlet.address[1]}/")
    finally:
        inlet.close()
    assert answer == Answer(500, error="status 500: " + "x" * BODY_BYTES_MAX)


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"]])
def test_a_name_that_leads_to_a_private_address_is_not_connected_to(
    networks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_home(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://rebind.example:{listener.getsockname()[1]}/"
        answer = post(url, allowed=Allowed.parse(networks))
        assert "127.0.0.1 is not a public address" in answer.error
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has knocked
            listener.accept()


def test_a_name_that_is_allowed_may_lead_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lead_home(monkeypatch)
    with Receiver() as receiver:
        url = f"http://ok.example:{receiver.port}/"
        assert post(url, allowed=Allowed.parse(["ok.example"])) == Answer(204)


def lead_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """All names lead to this machine."""
    real = socket.getaddrinfo

    def home(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", home)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "ftp://127.0.0.1/", "http://[", ""])
def test_what_may_not_be_posted_to_is_an_answer_and_raises_nothing(url: str) -> None:
    assert post(url).error.startswith("url:")


def test_no_more_sockets_says_nothing_about_the_endpoint() -> None:
    async def run() -> Answer:
        client = WebhookClient(10)
        try:
            assert await posted(client, first.url) == Answer(204)
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
            try:
                return await posted(client, second.url)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        finally:
            await client.close()

    with Receiver() as first, Receiver() as second:
        answer = asyncio.run(run())
        assert second.posts == []
    assert (answer.status, answer.local) == (None, True)
    assert "Too many open files" in answer.error
