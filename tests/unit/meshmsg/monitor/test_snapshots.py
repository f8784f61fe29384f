"""Events of the live page: what they hold, and how large they get."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from meshmsg.monitor import snapshots
from meshmsg.monitor.snapshots import Snapshots
from meshmsg.overview.mesh import Look, MeshView
from tests.support.overviews import group, peer, stream, subscriber


def read(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


def mesh(streams: int, *, look: int = 0, name: str = "a") -> dict[str, Any]:
    made = [
        stream(
            f"{name}/s{n}",
            subscriber(f"b/x{n}", behind=n),
            published=look * n,
            blocked=n == 0,
            groups=[group("g", lag=n)],
        )
        for n in range(streams)
    ]
    return peer(name, *made)


def test_an_event_has_the_view_and_the_first_one_its_plots() -> None:
    counters: Counter[str] = Counter()
    view = MeshView()
    for look in range(3):
        seen = view.take(Look(mesh(2, look=look)), now=float(look))
    made = Snapshots(counters)
    event = read(made.event(seen, {"outputs": []}, time=7.0, step_s=1.0, history=view.history))
    assert (event["time"], event["step_s"], event["sink"]) == (7.0, 1.0, {"outputs": []})
    assert event["history"]["streams"]["a/s1"] == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert ["a/s1", "g", [1.0, 1.0, 1.0]] in event["history"]["groups"]
    assert len(event["history"]["mesh"]["behind"]) == 3
    assert "history" not in read(made.event(seen, None, time=7.0, step_s=1.0))
    assert counters == Counter()


def test_a_program_without_a_peer_has_no_view() -> None:
    event = read(Snapshots(Counter()).event(None, 1, time=0.0, step_s=1.0))
    assert (event["view"], event["sink"]) == (None, 1)


def test_tables_are_bounded_and_what_matters_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ROWS_MAX", 5)
    counters: Counter[str] = Counter()
    seen = MeshView().take(Look(mesh(20)), now=0.0)
    event = read(Snapshots(counters).event(seen, None, time=0.0, step_s=1.0))
    shown = [row["stream"] for row in event["view"]["streams"]]
    assert shown == ["a/s0", "a/s19", "a/s18", "a/s17", "a/s16"]  # the blocked one, the slowest
    assert event["left_out"]["streams"] == 15
    assert event["view"]["totals"]["streams"] == 20
    assert counters["snapshots_cut"] == 1


def test_an_event_has_a_size_that_it_keeps_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_MAX", 20_000)
    view = MeshView()
    seen = view.take(Look(mesh(300)), now=0.0)
    made = Snapshots(Counter()).event(seen, None, time=0.0, step_s=1.0, history=view.history)
    assert 5_000 < len(made) <= 20_008
    assert read(made)["left_out"]["streams"] > 200
