"""The benchmark of lost receivers measures what it says; how long anybody waits is not asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.netns import needs_namespaces

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs_namespaces()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_others_lose_nothing_and_every_gap_is_seen() -> None:
    from benchmarks import lost_receiver

    row = lost_receiver.measure("killed", 2000, after_s=0.2)
    assert row["lost"] == 0
    assert row["published"] > 2000
    assert min(*row["gap_ms"]) > 0, "they come every 2 ms"
    assert "killed" in lost_receiver.words(row)


def test_longest_gap_is_of_the_span_that_is_asked_for() -> None:
    from benchmarks.lost_receiver import Gaps

    gaps = Gaps()
    for began, ended in ((0.0, 0.5), (1.0, 1.25), (1.9, 2.1), (3.0, 3.0005)):
        gaps.add(began, ended)
    assert gaps.longest_ms(0.9, 1.5) == 250
    assert gaps.longest_ms(2.0, 9.0) == pytest.approx(200)
    assert gaps.longest_ms(2.5, 9.0) == 0
