"""Presence as users see it: watches, callbacks, who is here."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from meshmsg._model.errors import ClosedError
from meshmsg._peer import presence as module
from meshmsg._peer.presence import PeerChange, PeerInfo, PeerWatch, PresenceHub
from meshmsg.recovery.discovery.presence import Card
from tests.support.waiting import wait_until


@pytest.fixture
def hub() -> PresenceHub:
    return PresenceHub("me", Counter())


def card(peer: str, instance: int = 1, **fields: tuple[str, ...]) -> Card:
    return Card(peer, instance, 1, software="1.0", version=2, **fields)  # type: ignore[arg-type]


def watching(hub: PresenceHub) -> PeerWatch:
    watch: PeerWatch = hub.watch(PeerWatch)
    return watch


def seen(watch: PeerWatch) -> list[tuple[str, str]]:
    return [(one.kind, one.peer.name) for one in iter(lambda: watch.get(0), None)]


def test_those_who_are_here_come_first_and_then_what_changes(hub: PresenceHub) -> None:
    hub.tell("joined", card("a"))
    hub.tell("joined", card("b", 2))
    hub.tell("left", card("a"))
    with watching(hub) as watch:
        hub.tell("changed", card("b", 2, roles=("publisher",)))
        hub.tell("lost", card("b", 2))
        assert seen(watch) == [("joined", "b"), ("changed", "b"), ("lost", "b")]


def test_peers_are_told_by_name_as_they_described_themselves_last(hub: PresenceHub) -> None:
    for name, number in (("b", 1), ("a", 3), ("a", 2)):
        hub.tell("joined", card(name, number))
    hub.tell("changed", card("b", 1, streams=("b/x",)))
    assert [(info.name, info.instance) for info in hub.peers()] == [("a", 2), ("a", 3), ("b", 1)]
    assert hub.peers()[2].streams == ("b/x",)


def test_peer_is_plain_data() -> None:
    described = card(
        "a", 255, addresses=("tcp://x:1",), streams=("a/x",), groups=("g",), roles=("worker",)
    )
    assert PeerInfo.of(described).as_dict() == {
        "name": "a",
        "instance": "00000000000000ff",
        "addresses": ["tcp://x:1"],
        "roles": ["worker"],
        "streams": ["a/x"],
        "groups": ["g"],
        "software": "1.0",
        "protocol": 2,
    }


def test_reader_that_does_not_come_loses_the_oldest_and_that_is_counted(
    hub: PresenceHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters: Counter[str] = Counter()
    hub = PresenceHub("me", counters)
    monkeypatch.setattr(module, "WATCH_MAX", 2)
    watch = watching(hub)
    for number in range(3):
        hub.tell("joined", card(f"p{number}", number))
    assert seen(watch) == [("joined", "p1"), ("joined", "p2")]
    assert counters["presence_full"] == 1
    watch.close()


def test_watch_that_is_closed_hears_nothing_more(hub: PresenceHub) -> None:
    watch = watching(hub)
    watch.close()
    watch.close()
    hub.tell("joined", card("a"))
    assert watch.closed
    assert list(watch) == []


def test_reader_is_woken_by_a_change_and_by_the_end(hub: PresenceHub) -> None:
    watch = watching(hub)
    found: list[PeerChange] = []
    reader = threading.Thread(target=lambda: found.extend(watch))
    reader.start()
    hub.tell("joined", card("a"))
    wait_until(lambda: found)
    hub.close()
    reader.join(30)
    assert not reader.is_alive()
    assert [change.kind for change in found] == ["joined"]


def test_reader_waits_no_longer_than_it_said(hub: PresenceHub) -> None:
    began = time.monotonic()
    assert watching(hub).get(timeout=0.02) is None
    assert time.monotonic() - began >= 0.02


def test_peer_that_is_closed_has_no_watches_and_nobody_is_here(hub: PresenceHub) -> None:
    hub.tell("joined", card("a"))
    hub.close()
    assert hub.peers() == []
    with pytest.raises(ClosedError):
        watching(hub)


def test_callback_that_fails_is_called_for_the_next_change(
    quiet_logs: None,
) -> None:
    counters: Counter[str] = Counter()
    hub = PresenceHub("me", counters)
    called: list[str] = []

    def callback(change: PeerChange) -> None:
        called.append(change.peer.name)
        raise RuntimeError("the user's")

    hub.tell("joined", card("a"))
    end = hub.call(callback)
    hub.tell("joined", card("b", 2))
    wait_until(lambda: called == ["a", "b"])
    wait_until(lambda: counters["callback_errors"] == 2)
    end()
    wait_until(lambda: "meshmsg-presence-me" not in {one.name for one in threading.enumerate()})
    hub.tell("joined", card("c", 3))
    assert called == ["a", "b"]


def test_readers_wait_for_a_condition_each(hub: PresenceHub) -> None:
    watches = [watching(hub), watching(hub)]
    assert len(set(map(id, hub.conditions()))) == 2
    watches[0].close()
    assert len(hub.conditions()) == 1
