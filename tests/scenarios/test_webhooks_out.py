"""Webhooks out: real HTTP servers that take, fail, stall, reset; the reference library verifies."""

from __future__ import annotations

import random
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from meshmsg import ConfigError, LogFull, Peer, Stream, WaitTimeout, webhooks
from meshmsg.webhooks import WebhookRegistry, Webhooks
from meshmsg.webhooks import dead_letters as _webhook_undertaker
from meshmsg.webhooks import retry as webhook_retry
from meshmsg.webhooks import runner as _webhook_runner
from tests.support.hooks import HANG, RESET, Receiver
from tests.support.waiting import wait_until

LOCAL = "127.0.0.1"
FAST = (0, 0.05, 0.05, 0.05)
PATIENCE_S = 30


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hanging requests get no grace at the end of a test, and upkeep comes often."""
    monkeypatch.setattr(_webhook_runner, "DRAIN_S", 0.1)
    monkeypatch.setattr(_webhook_runner, "UPKEEP_EVERY_S", 0.2)


@contextmanager
def mesh(folder: Path, **options: Any) -> Iterator[tuple[Peer, Peer, Webhooks]]:
    """A shop that publishes orders, and a peer that delivers them."""
    with (
        Peer(
            "shop", streams=[Stream("orders.**", durability="log")], data_dir=folder / "shop"
        ) as shop,
        Peer(
            "hooks",
            connect=shop.address,
            data_dir=folder / "hooks",
            streams=[Stream("dead.webhook.**", durability="log")],
        ) as peer,
        Webhooks(peer, **options) as hooks,
    ):
        yield shop, peer, hooks


def test_posts_are_signed_and_the_reference_library_verifies_them(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, _, hooks), Receiver() as receiver:
        endpoint = hooks.add(f"{receiver.url}/a", "orders.eu", allow=LOCAL)
        positions = [
            shop.publish("orders.eu", {"id": 1, "blob": "x"}, key="ACME", headers={"h": 1}),
            shop.publish("orders.us", "not wanted"),
            shop.publish("orders.eu", b"plain text"),
            shop.publish("orders.eu", b"\xff\x00"),
        ]
        wait_until(lambda: len(receiver.taken) == 3, PATIENCE_S, "three posts")
        hooks.flush(timeout=PATIENCE_S)
        secret = endpoint.secrets[0].text
        bodies = {post.data["position"]: post.verify(secret) for post in receiver.taken}
        with pytest.raises(WebhookVerificationError):
            receiver.taken[0].verify("whsec_" + "A" * 44)
        first = bodies[str(positions[0])]
        assert (first["type"], first["data"]) == ("orders.eu", {"id": 1, "blob": "x"})
        assert (first["key"], first["headers"]) == ("ACME", {"h": 1})
        assert bodies[str(positions[2])]["data"] == "plain text"
        assert bodies[str(positions[3])]["data_b64"] == "/wA="
        assert len({post.id for post in receiver.taken}) == 3
        (row,) = hooks.ledger().rows
        assert (row.published, row.delivered, row.filtered, row.in_flight) == (4, 3, 1, 0)
        assert row.reconciles


def test_failing_stalling_and_resetting_servers_are_tried_again(tmp_path: Path) -> None:
    answers: list[Any] = [500, HANG, RESET, 204]
    with (
        mesh(tmp_path) as (shop, _, hooks),
        Receiver(lambda post: answers[min(post.number, 3)]) as receiver,
    ):
        endpoint = hooks.add(receiver.url, "orders.**", allow=LOCAL, timeout=0.5, schedule=FAST)
        shop.publish("orders.eu", 7)
        wait_until(lambda: receiver.taken, PATIENCE_S, "a post")
        hooks.flush(timeout=PATIENCE_S)
        assert len(receiver.posts) == 4
        assert len({post.id for post in receiver.posts}) == 1, "the id stays"
        for post in receiver.posts:
            post.verify(endpoint.secrets[0].text)
        (delivery,) = hooks.deliveries()
        assert (delivery.state, delivery.attempts, delivery.status) == ("delivered", 4, 204)
        assert hooks.stats()["failed_requests"] == 3
        assert hooks.ledger().reconciles


def test_gone_disables_the_endpoint_and_what_waits_goes_to_the_dead_letters(
    tmp_path: Path,
) -> None:
    with (
        mesh(tmp_path) as (shop, peer, hooks),
        Receiver(lambda post: 410 if post.path == "/gone" else 204) as receiver,
        Peer("office", connect=peer.address) as office,
        office.subscribe("dead.webhook.**", start="earliest") as dead,
    ):
        options: dict[str, Any] = {"allow": LOCAL, "order": "all"}
        hooks.add(f"{receiver.url}/gone", "orders.**", name="leaver", **options)
        hooks.add(f"{receiver.url}/fine", "orders.**", name="stayer", **options)
        shop.publish_many("orders.eu", range(20), headers={"h": 1})
        letters = [dead.get(timeout=PATIENCE_S) for _ in range(20)]
        assert sorted(letter.data for letter in letters if letter) == list(range(20))
        first = letters[0]
        assert first is not None
        assert first.topic == "dead.webhook.leaver"
        assert (first.headers["h"], first.headers["dead.topic"]) == (1, "orders.eu")
        assert (first.headers["dead.reason"], first.headers["dead.endpoint"]) == ("gone", "leaver")
        hooks.flush(timeout=PATIENCE_S)
        wait_until(lambda: len(receiver.taken) == 20, PATIENCE_S, "the other endpoint")
        assert [post.data["data"] for post in receiver.taken] == list(range(20))
        states = {one.name: one.state for one in hooks.endpoints()}
        assert states == {"leaver": "disabled", "stayer": "active"}
        rows = {row.subscription: row for row in hooks.ledger().rows}
        assert (rows["webhook leaver"].dead, rows["webhook stayer"].delivered) == (20, 20)
        assert hooks.ledger().reconciles
        hooks.enable("leaver")
        assert hooks.endpoints()[0].state == "active"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed_for_the_whole_endpoint(tmp_path: Path, status: int) -> None:
    times: list[float] = []

    def answer(post: Any) -> Any:
        times.append(time.monotonic())
        return (status, {"Retry-After": "1"}) if len(times) == 1 else 204

    with mesh(tmp_path) as (shop, _, hooks), Receiver(answer) as receiver:
        options: dict[str, Any] = {"schedule": (0, 0.01, 0.01), "concurrency": 1}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        shop.publish_many("orders.eu", range(3))
        wait_until(lambda: len(receiver.taken) == 3, PATIENCE_S, "posts")
        assert times[1] - times[0] >= 0.95


def test_retry_after_is_when_it_is_tried_again_and_costs_no_attempt(tmp_path: Path) -> None:
    """Two attempts in all, an hour apart; the endpoint puts the event off three times."""
    posts: list[Any] = []

    def answer(post: Any) -> Any:
        posts.append(post)
        return (429, {"Retry-After": "1"}) if len(posts) < 4 else 204

    with mesh(tmp_path) as (shop, _, hooks), Receiver(answer) as receiver:
        hooks.add(receiver.url, "orders.**", allow=LOCAL, schedule=(0, 3600))
        shop.publish("orders.eu", 1)
        wait_until(lambda: len(receiver.taken) == 1, PATIENCE_S, "the post")
        wait_until(lambda: hooks.deliveries()[0].state == "delivered", PATIENCE_S)
        assert hooks.deliveries()[0].attempts == 1


def test_the_first_success_after_an_outage_brings_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own next attempts are an hour away."""
    monkeypatch.setattr(webhook_retry, "OUTAGE_S", 0.0)
    up = threading.Event()
    with mesh(tmp_path) as (shop, _, hooks), Receiver(lambda _: 204 if up.is_set() else 503) as it:
        hooks.add(it.url, "orders.**", allow=LOCAL, schedule=(0, 3600, 3600))
        shop.publish_many("orders.eu", range(10))
        waits = "status 503"
        wait_until(lambda: [d.error for d in hooks.deliveries()] == [waits] * 10, PATIENCE_S)
        up.set()
        shop.publish("orders.eu", 10)
        wait_until(lambda: len(it.taken) == 11, PATIENCE_S, "posts")


