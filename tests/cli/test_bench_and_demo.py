"""`meshmsg bench` and `meshmsg demo`, short but whole."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from meshmsg.cli import bench
from meshmsg.cli._demo_run import HEALTHY, STALLED, Outcome, Subscriber
from meshmsg.cli._demo_story import problems, story, summary
from meshmsg.cli._demo_worker import Checker
from meshmsg.cli._workers import Worker, WorkerFailed
from meshmsg.recovery.stream.ledger import Ledger, LedgerRow


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


def test_demo_repairs_reports_and_reconciles(start: Any) -> None:
    demo = start("demo", "--plain", "--seconds", "1")
    assert demo.end() == 0, demo.errors()
    text = re.sub(r"\s+", " ", "".join(demo.out))
    dropped = re.search(r"(\d+) frames \([\d.]+%\) with ([\d,]+) events were dropped on pur", text)
    assert dropped is not None
    for name in HEALTHY:
        assert f"{name} got" in text
        assert f"{dropped[2]} of them repaired; 0 lost, 0 twice or out of order" in text
    lost = re.search(rf"so nobody waited for {STALLED}, and ([\d,]+) quotes were gone", text)
    assert lost is not None
    assert f"overflow {lost[1]}" in text
    assert text.count("✔") == 6
    assert "✘" not in text
    assert "Every event is accounted for" in text
    assert demo.errors() == ""


# What the demo would call wrong ----------------------------------------------------------------


def subscriber(name: str, **quotes: int) -> Subscriber:
    def figures(received: int) -> dict[str, int]:
        names = ("skipped", "wrong", "lost", "losses")
        return dict.fromkeys(names, 0) | {"received": received, "next": received}

    streams = {"quotes": figures(100) | quotes, "orders": figures(10)}
    return Subscriber(name, worker=None, report={"streams": streams, "repaired": 5})  # type: ignore[arg-type]


def outcome(*, healthy: dict[str, int] | None = None, **stalled: int) -> Outcome:
    usual = {"received": 90, "lost": 10, "skipped": 10, "losses": 1}
    subscribers = [
        subscriber(HEALTHY[0]),
        subscriber(HEALTHY[1], **(healthy or {})),
        subscriber(STALLED, **(usual | stalled)),
    ]
    rows = [
        LedgerRow(f"market/{kind}", 1, s.name, count, count, 0)
        for s in subscribers
        for kind, count in (("quotes", 100), ("orders", 10))
    ]
    published = {"quotes": 100, "orders": 10}
    return Outcome(published, 50, 5, 9, 3.0, 12.0, subscribers, Ledger(tuple(rows)))


def test_a_good_run_has_no_problems_and_a_story() -> None:
    good = outcome()
    assert problems(good) == []
    text = " ".join(story(good))
    assert "sent 100 quotes and 10 orders in 50 frames" in text
    assert "5 frames (10.0%) with 9 events were dropped" in text
    assert "10 quotes were gone" in text
    assert summary(good, [])["demo"]["dropped_events"] == 9
    json.dumps(summary(good, []))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (outcome(healthy={"received": 99, "lost": 1, "skipped": 1}), "bob's quotes: 1 were lost"),
        (outcome(healthy={"received": 99}), "99 received + 0 lost is not 100"),
        (outcome(healthy={"skipped": 2}), "are not those that were reported lost"),
        (outcome(healthy={"wrong": 1}), "1 came twice or out of order"),
        (outcome(received=100, lost=0, skipped=0), "carol lost nothing"),
    ],
)
def test_what_went_wrong_is_named(bad: Outcome, words: str) -> None:
    assert words in " ".join(problems(bad))


def test_a_ledger_that_does_not_add_up_is_a_problem() -> None:
    bad = outcome()
    row = LedgerRow("market/quotes", 1, "bob", 100, 98, 0, lost={"gone": 1}, in_flight=0)
    bad.ledger = Ledger((*bad.ledger.rows[1:], row))
    found = " ".join(problems(bad))
    assert "the ledger does not reconcile" in found
    assert "losses for other reasons: {'gone': 1}" in found


def test_the_checker_finds_gaps_doubles_and_disorder() -> None:
    check = Checker()
    for number in (0, 1, 1, 4, 3):
        check.on_event(number)
    assert vars(check) | {"received": 5, "skipped": 2, "wrong": 2, "next": 5} == vars(check)
