"""Two peers of one name: the later one is told, for as long as the earlier one is there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import AsyncPeer, NameInUse, Peer, Stream
from meshmsg._links.name_conflicts import LOOKS_MAX
from meshmsg._wire import control
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


def is_told(peer: Peer, topic: str = "a.b") -> bool:
    try:
        peer.publish(topic, "nobody gets it")
    except NameInUse:
        return True
    return False


def take(events: Any, wanted: object) -> None:
    """Read until an event comes; what was published before its stream was taken may come, too."""
    wait_until(lambda: (event := events.get(timeout=0.1)) is not None and event.data == wanted)


def test_later_peer_is_told_and_goes_on_when_the_earlier_one_has_left() -> None:
    with (
        Peer("twin", streams=[Stream("a.**")]) as one,
        Peer("twin", streams=[Stream("a.**")]) as two,
        Peer("sub", connect=one.address) as sub,
        sub.subscribe("a.**") as events,
    ):
        one.wait_for_subscribers("a.b", timeout=30)
        sub._open_node().call(lambda: sub._open_node().links.dial(two.address))
        wait_until(lambda: is_told(two), what="it is told")
        with pytest.raises(NameInUse, match=f"'twin' is at {one.address}.*another name"):
            two.publish_many("a.b", [1, 2])
        with pytest.raises(NameInUse):
            two.wait_for_subscribers("a.b", timeout=30)
        (row,) = two.stats()["name_in_use"]
        assert row == {"stream": "twin/a.**", "address": one.address}
        assert two.stats()["counters"]["names_taken"] >= 1
        one.publish("a.b", "of the first")
        take(events, "of the first")
        assert one.stats()["name_in_use"] == []

        one.close()
        wait_until(lambda: not is_told(two), what="the name is free")
        two.wait_for_subscribers("a.b", timeout=30)
        two.publish("a.b", "of the second")
        take(events, "of the second")
        assert two.stats()["name_in_use"] == []


def test_later_peer_gives_way_also_where_it_was_met_first() -> None:
    with (
        Peer("twin", streams=[Stream("a.**")]) as one,
        Peer("twin", streams=[Stream("a.**")]) as two,
        Peer("sub", connect=two.address) as sub,
        sub.subscribe("a.**"),
    ):
        two.wait_for_subscribers("a.b", timeout=30)
        sub._open_node().call(lambda: sub._open_node().links.dial(one.address))
        wait_until(lambda: is_told(two), what="the one that came later is told")
        assert not is_told(one)


def test_peers_that_are_found_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    mesh = f"namesakes-{free_port()}"
    with (
        caplog.at_level(logging.ERROR, "meshmsg.peer"),
        Peer("sub", mesh=mesh, discovery="zeroconf") as sub,
        sub.subscribe("**") as events,
        Peer("twin", mesh=mesh, discovery="zeroconf") as one,
    ):
        one.wait_for_subscribers("a.b", timeout=30)
        with Peer("twin", mesh=mesh, discovery="zeroconf") as two:
            wait_until(lambda: is_told(two), timeout=30, what="it is told")
            assert "the name of twin/** is in use" in caplog.text
            one.close()
            wait_until(lambda: not is_told(two), timeout=30)
            two.wait_for_subscribers("a.b", timeout=30)
            two.publish("a.b", "of the second")
            take(events, "of the second")


@pytest.mark.parametrize("durability", ["none", "log"])
def test_waiting_publishers_of_every_kind_are_told(durability: str, tmp_path: Path) -> None:
    stream = Stream("a.**", durability=durability)

    async def publish_as_long_as_it_goes(address: str) -> None:
        peer = AsyncPeer("twin", streams=[stream], data_dir=tmp_path / "two", connect=address)
        async with peer:
            while True:
                await peer.publish("a.b", 1)
                await asyncio.sleep(0.01)

    with (
        Peer("twin", streams=[stream], data_dir=tmp_path / "one") as one,
        Peer("sub", connect=one.address) as sub,
        sub.subscribe("a.**"),
    ):
        one.wait_for_subscribers("a.b", timeout=30)
        with pytest.raises(NameInUse):
            asyncio.run(asyncio.wait_for(publish_as_long_as_it_goes(sub.address), 30))


def test_killed_publisher_that_is_back_at_once_elsewhere_is_not_told() -> None:
    with Peer("sub") as sub, sub.subscribe("a.**") as events:
        for life in range(3):
            pub = RemotePeer("pub", connect=sub.address, streams=[{"topics": "a.**"}])
            pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
            pub.run(f"peer.publish('a.b', {life})")
            take(events, life)
            assert pub.eval("peer.stats()['name_in_use']") == []
            pub.kill()


def test_publisher_that_hangs_does_not_keep_its_name() -> None:
    with (
        Peer("sub") as sub,
        sub.subscribe("a.**") as events,
        RemotePeer("pub", connect=sub.address, streams=[{"topics": "a.**"}]) as first,
    ):
        first.run("peer.wait_for_subscribers('a.b', 1, 30)")
        first.stop()
        with RemotePeer("pub", connect=sub.address, streams=[{"topics": "a.**"}]) as second:
            second.run("peer.wait_for_subscribers('a.b', 1, 30)")  # would raise
            second.run("peer.publish('a.b', 'of the second')")
            take(events, "of the second")


class Liar:
    """Says to a peer whatever it likes."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self.say(control.Hello(peer="liar", instance=7, mesh="default"))

    def say(self, message: control.Message) -> None:
        self._socket.send(control.encode_message(message))

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


def test_word_alone_stops_nobody() -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("other", streams=[Stream("a.**")]) as other,
    ):
        liar = Liar(pub.address)
        nobody = [f"tcp://127.0.0.1:{free_port()}" for _ in range(LOOKS_MAX + 2)]
        for address in (other.address, pub.address, *nobody, "tcp://example.org:80"):
            liar.say(control.Taken([address]))
        counters = pub._open_node().counters
        wait_until(lambda: counters["names_taken"] == len(nobody) + 3)
        wait_until(lambda: "other" in {link["peer"] for link in pub.stats()["links"]})
        assert counters["looks_dropped"] >= 1
        assert len(pub.stats()["links"]) <= LOOKS_MAX + 1
        assert not is_told(pub)
        liar.close()