def test_a_dead_endpoint_ends_in_the_dead_letters_and_is_disabled(tmp_path: Path) -> None:
    with (
        mesh(tmp_path) as (shop, peer, hooks),
        Receiver(lambda post: 500) as receiver,
        Peer("office", connect=peer.address) as office,
        office.subscribe("dead.webhook.bad", start="earliest") as dead,
    ):
        options: dict[str, Any] = {"schedule": FAST, "order": "all", "name": "bad"}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        shop.publish_many("orders.eu", range(5))
        letters = [dead.get(timeout=PATIENCE_S) for _ in range(5)]
        assert [letter.data for letter in letters if letter] == list(range(5)), "in order"
        assert letters[0] is not None
        assert letters[0].headers["dead.attempts"] == len(FAST)
        assert "status 500" in letters[0].headers["dead.error"]
        hooks.flush(timeout=PATIENCE_S)
        assert hooks.endpoints()[0].state == "disabled"
        assert "no delivery succeeded" in hooks.endpoints()[0].reason
        assert hooks.ledger().reconciles
        assert {one.state for one in hooks.deliveries("bad", state="dead")} == {"dead"}


def test_a_dead_letter_whose_headers_would_be_too_large_has_its_history(tmp_path: Path) -> None:
    with (
        mesh(tmp_path) as (shop, peer, hooks),
        Receiver(lambda post: 410) as receiver,
        Peer("office", connect=peer.address) as office,
        office.subscribe("dead.webhook.**", start="earliest") as dead,
    ):
        hooks.add(receiver.url, "orders.**", name="leaver", allow=LOCAL)
        shop.publish("orders.eu", {"n": 1}, headers={"large": "x" * 65_500})
        letter = dead.get(timeout=PATIENCE_S)
        assert letter is not None
        assert letter.headers["dead.topic"] == "orders.eu"
        assert "large" not in letter.headers


