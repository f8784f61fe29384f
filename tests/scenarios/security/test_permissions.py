"""What a key permits: enforced by whoever is asked, also against those who do as they like."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Peer, PeerRefused, ReplayError, Stream
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow
from meshmsg._replay.log_client import ReplayClient
from meshmsg._wire import control as c
from meshmsg._wire.control import stream_wire_id, subscription_token
from meshmsg._wire.frame import encode_frame
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.curve import CONTROL
from meshmsg.transports.zmq.per_publisher import ApartFanoutClient
from meshmsg.transports.zmq.zap import ZapServer
from tests.scenarios.security.conftest import curve_of
from tests.support.waiting import wait_until

WAIT_S = 60.0
SHOP = (Stream("orders.**"), Stream("quotes.**"), Stream("log.**", durability="log"))


def count(peer: Peer, *names: str) -> int:
    return sum(peer.stats()["counters"].get(name, 0) for name in names)


def test_a_subscriber_sees_and_gets_only_what_it_may(keys: Any, tmp_path: Path) -> None:
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk", subscribe=("quotes.**",))
    with (
        Peer("shop", streams=SHOP, data_dir=tmp_path / "data", security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        desk.subscribe("**") as events,
    ):
        shop.wait_for_subscribers("quotes.A", timeout=WAIT_S)
        for n in range(50):
            shop.publish("orders.eu", "secret")
            shop.publish("log.eu", "secret")
            shop.publish("quotes.A", n)
        assert [events.get(timeout=WAIT_S).data for _ in range(50)] == list(range(50))
        assert desk.stats()["links"][0]["streams"] == ["shop/quotes.**"]
        with ReplayClient(shop.address, security=desk_keys, timeout=WAIT_S) as client:
            assert client.logs() == []
            with pytest.raises(ReplayError, match="no log of stream"):
                list(client.read("shop/log.**", 1, 0, 1))
            client._keyring = None  # it asks all the same
            with pytest.raises(ReplayError, match="no log of stream"):
                list(client.read("shop/log.**", 1, 0, 1))


def test_one_who_asks_for_more_gets_nothing_of_it(keys: Any, tmp_path: Path, intruder: Any) -> None:
    """A peer with a good key and a program of its own."""
    rights = {"subscribe": ("quotes.**",), "stats": False}
    shop_keys, _ = keys.peer("shop"), keys.peer("mallory", **rights)
    with Peer("shop", streams=SHOP, data_dir=tmp_path / "data", security=shop_keys) as shop:
        shop.publish("orders.eu", "secret")
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        node = shop._open_node()
        epoch = node.publisher.infos()[0].epoch
        # On the data socket: everything, a stream that it may not have, the one that it may.
        data = node._fanout.addresses[0][1]
        taker = intruder.socket(zmq.SUB, data, curve, keys.public("shop"))
        good = stream_wire_id("default", "shop/quotes.**").to_bytes(8, "little")
        bad = stream_wire_id("default", "shop/orders.**").to_bytes(8, "little")
        taker.subscribe(bad)
        for prefix in (b"", bad[:4], bad + b"xyz1", good[:7]):
            greedy = intruder.socket(zmq.SUB, data, curve, keys.public("shop"))
            greedy.subscribe(prefix)
        asker = intruder.socket(zmq.DEALER, shop.address, curve)
        number = keys.number("mallory")
        intruder.say(asker, c.Hello("mallory", number, "default", nonce=b"n" * 16))
        welcome = intruder.hear(asker)
        assert isinstance(welcome, c.Welcome)
        assert [info.name for info in welcome.streams] == ["shop/quotes.**"]
        for question in (
            c.Subscribe(7, ["**"], [c.Start("shop/orders.**", "earliest")]),
            c.Nack(7, "shop/orders.**", epoch, [(0, 1)], 1),
            c.Commit(7, [c.Place("shop/log.**", 1, 1)]),
            c.Ask(1, "stats"),
            c.Ask(2, "ledger"),
        ):
            intruder.say(asker, question)
        wait_until(lambda: count(shop, "not_permitted") >= 5, WAIT_S)
        join = c.Join(8, "g", ["**"], [c.Start("shop/orders.**", "live")], 1, 1.0, 1, "none")
        intruder.say(asker, join)
        for kind in (c.Unsubscribed, c.Unjoined):
            answer = intruder.hear(asker)
            assert isinstance(answer, kind)
            assert answer.refused
        wait_until(lambda: node._fanout.counters["not_permitted"] >= 1, WAIT_S)
        wait_until(lambda: node._fanout.counters["bad_prefixes"] >= 4, WAIT_S)
        taker.subscribe(good)
        taker.subscribe(subscription_token(7))
        wait_until(lambda: 7 in node.publisher._tokens, WAIT_S)
        shop.publish("orders.eu", "secret")
        shop.publish("quotes.A", "known to all")
        assert taker.poll(WAIT_S * 1000)
        while taker.poll(0):
            assert b"secret" not in taker.recv()
        assert not asker.poll(0)


def test_a_publisher_may_publish_only_what_the_list_says(keys: Any) -> None:
    mallory_keys = keys.peer("mallory", publish=("chat.**",))
    desk_keys = keys.peer("desk")
    streams = [Stream("quotes.**"), Stream("chat.**")]
    with (
        Peer("mallory", streams=streams, security=mallory_keys) as mallory,
        Peer("desk", connect=mallory.address, security=desk_keys) as desk,
        desk.subscribe("**") as events,
    ):
        mallory.wait_for_subscribers("chat.all", timeout=WAIT_S)
        mallory.publish("quotes.A", "false")
        mallory.publish("chat.all", "hi")
        assert events.get(timeout=WAIT_S).data == "hi"
        assert count(desk, "not_permitted") >= 1
        assert desk.stats()["links"][0]["streams"] == ["mallory/chat.**"]
        # Of a stream that it may publish: a topic that does not belong to it.
        node = mallory._open_node()
        outlet = node.publisher._outlets["mallory/chat.**"]
        wire_id = stream_wire_id("default", "mallory/chat.**")
        frame = encode_frame(
            wire_id, outlet.epoch, 1, ["quotes.A", "chat.all"], [b"false", b"true"], time.time_ns()
        )
        with node.publisher._lock:
            node._fanout.send(bytes(frame))
        assert events.get(timeout=WAIT_S).data == b"true"
        assert desk.stats()["subscriptions"][0]["counters"]["foreign_topics"] >= 1


def test_nobody_speaks_in_the_name_of_another() -> None:
    """Two publishers; what one sends of the other's stream does not count."""
    context = Context()
    ours, theirs = b"stream A", b"stream B"
    client = ApartFanoutClient(context, 10)
    publishers = []
    try:
        for stream in (ours, theirs):
            publisher = context.zmq.socket(zmq.XPUB)
            publisher.setsockopt(zmq.LINGER, 0)
            publisher.bind("tcp://127.0.0.1:*")
            publishers.append(publisher)
            address = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
            client.connect(address, streams=[stream])
            assert publisher.poll(WAIT_S * 1000)
            assert publisher.recv() == b"\x01" + stream
        for publisher in publishers:
            for stream in (ours, theirs):
                publisher.send(stream + b" says")
        publishers[0].send(ours + b" ends")
        seen = []
        while not seen or not seen[-1].endswith(b"ends"):
            client.wait(WAIT_S)
            data = client.recv()
            if data is not None:
                seen.append(data)
        assert sorted(seen)[0] == ours + b" ends"
        assert seen.count(ours + b" says") == 1
        # ZeroMQ filters what was not subscribed to; where it did not, this would.
        assert not client._is_own(client._order[0], b"stream ? says")
        assert client.foreign == 1
    finally:
        client.close()
        for publisher in publishers:
            publisher.close()
        context.close()


