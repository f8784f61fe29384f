"""Peers that give no addresses find each other by zeroconf on loopback."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from meshmsg import Discovery, Peer, Stream
from tests.support import processes
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

PEERS = 10


def test_ten_peers_started_at_once_find_each_other(mesh: str) -> None:
    """What must hold is 3 s; a loaded machine may take longer only to start ten interpreters."""
    with contextlib.ExitStack() as stack:
        peers: list[RemotePeer] = []
        threads = [
            threading.Thread(
                target=lambda n=n: peers.append(
                    RemotePeer(f"p{n}", mesh=mesh, discovery="zeroconf")
                )
            )
            for n in range(PEERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        began = time.monotonic()  # the last of them is open
        for peer in peers:
            stack.callback(peer.close)
        assert len(peers) == PEERS
        for peer in peers:
            peer.run(f"peer.wait_for_peers({PEERS - 1}, timeout=30)")
        took = time.monotonic() - began
        sys.stdout.write(f"\nten peers found each other {took:.2f} s after the last was open\n")
        names = [f"p{n}" for n in range(PEERS)]
        for peer in peers:
            others = sorted(set(names) - {peer.name})
            wait_until(
                lambda peer=peer, others=others: (
                    peer.eval("[p.name for p in peer.peers()]") == others
                ),
                timeout=30,
            )


def test_found_peers_exchange_events_without_an_address(mesh: str) -> None:
    with (
        Peer("pub", mesh=mesh, discovery="auto", streams=[Stream("a.**")]) as pub,
        Peer("sub", mesh=mesh, discovery="auto") as sub,
        sub.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        pub.publish_many("a.b", range(1000))
        assert [events.get(30).data for _ in range(1000)] == list(range(1000))  # type: ignore[union-attr]
        assert pub.ledger().reconciles


@pytest.mark.parametrize("interface", ["lo", "127.0.0.1"])
def test_interface_by_name_or_address(mesh: str, interface: str) -> None:
    with (
        Peer("one", mesh=mesh, interface=interface, discovery="auto") as one,
        Peer("two", mesh=mesh, interface=interface, discovery="auto") as two,
    ):
        one.wait_for_peers(1, timeout=30)
        two.wait_for_peers(1, timeout=30)
        assert one.address.startswith("tcp://127.0.0.1:")


def test_meshes_are_kept_apart(mesh: str) -> None:
    with (
        Peer("one", mesh=mesh, discovery="zeroconf") as one,
        Peer("two", mesh=mesh, discovery="zeroconf") as two,
        Peer("other", mesh=f"{mesh}-other", discovery="zeroconf") as other,
    ):
        one.wait_for_peers(1, timeout=30)
        two.wait_for_peers(1, timeout=30)
        assert [info.name for info in other.peers()] == []
        assert other.stats()["discovery"]["contacts"] == []
        assert other.stats()["counters"].get("refused", 0) == 0


def test_discovery_none_opens_no_socket_for_it_and_finds_nobody(mesh: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with (
        Peer("seen", mesh=mesh, discovery="zeroconf") as seen,
        Peer("none", mesh=mesh, discovery="none") as none,
        Peer("third", mesh=mesh, discovery="zeroconf") as third,
    ):
        seen.wait_for_peers(1, timeout=30)
        assert none.peers() == []
        assert "meshmsg-scout-none" not in {thread.name for thread in threading.enumerate()}
        assert none.stats()["discovery"]["zeroconf"]["state"] == "off"
        assert third.name
    wait_until(
        lambda: {t.name for t in threading.enumerate()} - before == set(), what="threads end"
    )


def test_library_is_not_even_imported_when_it_is_off() -> None:
    command = processes.program("without_zeroconf")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_interpreter_that_ends_without_closing_says_nothing_of_zeroconf(mesh: str) -> None:
    command = processes.program("unclosed", mesh, options=("-W", "ignore"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_zeroconf_does_not_work_the_log_says_why(
    mesh: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr("meshmsg.transports.sockets.Beacon", refuse)
    with (
        caplog.at_level(logging.WARNING, "meshmsg"),
        Peer("alone", mesh=mesh, discovery="zeroconf") as peer,
    ):
        wait_until(lambda: peer.stats()["discovery"]["zeroconf"]["state"] == "failed")
        assert "No such device" in peer.stats()["discovery"]["zeroconf"]["reason"]
    assert "zeroconf cannot be used on 127.0.0.1" in caplog.text


class Deaf:
    """A responder that hears nothing, as where multicast is blocked."""

    def __init__(self, *_: Any) -> None:
        pass

    def announce(self, *_: Any) -> None:
        pass

    def known(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def test_where_not_even_its_own_announcement_is_heard_the_log_says_so(
    mesh: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg.transports.sockets.Beacon", Deaf)
    monkeypatch.setattr("meshmsg._links.resolver.HINT_S", 0.05)
    with (
        caplog.at_level(logging.WARNING, "meshmsg"),
        Peer("alone", mesh=mesh, discovery="zeroconf") as peer,
    ):
        wait_until(lambda: "blocked" in peer.stats()["discovery"]["zeroconf"]["reason"])
    assert "Name one peer with connect= or seeds=" in caplog.text


def test_peer_that_is_closed_while_zeroconf_starts(mesh: str) -> None:
    for _ in range(10):
        with Peer("short", mesh=mesh, discovery="zeroconf"):
            pass


def test_connect_leaves_zeroconf_off_unless_asked_for(mesh: str) -> None:
    with (
        Peer("hub", mesh=mesh, discovery="none") as hub,
        Peer("auto", mesh=mesh, discovery="auto", connect=hub.address) as auto,
        Peer("both", mesh=mesh, discovery="zeroconf", connect=hub.address) as both,
        Peer("seeds", mesh=mesh, discovery=Discovery(seeds=hub.address)) as seeds,
    ):
        assert auto.stats()["discovery"]["zeroconf"]["state"] == "off"
        assert both.stats()["discovery"]["zeroconf"]["state"] != "off"
        assert seeds.stats()["discovery"]["zeroconf"]["state"] == "off"
