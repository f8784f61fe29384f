"""`WebhookServer`: what it takes, what it refuses, and what it says when it is not open."""

from __future__ import annotations

import secrets
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import BindError, ClosedError, ConfigError, Peer, Security, Stream
from meshmsg.webhooks import WebhookServer
from meshmsg.webhooks.server import COUNTERS

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" * 2
CERTIFICATE = Path(__file__).parents[3] / "data" / "self_signed.pem"
PATIENCE_S = 30


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer("edge", streams=[Stream("hooks.**")]) as made:
        yield made


def server_of(peer: Peer, **options: Any) -> WebhookServer:
    return WebhookServer(peer, **({"bind": "127.0.0.1:0", "topic": "hooks.a"} | options))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"secrets": ()}, "secrets"),
        ({"scheme": "none"}, "secrets"),
        ({"secrets": "whsec_"}, "secrets"),
        ({"secrets": "whsec_%"}, "secrets"),
        ({"secrets": "foo"}, "secrets"),
        ({"secrets": [SECRET, "whsec_Zm9v"]}, "secrets"),
        ({"scheme": "other"}, "scheme"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "orders"}, "topic"),
        ({"path": "x"}, "path"),
        ({"tolerance": "1h"}, "tolerance"),
        ({"tolerance": 0}, "tolerance"),
        ({"bind": "x"}, "bind"),
        ({"remember": 0}, "remember"),
        ({"certificate": Path("none.pem")}, "certificate"),
    ],
)
def test_wrong_settings_are_refused(peer: Peer, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_of(peer, **({"secrets": SECRET} | options))
    assert caught.value.field == field


def test_settings_at_their_bounds_are_taken(peer: Peer) -> None:
    server_of(peer, secrets=[SECRET, SECRET], tolerance="5m", remember=1, path="/a")
    server_of(peer, scheme="github", secrets="any words", topic="hooks.{type}")


def test_posts_from_afar_are_encrypted_and_signed_where_the_peer_has_keys() -> None:
    security = Security(mesh_key=secrets.token_hex(32))
    with Peer("edge", streams=[Stream("hooks.**")], security=security) as peer:
        for options in ({"secrets": SECRET}, {"scheme": "none", "certificate": CERTIFICATE}):
            with pytest.raises(ConfigError) as caught:
                server_of(peer, bind="192.0.2.1:0", **options)
            assert caught.value.field == "security"
        server_of(peer, bind="192.0.2.1:0", secrets=SECRET, certificate=CERTIFICATE)


def test_before_it_is_opened_it_has_no_address_and_may_be_closed(peer: Peer) -> None:
    server = server_of(peer, scheme="none")
    for ask in (lambda: server.address, lambda: server.url):
        with pytest.raises(ClosedError, match="not open"):
            ask()
    assert not server.alive
    assert server.stats() == dict.fromkeys(COUNTERS, 0)
    server.close()


def test_it_is_opened_once(peer: Peer) -> None:
    with server_of(peer, scheme="none") as server:
        assert server.alive
        assert server.url == f"http://127.0.0.1:{server.address[1]}/"
        with pytest.raises(ClosedError, match="once"):
            server.__enter__()
    server.close()
    assert not server.alive
    with pytest.raises(ClosedError, match="once"):
        server.__enter__()


def test_a_place_that_is_taken_is_an_error_and_leaves_no_thread(peer: Peer) -> None:
    with server_of(peer, scheme="none") as first:
        second = server_of(peer, bind=f"127.0.0.1:{first.address[1]}", scheme="none")
        with pytest.raises(BindError):
            second.__enter__()
        assert not second.alive
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("meshmsg-webhook-in")]


def test_with_a_certificate_it_is_https(peer: Peer) -> None:
    with server_of(peer, scheme="none", certificate=CERTIFICATE, path="/in") as server:
        assert server.url == f"https://127.0.0.1:{server.address[1]}/in"


def test_a_post_is_in_the_stream_when_it_is_answered_and_once_by_its_id(peer: Peer) -> None:
    with server_of(peer, scheme="none") as server:
        for headers in ({"webhook-id": "m"}, {"webhook-id": "m"}, {}, {}):
            request = urllib.request.Request(server.url, b"{}", headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                assert response.status == 204
        assert peer.stats()["streams"]["hooks.**"]["published"] == 3
        found = server.stats()
    assert (found["requests"], found["taken"], found["duplicates"]) == (4, 3, 1)
