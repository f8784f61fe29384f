"""Peers with a good key that try to get at what is meant for others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import zmq

from meshmsg import Peer, Stream
from meshmsg._links.outbound_peer import Link
from meshmsg._wire import control as c
from meshmsg._wire.control import stream_wire_id, subscription_token
from meshmsg._wire.frame_layout import FRAME_MAGIC
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.fanout import FanoutServer
from tests.scenarios.security.conftest import curve_of
from tests.support.waiting import wait_until

WAIT_S = 60.0
SHOP = (Stream("orders.**"), Stream("quotes.**"))


def test_a_subscription_behind_nonsense_is_not_given_to_who_said_it() -> None:
    """ZeroMQ would: it forgets that nonsense, too, came from somebody."""
    context = Context()
    server = FanoutServer(context, 100, may=lambda user, prefix: True)
    server._socket.bind("inproc://data")
    mallory, desk = context.zmq.socket(zmq.XSUB), context.zmq.socket(zmq.SUB)
    try:
        mallory.connect("inproc://data")
        desk.connect("inproc://data")
        server._socket.getsockopt(zmq.EVENTS)
        for say in (
            lambda: mallory.send(b"\x05nonsense"),
            lambda: desk.subscribe(b"secret.."),
            lambda: mallory.send(b"\x01a.token."),
        ):
            say()
            server._socket.getsockopt(zmq.EVENTS)  # have them come in this order
        assert server.drain() == []
        assert server.counters["bad_upstream"] == 1
        assert server.counters["out_of_step"] == 2
        server.send(b"secret.. of the shop")
        assert not mallory.poll(100)
        desk.unsubscribe(b"secret..")  # it dials anew, where it can
        desk.subscribe(b"secret..")
        assert server.drain() == [(False, b"secret.."), (True, b"secret..")]
        server.send(b"secret.. of the shop")
        assert desk.poll(WAIT_S * 1000)
        assert not mallory.poll(0)
    finally:
        mallory.close(0)
        desk.close(0)
        server.close(0)
        context.close()


def test_nonsense_at_the_data_port_gets_its_sender_nothing_and_others_their_events(
    keys: Any, intruder: Any
) -> None:
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk")
    keys.peer("mallory", subscribe=("quotes.**",))
    stop = threading.Event()
    with (
        Peer("shop", streams=SHOP, security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
    ):
        desk.wait_for_peers(1, timeout=WAIT_S)
        node = shop._open_node()
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        mallory = intruder.socket(
            zmq.XSUB, node._fanout.addresses[0][1], curve, keys.public("shop")
        )
        mallory.setsockopt(zmq.SNDTIMEO, 10)

        def rave() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    mallory.send(b"\x05nonsense")
                    mallory.send(b"\x01" + subscription_token(number))
                except zmq.Again:
                    pass

        thread = threading.Thread(target=rave)
        thread.start()
        try:
            wait_until(lambda: node._fanout.counters["bad_upstream"] > 0, WAIT_S)
            with desk.subscribe("orders.**") as events:
                shop.wait_for_subscribers("orders.eu", timeout=WAIT_S)
                shop.publish("orders.eu", "secret")
                assert events.get(timeout=WAIT_S).data == "secret"
            wait_until(lambda: shop.stats()["counters"].get("refused_keys", 0) > 0, WAIT_S)
        finally:
            stop.set()
            thread.join(WAIT_S)
        while mallory.poll(0):
            assert b"secret" not in mallory.recv()


def test_a_stream_cannot_be_subscribed_to_before_it_is_declared(keys: Any) -> None:
    shop_keys = keys.peer("shop")
    keys.peer("mallory", subscribe=())
    with Peer("shop", streams=SHOP, security=shop_keys) as shop:
        gate = shop._open_node().gate
        user = keys.public("mallory").hex().encode()
        coming = stream_wire_id("default", "shop/later.**").to_bytes(8, "little")
        assert gate.may_take(user, subscription_token(7))
        assert not gate.may_take(user, coming + FRAME_MAGIC)
        assert not gate.may_take(user, coming)


def test_nobody_takes_over_the_subscription_of_another_key(keys: Any, intruder: Any) -> None:
    """Keys of sealed streams and answers would go to whoever is taken for the subscriber."""
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk")
    keys.peer("mallory", subscribe=("quotes.**",))
    with (
        Peer("shop", streams=SHOP, security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        desk.subscribe("orders.**"),
        desk.subscribe("orders.**", group="g"),
    ):
        shop.wait_for_subscribers("orders.eu", count=2, timeout=WAIT_S)
        publisher = shop._open_node().publisher
        wait_until(lambda: bool(publisher.groups.members), WAIT_S)
        [(sub, remote)], [(worker, member)] = (
            list(publisher.subscribers.subs.items()),
            list(publisher.groups.members.items()),
        )
        before = remote.link, member.link
        asker = intruder.socket(
            zmq.DEALER, shop.address, curve_of(keys.mesh_key, keys.pair("mallory"))
        )
        hello = c.Hello("mallory", keys.number("mallory"), "default", nonce=b"n" * 16)
        intruder.say(asker, hello)
        assert isinstance(intruder.hear(asker), c.Welcome)
        start = [c.Start("shop/quotes.**", "live")]
        intruder.say(asker, c.Subscribe(sub, ["**"], start))
        intruder.say(asker, c.Join(worker, "g", ["**"], start, 1, 1.0, 1, "none"))
        for kind in (c.Unsubscribed, c.Unjoined):
            answer = intruder.hear(asker)
            assert isinstance(answer, kind)
            assert answer.refused
        assert (
            publisher.subscribers.subs[sub].link,
            publisher.groups.members[worker].link,
        ) == before


def test_a_recorder_lends_only_streams_that_it_might_publish(keys: Any) -> None:
    """What topics a stream has is said by its publisher, not by who claims to have recorded it."""
    desk_keys, _ = keys.peer("desk"), keys.peer("shop")
    keys.peer("mallory", publish=("chat.**",))
    keys.peer("archive", publish=("quotes.**",))
    told = [
        c.StreamInfo(name, topics, 1, "buffer", "msgpack", 1)
        for name, topics in (("shop/quotes.**", "chat.**"), ("shop/q", "chat.**"))
    ]
    with Peer("desk", security=desk_keys) as desk:
        node = desk._open_node()

    def welcome(name: str, streams: Any = (), recorded: Any = ()) -> Link:
        link = Link("tcp://127.0.0.1:1", None, given=False)  # type: ignore[arg-type]
        link.user, link.state = keys.public(name).hex().encode(), "up"
        number = keys.number(name)
        card = c.Welcome(name, number, "default", list(streams), [], recorded=list(recorded))
        link.recorded = {info.name: info for info in node.gate.screen(link, card).recorded}
        return link

    true = [c.StreamInfo("shop/q", "quotes.**", 1, "buffer", "msgpack", 1)]
    early = welcome("mallory", recorded=told)
    assert list(early.recorded) == ["shop/q"]  # nobody has said yet what that is
    node.links._links["early"] = early
    welcome("shop", streams=true)
    assert early.recorded == {}
    assert welcome("mallory", recorded=told).recorded == {}
    assert list(welcome("archive", recorded=true).recorded) == ["shop/q"]


def test_a_publisher_hands_out_no_work_of_another(keys: Any) -> None:
    """It has taken a member of a group, it says, for a stream that is not its own."""
    shop_keys, mallory_keys = keys.peer("shop"), keys.peer("mallory", publish=("chat.**",))
    worker_keys = keys.peer("worker")
    with (
        Peer("shop", streams=[Stream("jobs.**")], security=shop_keys) as shop,
        Peer("mallory", streams=[Stream("chat.**")], security=mallory_keys) as mallory,
        Peer("worker", connect=[shop.address, mallory.address], security=worker_keys) as worker,
        worker.subscribe("**", group="g", auto_ack=True) as jobs,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        mallory.wait_for_subscribers("chat.a", timeout=WAIT_S)
        node = mallory._open_node()
        member = next(iter(node.publisher.groups.members.values()))
        false = c.Joined(member.sub, [c.Tail("shop/jobs.**", 1, 0, 0)], member.work.addresses)
        node.post(member.link, false)
        counters = worker._open_node().counters
        wait_until(lambda: counters["strange_answers"] > 0, WAIT_S)
        shop.publish("jobs.a", "true")
        assert jobs.get(timeout=WAIT_S).data == "true"


def test_a_read_ends_when_the_log_may_not_be_read_any_more(
    keys: Any, intruder: Any, tmp_path: Path
) -> None:
    """Though its reader comes back with the same routing id, and goes on giving credit."""
    shop_keys = keys.peer("shop")
    keys.peer("mallory")
    streams = [Stream("orders.**", durability="log")]
    with Peer("shop", streams=streams, data_dir=tmp_path, security=shop_keys) as shop:
        large = "secret" * 300_000
        epoch = shop.publish("orders.eu", large).epoch
        for _ in range(3):
            shop.publish("orders.eu", large)
        shop.flush(timeout=WAIT_S)
        asker = intruder.listen(zmq.DEALER)
        asker.setsockopt(zmq.ROUTING_ID, b"mallory's")
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        curve.dial(asker, curve.doors[0])
        asker.connect(shop.address)
        intruder.say(asker, c.Read(1, "default", "shop/orders.**", epoch, 0, 4, 1))
        part = intruder.hear(asker)
        assert isinstance(part, c.Part)
        assert not part.done
        node = shop._open_node()
        keys.change("shop", "mallory", subscribe=())
        wait_until(lambda: node.counters["cut_off"] > 0, WAIT_S)

        def asks_on() -> bool:  # what was said on the connection that was cut is lost
            intruder.say(asker, c.Credit(1, 1 << 20))
            return bool(asker.poll(200))

        wait_until(asks_on, WAIT_S)
        answer = intruder.hear(asker)
        assert isinstance(answer, c.Part)
        assert "no such read" in answer.error
