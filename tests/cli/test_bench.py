"""`meshmsg bench`, short but whole, and what is left of `meshmsg demo`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from meshmsg.cli import bench
from meshmsg.cli._workers import Worker, WorkerFailed


def test_bench_measures_three_things_and_loses_nothing(run: Any) -> None:
    result = run("bench", "--seconds", "0.2", "--subscribers", "2", "--json")
    assert result.exit_code == 0
    events, batches, trips = [json.loads(line) for line in result.stdout.splitlines()]
    assert [r["measure"] for r in (events, batches, trips)] == ["events", "batches", "round trip"]
    for measured in (events, batches):
        assert measured["subscribers"] == 2
        assert measured["events_per_s_sum"] >= 2 * measured["events_per_s"] - 1 > 0
        assert measured["lost"] == 0
    assert 0 < trips["p50_us"] <= trips["p99_us"]


def test_bench_shows_a_table(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {
        "measure": "events",
        "subscribers": 1,
        "events_per_s": 1234,
        "mb_per_s": 5,
        "lost": 3,
    }
    trips = {"measure": "round trip", "p50_us": 10.5, "p99_us": 99.5, "lost": 0}
    monkeypatch.setattr(bench, "throughput", lambda measure, *_: measured | {"measure": measure})
    monkeypatch.setattr(bench, "round_trip", lambda *_: trips)
    result = run("bench", "--quiet")
    assert result.exit_code == 1
    assert "6 events were lost" in result.stderr
    assert re.search(r"publish / for event in +1,234", result.stdout)
    assert re.search(r"round trip, p99 +99.5 +us", result.stdout)


def test_a_worker_that_fails_is_named_with_its_last_words() -> None:
    worker = Worker("echo", "meshmsg.cli._bench_worker", {"name": "x"})
    try:
        with pytest.raises(WorkerFailed, match=r"echo ended with status 1: KeyError: 'connect'"):
            worker.next(60)
    finally:
        worker.end()


@pytest.mark.parametrize("more", [(), ("feed",), ("market", "--seconds", "60", "--no-spark")])
def test_demo_says_where_it_is_now(run: Any, more: tuple[str, ...]) -> None:
    result = run("demo", *more)
    assert result.exit_code == 2
    assert "in a checkout of meshmsg, run `make demo`" in result.stderr
    assert result.stdout == ""
