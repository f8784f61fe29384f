"""A peer's own endpoint: real peers, a real HTTP client, and clients that mean no good."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from meshmsg import (
    AsyncPeer,
    BindError,
    ConfigError,
    Monitor,
    Multicast,
    Peer,
    PublishTimeout,
    Stream,
)
from meshmsg.monitor import http_server
from meshmsg.testing import lose_frames
from tests.support.waiting import wait_until

PATIENCE_S = 30
ANY = "127.0.0.1:0"
TOKEN = "0123456789abcdef0123"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def get(peer: Any, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    host, port = peer.monitor.address
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics(peer: Any) -> dict[tuple[str, ...], float]:
    """Each series by its name and the values of its labels."""
    status, text = get(peer, "/metrics", OPENMETRICS)
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def counted(peer: Any, counter: str) -> int:
    return int(json.loads(get(peer, "/stats")[1])["monitor"][counter])


#: Of `stats()`: what names something, stands still, or is seen in other series.
NOT_SHOWN = {
    "/protocol",
    "/peers[]/protocol",
    "/quotas/*/each_max",
    "/quotas/*/owners/*",
    "/security/connections_max",
    "/security/keys",
    "/streams/*/epoch",
    "/streams/*/first_available",
    "/streams/*/groups[]/generation",
    "/streams/*/groups[]/max_attempts",
    "/streams/*/groups[]/members[]/acked",
    "/streams/*/groups[]/members[]/delivered",
    "/streams/*/groups[]/members[]/in_flight",
    "/streams/*/groups[]/members[]/prefetch",
    "/streams/*/log/durable",
    "/streams/*/log/epoch",
    "/streams/*/log/next",
    "/streams/*/multicast/first_available",
    "/streams/*/multicast/lines[]/port",
    "/streams/*/multicast/lines[]/send_errors",
    "/streams/*/multicast/next",
    "/streams/*/multicast/sent",
    "/streams/*/multicast/slowest",
    "/streams/*/next",
    "/streams/*/subscribers[]/consumed",
    "/streams/*/subscribers[]/received",
    "/subscriptions[]/sources[]/epoch",
    "/subscriptions[]/sources[]/multicast/lines[]/again",
    "/subscriptions[]/sources[]/multicast/lines[]/buffer_bytes",
    "/subscriptions[]/sources[]/multicast/lines[]/first",
    "/subscriptions[]/sources[]/multicast/lines[]/port",
    "/subscriptions[]/sources[]/multicast/next",
    "/subscriptions[]/sources[]/received",
    "/members[]/sources[]/epoch",
    "/recorder/streams[]/epoch",
    "/recorder/streams[]/next",
}


def mark(value: Any, path: str, marks: dict[str, float]) -> Any:
    """The same data with a number of its own for each place."""
    if isinstance(value, dict):
        named = path in ("/streams", "/quotas", "/quotas/*/owners")
        return {k: mark(v, f"{path}/{'*' if named else k}", marks) for k, v in value.items()}
    if isinstance(value, list):
        return [mark(inner, f"{path}[]", marks) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return marks.setdefault(path, 1_000_003.0 + 17 * len(marks))
    return value


@contextmanager
def mesh(folder: Path) -> Iterator[tuple[Peer, Peer]]:
    """Two peers that do most of what peers do, each with a monitor."""
    streams = [
        Stream("orders.**", durability="log", groups=["billing"]),
        Stream("fast.**", overflow="block"),
        Stream("cast.**", transport=Multicast("239.255.77.24:30924")),
        Stream("spilled.**", overflow="spill"),
    ]
    with ExitStack() as stack:
        enter = stack.enter_context
        shop = enter(Peer("shop", streams=streams, data_dir=folder / "shop", monitor=ANY))
        recorded = {"data_dir": folder / "office", "record": "fast.**"}
        office = enter(Peer("office", connect=shop.address, monitor=ANY, **recorded))
        events = enter(office.subscribe("**", name="all"))
        group = enter(office.subscribe("orders.**", group="billing"))
        shop.wait_for_subscribers("fast.x", 2, timeout=PATIENCE_S)
        for topic in ("orders", "fast", "cast", "spilled"):
            shop.wait_for_subscribers(f"{topic}.x", timeout=PATIENCE_S)
            shop.publish(f"{topic}.x", 1)
        for _ in range(4):
            assert events.get(timeout=PATIENCE_S) is not None
        done = group.get(timeout=PATIENCE_S)
        assert done is not None
        group.ack(done)
        yield shop, office


def test_a_peer_shows_its_figures(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, office):
        wait_until(lambda: metrics(shop)[("meshmsg_subscriber_behind_events", *at(shop))] == 0)
        found = metrics(shop)
        assert found[("meshmsg_stream_events_total", "shop/orders.**")] == 1
        assert found[("meshmsg_group_members", "billing", "shop/orders.**")] == 1
        assert found[("meshmsg_multicast_receivers", "shop/cast.**")] >= 0
        assert found[("meshmsg_disk_size_bytes", str(tmp_path / "shop"))] > 0
        received = metrics(office)
        assert received[("meshmsg_link_up", shop.address)] == 1
        assert sum(v for k, v in received.items() if k[0] == "meshmsg_received_events_total") == 5
        assert received[("meshmsg_recorder_events_total", "shop/fast.**")] == 1
        for peer in (shop, office):
            wait_until(lambda peer=peer: get(peer, "/ready") == (200, "[]\n"), PATIENCE_S)
            assert get(peer, "/health")[0] == 200
            assert peer.name in get(peer, "/")[1]
            assert json.loads(get(peer, "/stats")[1])["peer"] == peer.name


def at(peer: Peer) -> tuple[str, str]:
    row = peer.stats()["streams"]["fast.**"]
    return row["stream"], row["subscribers"][0]["name"]


def test_no_figure_is_left_out_in_silence(tmp_path: Path) -> None:
    from meshmsg.monitor.peer_metrics import samples

    marks: dict[str, float] = {}
    shown = set()
    with mesh(tmp_path) as peers:
        for peer in peers:
            changed = mark(peer.stats(), "", marks)
            for sample in samples(changed):
                value = sample.value
                shown |= {*value["counts"], value["sum"]} if isinstance(value, dict) else {value}
    assert len(marks) > 100
    assert {path for path, number in marks.items() if number not in shown} <= NOT_SHOWN


def test_counters_only_grow(tmp_path: Path) -> None:
    with mesh(tmp_path) as (shop, office):
        before = [metrics(peer) for peer in (shop, office)]
        for _ in range(20):
            shop.publish("fast.x", 2)
        published = ("meshmsg_stream_events_total", "shop/fast.**")
        wait_until(lambda: metrics(shop)[published] == 21, PATIENCE_S)
        for peer, old in zip((shop, office), before, strict=True):
            new = metrics(peer)
            counters = [key for key in old if key[0].endswith("_total")]
            assert [key for key in counters if new[key] < old[key]] == []


def test_times_of_what_happens_seldom_are_histograms(tmp_path: Path) -> None:
    streams = [
        Stream("kept.**", durability="log", fsync="always"),
        Stream("fast.**", overflow="block", window_bytes="64KiB"),
    ]
    with (
        Peer("shop", streams=streams, data_dir=tmp_path, monitor=ANY) as shop,
        Peer("desk", connect=shop.address, monitor=ANY) as desk,
        desk.subscribe("**") as events,
    ):
        shop.wait_for_subscribers("kept.x", timeout=PATIENCE_S)
        shop.wait_for_subscribers("fast.x", timeout=PATIENCE_S)
        for _ in range(5):
            shop.publish("kept.x", 1)
        sent = 5
        with contextlib.suppress(PublishTimeout):
            while True:
                shop.publish("fast.x", b"x" * 20_000, timeout=0.02)
                sent += 1

        def read(count: int) -> None:
            for _ in range(count):
                assert events.get(timeout=PATIENCE_S) is not None

        read(sent)
        with lose_frames(shop, ratio=0.5, seed=7):
            for n in range(30):
                shop.publish("fast.x", n)
        read(30)

        def times(peer: Peer, name: str) -> float:
            return sum(
                v for k, v in metrics(peer).items() if k[0] == f"meshmsg_{name}_seconds_count"
            )

        wait_until(lambda: times(shop, "log_sync") >= 5, PATIENCE_S)
        wait_until(lambda: times(shop, "stream_publish_wait") >= 1, PATIENCE_S)
        wait_until(lambda: times(desk, "received_repair") >= 1, PATIENCE_S)


def test_series_are_bounded() -> None:
    streams = [Stream(f"s{n}.**") for n in range(40)]
    with Peer("wide", streams=streams, monitor=Monitor(ANY, series_max=100)) as peer:
        found = metrics(peer)
        assert found[("meshmsg_monitor_series",)] == 100
        dropped = ("meshmsg_monitor_counts_total", "series_dropped")
        wait_until(lambda: metrics(peer)[dropped] > 0, PATIENCE_S)  # figures are kept for a moment


def test_a_peer_that_is_not_there_and_a_stream_that_is_blocked_are_not_ready() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        monitor = Monitor(ANY, blocked_max="200ms")
        stream = Stream("fast.**", overflow="block", window_bytes="64KiB")
        with (
            Peer("shop", streams=stream, connect=nobody, monitor=monitor) as shop,
            Peer("slow", connect=shop.address) as slow,
            slow.subscribe("fast.**"),
        ):
            shop.wait_for_subscribers("fast.x", timeout=PATIENCE_S)

            def publish() -> bool:
                try:
                    shop.publish("fast.x", b"x" * 60_000, timeout=0.0)
                except PublishTimeout:
                    return True
                return bool(shop.stats()["streams"]["fast.**"]["blocked"])

            wait_until(publish, PATIENCE_S)

            def wrong() -> set[str]:
                status, body = get(shop, "/ready")
                assert status == 503
                return {problem["check"] for problem in json.loads(body)}

            wait_until(lambda: wrong() == {"links", "blocked"}, PATIENCE_S)
            problems = json.loads(get(shop, "/ready")[1])
            assert problems[0]["what"] == nobody
            assert "slow/" in problems[1]["problem"]
            assert get(shop, "/health")[0] == 200


def flowing(peer: Any) -> dict[str, Any]:
    """The view that the live page is sent once events go from one peer to another."""
    host, port = peer.monitor.address
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/events")
        with connection.getresponse() as answer:
            for line in islice(answer, 2 * PATIENCE_S):  # two for each look, a second apart
                if line.startswith(b"data: "):
                    view: dict[str, Any] | None = json.loads(line[6:])["view"]
                    if view is not None and any(flow["delivered_s"] for flow in view["flows"]):
                        return view
    finally:
        connection.close()
    raise AssertionError("the page was sent no more")


def test_an_async_peer_has_one_too_with_the_live_page() -> None:
    import asyncio

    async def publish(peer: AsyncPeer) -> None:
        while True:
            await peer.publish("a.b", 1)
            await asyncio.sleep(0.01)

    async def take(events: Any) -> None:
        async for _ in events:
            pass

    async def run() -> None:
        async with (
            AsyncPeer("shop", streams=Stream("a.**"), monitor=ANY) as shop,
            AsyncPeer("office", connect=shop.address) as office,
            office.subscribe("a.**", name="all") as events,
        ):
            work = [asyncio.ensure_future(one) for one in (publish(shop), take(events))]
            assert (await asyncio.to_thread(get, shop, "/health"))[0] == 200
            page = await asyncio.to_thread(get, shop, "/", {"Accept": "text/html"})
            assert "<html" in page[1]
            view = await asyncio.to_thread(flowing, shop)
            for one in work:
                one.cancel()
            assert {peer["name"] for peer in view["peers"]} == {"office", "shop"}
            assert [(flow["publisher"], flow["subscriber"]) for flow in view["flows"]] == [
                ("shop", "office")
            ]

    asyncio.run(run())


# --- who may see it ---


def test_beyond_loopback_a_token_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MESHMSG_MONITOR_TOKEN", "MESHMSG_MONITOR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    peer = Peer("open", monitor="0.0.0.0:0")
    with pytest.raises(ConfigError, match="beyond this machine"):
        peer.open()
    monkeypatch.setenv("MESHMSG_MONITOR_TOKEN", TOKEN)
    with Peer("open", monitor="0.0.0.0:0") as peer:
        assert get(peer, "/health")[0] == 200
        for path in ("/", "/metrics", "/ready", "/stats"):
            assert get(peer, path)[0] == 401, path
            assert get(peer, path, {"Authorization": "Bearer wrong"})[0] == 401, path
            assert get(peer, path, {"Authorization": f"Bearer {TOKEN}"})[0] == 200, path
        stats = json.loads(get(peer, "/stats", {"Authorization": f"Bearer {TOKEN}"})[1])
        assert stats["monitor"]["unauthorized"] == 8
        assert TOKEN not in json.dumps(stats)


def test_a_taken_address_is_an_error_unless_the_environment_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer("first", monitor=ANY) as first:
        place = "{}:{}".format(*first.monitor.address)
        second = Peer("second", monitor=place)
        with pytest.raises(BindError, match=place):
            second.open()
        with pytest.raises(BindError, match=place):
            second.open()  # it was never open
        monkeypatch.setenv("MESHMSG_MONITOR", place)
        with Peer("third") as third:
            assert third.monitor is None
    with second:
        assert get(second, "/health")[0] == 200


def test_nothing_stays_behind() -> None:
    with Peer("first", monitor=ANY):  # what a process opens once
        pass
    before, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Peer("a", monitor=ANY) as peer:
            assert get(peer, "/metrics")[0] == 200
            place = peer.monitor.address
        assert peer.monitor is None
        with pytest.raises(ConnectionRefusedError), socket.create_connection(place, timeout=5):
            pass
        with pytest.raises(BindError), Peer("b", bind="tcp://192.0.2.1:1", monitor=ANY):
            pass
    gc.collect()
    wait_until(lambda: threading.active_count() <= before, PATIENCE_S)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, PATIENCE_S)


def test_a_peer_that_nobody_closes_is_not_held_by_its_monitor() -> None:
    peer = Peer("lost", monitor=ANY).open()
    place = peer.monitor.address
    assert get(peer, "/health")[0] == 200
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del peer
        gc.collect()
    assert any("was not closed" in str(one.message) for one in caught)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(place, timeout=5):
        pass


# --- those who mean no good ---


def dial(peer: Peer) -> socket.socket:
    return socket.create_connection(peer.monitor.address, timeout=PATIENCE_S)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while chunk := sock.recv(65_536):
        data += chunk
    return data


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer("calm", monitor=ANY) as made:
        yield made


def test_a_byte_now_and_then_ends_with_the_time(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    began = time.monotonic()
    with dial(peer) as slow:
        slow.settimeout(0.02)
        ended = False
        while not ended and time.monotonic() < began + PATIENCE_S:
            try:
                slow.send(b"G")
                ended = not slow.recv(1)
            except TimeoutError:
                pass
            except ConnectionError:
                ended = True
    assert ended
    assert counted(peer, "timeouts") == 1


def test_who_does_not_take_the_answer_is_dropped(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    monkeypatch.setattr(peer.monitor, "_answers", _Large())
    with dial(peer) as lazy:
        lazy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: peer.monitor._counters["timeouts"] == 1, PATIENCE_S)


class _Large:
    """Answers with more than sockets hold."""

    def answer(self, request: Any) -> Any:
        from meshmsg.monitor.http_messages import Answer

        return Answer(200, b"x" * (64 << 20))


def test_large_answers_arrive_whole(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.monitor, "_answers", _Large())
    assert len(get(peer, "/")[1]) == 64 << 20


def test_huge_headers_are_refused(peer: Peer) -> None:
    with dial(peer) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 6_000 + b"\r\n" + b"z" * 6_000)
        assert read_all(sock).startswith(b"HTTP/1.1 431 ")
    with dial(peer) as sock:
        sock.sendall(os.urandom(100).replace(b"\r", b"") + b"\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400 ")
    with dial(peer) as sock:
        sock.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        assert read_all(sock).startswith(b"HTTP/1.1 405 ")
    assert counted(peer, "bad_requests") == 2


def test_thousands_of_connections_neither_slow_the_mesh_nor_keep_a_scrape_out(
    peer: Peer,
) -> None:
    stopping = threading.Event()
    made = 0

    def flood() -> None:
        nonlocal made
        held: list[socket.socket] = []
        while not stopping.is_set():
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(peer.monitor.address)
            held.append(sock)
            made += 1
            if len(held) > 500:
                held.pop(0).close()
            if made > 300:
                time.sleep(0.001)
        for sock in held:
            sock.close()

    thread = threading.Thread(target=flood)
    with (
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("**") as events,
    ):
        peer.wait_for_subscribers("x", timeout=PATIENCE_S)
        thread.start()
        try:
            wait_until(lambda: peer.monitor._counters["connections_full"] > 100, PATIENCE_S)
            statuses = set()
            for n in range(3):
                peer.publish("x", n)
                event = events.get(timeout=PATIENCE_S)
                assert event is not None
                assert event.data == n
                statuses.add(get(peer, "/metrics")[0])
            assert statuses == {200}
            assert len(peer.monitor._server._callers) <= http_server.CONNECTIONS_MAX
        finally:
            stopping.set()
            thread.join()
    assert made > 100
    taken = peer.monitor._counters
    assert taken["accepts_delayed"] > 0
    wait_until(lambda: get(peer, "/ready")[0] == 200, PATIENCE_S)


def test_hostile_names_are_labels(peer: Peer) -> None:
    name = 'x"}\\{<script>'
    with (
        Peer(name.replace("/", ""), connect=peer.address, monitor=ANY) as odd,
        odd.subscribe("**", name=name),
    ):
        peer.wait_for_subscribers("x", timeout=PATIENCE_S)
        for one in (peer, odd):
            shown = {label for key in metrics(one) for label in key[1:]}
            assert any("<script>" in label and '"}' in label for label in shown)
