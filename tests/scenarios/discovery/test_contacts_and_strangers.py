"""Names with many addresses, wrong seeds, limits, and what strangers would have us dial."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Any

import pytest
import zmq

from meshmsg import ConfigError, Discovery, Peer, PeerConfig, Stream, Tuning
from meshmsg._links import outbound_peers as _links
from meshmsg._links import resolver as _scout
from meshmsg._model.config import config_from_tables
from meshmsg._wire import control as c
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def names(peer: Peer) -> list[str]:
    return [info.name for info in peer.peers()]


def contacts(peer: Peer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = peer.stats()["discovery"]["contacts"]
    return found


def test_name_with_many_addresses_stands_for_all_of_them(
    mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a headless service: it resolves to all pods, the asking one among them."""
    port = free_port()
    there = [*HOSTS[:2]]
    monkeypatch.setattr(_scout, "resolve", lambda host: list(there))
    found = Discovery(gossip=False, seeds=f"tcp://mesh.test:{port}", resolve_every="200ms")
    with contextlib.ExitStack() as stack:
        pods = [
            stack.enter_context(
                Peer(f"pod-{n}", mesh=mesh, bind=f"tcp://{host}:{port}", discovery=found)
            )
            for n, host in enumerate(HOSTS)
        ]
        wait_until(lambda: names(pods[0]) == ["pod-1", "pod-2"], 30)
        wait_until(lambda: names(pods[1]) == ["pod-0", "pod-2"], 30)
        there.append(HOSTS[2])  # the third is in the name by now
        wait_until(lambda: pods[0].stats()["discovery"]["names"][0]["addresses"] == list(HOSTS), 30)
        assert sorted(names(pods[2])) == ["pod-0", "pod-1"]
        assert all(pod.stats()["counters"].get("refused", 0) == 0 for pod in pods)


def test_name_that_cannot_be_looked_up_is_told_and_tried_again(
    mesh: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[list[str]] = []

    def resolve(host: str) -> list[str]:
        if not answers:
            raise socket.gaierror(-2, "Name or service not known")
        return answers[0]

    monkeypatch.setattr(_scout, "resolve", resolve)
    with Peer("hub", mesh=mesh) as hub, caplog.at_level(logging.WARNING, "meshmsg"):
        port = hub.address.rpartition(":")[2]
        found = Discovery(seeds=f"tcp://nowhere.test:{port}", resolve_every="100ms")
        with Peer("leaf", mesh=mesh, discovery=found) as leaf:
            wait_until(lambda: leaf.stats()["discovery"]["names"][0]["reason"], 30)
            assert "Name or service not known" in leaf.stats()["discovery"]["names"][0]["reason"]
            answers.append(["127.0.0.1"])
            leaf.wait_for_peers(1, timeout=30)
    assert caplog.text.count("nowhere.test cannot be looked up") == 1


def test_seed_where_nobody_is_says_why_and_is_tried_until_somebody_comes(
    mesh: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    found = Discovery(seeds=address, dial_timeout="300ms", retry_max="500ms", zeroconf=True)
    with (
        caplog.at_level(logging.WARNING, "meshmsg"),
        Peer("leaf", mesh=mesh, discovery=found) as leaf,
    ):
        wait_until(lambda: "refused" in contacts(leaf)[0]["reason"], 30)
        assert contacts(leaf)[0]["tries"] >= 1
        with Peer("hub", mesh=mesh, bind=address) as hub:
            hub.wait_for_peers(1, timeout=30)
    assert f"cannot be reached at {address}: connection refused" in caplog.text


def test_everybody_may_have_the_same_seeds_themselves_among_them(mesh: str) -> None:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(3)]
    found = Discovery(seeds=addresses, gossip=False)
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(f"p{n}", mesh=mesh, bind=address, discovery=found))
            for n, address in enumerate(addresses)
        ]
        for peer in peers:
            wait_until(lambda peer=peer: len(peer.peers()) == 2, 30)
            assert len(contacts(peer)) <= 4


