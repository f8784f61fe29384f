"""The StatsD benchmark measures what it says, at a rate that any machine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_packets_have_the_shape_that_is_asked_for() -> None:
    from benchmarks.statsd import make_packets

    packed, single = make_packets("packed"), make_packets("single")
    assert all(packet.count(b"\n") + 1 == lines for packet, lines in packed)
    assert max(len(packet) for packet, _ in packed) <= 1_400
    assert {lines for _, lines in single} == {1}


def test_a_run_at_a_low_rate_loses_nothing() -> None:
    from benchmarks.statsd import measure

    found = measure("meshmsg", "packed", 2_000, 0.2)
    assert found["lost"] == 0
    assert found["sent"] > 0
    assert found["per_core"] > 0