def test_a_name_belongs_to_its_key(keys: Any, intruder: Any) -> None:
    """A hello with another's name, and thousands of others: refused, and the rest is served."""
    shop_keys, _, desk_keys = keys.peer("shop"), keys.peer("mallory"), keys.peer("desk")
    rng = random.Random(7)
    with Peer("shop", streams=[Stream("a.**")], security=shop_keys) as shop:
        asker = intruder.socket(
            zmq.DEALER, shop.address, curve_of(keys.mesh_key, keys.pair("mallory"))
        )
        names = ["desk", "shop", "mallory*", "*", "MALLORY"]
        names += [rng.randbytes(8).hex() for _ in range(200)]
        none = ["", "mallory\n", "desk\0", "mallory/a"]  # no names at all
        for number, name in enumerate([*none, *names]):
            nonce = rng.randbytes(rng.choice([0, 1, 16, 64]))
            intruder.say(asker, c.Hello(name, number, "default", nonce=nonce))
        for _ in names:
            answer = intruder.hear(asker)
            assert isinstance(answer, c.Refused)
            assert "has the key of 'mallory'" in answer.reason
        assert shop.stats()["counters"]["bad_control"] == len(none)
        for number in (keys.number("desk"), keys.number("shop"), 1):
            intruder.say(asker, c.Hello("mallory", number, "default", nonce=b"n" * 16))
            answer = intruder.hear(asker)
            assert isinstance(answer, c.Refused)
            assert "is not one of its key" in answer.reason
        hello = c.Hello("mallory", keys.number("mallory"), "default", nonce=b"n" * 16)
        good = c.encode_message(hello)
        for _ in range(300):  # damaged, in any place
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] = rng.randrange(256)
            asker.send(bytes(bad))
        assert set(shop.stats()["clients"]) <= {"mallory"}
        with (
            Peer("desk", connect=shop.address, security=desk_keys) as desk,
            desk.subscribe("a.**") as events,
        ):
            shop.wait_for_subscribers("a.b", timeout=WAIT_S)
            shop.publish("a.b", 1)
            assert events.get(timeout=WAIT_S).data == 1
        assert shop.stats()["counters"].get("io_errors", 0) == 0