def test_seed_of_another_mesh_is_refused_once_and_not_shouted_about(
    mesh: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer("other", mesh=f"{mesh}-other") as other:
        found = Discovery(seeds=other.address, retry_max="200ms")
        with (
            caplog.at_level(logging.WARNING, "meshmsg"),
            Peer("leaf", mesh=mesh, discovery=found) as leaf,
        ):
            wait_until(lambda: contacts(leaf)[0]["tries"] >= 2, 30)
            assert "meets mesh" in contacts(leaf)[0]["reason"]
            assert leaf.peers() == []
    warnings = [r for r in caplog.records if r.name == "meshmsg.discovery"]
    assert len(warnings) == 1


def test_no_more_peers_than_the_limit(mesh: str) -> None:
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Peer("hub", mesh=mesh, discovery="gossip"))
        for n in range(4):
            stack.enter_context(Peer(f"p{n}", mesh=mesh, discovery="none", connect=hub.address))
        hub.wait_for_peers(4, timeout=30)
        wait_until(lambda: len(hub.peers()) == 4, 30)
        few = Discovery(zeroconf=False, seeds=hub.address, peers_max=2)
        late = stack.enter_context(Peer("late", mesh=mesh, discovery=few))
        wait_until(lambda: late.stats()["counters"].get("peers_full", 0) > 0, 30)
        assert len(late.peers()) <= 2


def test_peer_that_comes_back_elsewhere_is_found_and_its_stream_goes_on(mesh: str) -> None:
    """A killed publisher that is started anew, at another port, is met by gossip."""
    quick = Tuning(ping_interval_s=0.1, peer_timeout_s=1.0)
    with Peer("hub", mesh=mesh, discovery="gossip", tuning=quick) as hub:
        found = Discovery(zeroconf=False, seeds=hub.address)
        with (
            Peer("sub", mesh=mesh, discovery=found, tuning=quick) as sub,
            sub.subscribe("a.**") as events,
        ):
            for start in range(3):
                with Peer(
                    "pub", mesh=mesh, discovery=found, streams=[Stream("a.**")], tuning=quick
                ) as pub:
                    pub.wait_for_subscribers("a.b", timeout=30)
                    pub.publish("a.b", start)
                    event = events.get(30)
                    assert event is not None
                    assert event.data == start
            assert events.lost == 0
            wait_until(lambda: len(sub.stats()["links"]) <= 1, 30, "old links are dropped")


@pytest.mark.parametrize("first", ["the good-bye", "the end of the connection"])
def test_peer_that_left_is_not_dialled_for_ever(mesh: str, first: str) -> None:
    """It may say good-bye on the connection that it made, before or after ours breaks."""
    with (
        Peer("sub", mesh=mesh, discovery="gossip") as sub,
        sub.subscribe("a.**"),
        RemotePeer(
            "pub",
            mesh=mesh,
            discovery={"zeroconf": False, "seeds": [sub.address]},
            streams=[{"topics": "a.**"}],
        ) as pub,
    ):
        node = sub._open_node()
        wait_until(lambda: [k for k in node.links.table.up() if k.found], what="it is dialled back")
        link = node.links.table.up()[0]

        def say_good_bye() -> None:
            node.finder.on_bye(link.instance)

        def break_first() -> None:
            link.state = "dialling"
            say_good_bye()

        if first == "the good-bye":
            node.call(say_good_bye)
            pub.kill()
        else:
            pub.stop()
            node.links.on_readable = lambda owner: None  # what comes now is not looked at
            pub.kill()
            node.call(break_first)
        wait_until(lambda: not node.links.table.all(), what="nobody dials it")


# Strangers -------------------------------------------------------------------------------------


class Stranger:
    """A control connection that says what it likes."""

    def __init__(self, address: str, mesh: str, number: int = 99) -> None:
        self._context: Any = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self._socket.connect(address)
        self.say(c.Hello("stranger", number, mesh))
        assert isinstance(self.hear(), c.Welcome)

    def say(self, message: c.Message) -> None:
        self._socket.send(c.encode_message(message))

    def say_raw(self, body: dict[str, Any]) -> None:
        import msgspec

        self._socket.send(b"MMC\x02" + msgspec.msgpack.encode(body))

    def hear(self) -> c.Message:
        return c.decode_message(self._socket.recv_multipart()[0])

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)


def test_who_does_not_say_who_it_is_hears_nothing_of_others(mesh: str) -> None:
    with Peer("hub", mesh=mesh, discovery="gossip") as hub, Stranger(hub.address, mesh) as one:
        one.say(c.Ping(7))
        assert isinstance(one.hear(), c.Pong)
        assert hub.peers() == []


