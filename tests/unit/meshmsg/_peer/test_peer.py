"""`Peer`: what it takes, what it refuses, and what it says when it is not open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg._model.config import PeerConfig, Stream
from meshmsg._model.errors import (
    BindError,
    ClosedError,
    ConfigError,
    NoStream,
    PeerRefused,
    TopicError,
    WaitTimeout,
)
from meshmsg._model.event import Position
from meshmsg._peer.async_peer import AsyncPeer
from meshmsg._peer.peer import (
    HURRY_S,
    Peer,
    behind_text,
    check_wait,
    config_arguments,
    drain_s,
    node_of,
)
from tests.support.ports import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer("me", streams=[Stream("a.**")]) as made:
        yield made


# Life ------------------------------------------------------------------------------------------

VERBS: list[Callable[[Peer], object]] = [
    lambda peer: peer.publish("a.b", 1),
    lambda peer: peer.publish_many("a.b", [1]),
    lambda peer: peer.subscribe("a.**"),
    lambda peer: peer.flush(),
    lambda peer: peer.ledger(),
    lambda peer: peer.stats(),
    lambda peer: peer.peers(),
    lambda peer: peer.address,
    lambda peer: peer.ask("stats"),
    lambda peer: peer.watch_peers(),
    lambda peer: peer.on_peers(print),
    lambda peer: peer.wait_for_peers(),
    lambda peer: peer.wait_for_subscribers("a.b"),
    node_of,
]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_of_a_peer_that_is_not_open_says_so(verb: Callable[[Peer], object]) -> None:
    peer = Peer("me")
    with pytest.raises(ClosedError, match="not open: use a with block"):
        verb(peer)
    peer.open()
    peer.close()
    with pytest.raises(ClosedError, match="the peer is closed"):
        verb(peer)


def test_peer_is_opened_once() -> None:
    peer = Peer("me")
    with peer, pytest.raises(ClosedError, match="make a new one"):
        peer.open()
    with pytest.raises(ClosedError, match="make a new one"), peer:
        pass
    peer.close()
    peer.close()


def test_peer_that_could_not_be_opened_may_be_opened_later() -> None:
    port = free_port()
    first, second = (Peer(name, bind=f"tcp://127.0.0.1:{port}") for name in ("one", "two"))
    with first, pytest.raises(BindError):
        second.open()
    with second:
        assert second.address == f"tcp://127.0.0.1:{port}"


def test_peer_that_is_dropped_open_warns_and_ends() -> None:
    peers = [Peer("dropped").open()]
    node = node_of(peers[0])
    with pytest.warns(ResourceWarning, match="'dropped' was not closed"):
        peers.clear()
    assert node.stopped.wait(30)


def test_subclass_that_publishes_in_its_own_way_is_asked() -> None:
    published: list[str] = []

    class Loud(Peer):
        def publish(self, topic: str, data: Any, **more: Any) -> Position:
            published.append(topic)
            return super().publish(topic, data, **more)

    with Loud("me") as peer:
        assert peer.publish("a.b", "x").seq == 0
    assert published == ["a.b"]


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [(None, None), (SystemExit, None), (KeyboardInterrupt, HURRY_S), (ValueError, HURRY_S)],
)
def test_who_leaves_by_an_error_does_not_wait_for_slow_ones(kind: Any, seconds: Any) -> None:
    assert drain_s(kind) == seconds


# Configuration ---------------------------------------------------------------------------------


def test_configuration_is_checked_when_the_peer_is_made() -> None:
    for wrong in ({"name": ""}, {"streams": "a.**"}, {"bind": "port 7"}, {"record": 7}):
        with pytest.raises(ConfigError):
            Peer(**{"name": "me", **wrong})
    assert Peer("me", streams=Stream("a.**")).config.streams == (Stream("a.**"),)
    assert Peer("me", data_dir=Path("x")).config.data_dir == "x"


def test_environment_names_the_mesh_of_those_who_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMSG_MESH", "prod")
    assert Peer("me").config.mesh == "prod"
    assert Peer("me", mesh="test").config.mesh == "test"


def test_file_and_arguments_make_the_same_peer(tmp_path: Path) -> None:
    file = tmp_path / "mesh.toml"
    file.write_text('[peer]\nname = "me"\nmesh = "prod"\n[[stream]]\ntopics = "a.**"\n')
    peer = Peer.from_toml(file)
    assert (peer.name, peer.config.mesh) == ("me", "prod")
    assert Peer(**config_arguments(peer.config)).config == peer.config
    assert Peer.from_config(PeerConfig.from_toml(file)).config == peer.config
    assert AsyncPeer.from_config(peer.config).config == peer.config
    assert set(config_arguments(peer.config)) == set(PeerConfig.__dataclass_fields__)


# Verbs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"start": "later"}, "start"),
        ({"start": "committed"}, "start"),  # it has no place to keep that
        ({"hold": True}, "hold"),
        ({"on_loss": "ignore"}, "on_loss"),
        ({"codec": "json", "type": int}, "type"),
        ({"codec": "morse"}, "codec"),
        ({"prefetch": 7}, "group"),
        ({"group": "g", "start": "committed"}, "start"),
        ({"group": "g", "hold": True}, "hold"),
        ({"group": "g", "codec": "json", "type": int}, "type"),
        ({"group": "g", "prefetch": 0}, "prefetch"),
    ],
)
def test_subscription_that_makes_no_sense_is_refused(
    peer: Peer, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        peer.subscribe("a.**", **given)
    assert peer.stats()["subscriptions"] == peer.stats()["members"] == []


@pytest.mark.parametrize("topics", [(), ("",), ("a..b",), ("a.**",) * 5000])
def test_topics_of_a_subscription_are_checked(peer: Peer, topics: tuple[str, ...]) -> None:
    with pytest.raises((ConfigError, TopicError)):
        peer.subscribe(*topics)


def test_wildcards_of_other_systems_are_pointed_out(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.subscribe("orders.#").close()
    assert "orders.#" in caplog.text


def test_committed_place_is_of_one_subscription_at_a_time(tmp_path: Path) -> None:
    with Peer("me", data_dir=tmp_path) as peer:
        with peer.subscribe("a.**", start="committed", name="audit") as first:
            with pytest.raises(ConfigError, match="'audit' is in use"):
                peer.subscribe("a.**", start="committed", name="audit")
            first.commit()
        peer.subscribe("a.**", start="committed", name="audit", hold=True).close()


def test_publishing_goes_to_the_stream_of_the_topic(peer: Peer) -> None:
    first, last = peer.publish("a.b", 1), peer.publish_many("a.c", [2, 3])
    assert last is not None
    assert (first.stream, first.seq, last.seq) == ("me/a.**", 0, 2)
    assert peer.publish_many("a.c", []) is None
    with pytest.raises(NoStream):
        peer.publish("b.c", 1)
    with pytest.raises(TopicError):
        peer.publish("a.*", 1)
    peer.flush(timeout=5)
    assert peer.ledger().reconciles


def test_wait_for_subscribers_says_how_many_there_are(peer: Peer) -> None:
    with pytest.raises(WaitTimeout, match=r"0 of 2 subscribers for 'a.b' after 0 s"):
        peer.wait_for_subscribers("a.b", count=2, timeout=0)
    for topic, count in (("a.b", 0), ("a..b", 1)):
        with pytest.raises((ConfigError, TopicError)):
            check_wait(topic, count)


def test_wait_for_peers_says_who_is_not_there_and_why(peer: Peer) -> None:
    with pytest.raises(WaitTimeout, match=r"0 of 1 peers \(none known\)"):
        peer.wait_for_peers(timeout=0)
    nobody = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("other", connect=nobody) as other,
        pytest.raises(WaitTimeout, match=f"{nobody} is dialling"),
    ):
        other.wait_for_peers(timeout=0)
    with (
        Peer("stranger", mesh="elsewhere", connect=peer.address) as stranger,
        pytest.raises(PeerRefused),
    ):
        stranger.wait_for_peers(timeout=30)


def test_peers_ask_each_other(peer: Peer) -> None:
    with Peer("other", connect=peer.address) as other:
        other.wait_for_peers(timeout=30)
        wait_until(lambda: other.peers())
        (answer,) = other.ask("stats").values()
        assert answer["peer"] == "me"
        assert [info.name for info in other.peers()] == ["me"]


def test_those_who_are_behind_are_named_once() -> None:
    claims = [SimpleNamespace(label=label, received=n) for label, n in (("b", 2), ("a", 1))]
    text = "not received by all after 0.5 s: a at 1, b at 2"
    assert behind_text([*claims, claims[0]], 0.5) == text
    assert behind_text(claims, None).startswith("not received by all after 0 s")
    group = SimpleNamespace(label="group g", received=-41)
    assert behind_text([group], 1).endswith(": group g at what an earlier start published")