def test_with_the_mesh_key_alone_nobody_passes_for_a_peer(keys: Any) -> None:
    """Somebody listens where we dial: without a proof of a key on the list it is not believed."""
    desk_keys = keys.peer("desk")
    known = curve_of(keys.mesh_key)
    context = Context(known)
    door = ZapServer(context)
    server = context.socket(zmq.ROUTER, send_queue=100, recv_queue=100, listens=CONTROL)
    try:
        server.bind("tcp://127.0.0.1:*")
        address = server.getsockopt_string(zmq.LAST_ENDPOINT)
        with Peer("desk", connect=address, security=desk_keys) as desk:
            said = []

            def serve() -> bool:
                request = door.recv()
                if request is not None:
                    door.accept(request, b"anybody")
                while server.poll(0):
                    identity, _ = server.recv_multipart()
                    info = c.StreamInfo("shop/a.**", "a.**", 1, "buffer", "msgpack", 1)
                    key = known.own.public
                    welcome = c.Welcome("shop", 9, "default", [info], [(address, address)], key=key)
                    said.append(identity)
                    server.send_multipart([identity, c.encode_message(welcome)])
                return bool(said) and desk.stats()["links"][0]["state"] == "refused"

            wait_until(serve, WAIT_S)
            with pytest.raises(PeerRefused, match="did not prove its key"):
                desk.wait_for_peers(timeout=WAIT_S)
            assert desk.stats()["links"][0]["streams"] == []
    finally:
        server.close(linger=0)
        door.close()
        context.close()


def test_work_is_for_the_member_only(keys: Any, intruder: Any) -> None:
    """The socket of one member's work is closed to other keys, good ones too."""
    shop_keys, _, worker_keys = keys.peer("shop"), keys.peer("mallory"), keys.peer("worker")
    with (
        Peer("shop", streams=[Stream("jobs.**")], security=shop_keys) as shop,
        Peer("worker", connect=shop.address, security=worker_keys) as worker,
        worker.subscribe("jobs.**", group="g", auto_ack=True) as jobs,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        member = next(iter(shop._open_node().publisher.groups.members.values()))
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        thief = intruder.socket(zmq.PULL, member.work.addresses[0][1], curve, keys.public("shop"))
        wait_until(lambda: count(shop, "refused_keys"), WAIT_S)
        for n in range(20):
            shop.publish("jobs.a", n)
        assert sorted(jobs.get(timeout=WAIT_S).data for _ in range(20)) == list(range(20))
        assert not thief.poll(0)


def test_a_key_of_any_name_does_not_pass_for_a_peer_of_the_list(keys: Any) -> None:
    """Its own list says that it may: what counts is the list of who is told the name."""
    shop_keys, desk_keys, mallory_keys = map(keys.peer, ("shop", "desk", "mallory"))
    keys.revoke("shop", at="mallory")
    for at in ("desk", "mallory"):
        allow(keys.folder / at, Grant("*", keys.public("mallory")))
    streams = [Stream("quotes.**")]
    with (
        Peer("shop", streams=streams, security=mallory_keys) as false,
        Peer("shop", streams=streams, security=shop_keys) as true,
        Peer("desk", connect=[false.address, true.address], security=desk_keys) as desk,
        desk.subscribe("quotes.**") as events,
    ):
        true.wait_for_subscribers("quotes.A", timeout=WAIT_S)
        false.publish("quotes.A", "false")
        true.publish("quotes.A", "true")
        assert events.get(timeout=WAIT_S).data == "true"
        wait_until(lambda: states(desk) == {false.address: "refused", true.address: "up"}, WAIT_S)


def states(peer: Peer) -> dict[str, str]:
    return {link["address"]: link["state"] for link in peer.stats()["links"]}


def test_only_a_key_that_may_operate_does(keys: Any) -> None:
    rights = {"desk": {}, "boss": {"operate": True}}
    shop_keys, desk_keys, boss_keys = (
        keys.peer(name, **rights.get(name, {})) for name in ("shop", "desk", "boss")
    )
    shop_stream = Stream("orders.**", groups="g")
    with (
        Peer("shop", streams=[shop_stream], security=shop_keys, audit=True) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        Peer("boss", connect=shop.address, security=boss_keys) as boss,
    ):

        def said(peer: Peer, action: str) -> dict[str, Any]:
            peer.wait_for_peers(timeout=WAIT_S)
            (answer,) = peer.operate(action, "g", timeout=WAIT_S).values()
            return dict(answer)

        for action in ("group pause", "group reset", "group redrive", "cursor drop", "evict"):
            answer = said(desk, action)
            assert "does not let 'desk' operate this peer" in answer["problem"]
            assert answer["done"] == []
        assert "does not let 'desk'" in said(desk, "drain")["problem"]
        (group,) = shop.stats()["streams"]["orders.**"]["groups"]
        assert (group["paused"], group["generation"]) == (False, 0)
        assert count(shop, "not_permitted") == 6
        assert said(boss, "group pause")["done"][0]["changes"] is True
        (group,) = shop.stats()["streams"]["orders.**"]["groups"]
        assert group["paused"]
