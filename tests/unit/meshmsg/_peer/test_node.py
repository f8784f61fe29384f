"""The I/O thread of a peer: its life, its turns, what it queues, and what it shows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._model.config import PeerConfig, Stream, Tuning
from meshmsg._model.errors import BindError, ClosedError, ConfigError
from meshmsg._model.multicast_config import Feed, Multicast
from meshmsg._model.topics import TopicFilter
from meshmsg._peer import node as module
from meshmsg._peer.node import Node
from meshmsg._peer.peer import Peer, node_of
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._receive.subscription_io import Intake
from meshmsg._wire import control as c
from tests.support.ports import free_port
from tests.support.waiting import wait_until


def node(name: str = "me", **config: Any) -> Node:
    tuning = Tuning(ping_interval_s=0.02, peer_timeout_s=5.0)
    return Node(PeerConfig(name, **{"discovery": "none", "tuning": tuning, **config}), "1.0")


@pytest.fixture
def opened() -> Iterator[Node]:
    made = node()
    made.open()
    yield made
    made.stop(5.0)
    assert made.stopped.is_set()


def intake_of(opened: Node, pattern: str = "a.**", name: str = "") -> Intake:
    made = opened.new_intake(Intake, TopicFilter((pattern,)), None, Any, StartAt())
    opened.add_intake(made, name)
    return made


def threads(name: str) -> list[str]:
    return [one.name for one in threading.enumerate() if name in one.name]


# Life ------------------------------------------------------------------------------------------


def test_node_listens_where_it_was_told_and_ends_its_thread() -> None:
    port = free_port()
    made = node("here", bind=(f"tcp://127.0.0.1:{port}",))
    assert made.addresses == []
    made.open()
    assert made.addresses == [f"tcp://127.0.0.1:{port}"]
    assert threads("meshmsg-here") == ["meshmsg-here"]
    made.stop(5.0)
    made.stop(5.0)
    assert threads("meshmsg-here") == []


def test_without_addresses_it_listens_on_its_interface(opened: Node) -> None:
    (address,) = opened.addresses
    assert address.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"bind": ("tcp://192.0.2.1:4000",)}, BindError),
        (
            {"feeds": (Feed("x", "a.**", Multicast("239.255.0.1:1", interface="none")),)},
            ConfigError,
        ),
    ],
)
def test_what_cannot_be_opened_leaves_nothing_behind(
    config: dict[str, Any], error: type[Exception]
) -> None:
    port = free_port()
    bind = (f"tcp://127.0.0.1:{port}", *config.pop("bind", ()))
    made = node("broken", bind=bind, **config)
    with pytest.raises(error):
        made.open()
    assert made.stopped.is_set()
    assert threads("meshmsg-broken") == []
    again = node(bind=(f"tcp://127.0.0.1:{port}",))
    again.open()
    again.stop(5.0)


def test_peer_that_is_closed_takes_no_subscription() -> None:
    made = node()
    made.open()
    made.stop(5.0)
    for call in (lambda: intake_of(made), lambda: made.work_inlet(10)):
        with pytest.raises(ClosedError):
            call()


# Turns -----------------------------------------------------------------------------------------


def test_calls_run_on_the_thread_and_one_that_fails_stops_no_other(
    opened: Node, quiet_logs: None
) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise RuntimeError("a defect")

    opened.call(fail)
    opened.call(lambda: ran.append(threading.current_thread().name))
    wait_until(lambda: ran)
    assert ran == ["meshmsg-me"]
    assert opened.counters["io_errors"] == 1
    opened.check_running()


def test_data_socket_calls_nobody_while_events_are_published() -> None:
    with (
        Peer("pub", streams=Stream("a.**"), discovery="none") as pub,
        Peer("sub", connect=pub.address, discovery="none") as sub,
        sub.subscribe("a.**"),
    ):
        opened = node_of(pub)
        pub.wait_for_subscribers("a.b", timeout=30)

        def publish() -> bool:
            for number in range(50):
                pub.publish("a.b", number)
            return True

        wait_until(lambda: publish() and not opened.hears_subscribers)
        with sub.subscribe("a.**"):
            wait_until(lambda: publish() and len(opened.publisher.subscribers.tokens) == 2)
        wait_until(lambda: opened.hears_subscribers)


def test_part_of_a_turn_that_fails_shows_and_the_others_go_on(
    opened: Node, monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    intake = intake_of(opened)

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(intake, "tend", fail)
        opened.wake()
        wait_until(lambda: opened.stats()["problem"])
        assert "goes on without" in opened.stats()["problem"]
        ran: list[int] = []
        opened.call(lambda: ran.append(1))
        wait_until(lambda: ran)


def test_thread_that_ends_by_an_error_says_so_to_everyone(
    monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    monkeypatch.setattr("meshmsg._runtime.guard.FAILURES_MAX", 1)
    made = node()
    made.open()
    intake = intake_of(made)

    def fail() -> None:
        raise SystemExit  # whatever it is

    made.call(fail)
    wait_until(made.stopped.is_set)
    assert intake.closed
    for call in (made.check_running, lambda: intake_of(made)):
        with pytest.raises(ClosedError, match="ended by an error"):
            call()
    assert "ended by an error" in made.stats()["problem"]


# What is queued --------------------------------------------------------------------------------


def test_messages_beyond_the_limit_are_refused_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = node()  # nobody sends yet
    monkeypatch.setattr(module, "OUTGOING_MAX", 2)
    assert [made.send(b"x", [b"m"]) for _ in range(3)] == [True, True, False]
    assert made.counters["outgoing_full"] == 1
    made.open()
    wait_until(lambda: made.send(b"x", [b"m"]))
    made.stop(5.0)


def test_two_nodes_say_hello_and_good_bye(opened: Node) -> None:
    other = node("other", connect=tuple(opened.addresses))
    other.open()
    wait_until(lambda: opened.stats()["clients"] == ["other"])
    wait_until(lambda: [link["state"] for link in other.stats()["links"]] == ["up"])
    assert other.refusal() is None
    other.stop(5.0)
    wait_until(lambda: opened.stats()["clients"] == [])


# Subscriptions ---------------------------------------------------------------------------------


def test_subscription_is_called_by_its_name_and_number(opened: Node) -> None:
    intake = intake_of(opened, name="audit")
    number = intake.sub & 0xFFFFFF
    assert opened.label(intake.sub) == f"me/audit#{number:06x}"
    assert opened.inlet_stats(intake)["name"] == opened.label(intake.sub)
    opened.drop(intake)
    opened.drop(intake)
    assert intake.closed
    assert opened.intakes == {}
    assert opened.label(intake.sub) == f"me/-#{number:06x}"


def test_feeds_that_a_subscription_wants_are_joined() -> None:
    feeds = tuple(
        Feed("x", topics, Multicast(f"239.255.77.1:{free_port()}")) for topics in ("a.**", "b.**")
    )
    made = node(feeds=feeds)
    made.open()
    try:
        intake = intake_of(made, "a.x")
        wait_until(lambda: intake.streams() == {"x/a.**"})
    finally:
        made.stop(5.0)


def test_publishers_hear_of_a_new_subscription_and_of_its_end(opened: Node) -> None:
    other = node("other", streams=(Stream("a.**"),), bind=("tcp://127.0.0.1:*",))
    other.open()
    try:
        opened.links.dial(other.addresses[0])
        intake = intake_of(opened)
        wait_until(lambda: intake.sources())
        subs = other.publisher.subscribers.subs
        assert list(subs) == [intake.sub]
        rows = opened.ledger().rows
        assert [(row.stream, row.subscription) for row in rows] == [
            ("other/a.**", opened.label(intake.sub))
        ]
        opened.drop(intake)
        wait_until(lambda: not subs)
    finally:
        other.stop(5.0)


# Figures ---------------------------------------------------------------------------------------


def test_statistics_are_plain_data(opened: Node) -> None:
    intake_of(opened)
    shown = opened.stats()
    json.dumps(shown)
    assert (shown["peer"], shown["problem"], shown["protocol"]) == ("me", None, c.PROTOCOL_VERSION)
    assert shown["addresses"] == opened.addresses
    assert len(shown["subscriptions"]) == 1
    assert "recorder" not in shown
    assert set(shown["quotas"]) == {"subscriptions", "members", "prefixes", "reads"}
