"""nanomsg and NNG at the edge: real pynng sockets, in both directions and both patterns."""

from __future__ import annotations

import json
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynng
import pytest

from meshmsg import BindError, ConfigError, Peer, Stream, Subscription, nanomsg
from meshmsg.nanomsg import NanomsgIn, NanomsgOut
from tests.support import processes
from tests.support.waiting import wait_until

PATIENCE_S = 30
ANY = "tcp://127.0.0.1:0"


@contextmanager
def taking(**options: Any) -> Iterator[tuple[NanomsgIn, Subscription]]:
    with (
        Peer("bridge", streams=[Stream("nng.**")]) as peer,
        Peer("desk", connect=peer.address) as desk,
        desk.subscribe("nng.**") as events,
        NanomsgIn(peer, ANY, listen=True, **options) as bridge,
    ):
        peer.wait_for_subscribers("nng.x", timeout=PATIENCE_S)
        yield bridge, events


def get(events: Subscription, count: int) -> list[Any]:
    found = [events.get(timeout=PATIENCE_S) for _ in range(count)]
    assert None not in found
    return found


def read_until(events: Subscription, done: Any) -> list[Any]:
    """Events, up to and with the first one that is the last."""
    found = []
    while not found or not done(found[-1]):
        event = events.get(timeout=PATIENCE_S)
        assert event is not None
        found.append(event)
    return found


def test_pub_messages_become_events_with_their_topics() -> None:
    with taking(json=True) as (bridge, events), pynng.Pub0(send_buffer_size=1024) as pub:
        pub.dial(bridge.url, block=True)
        # A pub socket drops what nobody has asked for yet, and cannot be asked if somebody has.
        wait_until(lambda: pub.send(b"hello|1") or bridge.stats()["received"], PATIENCE_S, "sub")
        for n in range(100):
            pub.send(b"orders/eu|" + json.dumps({"n": n}).encode())
        found = read_until(events, lambda event: event.data == {"n": 99})
        orders = [event for event in found if event.topic == "nng.orders.eu"]
        assert [event.data["n"] for event in orders] == list(range(100))
        seqs = [event.seq for event in found]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "numbered once inside"
        assert {event.topic for event in found} == {"nng.hello", "nng.orders.eu"}


def test_pushed_messages_become_events_of_one_topic_and_the_books_reconcile(ledger: Any) -> None:
    with taking(kind="pull", topic="nng.jobs") as (bridge, events), pynng.Push0() as push:
        push.dial(bridge.url, block=True)
        for n in range(500):
            push.send(b"job %d" % n)
        assert [e.data for e in get(events, 500)] == [b"job %d" % n for n in range(500)]
        wait_until(lambda: bridge.stats()["published"] == 500, PATIENCE_S, "counted")
        figures = bridge.stats()
        assert figures["received"] == 500
        (row,) = ledger(events._node.config.connect[0])
        assert row["published"] == row["delivered"] == figures["published"]


def test_json_that_no_payload_can_be_is_published_as_it_is() -> None:
    options: dict[str, Any] = {"kind": "pull", "topic": "nng.jobs", "json": True}
    with taking(**options) as (bridge, events), pynng.Push0() as push:
        push.dial(bridge.url, block=True)
        push.send(b'{"n": 123456789012345678901234567890}')
        push.send(b'{"n": 1}')
        found = [event.data for event in get(events, 2)]
        assert found == [b'{"n": 123456789012345678901234567890}', {"n": 1}]
        wait_until(lambda: bridge.stats()["published"] == 2, PATIENCE_S, "both are counted")
        assert bridge.stats()["unpublished"] == 0