def test_an_event_that_is_refused_does_not_end_the_endpoint(tmp_path: Path) -> None:
    """Nothing else can succeed meanwhile in strict order: that says nothing about the others."""
    with (
        mesh(tmp_path) as (shop, _, hooks),
        Receiver(lambda post: 400 if post.data["data"] == "poison" else 204) as receiver,
    ):
        options: dict[str, Any] = {"schedule": FAST, "order": "all", "name": "hook"}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        shop.publish_many("orders.eu", ["poison", "good", "better"])
        wait_until(lambda: len(receiver.taken) == 2, PATIENCE_S, "those behind it")
        hooks.flush(timeout=PATIENCE_S)
        assert hooks.endpoints()[0].state == "active"
        assert [one.state for one in hooks.deliveries()] == ["delivered", "delivered", "dead"]
        assert hooks.ledger().reconciles


def test_order_holds_through_failures_where_asked(tmp_path: Path) -> None:
    failed: set[str] = set()

    def flaky(post: Any) -> int:
        if post.data["data"] % 3 == 0 and post.id not in failed:
            failed.add(post.id)
            return 500
        return 204

    with mesh(tmp_path) as (shop, _, hooks), Receiver(flaky) as receiver:
        options: dict[str, Any] = {"schedule": FAST, "order": "all", "concurrency": 9}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        shop.publish_many("orders.eu", range(30))
        wait_until(lambda: len(receiver.taken) == 30, PATIENCE_S, "posts")
        assert [post.data["data"] for post in receiver.taken] == list(range(30))


def test_a_key_that_fails_holds_up_only_its_own(tmp_path: Path) -> None:
    """While one key is refused all others are delivered, in parallel; its own stay in order."""
    refuse = True

    def answer(post: Any) -> int:
        return 500 if refuse and post.data.get("key") == "bad" else 204

    with mesh(tmp_path) as (shop, _, hooks), Receiver(answer) as receiver:
        schedule = [0, *[0.05] * 99]
        options: dict[str, Any] = {"schedule": schedule, "order": "key", "concurrency": 8}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        keys = ["bad", "a", "b", None]
        for n in range(40):
            shop.publish("orders.eu", n, key=keys[n % 4])
        wait_until(lambda: len(receiver.taken) == 30, PATIENCE_S, "all but one key")
        posted = {post.data["data"] for post in receiver.posts if post.data.get("key") == "bad"}
        assert posted == {0}, "only the first of its key was tried"
        refuse = False
        wait_until(lambda: len(receiver.taken) == 40, PATIENCE_S, "and that one")
        hooks.flush(timeout=PATIENCE_S)
        for key in ("bad", "a", "b"):
            mine = [post.data["data"] for post in receiver.taken if post.data.get("key") == key]
            assert mine == list(range(keys.index(key), 40, 4)), "in the order of its key"
        assert hooks.ledger().reconciles


