"""The command over multicast: `pub`, `sub` with and without a connection, `peers`, `bench`."""

from __future__ import annotations

import errno
import json
import random
import re
from typing import Any

import pytest

from meshmsg import Feed, Multicast, Peer, Stream
from meshmsg.cli.peers import _packets
from meshmsg.testing import lose_packets
from meshmsg.transports.udp import multicast as sockets

FREE = "tcp://127.0.0.1:*"


@pytest.fixture
def group() -> str:
    """A group of this test's own, so that tests on one machine do not meet."""
    rng = random.SystemRandom()
    return f"239.255.{rng.randint(1, 254)}.{rng.randint(1, 254)}:30001"


# pub and sub -----------------------------------------------------------------------------------


def test_a_connected_subscriber_learns_the_group(start: Any, group: str) -> None:
    sub = start("sub", "ticks.**", "--bind", FREE, "--json", "--count", "500", "--stats")
    pub = start(
        *("pub", "ticks.{n}", "tick {n}", "--count", "500", "--multicast", group),
        *("--drop", "0.2", "-c", sub.address()),
    )
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()
    assert [event["data"] for event in sub.objects()] == [f"tick {n}" for n in range(1, 501)]
    assert re.search(r"published 500 events in .*; \d+ of \d+ packets were dropped", pub.errors())
    assert re.search(r"lost 0; [\d,]+ packets, [\d,]+ repaired by [\d,]+ request", sub.errors())


def test_without_a_connection_the_publisher_is_named(start: Any, group: str) -> None:
    """Only the group joins the two: neither listens to, nor dials, the other."""
    sub = start(
        *("sub", "ticks.**", "--multicast", group, "--from", "clock"),
        *("--json", "--count", "300", "--timeout", "60s"),
    )
    pub = start(
        *("pub", "ticks.{n}", "{n}", "--json", "-n", "300", "--multicast", group),
        *("--name", "clock", "--wait-timeout", "60s"),
    )
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()
    assert [event["data"] for event in sub.objects()] == list(range(1, 301))


def test_a_named_stream_is_found_by_publisher_and_name(start: Any, group: str) -> None:
    sub = start(
        *("sub", "ticks.**", "--multicast", group, "--from", "clock/ticks.**"),
        *("--count", "1", "--timeout", "60s"),
    )
    stream = Stream("ticks.**", transport=Multicast(group))
    with Peer("clock", streams=stream) as clock:
        clock.wait_for_subscribers("ticks.x", timeout=60)
        clock.publish("ticks.x", "tick")
        assert sub.end() == 0, sub.errors()
    assert "ticks.x  tick" in sub.out[0]


def test_group_may_stand_in_the_environment(start: Any, group: str) -> None:
    where = {"MESHMSG_MULTICAST": group, "MESHMSG_INTERFACE": "127.0.0.1"}
    sub = start("sub", "**", "--from", "clock", "-n", "1", "--timeout", "60s", env=where)
    pub = start("pub", "tick", "x", "--name", "clock", "--wait-timeout", "60s", env=where)
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()