def test_a_defect_costs_what_is_counted_and_not_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nanomsg, "AFTER_FAILURE_S", 0.01)
    with taking(kind="pull", topic="nng.jobs") as (bridge, events), pynng.Push0() as push:
        publish = bridge._peer.publish

        def failing(topic: str, data: Any, **options: Any) -> Any:
            if data == b"bad":
                raise TypeError("a defect")
            return publish(topic, data, **options)

        monkeypatch.setattr(bridge._peer, "publish", failing)
        push.dial(bridge.url, block=True)
        push.send(b"bad")
        wait_until(lambda: bridge.stats()["io_errors"], PATIENCE_S, "it failed")
        push.send(b"good")
        assert get(events, 1)[0].data == b"good"
        wait_until(lambda: bridge.stats()["published"] == 1, PATIENCE_S, "it is counted")
        assert (bridge.stats()["received"], bridge.stats()["unpublished"]) == (2, 1)
        assert bridge.alive


def test_prefixes_choose_what_a_sub_socket_wants() -> None:
    with taking(prefixes=["a"]) as (bridge, events), pynng.Pub0(send_buffer_size=1024) as pub:
        pub.dial(bridge.url, block=True)
        wait_until(lambda: pub.send(b"b|0") or pub.send(b"a|0") or bridge.stats()["received"], 30)
        pub.send(b"b|1")
        pub.send(b"a|last")
        found = read_until(events, lambda event: event.data == b"last")
        assert {event.topic for event in found} == {"nng.a"}


def test_events_are_published_to_sub_sockets() -> None:
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("bridge", connect=shop.address) as peer,
        NanomsgOut(peer, ANY, "orders.**") as bridge,
        pynng.Sub0(recv_timeout=PATIENCE_S * 1000) as sub,
    ):
        sub.subscribe(b"orders.eu")
        sub.dial(bridge.url, block=True)
        shop.wait_for_subscribers("orders.eu", timeout=PATIENCE_S)
        sub.recv_timeout = 100
        for _ in range(100):  # until the subscription has reached the pub socket
            shop.publish("orders.eu", "hello")
            try:
                assert sub.recv() == b"orders.eu|hello"
                break
            except pynng.Timeout:
                pass
        sub.recv_timeout = PATIENCE_S * 1000
        shop.publish("orders.us", "not for this one")
        shop.publish("orders.eu", {"id": 7})
        shop.publish("orders.eu", b"\xff")
        found = [sub.recv()]
        while found[-1] != b"orders.eu|\xff":
            found.append(sub.recv())
        assert found[-2] == b'orders.eu|{"id":7}'
        assert b"orders.us" not in b"".join(found)


def test_events_are_pushed_with_backpressure_and_position() -> None:
    """Nobody pulls: nothing is dropped, the bridge waits."""
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("bridge", connect=shop.address) as peer,
        NanomsgOut(peer, ANY, "orders.**", kind="push", separator="", format="event") as bridge,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=PATIENCE_S)
        shop.publish_many("orders.eu", range(300), keys=["k"] * 300)
        wait_until(lambda: bridge.stats()["waits"], PATIENCE_S, "it waits")
        assert bridge.stats()["sent"] == 0
        with pynng.Pull0(dial=bridge.url, recv_timeout=PATIENCE_S * 1000) as pull:
            found = [json.loads(pull.recv()) for _ in range(300)]
        assert [event["data"] for event in found] == list(range(300))
        assert [int(event["position"].rpartition(":")[2]) for event in found] == list(range(300))
        assert found[0]["key"] == "k"
        wait_until(lambda: bridge.stats()["sent"] == 300, PATIENCE_S, "counted")
        assert bridge.stats()["taken"] == 300


