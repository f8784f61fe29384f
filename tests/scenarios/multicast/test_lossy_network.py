"""Real kernel, real loss: a sender and receivers in namespaces, packets dropped on their way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.netns import needs_namespaces
from tests.support.remote import RemotePeer

pytestmark = needs_namespaces()

RECEIVERS = ("one", "two", "three")


def receive_all(pub: RemotePeer, subs: list[RemotePeer], count: int, timeout: float) -> list[Any]:
    """Publish so many events of 64 bytes; each receiver checks every one of them."""
    for sub in subs:
        sub.send("reader.read(count, limit)", evaluate=True, count=count, limit=timeout)
    pub.run("numbered.publish(peer, 'a.b', 0, count)", timeout, count=count)
    results = [sub.answer(timeout + 5) for sub in subs]
    for result in results:
        assert (result["first"], result["delivered"], result["losses"]) == (0, count, [])
    return results


def packets_of(sub: RemotePeer) -> dict[str, Any]:
    """The figures of a subscription's packets."""
    figures = sub.eval("events.stats()['sources'][0]['multicast']")
    assert isinstance(figures, dict)
    return figures


def arrives_complete_and_in_order(
    mesh: Any, ledger: Any, percent: int, count: int, timeout: float
) -> None:
    for name in RECEIVERS:
        mesh.net[name].lose(percent)
    pub = mesh.publisher()
    subs = [mesh.receiver(name, pub) for name in RECEIVERS]
    pub.run("peer.wait_for_subscribers('a.b', 3, 30)")
    receive_all(pub, subs, count, timeout)
    rows = ledger(pub.address, within=mesh.net["sender"].command)
    assert [(row["published"], row["delivered"]) for row in rows] == [(count, count)] * 3
    for sub in subs:
        figures = packets_of(sub)
        lost = figures["packets"] * percent / 100
        assert figures.get("repaired", 0) >= lost / 2, "that many packets were really lost"


@pytest.mark.timeout(300)  # some seconds each on two idle cores
@pytest.mark.parametrize(("percent", "count"), [(1, 50_000), (20, 50_000)])
def test_events_arrive_complete_and_in_order(
    mesh: Any, ledger: Any, percent: int, count: int
) -> None:
    arrives_complete_and_in_order(mesh, ledger, percent, count, timeout=200)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("percent", "count"), [(5, 1_000_000), (20, 200_000), (30, 100_000)])
def test_many_more_events_arrive_complete_and_in_order(
    mesh: Any, ledger: Any, percent: int, count: int
) -> None:
    arrives_complete_and_in_order(mesh, ledger, percent, count, timeout=400)


def test_receiver_by_hand_on_a_one_way_network(mesh: Any) -> None:
    at = mesh.net["one"]
    at.lose(5)
    at.refuse_tcp()
    pub = mesh.publisher()
    # It has nobody to greet, and starts with what it hears next.
    sub = mesh.by_hand("one", wait=False)
    pub.run("peer.publish('a.b', numbered.payloads(0, 1)[0])")
    sub.run("events.wait_for_publishers(1, 30)")
    count = 50_000
    sub.send("reader.read(count, 60)", evaluate=True, count=count)
    pub.run("numbered.publish(peer, 'a.b', 1, count)", 60, count=count)
    result = sub.answer(70)
    assert result["first"] in (0, 1)
    assert (result["delivered"], result["losses"]) == (count - result["first"], [])
    figures = packets_of(sub)
    assert figures["repaired"] > 50
    asked = pub.eval("peer.stats()['streams']['a.**']['multicast']['nacks']")
    assert asked > 10
    assert sub.eval("peer.stats()['links']") == []


def test_connected_receiver_joins_the_second_line_on_its_second_card(mesh: Any) -> None:
    net = mesh.net
    second = mesh.group.replace("239.", "238.")
    cards = {"second": second, "second_interface": net["sender"].addresses[1]}
    pub = mesh.publisher(transport=cards)
    sub = mesh.receiver("one", pub, second_interface=net["one"].addresses[1])
    pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
    receive_all(pub, [sub], 20_000, 60)
    first, other = packets_of(sub)["lines"]
    assert (first["interface"], other["interface"]) == ("eth0", "eth1")
    assert other["first"] + other["again"] > 0


def test_two_lines_with_loss_of_their_own(mesh: Any) -> None:
    net = mesh.net
    second = mesh.group.replace("239.", "238.")
    cards = {"second": second, "second_interface": net["sender"].addresses[1]}
    pub = mesh.publisher(transport=cards)
    one = net["one"]
    one.lose(5, line=0)
    one.lose(5, line=1)
    one.refuse_tcp()
    sub = mesh.by_hand("one", wait=False, second=second, second_interface=one.addresses[1])
    pub.run("peer.publish('a.b', numbered.payloads(0, 1)[0])")
    sub.run("events.wait_for_publishers(1, 30)")
    sub.send("reader.read(30_000, 60)", evaluate=True)
    pub.run("numbered.publish(peer, 'a.b', 1, 30_000, rate=60_000)")
    sub.answer(70)
    figures = packets_of(sub)
    # What one line lost the other brought: nearly nothing had to be asked for.
    one_line_only = figures["packets"] - sum(line["again"] for line in figures["lines"])
    assert figures.get("asked_packets", 0) < one_line_only
    one.cut(line=0)
    sub.send("reader.read(60_000, 60)", evaluate=True)
    pub.run("numbered.publish(peer, 'a.b', 30_000, 60_000, rate=60_000)")
    result = sub.answer(70)
    assert (result["next"], result["losses"]) == (60_000, [])
    figures = packets_of(sub)
    first, other = figures["lines"]
    total = figures["packets"]
    assert (first["interface"], other["interface"]) == ("eth0", "eth1")
    assert first["first"] + other["first"] == total
    assert first["first"] + first["again"] < other["first"] + other["again"]


def test_parity_mends_isolated_loss_without_asking(mesh: Any) -> None:
    mesh.net["one"].lose(2)
    pub = mesh.publisher(transport={"parity": "8+2", "nack_delay": "1s"})
    sub = mesh.receiver("one", pub)
    pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
    receive_all(pub, [sub], 50_000, timeout=60)
    figures = packets_of(sub)
    lost = figures["computed"] + figures.get("repaired", 0)
    assert lost > figures["packets"] / 200
    assert figures["computed"] > lost * 0.8
    assert figures.get("asked_packets", 0) < lost * 0.2