# Wrong usage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sub", "**", "--from", "p"), "--from: goes with --multicast GROUP:PORT"),
        (("sub", "**", "--multicast", "239.1.1.1:5"), "--from: whose stream? --from PUBLISHER"),
        (
            ("sub", "**", "--multicast", "239.1.1.1", "--from", "p"),
            "--multicast: '239.1.1.1' is not a multicast group: write a group and a port",
        ),
        (
            ("sub", "**", "--multicast", "239.1.1.1:5", "--from", "a b"),
            "--from: 'a b' may not have spaces",
        ),
        (
            ("sub", "**", "--multicast", "239.1.1.1:5", "--from", "a/b c"),
            "--from: 'b c' may not have spaces",
        ),
        (("pub", "a", "x", "--multicast", "here"), "--multicast: 'here' is not a multicast group"),
        (
            ("pub", "a", "x", "--multicast", "10.0.0.1:5"),
            "--multicast: 10.0.0.1 is not a multicast address",
        ),
        (
            ("pub", "a", "x", "--multicast", "239.1.1.1:65535"),
            "--multicast: port 65535 has no next one: give a request_port",
        ),
        (
            ("pub", "a", "x", "--multicast", "239.1.1.1:5", "--interface", "none0"),
            "no interface of this machine has that address",
        ),
        (
            ("sub", "a", "--multicast", "239.1.1.1:5", "--from", "p", "-i", "none0"),
            "--interface: 'none0' is no interface of this machine: it has lo",
        ),
        (("bench", "--multicast", "5"), "--multicast: '5' is not a multicast group"),
    ],
)
def test_wrong_usage_names_the_option(run: Any, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in re.sub(r"[\s│]+", " ", result.stderr)


def test_a_system_without_a_route_says_how_to_add_one(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has no multicast route on loopback for IPv6."""

    def no_route(group: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(sockets, "_check_route", no_route)
    result = run("pub", "a", "x", "--multicast", "[ff12::7:7]:30001")
    assert result.exit_code == 2
    assert "the system has no route for multicast on lo" in result.stderr
    assert "ip -6 route add local ff00::/8 dev lo" in result.stderr
    result = run("pub", "a", "x", "--multicast", "239.255.7.7:30001")
    assert "ip route add 224.0.0.0/4 dev lo" in result.stderr


# peers -----------------------------------------------------------------------------------------


def test_peers_show_multicast_at_both_ends(run: Any, group: str) -> None:
    host = group.partition(":")[0]
    stream = Stream("quotes.**", transport=Multicast(group, second=f"{host}:30011"))
    with (
        Peer("pricing", streams=stream) as pricing,
        Peer("desk", connect=pricing.address) as desk,
        desk.subscribe("quotes.**") as events,
    ):
        pricing.wait_for_subscribers("quotes.X", timeout=60)
        with lose_packets(desk, 0.3, seed=1):
            pricing.publish_many("quotes.X", range(20_000))
            count = 0
            while count < 20_000:
                count += len(events.get_many(timeout=60))
        as_json = run("peers", "-c", pricing.address, "-c", desk.address, "--json")
        shown = run("peers", "-c", pricing.address, "-c", desk.address)
    answers = {a["peer"]: a for a in map(json.loads, as_json.stdout.splitlines())}
    sender = answers["pricing"]["streams"]["quotes.**"]["multicast"]
    assert sender["flow"] == "slowest"
    assert [line["port"] for line in sender["lines"]] == [30001, 30011]
    receiver = answers["desk"]["subscriptions"][0]["sources"][0]["multicast"]
    assert receiver["packets"] == sender["sent"]
    where = f"multicast to {host}:30001 on lo and {host}:30011 on lo: flow slowest, 1 receiver"
    assert where in shown.stdout
    assert re.search(r"[\d,]+ packets sent, [\d,]+ sent again for [\d,]+ requests", shown.stdout)
    assert re.search(
        r"pricing/quotes\.\*\* by multicast: [\d,]+ packets.* first by line A and B: [\d,]+ and",
        shown.stdout,
    )


def test_drops_of_the_kernel_are_told_with_the_remedy() -> None:
    figures = {"packets": 10, "missing": 2, "lines": [{"kernel_drops": 7}]}
    words = "10 packets, 2 missing, 7 dropped by the kernel (raise net.core.rmem_max)"
    assert _packets(figures) == words


def test_a_feed_without_connection_is_shown_by_its_receiver(run: Any, group: str) -> None:
    feed = Feed("pricing", "quotes.**", Multicast(group))
    with Peer("desk", feeds=feed) as desk, desk.subscribe("**"):
        result = run("peers", "-c", desk.address)
    assert result.exit_code == 0
    assert "nobody yet" in result.stdout


# bench --------------------------------------------------------------------------------


def test_bench_measures_multicast(run: Any, group: str) -> None:
    result = run("bench", "--seconds", "0.2", "--multicast", group, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    measured = [json.loads(line) for line in result.stdout.splitlines()]
    assert [m["lost"] for m in measured] == [0, 0, 0]
    assert measured[0]["events_per_s"] > 0
    assert measured[2]["p50_us"] > 0
