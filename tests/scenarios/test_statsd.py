"""StatsD at the edge: the `statsd` client and plain sockets in, subscribers on the other side."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import statsd as statsd_package

from meshmsg import BindError, ConfigError, Peer, Stream, Subscription
from meshmsg.statsd import StatsdReporter, StatsdServer
from meshmsg.statsd.aggregates import FATES
from meshmsg.statsd.signed_packets import sign
from tests.support.waiting import wait_until


@contextmanager
def serving(**options: Any) -> Iterator[tuple[StatsdServer, Subscription]]:
    """A server whose intervals end when told to, and a subscriber of all that it publishes."""
    options = {"interval": 3600} | options
    with (
        Peer("metrics", streams=[Stream("statsd.**")]) as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("statsd.**") as events,
        StatsdServer(peer, "127.0.0.1:0", **options) as server,
    ):
        peer.wait_for_subscribers("statsd.server", timeout=30)
        yield server, events


def interval(server: StatsdServer, events: Subscription) -> tuple[dict[str, Any], dict[str, Any]]:
    """End an interval: the figures by name, and what the server saw."""
    server.flush(timeout=30)
    found = {}
    while True:
        event = events.get(timeout=30)
        assert event is not None
        if event.topic == "statsd.server":
            return found, event.data
        found[event.topic] = event.data


def send(server: StatsdServer, *packets: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for packet in packets:
            sock.sendto(packet, server.address)
    seen = server.stats
    refused = ("bad_signatures", "stale_packets", "replayed_packets")
    before = getattr(server, "_sent_by_tests", 0) + len(packets)
    server._sent_by_tests = before  # type: ignore[attr-defined]
    wait_until(lambda: sum(seen()[k] for k in ("packets", *refused)) >= before, 30, "packets")


def test_a_turn_that_fails_is_shown_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as (server, events):
        add = server._books.add

        def fail(packets: list[bytes]) -> None:
            monkeypatch.setattr(server._books, "add", add)
            raise RuntimeError("on purpose")

        monkeypatch.setattr(server._books, "add", fail)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"lost:1|c", server.address)
        wait_until(lambda: "on purpose" in (server.stats()["problem"] or ""))
        send(server, b"kept:1|c")
        found, _ = interval(server, events)
        assert list(found) == ["statsd.aggregate.kept"]


def test_the_clients_metrics_become_events() -> None:
    with serving() as (server, events):
        host, port = server.address
        client = statsd_package.StatsClient(host, port, prefix="app")
        timings = [random.Random(3).uniform(1, 500) for _ in range(400)]
        client.incr("logins", 3)
        client.decr("logins")
        client.gauge("depth", 40)
        client.gauge("depth", -2, delta=True)
        client.set("users", "anna")
        client.set("users", "bert")
        with client.pipeline() as pipe:
            for timing in timings:
                pipe.timing("latency", timing)
        client.close()
        wait_until(lambda: server.stats()["lines"] >= 406, 30, "lines")
        found, seen = interval(server, events)
    assert found["statsd.aggregate.app.logins"]["count"] == 2
    assert found["statsd.aggregate.app.depth"]["value"] == 38
    assert found["statsd.aggregate.app.users"]["count"] == 2
    latency = found["statsd.aggregate.app.latency"]
    sent = numpy.array([float(f"{timing:0.6f}") for timing in timings])  # as the client writes them
    assert latency["samples"] == 400
    assert [latency["min"], latency["max"]] == [sent.min(), sent.max()]
    wanted = numpy.quantile(sent, [0.5, 0.75, 0.95, 0.99, 0.999]).tolist()
    assert [latency[q] for q in ("median", "p75", "p95", "p99", "p99.9")] == wanted
    assert latency["mean"] == pytest.approx(sent.mean(), rel=1e-12)
    assert latency["dropped_packets"] == 0
    assert (seen["malformed"], seen["accepted"]) == (0, 406)


def test_raw_samples_are_events_and_the_books_reconcile(ledger: Any) -> None:
    with serving(raw=True) as (server, events):
        send(server, b"a:1|ms\na:2|ms|@0.5|#env:prod\nbad\ng:-3|g\nu:x|s\n_sc|r|0", b"a:3|ms")
        server.flush(timeout=30)
        received = []
        while not received or received[-1].topic != "statsd.server":
            event = events.get(timeout=30)
            assert event is not None
            received.append(event)
        raw = [event for event in received if event.topic.startswith("statsd.raw.")]
        figures = [event.data for event in received if ".aggregate." in event.topic]
        seen = received[-1].data
        assert sorted(e.data["value"] for e in raw if e.topic == "statsd.raw.a") == [1, 2, 3]
        tagged = next(e.data for e in raw if e.data["tags"])
        assert (tagged["rate"], tagged["tags"]) == (0.5, {"env": "prod"})
        assert next(e.data for e in raw if e.topic == "statsd.raw.g")["relative"] is True
        # Across the edge: what came over UDP is what is in the events, and what is not is counted.
        assert seen["lines"] == 7 == sum(seen[fate] for fate in FATES)
        assert sum(one["samples"] for one in figures) == len(raw) == seen["samples"] == 5
        assert (seen["malformed"], seen["unsupported"]) == (1, 1)
        assert all(row["reconciles"] for row in ledger(events._node.config.connect[0]))


def test_datagrams_that_the_kernel_dropped_are_published() -> None:
    with serving(receive_buffer=4096) as (server, events):
        # The server's own thread is kept from reading by holding its books.
        drain, server._drain = server._drain, lambda: 0  # type: ignore[method-assign]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(2000):
                sock.sendto(b"a:1|c", server.address)
        server._drain = drain  # type: ignore[method-assign]
        found, seen = interval(server, events)
    assert seen["dropped_packets"] > 0
    assert seen["packets"] + seen["dropped_packets"] == 2000
    one = found["statsd.aggregate.a"]
    assert one["dropped_packets"] == seen["dropped_packets"]
    assert one["count"] == seen["packets"]


def test_signed_packets_only_with_a_secret() -> None:
    with serving(secret="s3cret") as (server, events):
        good = sign(b"s3cret", b"a:1|c", now=time.time(), nonce=1)
        send(server, good, good, b"a:1|c", sign(b"no", b"a:1|c", now=time.time(), nonce=2))
        found, seen = interval(server, events)
    assert found["statsd.aggregate.a"]["count"] == 1
    assert (seen["replayed_packets"], seen["bad_signatures"]) == (1, 2)


def test_fuzzed_packets_are_counted_and_never_end_the_server() -> None:
    rng = random.Random(11)
    pieces = [b"a", b"b.c", b":", b"1", b"-2.5", b"|", b"c", b"ms", b"g", b"s", b"|@0.1", b"|#x:y"]
    pieces += [b"\n", b"\x00", b"\xff\xfe", b"\xf0\x9f\x98\x80", b"*", b"..", b" ", b"9" * 400]
    with serving(raw=True) as (server, events):
        for _ in range(20):
            packets = [b"".join(rng.choices(pieces, k=rng.randrange(40))) for _ in range(50)]
            send(server, *packets, rng.randbytes(rng.randrange(1400)))
        send(server, b"fine:1|c")
        server.flush(timeout=30)
        event = None
        while event is None or event.topic != "statsd.server":
            event = events.get(timeout=30)
        seen = event.data
        assert seen["lines"] == sum(seen[fate] for fate in FATES)
        assert seen["malformed"] > 100
        assert seen["unpublished"] == 0
        send(server, b"still:1|c")
        found, _ = interval(server, events)
        assert found["statsd.aggregate.still"]["count"] == 1


def test_intervals_end_by_themselves_and_the_last_one_when_it_is_closed() -> None:
    with (
        Peer("metrics") as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("statsd.aggregate.**") as events,
    ):
        peer.wait_for_subscribers("statsd.aggregate.a", timeout=30)
        with StatsdServer(peer, "127.0.0.1:0", interval="50ms") as server:
            send(server, b"a:1|c")
            first = events.get(timeout=30)
        with StatsdServer(peer, "127.0.0.1:0", interval="1h") as server:
            send(server, b"a:2|c")
        last = events.get(timeout=30)
    assert first is not None
    assert last is not None
    assert (first.data["count"], last.data["count"]) == (1, 2)


def test_wrong_settings_are_refused() -> None:
    with Peer("metrics") as peer:
        for options, field in (
            ({"bind": "nowhere"}, "bind"),
            ({"interval": 0}, "interval"),
            ({"prefix": "a b"}, "topic"),
        ):
            with pytest.raises(ConfigError) as caught:
                StatsdServer(peer, **options)
            assert caught.value.field == field
        with pytest.raises(ConfigError, match="interval"):  # or it would report without end
            StatsdReporter(peer, interval=0)
        with StatsdServer(peer, "127.0.0.1:0") as server:
            host, port = server.address
            with pytest.raises(BindError), StatsdServer(peer, f"{host}:{port}"):
                pass


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasketches", None)
    with Peer("metrics") as peer, pytest.raises(ConfigError, match=r"meshmsg\[statsd\]"):
        StatsdServer(peer)


def test_a_peers_statistics_go_out_and_come_in_again() -> None:
    with serving() as (server, events):
        host, port = server.address
        with (
            Peer("shop", streams=[Stream("orders.**")]) as shop,
            StatsdReporter(shop, f"{host}:{port}", interval="1h") as reporter,
        ):
            shop.publish_many("orders.eu", range(10))
            reporter.report()
            shop.publish("orders.eu", 1)
        wait_until(lambda: server.stats()["packets"] >= 2, 30, "reports")
        found, seen = interval(server, events)
    assert found["statsd.aggregate.meshmsg.shop.streams.orders.published"]["count"] == 11
    assert found["statsd.aggregate.meshmsg.shop.streams.orders.subscribers"]["value"] == 0
    assert seen["malformed"] == 0


def test_a_reporter_tells_when_its_peer_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    with Peer("shop") as shop:
        reporter = StatsdReporter(shop, "127.0.0.1:9", interval="1h")
        reporter.__enter__()
    reporter.close()
    assert "its last figures are lost" in caplog.text


def test_a_blocked_stream_does_not_keep_the_server_from_closing() -> None:
    blocking = Stream("statsd.**", overflow="block", window_bytes=1)
    with (
        Peer("metrics", streams=[blocking]) as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("statsd.**"),  # who never reads
    ):
        peer.wait_for_subscribers("statsd.server", timeout=30)
        with StatsdServer(peer, "127.0.0.1:0", interval="20ms", raw=True) as server:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for n in range(200):
                    sock.sendto(b"m%d:1|c" % n, server.address)
            wait_until(lambda: peer.stats()["streams"]["statsd.**"]["blocked"], 30, "blocked")
        assert server.stats()["unpublished"] > 0
