"""Who has no key, or another one: no connection, no answer, nothing to read on the wire."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import (
    Peer,
    PeerRefused,
    ReplayError,
    Security,
    Stream,
    testing,
)
from meshmsg._replay.log_client import ReplayClient
from meshmsg._wire import control as c
from tests.support.captures import Capture, tshark
from tests.support.tools import need
from tests.support.waiting import wait_until

WAIT_S = 60.0
QUESTIONS: tuple[c.Message, ...] = (
    c.Hello("intruder", 1, "default"),
    c.Ask(1, "stats"),
    c.LogsPlease(1, "default", ["**"]),
    c.Subscribe(7, ["**"], [c.Start("pub/a.**", "earliest")]),
    c.Nack(7, "pub/a.**", 1, [(0, 1)], 1),
)


def count(peer: Peer, *names: str) -> int:
    return sum(peer.stats()["counters"].get(name, 0) for name in names)


@pytest.mark.parametrize("way", ["mesh key", "allow-list"])
def test_peers_with_keys_do_all_that_peers_without_do(
    way: str, keys: Any, mesh_key: str, tmp_path: Path
) -> None:
    def security(name: str) -> Security:
        return Security(mesh_key=mesh_key) if way == "mesh key" else keys.peer(name)

    streams = [Stream("a.**"), Stream("d.**", durability="log")]
    ours, theirs = security("pub"), security("sub")
    with (
        Peer("pub", streams=streams, data_dir=tmp_path / "data", security=ours) as pub,
        Peer("sub", connect=pub.address, security=theirs) as sub,
        sub.subscribe("a.**") as events,
        sub.subscribe("a.**", group="work", auto_ack=True) as work,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=WAIT_S)
        with testing.lose_frames(pub, ratio=0.3):  # repaired over the control channel
            for n in range(100):
                pub.publish("a.b", n)
                pub.publish("d.b", n)
        assert [events.get(timeout=WAIT_S).data for _ in range(100)] == list(range(100))
        assert sorted(work.get(timeout=WAIT_S).data for _ in range(100)) == list(range(100))
        with sub.subscribe("d.**", start="earliest") as log:
            assert [log.get(timeout=WAIT_S).data for _ in range(100)] == list(range(100))
        answers = sub.ask("stats", timeout=WAIT_S)
        assert answers[pub.address]["security"]["mode"] == way
        with ReplayClient(pub.address, security=theirs, timeout=WAIT_S) as client:
            assert [found.stream for found in client.logs()] == ["pub/d.**"]
        assert not events.losses


def test_a_peer_without_the_key_is_refused_and_both_sides_say_so(
    mesh_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer("pub", security=Security(mesh_key=mesh_key)) as pub:
        pub.publish("a.b", 1)
        with Peer("stranger", connect=pub.address) as stranger:
            with pytest.raises(PeerRefused, match="one side has a key and the other has none"):
                stranger.wait_for_peers(timeout=WAIT_S)
            assert count(stranger, "locked_out") >= 1
        wait_until(lambda: count(pub, "missing_keys", "strange_connections"), WAIT_S)
        assert pub.stats()["clients"] == []
    assert "give both the same mesh key, or neither" in caplog.text


def test_a_peer_with_the_key_does_not_talk_to_one_without(mesh_key: str) -> None:
    with (
        Peer("open") as stranger,
        Peer("sub", connect=stranger.address, security=Security(mesh_key=mesh_key)) as sub,
    ):
        with pytest.raises(PeerRefused, match=r"has none|another mesh key"):
            sub.wait_for_peers(timeout=WAIT_S)
        assert stranger.stats()["clients"] == []


def test_another_mesh_key_does_not_open(mesh_key: str) -> None:
    with (
        Peer("pub", security=Security(mesh_key=mesh_key)) as pub,
        Peer(
            "other", connect=pub.address, security=Security(mesh_key=secrets.token_urlsafe(32))
        ) as other,
    ):
        with pytest.raises(PeerRefused, match="another mesh key"):
            other.wait_for_peers(timeout=WAIT_S)
        wait_until(lambda: count(pub, "wrong_mesh_keys"), WAIT_S)
        with (
            ReplayClient(pub.address, timeout=WAIT_S) as client,
            pytest.raises(ReplayError, match=r"one side has a key|handshake"),
        ):
            client.logs()


def test_mesh_keys_are_changed_peer_by_peer(mesh_key: str) -> None:
    new = secrets.token_urlsafe(32)
    before = Security(mesh_key=mesh_key, other_keys=new)
    after = Security(mesh_key=new, other_keys=(mesh_key,))
    for ours, theirs in ((before, after), (after, before), (Security(mesh_key=new), after)):
        with (
            Peer("pub", security=ours) as pub,
            Peer("sub", connect=pub.address, security=theirs) as sub,
            sub.subscribe("**") as events,
        ):
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            pub.publish("a.b", "understood")
            assert events.get(timeout=WAIT_S).data == "understood"


def test_raw_sockets_without_a_key_get_no_answer(mesh_key: str, intruder: Any) -> None:
    with Peer("pub", streams=[Stream("a.**")], security=Security(mesh_key=mesh_key)) as pub:
        node = pub._open_node()
        data = node._fanout.addresses[0][1]
        asker = intruder.socket(zmq.DEALER, pub.address)
        taker = intruder.socket(zmq.SUB, data)
        taker.subscribe(b"")
        for question in QUESTIONS:
            intruder.say(asker, question)
        wait_until(lambda: count(pub, "handshakes_failed") >= 2, WAIT_S)
        assert count(pub, "bad_control", "strange_nacks", "nacks", "reads") == 0
        pub.publish("a.b", "secret")
        with (
            Peer("sub", connect=pub.address, security=Security(mesh_key=mesh_key)) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            assert events.get(timeout=WAIT_S).data == "secret"  # others are served
        assert not asker.poll(0)
        assert not taker.poll(0)


def test_the_mesh_key_alone_is_not_enough_where_there_is_an_allow_list(
    keys: Any, intruder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.scenarios.security.conftest import curve_of

    with Peer("pub", streams=[Stream("a.**")], security=keys.peer("pub")) as pub:
        known = curve_of(keys.mesh_key)
        asker = intruder.socket(zmq.DEALER, pub.address, known)
        data = pub._open_node()._fanout.addresses[0][1]
        taker = intruder.socket(zmq.SUB, data, known, keys.public("pub"))
        taker.subscribe(b"")
        for question in QUESTIONS:
            intruder.say(asker, question)
        wait_until(lambda: count(pub, "refused_keys") >= 2, WAIT_S)
        pub.publish("a.b", "secret")
        pub.flush(timeout=WAIT_S)
        assert not asker.poll(0)
        assert not taker.poll(0)
        with (
            Peer("sub", connect=pub.address, security=Security(mesh_key=keys.mesh_key)) as sub,
            pytest.raises(PeerRefused, match="allow-list does not name our public key"),
        ):
            sub.wait_for_peers(timeout=WAIT_S)
        assert known.own.public.hex() in caplog.text  # so that it can be allowed


@pytest.mark.parametrize("secured", [False, True])
def test_no_event_can_be_read_on_the_wire(secured: bool, mesh_key: str) -> None:
    need("tshark", "dumpcap")
    security = Security(mesh_key=mesh_key) if secured else None
    words = b"attack at dawn"
    with Peer("pub", streams=[Stream("plans.**")], security=security) as pub:
        ports = [
            int(a.rpartition(":")[2]) for pair in pub._open_node()._fanout.addresses for a in pair
        ]
        with (
            Capture(tcp=ports) as capture,
            Peer("sub", connect=pub.address, security=security) as sub,
            sub.subscribe("plans.**") as events,
        ):
            pub.wait_for_subscribers("plans.secret", timeout=WAIT_S)
            with testing.lose_frames(pub, ratio=0.5):
                for _ in range(20):
                    pub.publish("plans.secret", words)
            for _ in range(20):
                assert events.get(timeout=WAIT_S).data == words
    found = capture.data
    assert len(found) > 20 * len(words)
    for text in (words, b"plans.secret", b"pub/plans.**", b"welcome"):
        assert (text in found) is not secured, text
    seen = tshark("-Y", f'tcp.payload contains "{words.decode()}"', capture=found)
    assert bool(seen.strip()) is not secured