def test_addresses_that_a_peer_must_not_dial_are_not_dialled(mesh: str) -> None:
    """On loopback until told otherwise, whatever others say; and no names are looked up."""
    told = [
        "tcp://192.0.2.1:7000",
        "tcp://evil.example:7000",
        "tcp://0.0.0.0:7000",
        "tcp://*:7000",
        "tcp://[::0]:7000",
        "tcp://[::ffff:0.0.0.0]:7000",
        "tcp://224.0.0.251:5353",
        "tcp://[ff02::fb]:5353",
        "tcp://255.255.255.255:7000",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:99999",
        "ipc:///tmp/somebody",
        "nonsense",
        "",
    ]
    with Peer("hub", mesh=mesh, discovery="gossip") as hub, Stranger(hub.address, mesh) as one:
        known = [c.Contact(f"p{n}", 1000 + n, [address]) for n, address in enumerate(told)]
        one.say(c.Here("stranger", 99, 1, known=known))
        assert isinstance(one.hear(), c.Here)
        wait_until(lambda: names(hub) == ["stranger"])
        assert contacts(hub) == []
        assert hub.stats()["links"] == []
        assert hub.stats()["counters"]["strange_addresses"] == 8


def test_nobody_elsewhere_has_a_peer_dial_its_own_machine(mesh: str) -> None:
    """Loopback has many forms, of which that of an IPv4 address in IPv6 is one."""
    told = ["tcp://127.0.0.1:22", "tcp://[::1]:22", "tcp://[::ffff:127.0.0.1]:22"]
    with Peer("hub", mesh=mesh, discovery="gossip") as hub:
        finder = hub._open_node().finder
        finder._wide = True  # as one that listens on a network
        assert finder._usable([*told, "tcp://192.0.2.7:22"], "192.0.2.9") == ("tcp://192.0.2.7:22",)
        assert finder._usable(told, "127.0.0.1") == tuple(told)


def test_a_connection_is_of_one_peer(mesh: str) -> None:
    with Peer("hub", mesh=mesh, discovery="gossip") as hub, Stranger(hub.address, mesh) as one:
        one.say(c.Here("stranger", 99, 1))
        wait_until(lambda: names(hub) == ["stranger"])
        for number in range(100, 110):
            one.say(c.Hello("stranger", number, mesh))
            one.say(c.Here("stranger", number, 1))
        wait_until(lambda: hub.stats()["counters"].get("bad_control", 0) == 20)
        assert [info.instance for info in hub.peers()] == [99]