def test_peace_that_was_asked_for_outlives_a_restart(tmp_path: Path) -> None:
    with Receiver(lambda post: (503, {"Retry-After": "3600"})) as receiver:
        with mesh(tmp_path) as (shop, _, hooks):
            hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook", schedule=FAST)
            shop.publish("orders.eu", 1)
            wait_until(lambda: hooks.deliveries("hook")[:1] and _held(hooks), PATIENCE_S, "a hold")
        with mesh(tmp_path) as (shop, _, hooks):
            shop.publish("orders.eu", 2)
            wait_until(lambda: hooks.waiting() == {"hook": 2}, PATIENCE_S, "it is taken")
            hooks.add(f"{receiver.url}/other", "orders.**", allow=LOCAL)
            shop.publish("orders.eu", 3)
            wait_until(lambda: len(receiver.posts) == 2, PATIENCE_S, "the other was posted to")
            assert [post.path for post in receiver.posts] == ["/", "/other"]


def _held(hooks: Webhooks) -> bool:
    return "hook" in hooks._book.holds()


def test_one_that_is_enabled_again_gets_events_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SKEW_S", 0.0)
    with mesh(tmp_path) as (shop, _, hooks), Receiver(lambda post: 410) as receiver:
        hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook", since=0.0)
        shop.publish("orders.eu", "gone")
        wait_until(lambda: hooks.endpoints()[0].state == "disabled", PATIENCE_S, "disabled")
        receiver.behaviour = lambda post: 204
        shop.publish("orders.eu", "meanwhile")  # which nobody else wants
        hooks.enable("hook")
        shop.publish("orders.eu", "again")
        wait_until(lambda: receiver.taken, PATIENCE_S, "a post")
        hooks.flush(timeout=PATIENCE_S)
        assert [post.data["data"] for post in receiver.taken] == ["again"]
        assert hooks.ledger().reconciles


def test_a_dead_letter_is_on_the_disk_before_its_delivery_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_webhook_undertaker, "AGAIN_S", 0.2)
    with mesh(tmp_path) as (shop, peer, hooks), Receiver(lambda post: 410) as receiver:
        durable = peer._open_node().publisher.durable
        flush, refused = durable.flush, []

        def failing(*_: Any) -> None:
            refused.append(hooks.deliveries("hook")[0].state)
            raise LogFull("data", "no sync")

        monkeypatch.setattr(durable, "flush", failing)
        hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook")
        shop.publish("orders.eu", 1)
        wait_until(lambda: len(refused) > 1, PATIENCE_S, "it was tried again")
        assert set(refused) == {"waiting"}
        assert _states(hooks, "hook") == {"waiting"}
        monkeypatch.setattr(durable, "flush", flush)
        wait_until(lambda: _states(hooks, "hook") == {"dead"}, PATIENCE_S, "now it is safe")
        assert hooks.stats()["dead_unpublished"] >= 2


def test_batches_keep_their_company_and_their_id(tmp_path: Path) -> None:
    fail = [500, 500, 204]

    with (
        mesh(tmp_path) as (shop, _, hooks),
        Receiver(lambda post: fail[min(post.number, 2)]) as receiver,
    ):
        options: dict[str, Any] = {"schedule": FAST, "order": "all", "batch": 10}
        endpoint = hooks.add(receiver.url, "orders.**", allow=LOCAL, **options)
        shop.publish_many("orders.eu", range(25))
        wait_until(lambda: _items(receiver) == list(range(25)), PATIENCE_S, "all events, in order")
        first = [post for post in receiver.posts if post.id == receiver.posts[0].id]
        assert len(first) == 3
        assert len({post.body for post in first}) == 1
        assert first[0].verify(endpoint.secrets[0].text)["type"] == "meshmsg.batch"
        assert all(len(post.data["data"]) <= 10 for post in receiver.posts)
        hooks.flush(timeout=PATIENCE_S)
        assert hooks.ledger().reconciles


def _items(receiver: Receiver) -> list[int]:
    return [event["data"] for post in receiver.taken for event in post.data["data"]]


