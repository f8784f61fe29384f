"""Which interface, which IP version, what the kernel grants and what it drops."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from meshmsg import BindError, ConfigError, Feed, Multicast, Peer, Stream
from meshmsg.transports.udp import multicast as transport
from tests.scenarios.multicast.conftest import new_group
from tests.support import numbered
from tests.support.netns import needs_namespaces
from tests.support.pairs import pair
from tests.support.remote import RemoteError
from tests.support.waiting import wait_until


@pytest.mark.parametrize("interface", ["lo", "127.0.0.1", "127.0.0.2"])
def test_loopback_by_name_and_by_address(group: str, interface: str) -> None:
    config = Multicast(group, interface=interface)
    with Peer("pub", streams=[Stream("a.**", transport=config)]) as pub:
        feed = Feed("pub", "a.**", config)
        with (
            Peer("sub", connect=pub.address, interface="127.0.0.1") as sub,
            sub.subscribe("a.**") as events,
            Peer("hand", feeds=[feed]) as hand,
            hand.subscribe("a.**") as others,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            others.wait_for_publishers(1, timeout=30)
            pub.publish_many("a.b", numbered.payloads(0, 5000))
            for subscription in (events, others):
                result = numbered.Reader(subscription).read(5000)
                assert (result["first"], result["losses"]) == (0, [])
                (source,) = subscription.stats()["sources"]
                assert source["multicast"]["lines"][0]["interface"] == "lo"


def test_unknown_interface_is_named_with_those_there_are(group: str) -> None:
    with pytest.raises(ConfigError, match=r"interface: 'eth77' is no interface .* lo \(127"):
        Peer("pub", streams=[Stream("a", transport=Multicast(group, interface="eth77"))]).open()
    with pytest.raises(ConfigError, match=r"interface: '192.0.2.1' is no interface"):
        Peer("pub", streams=[Stream("a", transport=Multicast(group, interface="192.0.2.1"))]).open()
    second = Multicast(group, second=new_group(), second_interface="eth78")
    with pytest.raises(ConfigError, match=r"second_interface: 'eth78'"):
        Peer("pub", streams=[Stream("a", transport=second)]).open()


def test_unknown_interface_of_a_feed_is_an_error_at_once(group: str) -> None:
    feed = Feed("pub", "a.**", Multicast(group, interface="eth77"))
    with pytest.raises(ConfigError, match=r"interface: 'eth77' is no interface"):
        Peer("sub", feeds=[feed]).open()


def test_port_that_somebody_holds_alone(group: str) -> None:
    host, port = group.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alone:
        alone.bind((host, int(port) + 1))
        with pytest.raises(BindError, match="the port is taken by a program that does not share"):
            Peer("pub", streams=[Stream("a", transport=Multicast(group))]).open()


def test_receive_buffer_that_is_not_granted_is_warned_of_once(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = Multicast(group, receive_buffer="900MB")
    transport._warned.clear()
    with (
        caplog.at_level(logging.WARNING, "meshmsg"),
        Peer("pub", streams=[Stream("a.**", transport=config)]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as one,
        sub.subscribe("a.**") as two,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=30)
        for events in (one, two):
            events.wait_for_publishers(1, timeout=30)
            (source,) = events.stats()["sources"]
            assert source["multicast"]["lines"][0]["buffer_bytes"] < 900_000_000
    warnings = [r for r in caplog.records if "instead of 900000000" in r.getMessage()]
    assert len(warnings) == 1
    assert "sysctl -w net.core.rmem_max=900000000" in warnings[0].getMessage()


def test_kernel_drops_of_a_stalled_receiver_are_counted_and_repaired(group: str) -> None:
    config = Multicast(group, flow="fastest", receive_buffer="64KiB")
    with pair(Stream("a.**", transport=config, overflow="drop_oldest")) as (pub, _, events):
        events.wait_for_publishers(1, timeout=30)
        with events._intake.lock:  # nobody reads, not even in the background
            pub.publish_many("a.b", numbered.payloads(0, 50_000))
        result = numbered.Reader(events).read(50_000)
        assert (result["delivered"], result["losses"]) == (50_000, [])
        # The kernel says so with the next packet that it has room for.
        pub.publish_many("a.b", numbered.payloads(50_000, 50_010))
        wait_until(lambda: events.get(timeout=0.01) is None)
        (source,) = events.stats()["sources"]
        # Counted as the kernel does: a burst that it received as one is one.
        assert source["multicast"]["lines"][0]["kernel_drops"] > 10
        assert source["multicast"]["repaired"] > 1000


def test_kernel_drops_beyond_the_buffer_are_reported_exactly(group: str) -> None:
    config = Multicast(group, flow="fastest", receive_buffer="64KiB")
    stream = Stream("a.**", transport=config, overflow="drop_oldest", buffer_bytes="256KiB")
    with pair(stream) as (pub, _, events):
        events.wait_for_publishers(1, timeout=30)
        with events._intake.lock:
            pub.publish_many("a.b", numbered.payloads(0, 50_000))
        result = numbered.Reader(events).read(50_000)
        assert result["delivered"] + result["lost"] == 50_000
        assert result["lost"] > 30_000
        assert {reason for *_, reason in result["losses"]} == {"overflow"}
        assert pub.ledger().reconciles


@needs_namespaces()
class TestInNamespaces:
    @pytest.mark.parametrize("by", ["address6", "name"])
    def test_ipv6_group_between_machines(self, net: Any, by: str, mesh: Any) -> None:
        mesh.group = new_group(6)
        sender, one = net["sender"], net["one"]
        names = {"name": "eth0", "address6": sender.address6}
        pub = mesh.publisher(transport={"interface": names[by]})
        one.lose(2)
        sub = mesh.receiver("one", pub)
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        sub.send("reader.read(20_000, 60)", evaluate=True)
        pub.run("numbered.publish(peer, 'a.b', 0, 20_000)")
        result = sub.answer(70)
        assert (result["first"], result["delivered"], result["losses"]) == (0, 20_000, [])
        figures = sub.eval("events.stats()['sources'][0]['multicast']")
        assert figures["repaired"] > 0
        assert figures["lines"][0]["interface"] == "eth0"

    @pytest.mark.parametrize("interface", ["lo", "::1"])
    def test_ipv6_group_on_loopback(self, net: Any, mesh: Any, interface: str) -> None:
        at = net["three"]
        mesh.group = new_group(6)
        route = ["local", "ff00::/8", "dev", "lo"]
        advice = f"no route for multicast on lo: .* ip -6 route add {' '.join(route)}"
        with pytest.raises(RemoteError, match=advice):
            mesh.publisher(host="three", transport={"interface": interface})
        at.run("ip", "-6", "route", "add", *route)
        try:
            pub = mesh.publisher(host="three", transport={"interface": interface})
            sub = mesh.by_hand("three", wait=False, interface=interface)
            pub.run("peer.publish_many('a.b', numbered.payloads(0, 100))")
            sub.run("events.wait_for_publishers(1, 30)")
            pub.run("numbered.publish(peer, 'a.b', 100, 5000)")
            result = sub.eval("reader.read(5000)")
            assert (result["next"], result["losses"]) == (5000, [])
        finally:
            at.run("ip", "-6", "route", "del", *route)

    def test_packets_larger_than_the_interface_takes(self, net: Any, mesh: Any) -> None:
        sender = net["sender"]
        sender.run("ip", "link", "set", "eth0", "mtu", "1400")
        try:
            pub = mesh.publisher()
            # The warning is the second peer's; what the first sends arrives all the same, in
            # two parts a packet.
            other = mesh.group.rpartition(":")[0] + ":9"
            pub.run("import io, logging; said = io.StringIO(); logging.basicConfig(stream=said)")
            pub.run(f"stream = meshmsg.Stream('b', transport=meshmsg.Multicast('{other}'))")
            pub.run(
                f"meshmsg.Peer('x', streams=[stream], interface='{sender.address}').open().close()"
            )
            said = pub.eval("said.getvalue()")
            assert "eth0 takes packets of 1400 bytes, the stream is set to 1500" in said
            assert "give Multicast mtu=1400" in said
            sub = mesh.receiver("one", pub)
            pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
            pub.run("numbered.publish(peer, 'a.b', 0, 5000)")
            result = sub.eval("reader.read(5000)")
            assert (result["delivered"], result["losses"]) == (5000, [])
            (line,) = pub.eval("peer.stats()['streams']['a.**']['multicast']['lines']")
            assert line["kernel_segments"] is False
            assert line["send_errors"] == 0
        finally:
            sender.run("ip", "link", "set", "eth0", "mtu", "1500")

    def test_ttl_keeps_packets_on_this_machine(self, mesh: Any) -> None:
        pub = mesh.publisher(transport={"ttl": 0})
        sub = mesh.by_hand("one", wait=False)
        pub.run("peer.publish('a.b', 1)")
        assert sub.eval("events.get(0.5)") is None
