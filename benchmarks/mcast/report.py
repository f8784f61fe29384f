"""The results of the multicast benchmark as tables and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.case import ONE_WAY, ROUND_TRIP, THROUGHPUT
from benchmarks.machine import Machine
from benchmarks.mcast.case import LABELS, LOSSY, Case
from benchmarks.mcast.targets import TARGETS
from benchmarks.report import (
    NONE,
    PERCENTILES,
    Table,
    fill_words,
    fixed,
    rate_words,
    ratio_to_base,
    ratio_words,
)
from benchmarks.results import Results, cpu_us, lost, percentile, rate


def tables(results: Results, missing: Mapping[str, str]) -> list[Table]:
    """All tables that have something in them."""
    found = [
        targets(results),
        throughput(results),
        times(results, ROUND_TRIP, "Round trip of one 64 B event"),
        times(results, ONE_WAY, "One way, 64 B, 10,000 events a second"),
        not_measured(missing),
    ]
    return [table for table in found if table.rows]


def targets(results: Results) -> Table:
    """What is to be reached, and what was."""
    rows = []
    for target in TARGETS:
        reached = results.ratio(target.case, target.base, target.measure)
        if reached is not None:
            met = "met" if target.met(reached.median) else "NOT MET"
            rows.append((target.text, target.wanted, ratio_words(reached), met))
    return Table("Targets, at 64 B and 1 -> 1", ("target", "wanted", "reached", ""), rows)


def throughput(results: Results) -> Table:
    """Events a second, all receivers together."""
    rows = [
        (
            f"1 -> {case.subscribers}",
            case.label,
            rate_words(results.spread(case, rate)),
            ratio_to_base(results, case, rate),
            _of_whole(results, case),
            fixed(results.spread(case, cpu_us), 2),
            fill_words(results, case),
            _lost(results, case),
        )
        for case in results.cases(THROUGHPUT)
    ]
    columns = (
        "processes",
        "way",
        "1000 events/s",
        "x datagrams",
        "x without loss",
        "CPU us/event",
        "events/frame",
        "never arrived",
    )
    return Table("Throughput of 64 B events, all receivers together", columns, rows, words=2)


def times(results: Results, kind: str, title: str) -> Table:
    """Latencies of one kind."""
    rows = [
        (
            case.label,
            *(fixed(results.spread(case, percentile(p)), 0) for p in PERCENTILES),
            ratio_to_base(results, case, percentile(50)),
            _lost(results, case),
        )
        for case in results.cases(kind)
    ]
    columns = ("way", *(f"p{p:g} us" for p in PERCENTILES), "p50 x datagrams", "never arrived")
    return Table(title, columns, rows)


def not_measured(missing: Mapping[str, str]) -> Table:
    """The peers that could not be measured."""
    rows = [(LABELS[way], reason) for way, reason in missing.items()]
    return Table("Not measured", ("peer", "because"), rows, words=2)


def _of_whole(results: Results, case: Case) -> str:
    if case.whole == case:
        return NONE
    return ratio_words(results.ratio(case, case.whole, rate))


def _lost(results: Results, case: Case) -> str:
    spread = results.spread(case, lost)
    if spread is None or case.way not in LOSSY:
        return "0"
    return f"{spread.median:.1%} (to {spread.high:.1%})" if spread.high else "0"


def plain(
    results: Results,
    machine: Machine,
    others: float | None,
    failures: Sequence[str],
    versions: Mapping[str, str],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Everything, for JSON: each measurement and the ratios."""
    return {
        "machine": machine.as_dict(),
        "versions": dict(versions),
        "missing": dict(missing),
        "used_by_others": None if others is None else round(others, 3),
        "failures": list(failures),
        "measurements": [_plain(results, case) for case in results.cases()],
        "targets": list(_plain_targets(results)),
    }


def _plain(results: Results, case: Case) -> dict[str, Any]:
    found = results.of(case)
    entry: dict[str, Any] = {"id": case.id, "label": case.label}
    entry["rounds"] = [m.round for m in found]
    entry["events"] = [m.events for m in found]
    entry["lost"] = [round(m.lost, 5) for m in found]
    if case.kind == THROUGHPUT:
        entry["events_per_s"] = [round(m.rate) for m in found]
        entry["cpu_us_per_event"] = [round(m.cpu_us, 4) for m in found]
        entry["receivers"] = [m.notes for m in found]
    else:
        for p in PERCENTILES:
            entry[f"p{p:g}_us"] = [round(m.percentile_us(p), 1) for m in found]
    if not case.is_base:
        measure = rate if case.kind == THROUGHPUT else percentile(50)
        ratio = results.ratio(case, case.base, measure)
        entry["ratio_to_datagrams"] = None if ratio is None else round(ratio.median, 3)
    return entry


def _plain_targets(results: Results) -> Iterator[dict[str, Any]]:
    for target in TARGETS:
        reached = results.ratio(target.case, target.base, target.measure)
        if reached is not None:
            yield {
                "text": target.text,
                "wanted": target.wanted,
                "reached": round(reached.median, 3),
                "met": target.met(reached.median),
            }
