"""The benchmark of secured streams runs, and compares what it says it compares."""

from __future__ import annotations

import pytest

from benchmarks import security

KEYS = ("", ", mesh key", ", allow-list")


def test_every_way_is_measured_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "PASS_BYTES", {64: 640_000})
    rows = security.run([64], passes=1)
    ways = [f"{line}{keys}" for line in ("ZeroMQ", "multicast") for keys in KEYS]
    assert [row["way"] for row in rows] == ways
    assert all(row["events_per_s"] > 0 for row in rows)
    assert all(row["cpu_ns_per_event"] > 0 for row in rows)
    assert [row["least"] for row in rows] == [None, 0.6, 0.6, None, 0.5, 0.5]