@pytest.mark.parametrize("discovery", ["none", "gossip"])
def test_those_who_are_not_where_they_say_take_up_little(
    mesh: str, discovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has streams is dialled back: not without end, and not once it is gone."""
    monkeypatch.setattr(_links, "BACKS_MAX", 6)
    quick = Tuning(ping_interval_s=0.1, peer_timeout_s=1.0)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=100) as silent,
        Peer("hub", mesh=mesh, discovery=discovery, tuning=quick) as hub,
    ):
        port = silent.getsockname()[1]
        with contextlib.ExitStack() as crowd:
            for number in range(10):
                one = crowd.enter_context(Stranger(hub.address, mesh, number + 100))
                for at in range(20):
                    listen = [f"tcp://127.0.0.1:{port - 1000 + number * 20 + at}"]
                    one.say(c.Hello("stranger", number + 100, mesh, "", listen, ["stranger/a"]))
                one.say(c.Ping(1))
                while not isinstance(one.hear(), c.Pong):
                    assert len(hub.stats()["links"]) <= 6
            assert hub.stats()["counters"]["dial_backs_dropped"] > 0
            here: Any = {"mesh": mesh, "discovery": "none", "connect": hub.address}
            with (
                hub.subscribe("a.**") as events,
                Peer("pub", streams=[Stream("a.**")], **here) as pub,
            ):
                pub.wait_for_subscribers("a.b", timeout=30)
                pub.publish("a.b", "heard")
                event = events.get(30)
                assert event is not None
                assert event.data == "heard"
        wait_until(lambda: all(link["peer"] for link in hub.stats()["links"]), 30)
        assert hub.stats()["counters"].get("io_errors", 0) == 0


def test_who_was_given_up_for_newer_ones_has_its_turn_again(
    mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_links, "BACKS_MAX", 2)
    monkeypatch.setattr(_links, "BACK_S", 0.1)
    quick = Tuning(ping_interval_s=0.1)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=100) as slow,
        Peer("hub", mesh=mesh, discovery="none", tuning=quick) as hub,
        contextlib.ExitStack() as crowd,
    ):
        port = slow.getsockname()[1]
        for number in range(6):  # the first is there, and has yet to come to itself
            one = crowd.enter_context(Stranger(hub.address, mesh, number + 100))
            listen = [f"tcp://127.0.0.1:{port if number == 0 else number}"]
            one.say(c.Hello("stranger", number + 100, mesh, "", listen, ["stranger/a"]))
            one.say(c.Ping(1))
            while not isinstance(one.hear(), c.Pong):
                pass
        slow.settimeout(20)
        for _ in range(3):
            slow.accept()[0].close()
        assert len(hub.stats()["links"]) <= 2


def test_card_of_somebody_else_and_lists_without_end_are_dropped(mesh: str) -> None:
    with Peer("hub", mesh=mesh, discovery="gossip") as hub, Stranger(hub.address, mesh) as one:
        one.say(c.Here("victim", 12345, 1))
        many = [{"peer": "x", "instance": n, "addresses": []} for n in range(5000)]
        one.say_raw({"t": "here", "peer": "x", "instance": 99, "serial": 1, "known": many})
        one.say_raw({"t": "here", "peer": "x", "instance": -1, "serial": 1})
        one.say_raw({"t": "here", "peer": 7, "instance": 99, "serial": "x"})
        wait_until(lambda: hub.stats()["counters"].get("bad_control", 0) == 4)
        assert hub.peers() == []
        assert hub.stats()["counters"].get("io_errors", 0) == 0


def test_peer_without_gossip_ignores_what_it_is_told(mesh: str) -> None:
    with Peer("hub", mesh=mesh, discovery="none") as hub, Stranger(hub.address, mesh) as one:
        known = [c.Contact("p", 1000, ["tcp://127.0.0.1:7000"])]
        one.say(c.Here("stranger", 99, 1, ["tcp://127.0.0.1:7001"], known=known))
        assert isinstance(one.hear(), c.Here)
        wait_until(lambda: names(hub) == ["stranger"])
        assert contacts(hub) == []


# Settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("sometimes", "'sometimes' is not one of auto, none, zeroconf, gossip"),
        (7, "7 is none: write Discovery"),
    ],
)
def test_wrong_discovery_says_what_would_be_right(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Peer("a", discovery=wrong)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"zeroconf": "yes"}, "zeroconf"),
        ({"gossip": None}, "gossip"),
        ({"seeds": "x:1"}, "seeds"),
        ({"seeds": ["tcp://*:7000"]}, "seeds"),
        ({"seeds": ["tcp://0.0.0.0:7000"]}, "seeds"),
        ({"advertise": "tcp://host:*"}, "advertise"),
        ({"peers_max": 0}, "peers_max"),
        ({"peers_max": True}, "peers_max"),
        ({"dial_timeout": 0}, "dial_timeout"),
        ({"retry_max": "soon"}, "retry_max"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        Discovery(**fields)
    assert error.value.field == f"discovery.{field}"


def test_word_and_table_in_the_file() -> None:
    assert config_from_tables({"peer": {"name": "a"}}).discovery is None
    config = config_from_tables({"peer": {"name": "a", "discovery": "none"}})
    assert config.discovery == Discovery(zeroconf=False, gossip=False)
    table = {"seeds": "tcp://h:1", "retry_max": "1m"}
    config = config_from_tables({"peer": {"name": "a", "discovery": table}})
    assert config.discovery == Discovery(seeds="tcp://h:1", retry_max=60.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"peer\.discovery\.seed: is not a key here"):
        config_from_tables({"peer": {"name": "a", "discovery": {"seed": "x"}}})


def test_environment_is_the_default_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMSG_DISCOVERY", "gossip")
    monkeypatch.setenv("MESHMSG_SEEDS", "tcp://one:7000 tcp://two:7000")
    monkeypatch.setenv("MESHMSG_ADVERTISE", "tcp://203.0.113.7:7000")
    found = Peer("a").config.discovery
    assert found == Discovery(
        zeroconf=False,
        seeds=("tcp://one:7000", "tcp://two:7000"),
        advertise=("tcp://203.0.113.7:7000",),
    )
    none = Peer("a", discovery="none").config.discovery
    assert none is not None
    assert not none.is_on
    assert PeerConfig("a").discovery is None
    monkeypatch.setenv("MESHMSG_DISCOVERY", "wrong")
    with pytest.raises(ConfigError, match="discovery: 'wrong' is not one of"):
        Peer("a")