def test_secrets_are_rotated_with_both_in_force(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, _, hooks), Receiver() as receiver:
        endpoint = hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook")
        old = endpoint.secrets[0].text
        new = hooks.rotate("hook", keep="1h")
        shop.publish("orders.eu", 1)
        wait_until(lambda: receiver.taken, PATIENCE_S, "a post")
        receiver.taken[0].verify(old)
        receiver.taken[0].verify(new)
        hooks.rotate("hook", keep=0)
        shop.publish("orders.eu", 2)
        wait_until(lambda: len(receiver.taken) == 2, PATIENCE_S, "a post")
        with pytest.raises(WebhookVerificationError):
            receiver.taken[1].verify(new)
        assert "whsec_A" not in repr(hooks.endpoints())
        assert new not in repr(hooks.endpoints())


def test_deliveries_are_listed_and_sent_again_by_hand(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, _, hooks), Receiver() as receiver:
        hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook")
        shop.publish("orders.eu", 1)
        wait_until(lambda: receiver.taken, PATIENCE_S, "a post")
        hooks.flush(timeout=PATIENCE_S)
        (delivery,) = hooks.deliveries("hook")
        hooks.resend(delivery.id)
        wait_until(lambda: len(receiver.taken) == 2, PATIENCE_S, "it again")
        assert receiver.taken[0].id == receiver.taken[1].id == delivery.message
        hooks.flush(timeout=PATIENCE_S)
        assert len(hooks.deliveries("hook", state="delivered")) == 2
        assert hooks.ledger().reconciles
        assert hooks.ledger().rows[0].delivered == 1, "what is sent by hand is not counted twice"
        with pytest.raises(ConfigError, match="no delivery 999"):
            hooks.resend(999)


def test_a_name_that_leads_to_a_private_address_is_not_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def rebound(host: Any, *rest: Any, **more: Any) -> Any:
        return real(LOCAL if host in ("rebind.example", "ok.example") else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    with mesh(tmp_path) as (shop, _, hooks), Receiver() as receiver:
        port = receiver.port
        hooks.add(f"https://rebind.example:{port}/x", "orders.**", name="evil", schedule=FAST)
        hooks.add(f"http://ok.example:{port}/ok", "orders.**", allow="ok.example", name="ok")
        shop.publish("orders.eu", 1)
        wait_until(lambda: receiver.taken, PATIENCE_S, "the one that is allowed")
        wait_until(lambda: "dead" in _states(hooks, "evil"), PATIENCE_S, "the other")
        hooks.flush(timeout=PATIENCE_S)
        assert [post.path for post in receiver.posts] == ["/ok"]
        assert "not a public address" in hooks.deliveries("evil")[0].error


def _states(hooks: Webhooks, *names: str) -> set[str]:
    return {one.state for name in names for one in hooks.deliveries(name)}


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, _, hooks), Receiver() as receiver:
        receiver.behaviour = lambda post: (302, {"Location": f"{receiver.url}/other"})
        hooks.add(f"{receiver.url}/x", "orders.**", allow=LOCAL, name="hook", schedule=(0, 0.05))
        shop.publish("orders.eu", 1)
        wait_until(lambda: "dead" in _states(hooks, "hook"), PATIENCE_S, "given up")
        assert {post.path for post in receiver.posts} == {"/x"}
        assert "302" in hooks.deliveries("hook")[0].error


def test_certificates_are_checked(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parent.parent / "data" / "self_signed.pem")
    with mesh(tmp_path) as (shop, _, hooks), Receiver(ssl_context=context) as receiver:
        hooks.add(receiver.url, "orders.**", allow=LOCAL, name="hook", schedule=(0, 0.05))
        shop.publish("orders.eu", 1)
        wait_until(lambda: "dead" in _states(hooks, "hook"), PATIENCE_S, "given up")
        assert receiver.posts == []
        assert "certificate" in hooks.deliveries("hook")[0].error