@pytest.mark.timeout(300)
def test_a_named_bridge_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Killed in the middle: what was sent since the last commit comes again, nothing is missing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    orders = Stream("orders.**", durability="log")
    with (
        Peer("shop", streams=[orders], data_dir=tmp_path / "shop") as shop,
        pynng.Pull0(listen=url, recv_timeout=100_000) as pull,
    ):
        shop.publish_many("orders.eu", range(200))
        arguments = ["nng", "out", url, "--kind", "push", "--dial", "--topics", "orders.**"]
        arguments += ["--separator", "", "--cursor", "out", "--data-dir", str(tmp_path / "out")]
        command = [sys.executable, "-m", "meshmsg", *arguments, "-c", shop.address, "--quiet"]
        found: list[int] = []
        for stop in (100, 200):
            bridge = processes.start(command)
            try:
                while not found or found[-1] < stop - 1:
                    found.append(int(pull.recv()))
            finally:
                bridge.kill()
                bridge.wait()
        assert sorted(set(found)) == list(range(200))
        again = [n for n, before in zip(found[1:], found, strict=False) if n <= before]
        assert len(again) <= 1, "in order, but for one step back"


def test_from_mesh_to_mesh_over_nng() -> None:
    """The two edges together: the ledgers on both sides meet."""
    with (
        taking(kind="pull", topic="nng.{topic}") as (inlet, events),
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("out", connect=shop.address) as out,
        NanomsgOut(out, inlet.url, "orders.**", kind="push", listen=False) as outlet,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=PATIENCE_S)
        shop.publish_many("orders.eu", [f"order {n}" for n in range(400)])
        found = get(events, 400)
        assert [event.data.decode() for event in found] == [f"order {n}" for n in range(400)]
        assert {event.topic for event in found} == {"nng.orders.eu"}
        assert shop.ledger().reconciles
        wait_until(lambda: outlet.stats()["sent"] == 400, PATIENCE_S, "counted")
        assert inlet.stats()["received"] == 400


def test_fuzzed_messages_are_counted_and_never_end_the_bridge() -> None:
    rng = random.Random(23)
    with (
        taking(kind="pull", json=True, message_bytes_max=2000) as (bridge, events),
        pynng.Push0() as push,
    ):
        push.dial(bridge.url, block=True)
        for _ in range(300):
            junk = rng.randbytes(rng.randrange(100))
            push.send(b"t|" * rng.randrange(2) + junk)
        with socket.create_connection(_place(bridge.url)) as stranger:  # no SP at all
            stranger.sendall(rng.randbytes(500))
        push.send(b"")
        push.send(b"last|1")
        read_until(events, lambda event: event.topic == "nng.last")
    figures = bridge.stats()  # closed: nothing is being counted any more
    assert (figures["received"], figures["io_errors"]) == (302, 0)
    assert figures["malformed"] > 50
    assert figures["received"] == figures["published"] + figures["malformed"]


def _place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def test_messages_that_no_stream_takes_are_counted() -> None:
    with (
        Peer("bridge", streams=[Stream("other.**")]) as peer,
        NanomsgIn(peer, ANY, kind="pull", listen=True, topic="nng.jobs") as bridge,
        pynng.Push0() as push,
    ):
        push.dial(bridge.url, block=True)
        push.send(b"x")
        wait_until(lambda: bridge.stats()["unpublished"] == 1, PATIENCE_S, "counted")


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with Peer("bridge") as peer:
        for options, field in (
            ({"kind": "pub"}, "kind"),
            ({"topic": "a b"}, "topic"),
            ({"separator": ""}, "topic"),
            ({"message_bytes_max": "much"}, "message_bytes_max"),
        ):
            with pytest.raises(ConfigError) as caught:
                NanomsgIn(peer, ANY, **options)  # type: ignore[arg-type]
            assert caught.value.field == field
        for options, field in (
            ({"kind": "sub"}, "kind"),
            ({"format": "xml"}, "format"),
            ({"name": "x"}, "name"),
        ):
            with pytest.raises(ConfigError) as caught:
                NanomsgOut(peer, ANY, "a", **options)  # type: ignore[arg-type]
            assert caught.value.field == field
        with pytest.raises(BindError), NanomsgIn(peer, "bogus://x"):
            pass


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynng", None)
    with Peer("bridge") as peer, pytest.raises(ConfigError, match=r"meshmsg\[nanomsg\]"):
        NanomsgIn(peer, ANY)
