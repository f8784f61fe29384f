"""Discovery across machines: a LAN, a network without multicast, a partition that heals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.netns import Network, needs_namespaces
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

pytestmark = needs_namespaces()

HOSTS = ("seed", "one", "two", "three")
PARTITION_S = 10.0
PORT = 7000


@pytest.fixture(scope="module")
def wired() -> Iterator[Network]:
    with Network(HOSTS) as net:
        yield net


@pytest.fixture
def net(wired: Network) -> Iterator[Network]:
    yield wired
    wired.heal()


class Peers:
    """A peer on each host."""

    def __init__(self, net: Network, stack: contextlib.ExitStack) -> None:
        self.net = net
        self._stack = stack
        self.by_name: dict[str, RemotePeer] = {}

    def start(self, host: str, **arguments: Any) -> RemotePeer:
        at = self.net[host]
        arguments = {"interface": at.address} | arguments
        peer = RemotePeer(host, within=at.command, **arguments)
        self._stack.callback(peer.close)
        self.by_name[host] = peer
        return peer

    def know_each_other(self, timeout: float = 30.0) -> float:
        """Wait until everybody knows everybody; returns the seconds it took."""
        began = time.monotonic()
        for name, peer in self.by_name.items():
            others = sorted(set(self.by_name) - {name})
            wait_until(
                lambda peer=peer, others=others: self.names(peer) == others,
                timeout,
                f"{name} knows {others}",
            )
        return time.monotonic() - began

    @staticmethod
    def names(peer: RemotePeer) -> list[str]:
        found: list[str] = peer.eval("[p.name for p in peer.peers()]")
        return found


@pytest.fixture
def peers(net: Network) -> Iterator[Peers]:
    with contextlib.ExitStack() as stack:
        yield Peers(net, stack)


def test_zeroconf_on_a_named_interface_finds_peers_on_the_lan(peers: Peers) -> None:
    for host in HOSTS:
        # By address or by name: a card of a namespace is called eth0.
        named = {"interface": "eth0"} if host == "two" else {}
        peers.start(host, discovery="auto", **named)
    peers.know_each_other()
    for host in HOSTS:
        addresses = peers.by_name[host].eval("[p.addresses for p in peer.peers()]")
        assert all(a[0].startswith("tcp://10.77.0.") for a in addresses)


def test_without_multicast_zeroconf_finds_nobody_and_says_so(peers: Peers) -> None:
    for host in ("one", "two"):
        peers.net[host].refuse_multicast()
        peers.start(host, discovery="zeroconf")
    for host in ("one", "two"):
        peer = peers.by_name[host]
        wait_until(lambda p=peer: p.eval("peer.stats()['discovery']['zeroconf']['state']") == "on")
    with contextlib.suppress(AssertionError):
        wait_until(lambda: peers.names(peers.by_name["one"]), timeout=3)
    assert peers.names(peers.by_name["one"]) == []


def test_without_multicast_one_seed_is_enough(peers: Peers) -> None:
    for host in HOSTS:
        peers.net[host].refuse_multicast()
    address = f"tcp://{peers.net['seed'].address}:{PORT}"
    peers.start("seed", bind=address, discovery="auto")
    for host in HOSTS[1:]:
        # The same settings everywhere, as in a deployment: zeroconf is tried, too.
        peers.start(host, discovery={"zeroconf": True, "seeds": [address]})
    peers.know_each_other()
    one = peers.by_name["one"]
    sources = one.eval("{c['peer']: c['sources'] for c in peer.stats()['discovery']['contacts']}")
    assert "gossip" in sources["two"] or "met" in sources["two"]


def test_events_flow_between_peers_that_only_gossip_joined(peers: Peers) -> None:
    for host in HOSTS:
        peers.net[host].refuse_multicast()
    address = f"tcp://{peers.net['seed'].address}:{PORT}"
    peers.start("seed", bind=address, discovery="auto")
    pub = peers.start("one", connect=[address], discovery="gossip", streams=[{"topics": "a.**"}])
    sub = peers.start("two", connect=[address], discovery="gossip")
    sub.run("events = peer.subscribe('a.**'); events.wait_for_publishers(1, 30)")
    pub.run("peer.wait_for_subscribers('a.b', timeout=30); peer.publish_many('a.b', range(100))")
    assert sub.eval("[events.get(30).data for _ in range(100)]") == list(range(100))


def test_partition_for_ten_seconds_and_healing(peers: Peers, ledger: Any) -> None:
    """Nothing is lost of a stream that waits, and both sides know who was there and when."""
    address = f"tcp://{peers.net['seed'].address}:{PORT}"
    tuning = {"peer_timeout_s": 4.0}
    seed = peers.start(
        "seed",
        bind=address,
        discovery="auto",
        tuning=tuning,
        streams=[{"topics": "kept.**", "overflow": "buffer"}],
    )
    for host in HOSTS[1:]:
        peers.start(host, discovery={"seeds": [address]}, tuning=tuning)
    peers.know_each_other()
    cut, stays = peers.by_name["one"], peers.by_name["two"]
    for peer in (cut, stays):
        peer.run("import numbered; events = peer.subscribe('kept.**')")
        peer.run("events.wait_for_publishers(1, 30); reader = numbered.Reader(events)")
    for peer in peers.by_name.values():
        peer.run("watch = peer.watch_peers(); seen = []")
        peer.run("while len(seen) < 3: seen.append(watch.get(30).peer.name)")
    seed.run("import numbered; peer.wait_for_subscribers('kept.x', count=2, timeout=30)")
    seed.run("numbered.publish(peer, 'kept.x', 0, 2000)")

    began = time.monotonic()
    peers.net["one"].cut()
    seed.send("numbered.publish(peer, 'kept.x', 2000, 12000, rate=1000)")  # ten seconds of it
    for host in ("two", "three"):
        wait_until(lambda host=host: "one" not in peers.names(peers.by_name[host]), 20)
    wait_until(lambda: peers.names(cut) == [], 30)
    seed.answer()
    wait_until(lambda: "one" not in peers.names(seed), 30)
    time.sleep(max(0.0, began + PARTITION_S - time.monotonic()))

    peers.net["one"].join()
    peers.know_each_other(60)
    seed.run("numbered.publish(peer, 'kept.x', 12000, 13000)")
    for peer in (cut, stays):
        result = peer.eval("reader.read(13000, timeout=50)", timeout=60)
        assert (result["delivered"], result["lost"]) == (13000, 0), result
    for name, peer in peers.by_name.items():
        peer.run("changes = []")
        peer.run("while (c := watch.get(0)) is not None: changes.append((c.kind, c.peer.name))")
        seen = [tuple(c) for c in peer.eval("changes") if c[0] != "changed"]
        away = ["one"] if name != "one" else sorted(set(HOSTS) - {"one"})
        assert sorted(seen) == sorted([(k, n) for n in away for k in ("lost", "joined")]), name
    rows = ledger(address, within=peers.net["seed"].command)
    assert len(rows) >= 2
