"""The benchmarks run, count everything, and compare what they should; how fast is not a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


#: A thousand events or so: how fast is not a test.
SHORT = ("--rounds", "1", "--scale", "0.001")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_quick_run_of_one_case_gives_a_table(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "benchmarks" / "index.md").read_text(encoding="utf-8")
    found, tables = tmp_path / "found.json", tmp_path / "tables.md"
    options = (*SHORT, "--json", str(found), "--markdown", str(tables), "--folder", str(tmp_path))
    done = run("run.py", "--only", "throughput/64B/1-1/sync-batches", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "publish_many / batches()" in done.stdout
    assert "| raw pyzmq |" in tables.read_text(encoding="utf-8")
    assert "| events/s: publish_many / batches() / raw pyzmq |" in tables.read_text("utf-8")
    raw, ours = json.loads(found.read_text(encoding="utf-8"))["measurements"]
    assert [raw["id"], ours["id"]] == [
        "throughput/64B/1-1/raw",
        "throughput/64B/1-1/sync-batches",
    ]
    for measured in (raw, ours):
        assert measured["rounds"] == [0]
        assert measured["events"][0] >= 1000
        assert measured["events_per_s"][0] > 0
        assert measured["cpu_us_per_event"][0] > 0
    assert ours["ratio_to_raw"] > 0
    assert ours["events_per_frame"][0] > 1
    assert (ROOT / "docs" / "benchmarks" / "index.md").read_text(encoding="utf-8") == page
    # Everything is there already: only the tables are made anew.
    again = run("run.py", "--only", "throughput/64B/1-1/sync-batches", "--resume", *options)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "round 1 of 1" in done.stdout
    assert "round 1 of 1" not in again.stdout
    assert json.loads(found.read_text(encoding="utf-8"))["measurements"] == [raw, ours]


@pytest.mark.parametrize("way", ["raw", "sync", pytest.param("async", marks=pytest.mark.slow)])
def test_round_trip_is_timed(way: str) -> None:
    from benchmarks.case import ROUND_TRIP, Case
    from benchmarks.trial import Effort, run_trial

    found = run_trial(Case(ROUND_TRIP, way), Effort(scale=0.001), 0)
    assert len(found.times_us) == Effort(scale=0.001).count(found.case) - 500
    assert 0 < found.percentile_us(50) <= found.percentile_us(99)


@pytest.mark.slow
def test_profile_names_lines_of_both_processes() -> None:
    done = run("profile.py", "--scale", "0.05", "--lines", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "publisher: its main thread" in done.stdout
    assert "subscriber: its main thread" in done.stdout


def test_unknown_case_is_refused() -> None:
    done = run("run.py", "--only", "nonsense")
    assert done.returncode == 2
    assert "no case is called nonsense" in done.stderr


def measured(way: str, number: int, rate: float) -> Any:
    from benchmarks.case import THROUGHPUT, Case
    from benchmarks.trial import Measurement

    return Measurement(Case(THROUGHPUT, way), number, 1000, rate=rate)


def test_ratios_are_taken_round_by_round() -> None:
    from benchmarks.results import Results, Spread, rate

    results = Results()
    # The machine is ten times slower in the second round, and the third lacks its counterpart.
    for way, rates in (("raw", (100.0, 10.0)), ("sync", (200.0, 30.0, 7.0))):
        for number, value in enumerate(rates):
            results.add(measured(way, number, value))
    case = measured("sync", 0, 0.0).case
    assert results.ratio(case, case.base, rate) == Spread(2.5, 2.0, 3.0)
    assert results.spread(case, rate) == Spread(30.0, 7.0, 200.0)


def test_target_is_met_at_its_bound() -> None:
    from benchmarks.target import TARGETS

    assert len({target.text for target in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        assert target.met(target.bound)
        assert target.met(target.bound + 0.1) is not target.at_most


def test_every_case_is_first_of_its_group_in_turn() -> None:
    from benchmarks.case import all_cases, in_round

    cases = all_cases()
    group = [case for case in cases if case.group == cases[0].group]
    rounds = [in_round(cases, number) for number in range(len(group))]
    assert {order[0] for order in rounds} == set(group)
    for order in rounds:
        assert sorted(order, key=cases.index) == cases
        assert {case.group for case in order[: len(group)]} == {cases[0].group}


def test_a_chosen_case_brings_what_it_is_measured_against() -> None:
    from benchmarks.case import chosen_cases

    ids = [case.id for case in chosen_cases(["1024B/1-4/async-batches"])]
    assert ids == ["throughput/1024B/1-4/raw", "throughput/1024B/1-4/async-batches"]
    assert chosen_cases(["nonsense"]) == []


def test_missing_events_fail_a_receiver() -> None:
    from benchmarks.task import Task, taken

    task = Task("receive", "sync", size_bytes=64, count=1000)
    assert taken(1000, 1, 0, 1, 64_000, task).problems == []
    assert taken(999, 1, 0, 1, 63_936, task).problems == [
        "999 events received of 1,000",
        "63,936 bytes received of 64,000",
    ]


def test_results_go_between_the_markers_of_the_page() -> None:
    from benchmarks.page import PAGE, SPARK_PAGE, TABLES_PAGE, with_results

    for page in (PAGE, SPARK_PAGE, TABLES_PAGE):
        new = with_results(page.read_text(encoding="utf-8"), "| a table |\n")
        assert "<!-- results -->\n\n| a table |\n\n<!-- end of results -->" in new
        assert with_results(new, "| a table |\n") == new
    with pytest.raises(ValueError, match="no <!-- results -->"):
        with_results("a page without markers", "")


@pytest.mark.slow
def test_quick_run_over_multicast_gives_a_table(tmp_path: Path) -> None:
    found, tables = tmp_path / "found.json", tmp_path / "tables.md"
    options = ("--rounds", "1", "--scale", "0.2", "--json", str(found), "--markdown", str(tables))
    case = "throughput/64B/1-1/multicast-batches-loss-0.01"
    done = run("run.py", "--only", f"{case}*", *options, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "multicast: publish_many / batches(), 1% lost" in tables.read_text(encoding="utf-8")
    measured = json.loads(found.read_text(encoding="utf-8"))["measurements"]
    by_name = {entry["id"].rpartition("/")[2]: entry for entry in measured}
    for name in ("raw", "multicast-batches", "multicast-batches-loss-0.01"):
        assert by_name[name]["events_per_s"][0] > 0
    (receiver,) = by_name["multicast-batches-loss-0.01"]["receivers"][0]
    assert receiver["injected_drops"] > 0
    assert receiver["repaired"] > 0


@pytest.mark.parametrize("way", ["datagrams", "multicast", "c-tcp"])
def test_round_trip_over_multicast_is_timed(way: str) -> None:
    from benchmarks.case import ROUND_TRIP, Case
    from benchmarks.space import missing_ways
    from benchmarks.trial import Effort, run_trial

    if way in missing_ways():
        pytest.skip(missing_ways()[way])

    effort = Effort(scale=0.001)
    found = run_trial(Case(ROUND_TRIP, way), effort, 0)
    assert len(found.times_us) == effort.count(found.case) - 500
    assert 0 < found.percentile_us(50) <= found.percentile_us(99)


def test_rivals_that_cannot_be_measured_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from benchmarks import report, space
    from benchmarks.case import THROUGHPUT, Case
    from benchmarks.results import Results

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = space.missing_ways()
    assert {"raw-list", "zenoh", "nng", "nats", "dds", "lcm", "iceoryx2"} <= set(missing)
    results = Results([Case(THROUGHPUT, "dds"), Case(THROUGHPUT, "lcm")])
    results.missing = missing
    rates, table = report.tables(results)
    assert "not available: cyclonedds is not installed" in rates.markdown()
    assert table.title == "Not available"
    assert "lcm is not installed" in table.markdown()


def test_a_rival_that_fails_is_shown_and_does_not_fail_the_run() -> None:
    from rich.console import Console

    from benchmarks import report
    from benchmarks.case import THROUGHPUT, Case
    from benchmarks.command import measure
    from benchmarks.crew import CrewFailed
    from benchmarks.trial import Effort

    def trial(case: Case, effort: Effort, number: int) -> Any:
        if case.way == "datagrams":
            raise CrewFailed("it broke")
        return measured(case.way, number, 100.0)

    cases = [Case(THROUGHPUT, "raw"), Case(THROUGHPUT, "datagrams")]
    results = measure(cases, Effort(rounds=4), Console(quiet=True), trial)
    assert len(results.of(cases[0])) == 4
    assert len(results.failures[cases[1]]) == 2  # not a third time
    (table,) = report.throughputs(results)
    assert "failed: throughput/64B/1-1/datagrams in round 1: it broke" in table.markdown()


def test_every_case_has_a_module_and_what_it_is_measured_against() -> None:
    from benchmarks.case import all_cases, chosen_cases, headline_cases
    from benchmarks.target import TARGETS

    cases = all_cases()
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert (ROOT / "benchmarks" / "ways" / f"{case.by.module}.py").exists()
        assert case.base in cases
        assert case.kind != "throughput" or case.whole in cases
    headlines = headline_cases()
    for target in TARGETS:
        assert target.case in cases
        assert target.base in cases
        assert {target.case, target.base} <= set(headlines)
    assert any(case.kind == "one-way" and case.loss for case in headlines)
    assert chosen_cases(["nonsense"]) == []


def test_a_page_says_what_was_not_measured() -> None:
    from benchmarks.case import all_cases
    from benchmarks.command import not_in_this_run
    from benchmarks.results import Results
    from benchmarks.section import SECTIONS
    from benchmarks.trial import Measurement

    results = Results()
    results.add(measured("raw", 0, 100.0))
    (table,) = not_in_this_run(results, {"groups"})
    left_out = {name for (name,) in table.rows}
    assert {"growth/64B/1-32", "growth/64B/1-1/100000-topics", "log-growth", "memory"} <= left_out
    assert {"throughput/65536B/1-4", "throughput/64B/1-1/loss-0.01", "round-trip/64B"} <= left_out
    assert not {"throughput/64B/1-1", "groups"} & left_out
    for case in all_cases():
        results.add(Measurement(case, 0, 1000, rate=1.0))
    assert not_in_this_run(results, {section.name for section in SECTIONS}) == []


def test_a_record_gives_back_what_was_measured(tmp_path: Path) -> None:
    from benchmarks.record import Record
    from benchmarks.results import Results
    from benchmarks.trial import Effort

    one = measured("raw", 2, 100.0)
    record = Record(tmp_path / "trials.jsonl", Effort())
    record.add(one)
    with open(tmp_path / "trials.jsonl", "a", encoding="utf-8") as file:
        file.write('{"case": "throughput/64B/1-1/r')  # broken off
    results = Results([one.case])
    assert record.read_into(results, [one.case]) == 1
    assert results.of(one.case) == [one]
    other = Record(tmp_path / "trials.jsonl", Effort(scale=0.5))
    assert other.read_into(Results([one.case]), [one.case]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["throughput", "round-trip"])
@pytest.mark.parametrize(
    "way", ["raw-list", "zenoh", "nng", "nats", "dds", "iceoryx2", "gso", "tcp", "c-tcp", "c-gso"]
)
def test_rival_sends_and_receives(way: str, kind: str) -> None:
    from benchmarks.case import Case, all_cases
    from benchmarks.space import missing_ways
    from benchmarks.trial import Effort, run_trial

    if way in missing_ways():
        pytest.skip(missing_ways()[way])
    if Case(kind, way) not in all_cases():
        pytest.skip(f"{way} has no {kind}")
    assert run_trial(Case(kind, way), Effort(scale=0.01), 0).events > 0


def test_a_stalled_subscriber_leaves_nothing_unmentioned() -> None:
    from benchmarks import memory

    found = memory.measure("meshmsg-drop_oldest", 0.3)
    assert found["accepted"] > 0
    assert found["unmentioned"] == 0


def test_a_log_is_measured_as_it_grows(tmp_path: Path) -> None:
    from benchmarks import log_growth
    from benchmarks.section import SECTIONS

    found = log_growth.measure(tmp_path, (0.005, 0.01, 1e9))
    assert [row["gb"] for row in found["sizes"]] == [0.005, 0.01]
    (section,) = [section for section in SECTIONS if section.name == "log-growth"]
    (table,) = section.tables(found)
    assert "not available: the disk has" in table.markdown()


def test_work_groups_are_measured_beside_raw_push_and_pull(tmp_path: Path) -> None:
    found = tmp_path / "groups.json"
    ways = ("--only", "raw", "--only", "meshmsg", "--only", "meshmsg-batches")
    done = run("groups.py", *ways, "--rounds", "1", "--scale", "0.01", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    rates = json.loads(found.read_text(encoding="utf-8"))["rates"]
    assert rates.keys() == {"raw", "meshmsg", "meshmsg-batches"}
    assert "of raw PUSH/PULL, wanted" in done.stdout