def test_a_restart_goes_on_where_it_was_and_takes_nothing_twice(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with mesh(tmp_path) as (shop, _, hooks):
            hooks.add(receiver.url, "orders.**", allow=LOCAL, order="all")
            shop.publish_many("orders.eu", range(10))
            wait_until(lambda: len(receiver.taken) == 10, PATIENCE_S, "posts")
            hooks.flush(timeout=PATIENCE_S)
        with Peer(
            "shop", streams=[Stream("orders.**", durability="log")], data_dir=tmp_path / "shop"
        ) as shop:
            shop.publish_many("orders.eu", range(10, 20))  # while nobody delivers
        with mesh(tmp_path) as (shop, _, hooks):
            shop.publish_many("orders.eu", range(20, 30))
            wait_until(lambda: len(receiver.taken) == 30, PATIENCE_S, "posts")
            hooks.flush(timeout=PATIENCE_S)
            assert [post.data["data"] for post in receiver.taken] == list(range(30))
            assert hooks.ledger().reconciles


def test_publishers_are_asked_to_hold_what_was_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    subscribe = Peer.subscribe

    def noted(self: Peer, *topics: str, **options: Any) -> Any:
        asked.append(options.get("hold"))
        return subscribe(self, *topics, **options)

    monkeypatch.setattr(Peer, "subscribe", noted)
    with mesh(tmp_path, hold=True) as (_, _, hooks):
        hooks.add("https://example.com/", "orders.**")
        wait_until(lambda: asked, PATIENCE_S, "a subscription")
    assert asked == [True]


def test_a_backlog_that_is_too_long_goes_to_the_dead_letters(tmp_path: Path) -> None:
    with (
        mesh(tmp_path) as (shop, peer, hooks),
        Receiver(lambda post: HANG) as receiver,
        Peer("office", connect=peer.address) as office,
        office.subscribe("dead.webhook.slow", start="earliest") as dead,
    ):
        options: dict[str, Any] = {"concurrency": 1, "backlog_max": 10, "timeout": 60}
        hooks.add(receiver.url, "orders.**", allow=LOCAL, name="slow", **options)
        shop.publish_many("orders.eu", range(30))
        letters = [dead.get(timeout=PATIENCE_S) for _ in range(20)]
        assert {letter.headers["dead.reason"] for letter in letters if letter} == {"overflow"}
        wait_until(lambda: hooks.waiting() == {"slow": 10}, PATIENCE_S, "ten left")
        assert hooks.ledger().reconciles
        with pytest.raises(WaitTimeout):
            hooks.flush(timeout=0.1)


@pytest.mark.timeout(300)
def test_a_thousand_endpoints_of_which_a_hundred_hang(tmp_path: Path) -> None:
    """The others are served while every one of the hundred still hangs."""
    with Receiver(lambda post: HANG if int(post.path[1:]) % 10 == 0 else 204) as receiver:
        with WebhookRegistry(tmp_path / "hooks") as registry:
            registry._book._db.execute("PRAGMA synchronous=OFF")  # a thousand syncs are no test
            for n in range(1000):
                options: dict[str, Any] = {"allow": LOCAL, "timeout": 300}
                registry.add(f"{receiver.url}/{n}", "orders.**", name=f"hook{n}", **options)
        with mesh(tmp_path) as (shop, _, hooks):
            shop.publish("orders.eu", 1)
            wait_until(lambda: len(receiver.taken) == 900, 200, "all that do not hang")
            hanging = [post.path for post in receiver.posts if int(post.path[1:]) % 10 == 0]
            assert len(hanging) == len(set(hanging)), "each of these still waits for its answer"
            wait_until(lambda: sum(hooks.waiting().values()) == 100, 60, "all others settled")
            assert hooks.ledger().reconciles


def test_hanging_names_and_few_sockets_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither name servers that hang nor endpoints that take every socket stop the others."""
    monkeypatch.setattr(_webhook_runner, "REQUESTS_MAX", 400)
    answered, real = threading.Event(), socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **more: Any) -> Any:
        if str(host).startswith("hang"):
            answered.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answered")
        return real(LOCAL if str(host).endswith(".example") else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with (
        Receiver(lambda post: HANG if post.path == "/hang" else 204) as receiver,
        mesh(tmp_path) as (shop, _, hooks),
    ):
        hooks._book._db.execute("PRAGMA synchronous=OFF")  # hundreds of syncs are no test
        try:
            for n in range(200):  # half of them hang before there is a connection
                host = f"{'hang' if n % 2 else 'slow'}{n}.example"
                url = f"http://{host}:{receiver.port}/hang"
                options: dict[str, Any] = {"allow": host, "timeout": 60, "concurrency": 10}
                hooks.add(url, "orders.eu", **options)
            url = f"http://fine.example:{receiver.port}/fine"
            hooks.add(url, "orders.fine", allow="fine.example")
            shop.publish_many("orders.eu", range(10))
            wait_until(lambda: hooks.stats()["on_the_way"] >= 200, 60, "they hang")
            shop.publish_many("orders.fine", range(5))
            wait_until(lambda: len(receiver.taken) == 5, PATIENCE_S, "the one that is fine")
        finally:
            answered.set()


def test_answers_that_are_no_http_are_failures_and_nothing_more(tmp_path: Path) -> None:
    rng = random.Random(13)
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    answers = [rng.randbytes(rng.randrange(1, 400)) for _ in range(10)]
    for _ in range(20):  # a good answer with some bytes changed, before its end
        bad = bytearray(good)
        for _ in range(3):
            bad[rng.randrange(12)] = rng.randrange(256)
        answers.append(bytes(bad))
    answers += [b"", b"HTTP/1.1 999999 X\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000]
    answers += [b"HTTP/1.1 500 X\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n"]
    with garbage_server(answers) as port, mesh(tmp_path) as (shop, _, hooks):
        schedule = [0, *[0.01] * (len(answers) + 10)]
        url = f"http://127.0.0.1:{port}/"
        hooks.add(url, "orders.**", allow=LOCAL, name="hook", schedule=schedule, timeout=5)
        shop.publish("orders.eu", 1)
        wait_until(lambda: "delivered" in _states(hooks, "hook"), 60, "after all the garbage")
        assert hooks.stats().get("io_errors", 0) == 0
        assert hooks.deliveries("hook")[0].attempts >= len(answers) // 2


@contextmanager
def garbage_server(answers: list[bytes]) -> Iterator[int]:
    """Answers each connection with the next of these, then with a good answer, for ever."""
    listener = socket.create_server((LOCAL, 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    connection.recv(65536)
                    good = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
                    connection.sendall(left.pop(0) if left else good)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def test_one_process_delivers_from_a_folder(tmp_path: Path) -> None:
    with (
        mesh(tmp_path) as (_, peer, _hooks),
        pytest.raises(ConfigError, match="delivers the webhooks"),
        Webhooks(peer),
    ):
        pass


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with WebhookRegistry(tmp_path) as hooks:
        url = "https://example.com/hook"
        for arguments, field in (
            ({"url": "https://10.0.0.1/"}, "url"),
            ({"topics": ()}, "topics"),
            ({"topics": "a..b"}, "pattern"),
            ({"name": "a/b"}, "name"),
            ({"secret": "whsec_short"}, "secret"),
            ({"secret": "plain"}, "secret"),
            ({"order": "some"}, "order"),
            ({"concurrency": 0}, "concurrency"),
            ({"batch": 0}, "batch"),
            ({"timeout": 0}, "timeout"),
            ({"timeout": "9h"}, "timeout"),
            ({"schedule": ()}, "schedule"),
            ({"allow": "10.0.0.0/64"}, "allow"),
        ):
            with pytest.raises(ConfigError) as caught:
                hooks.add(**({"url": url, "topics": "a"} | arguments))  # type: ignore[arg-type]
            assert caught.value.field == field or field == "pattern"
        hooks.add(url, "a", name="one")
        with pytest.raises(ConfigError, match="already"):
            hooks.add(url, "a", name="one")
        with pytest.raises(ConfigError, match="no webhook 'two'"):
            hooks.remove("two")
        assert hooks.remove("one") == 0
    with Peer("x") as peer, pytest.raises(ConfigError, match="data_dir"):
        Webhooks(peer)
    with (
        Peer("y", streams=[Stream("a.**")], data_dir=tmp_path / "y") as peer,
        pytest.raises(ConfigError, match="dead letters"),
    ):
        Webhooks(peer)


def test_interrupted_while_it_starts_it_leaves_no_threads_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(runner: _webhook_runner.Runner) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # to another thread it would not end the waiting
        runner._stopping.wait()

    with Peer("hooks", data_dir=tmp_path) as peer:
        with monkeypatch.context() as patch:
            patch.setattr(_webhook_runner.Runner, "_post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                Webhooks(peer).__enter__()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("meshmsg-webhooks")]
        with Webhooks(peer) as hooks:
            assert hooks.alive
