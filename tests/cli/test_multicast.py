"""The command over multicast: `pub`, `sub` with and without a connection, `peers`, `demo feed`."""

from __future__ import annotations

import errno
import json
import random
import re
from typing import Any

import pytest

from meshmsg import Feed, Multicast, Peer, Stream
from meshmsg.cli._demo_feed_run import NAMES, Outcome, Receiver
from meshmsg.cli._demo_feed_story import problems, story, summary
from meshmsg.cli._demo_feed_view import plain_view
from meshmsg.cli.peers import _packets
from meshmsg.recovery.stream.ledger import Ledger, LedgerRow
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
        (("demo", "play"), "'play' is not one of 'mesh', 'feed', 'market'"),
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


# bench and demo --------------------------------------------------------------------------------


def test_bench_measures_multicast(run: Any, group: str) -> None:
    result = run("bench", "--seconds", "0.2", "--multicast", group, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    measured = [json.loads(line) for line in result.stdout.splitlines()]
    assert [m["lost"] for m in measured] == [0, 0, 0]
    assert measured[0]["events_per_s"] > 0
    assert measured[2]["p50_us"] > 0


def test_demo_feed_repairs_everything(start: Any) -> None:
    demo = start("demo", "feed", "--plain", "--seconds", "1")
    assert demo.end() == 0, demo.errors()
    text = re.sub(r"\s+", " ", "".join(demo.out))
    published = re.search(r"market sent ([\d,]+) quotes in [\d,]+ packets", text)
    assert published is not None
    for name in NAMES:
        assert re.search(rf"{name} threw away [\d,]+ packets, had [\d,]+ missing ones rep", text)
    assert text.count(f"got {published[1]} quotes: 0 missing, 0 twice or out of order.") == 3
    assert text.count("✔") == 3
    assert "Every event reached every receiver. None is missing." in text
    assert demo.errors() == ""


def test_demo_feed_as_json(start: Any) -> None:
    demo = start("demo", "feed", "--json", "--seconds", "1", "--drop", "0.3")
    assert demo.end() == 0, demo.errors()
    *rows, last = demo.objects()
    assert len(rows) == 3
    found = last["demo"]
    assert found["problems"] == []
    assert found["sender"]["repairs"] > 0
    for receiver in found["receivers"].values():
        assert receiver["received"] == found["published"]
        assert receiver["dropped_data"] > 0
        assert receiver["multicast"]["missing"] == 0


def receiver(name: str, **report: int) -> Receiver:
    usual = {"received": 100, "next": 100, "skipped": 0, "wrong": 0, "lost": 0, "dropped_data": 9}
    multicast = {"nacks": 5, "repaired": 8, "suppressed": 1}
    return Receiver(name, worker=None, report=usual | report | {"multicast": multicast})  # type: ignore[arg-type]


def outcome(**last: int) -> Outcome:
    receivers = [receiver("alice"), receiver("bob"), receiver("carol", **last)]
    rows = [LedgerRow("market/quotes.**", 1, r.name, 100, 100, 0) for r in receivers]
    sent = {"packets": 40, "repairs": 20, "suppressed": 3}
    return Outcome("239.255.1.1:30001", 0.1, 100, sent, 2.0, receivers, Ledger(tuple(rows)))


def test_a_good_run_has_no_problems_and_a_story() -> None:
    good = outcome()
    assert problems(good) == []
    text = " ".join(story(good))
    assert "market sent 100 quotes in 40 packets" in text
    assert "27 with quotes in them" in text
    assert "They sent 15 requests to the group, and market sent 20 packets again" in text
    assert "3 came to a receiver that had not asked yet" in text
    assert json.loads(json.dumps(summary(good, [])))["demo"]["act"] == "feed"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (outcome(received=99), "carol: 99 of 100 quotes"),
        (outcome(skipped=2), "carol: 2 quotes are missing"),
        (outcome(wrong=1), "carol: 1 came twice or out of order"),
        (outcome(lost=3), "carol: 3 quotes were declared lost"),
        (outcome(dropped_data=0), "carol lost no packets"),
    ],
)
def test_what_went_wrong_is_named(bad: Outcome, words: str) -> None:
    assert words in " ".join(problems(bad))


def test_a_ledger_that_does_not_add_up_is_a_problem() -> None:
    bad = outcome()
    row = LedgerRow("market/quotes.**", 1, "bob", 100, 98, 0, lost={"overflow": 1}, in_flight=0)
    bad.ledger = Ledger((row,))
    found = " ".join(problems(bad))
    assert "the ledger has 1 rows" in found
    assert "the ledger does not reconcile" in found
    assert "bob has losses: {'overflow': 1}" in found


def test_plain_view_says_what_happens_when_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from meshmsg.cli._tables import console

    run = SimpleNamespace(phase="one", elapsed_s=0.5, published=0, sent={}, receivers=[])
    with plain_view(console()) as show:
        show(run)  # type: ignore[arg-type]
        show(run)  # type: ignore[arg-type]
        run.published, run.elapsed_s, run.sent = 5, 1.5, {"packets": 2, "repairs": 1}
        run.receivers = [receiver("alice")]
        show(run)  # type: ignore[arg-type]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "  0.5 s  one"
    assert second.startswith(
        "  1.5 s    5 quotes in 2 packets, 1 sent again | alice lost 9, 5 NACKs"
    )


def test_live_view_is_drawn() -> None:
    import io
    from types import SimpleNamespace

    from rich.console import Console

    from meshmsg.cli._demo_feed_view import live_view

    sent = {"packets": 40, "repairs": 20, "nacks": 9, "heartbeats": 3}
    run = SimpleNamespace(phase="now", elapsed_s=1.0, published=100, sent=sent, group="G:1")
    run.receivers = [receiver("alice"), receiver("bob")]
    out = Console(file=io.StringIO(), force_terminal=True, width=110)
    with live_view(out) as show:
        show(run)  # type: ignore[arg-type]
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for words in ("meshmsg demo feed", "20 packets sent again", "alice", "bob", "suppressed"):
        assert words in text
