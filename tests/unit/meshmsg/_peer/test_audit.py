"""Entries on their way into the audit stream: bounded, counted, and published in order."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest

from meshmsg import LogError, _platform
from meshmsg._peer.audit import BURST, ENTRIES_MAX, REST_S, TEXT_MAX, TOPICS, Audit


class World:
    def __init__(self, wanted: bool | str = True) -> None:
        self.publisher = Mock()
        self.counters: Counter[str] = Counter()
        self.woken = Mock()
        self.audit = Audit(self.publisher, self.woken, self.counters)
        self.audit.open(wanted)

    def published(self) -> list[tuple[str, dict[str, Any]]]:
        self.audit.on_tick(0.0)
        calls = self.publisher.publish_aside.call_args_list
        return [(call.args[1], call.args[2]) for call in calls]


def test_off_it_declares_and_notes_nothing() -> None:
    world = World(wanted=False)
    world.audit.note("connected", peer="anna")
    assert world.published() == []
    assert not world.publisher.declare_aside.called


@pytest.mark.parametrize(("wanted", "durability"), [(True, "none"), ("log", "log")])
def test_its_stream_never_blocks(wanted: bool | str, durability: str) -> None:
    (call,) = World(wanted).publisher.declare_aside.call_args_list
    (stream,) = call.args
    assert (stream.topics, stream.overflow) == (TOPICS, "drop_oldest")
    assert stream.durability == durability


def test_an_entry_says_what_and_when_without_what_is_empty() -> None:
    world = World()
    world.audit.note("refused", peer="x" * 2 * TEXT_MAX, host="", changed=0)
    world.woken.assert_called_once_with()
    ((topic, entry),) = world.published()
    assert topic == "mesh.audit.refused"
    assert entry.pop("time") > 0
    assert entry == {"what": "refused", "peer": "x" * TEXT_MAX, "changed": 0}


def test_a_flood_is_dropped_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_platform, "monotonic", lambda: now)
    world = World()
    for _ in range(BURST + 5):
        world.audit.note("refused")
    assert world.counters["audit_dropped"] == 5
    assert "dropped_before" in world.published()[0][1]
    now += 2 * REST_S
    world.audit.note("refused")
    assert len(world.published()) == BURST + 1
    assert world.counters["audited"] == BURST + 1


def test_a_flood_of_strangers_does_not_hide_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_platform, "monotonic", lambda: 100.0)
    world = World()
    for _ in range(BURST + 5):
        world.audit.note("refused")
    world.audit.note_done("operated", action="group reset")
    assert world.published()[-1][1]["action"] == "group reset"
    assert world.counters["audit_dropped"] == 5


def test_what_cannot_be_published_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.publisher.publish_aside.side_effect = LogError("here", "full")
    world.audit.note("connected")
    world.published()
    assert world.counters["audit_dropped"] == 1


def test_no_more_entries_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(_platform, "monotonic", lambda: now)
    world = World()
    for _ in range(ENTRIES_MAX + 3):
        now += REST_S
        world.audit.note("connected")
    assert world.counters["audit_dropped"] == 3
