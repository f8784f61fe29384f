"""The live view: asks while somebody watches, and ends with its peer or without watchers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg import Peer
from meshmsg.monitor import live
from meshmsg.monitor.live import LiveView
from tests.support.waiting import wait_until


class Watched:
    """A live view whose events are kept, and as many watchers as a test says."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.watchers = 1
        self.counters: Counter[str] = Counter()
        self.live = LiveView("a", self.events.append, lambda: self.watchers, dict, self.counters)

    def views(self) -> list[Any]:
        return [json.loads(event[6:])["view"] for event in self.events]


def looking() -> bool:
    return any(thread.name == "meshmsg-monitor-view" for thread in threading.enumerate())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("meshmsg.overview.look.PERIOD_S", 0.02)
    made = Watched()
    yield made
    made.live.close()
    wait_until(lambda: not looking())


def test_nobody_is_asked_before_somebody_watches(watched: Watched) -> None:
    with Peer("a", discovery="none") as peer:
        watched.live.show(peer)
        assert not looking()
        assert json.loads(watched.live.first()[6:])["view"] is None
        wait_until(lambda: len(watched.events) >= 3)
        assert watched.views()[-1]["peer"] == "a"
        assert json.loads(watched.live.first()[6:])["history"]["mesh"]["behind"]


def test_who_comes_between_two_looks_gets_what_the_last_one_got(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer("a", discovery="none") as peer:
        watched.live.show(peer)
        watched.live.first()
        wait_until(lambda: watched.events)
        peer.close()
        wait_until(lambda: not looking())
        assert watched.live.first() is watched.live.first()


def test_it_ends_without_watchers_and_begins_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEEP_S", 0.0)
    watched.watchers = 0
    with Peer("a", discovery="none") as peer:
        watched.live.show(peer)
        watched.live.first()
        wait_until(lambda: watched.events and not looking())
        watched.watchers, before = 1, len(watched.events)
        watched.live.first()
        wait_until(lambda: len(watched.events) > before)


def test_it_ends_with_its_peer(watched: Watched) -> None:
    with Peer("a", discovery="none") as peer:
        watched.live.show(peer)
        watched.live.first()
        wait_until(lambda: watched.events)
    wait_until(lambda: not looking())
    assert watched.counters["failures"] == 0
    watched.live.first()  # a page may still be open


def test_a_program_without_a_peer_shows_the_rest(watched: Watched) -> None:
    watched.live.first()
    wait_until(lambda: watched.events)
    assert watched.views()[0] is None
