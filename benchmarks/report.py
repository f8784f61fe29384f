"""The results as tables: for a terminal, as Markdown for the pages, and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.case import (
    GROWTH,
    IDLE_RATE,
    ONE_WAY,
    RATES_OF,
    RECEIVER,
    ROUND_TRIP,
    THROUGHPUT,
    WIRE,
    Case,
)
from benchmarks.machine import Machine
from benchmarks.results import (
    Measure,
    Results,
    Spread,
    cpu_us,
    frame_events,
    lost,
    percentile,
    rate,
)
from benchmarks.table import NONE, Table, fixed, ratio_words, size_words, thousands
from benchmarks.target import verdicts
from benchmarks.way import LABELS, LIMIT, OURS

PERCENTILES = (50.0, 99.0, 99.9)
FAMILY_WORDS = {OURS: "meshmsg", LIMIT: "limit"}


def tables(results: Results) -> list[Table]:
    """All tables that have something in them."""
    found = [
        targets(results),
        *throughputs(results),
        round_trips(results, awake=True),
        one_way(results, awake=True),
        round_trips(results),
        one_way(results),
        with_loss(results),
        with_wire_loss(results),
        growth(results),
        not_available(results),
    ]
    return [table for table in found if table.rows]


def targets(results: Results) -> Table:
    """What is to be reached at 64 B, and what was."""
    rows = [
        (target.text, target.wanted, ratio_words(reached), "met" if met else "MISSED")
        for target, reached, met in verdicts(results)
    ]
    return Table("Targets, at 64 B", ("target", "wanted", "reached", ""), rows)


def throughputs(results: Results) -> list[Table]:
    """Events a second and processor time, a table for each payload and number of receivers."""
    groups: dict[tuple[int, int], list[Case]] = {}
    for case in results.asked(THROUGHPUT):
        if not (case.loss or case.parity or case.sealed):
            groups.setdefault((case.size_bytes, case.subscribers), []).append(case)
    found = []
    for (size_bytes, subscribers), cases in groups.items():
        title = f"Throughput, {size_words(size_bytes)}, 1 -> {subscribers}"
        if subscribers > 1:
            title += ", all together"
        found.append(_rates(results, cases, title))
    return found


def _rates(results: Results, cases: Iterable[Case], title: str) -> Table:
    rows = [_rate_row(results, case) for case in cases]
    columns = ("who", "way", "1000 events/s", "x raw", "CPU us/event", "frame", "never arrived")
    return Table(title, columns, rows, words=2)


def _rate_row(results: Results, case: Case) -> tuple[str, ...]:
    who, problem = FAMILY_WORDS.get(case.by.family, ""), results.why_not(case)
    if problem:
        return (who, case.label, problem, NONE, NONE, NONE, NONE)
    return (
        who,
        case.label,
        thousands(results.spread(case, rate)),
        ratio_to_base(results, case, rate),
        fixed(results.spread(case, cpu_us), 2),
        fill_words(results, case),
        lost_words(results, case),
    )


def round_trips(results: Results, *, awake: bool = False) -> Table:
    """There and back."""
    rows = []
    for case in results.asked(ROUND_TRIP):
        if case.awake != awake:
            continue
        who, problem = FAMILY_WORDS.get(case.by.family, ""), results.why_not(case)
        if problem:
            rows.append((who, case.label, problem, NONE, NONE, NONE, NONE))
            continue
        base = Case(ROUND_TRIP, "datagrams")
        rows.append(
            (
                who,
                case.label,
                *(fixed(results.spread(case, percentile(p)), 0) for p in PERCENTILES),
                ratio_to_base(results, case, percentile(50)),
                ratio_words(results.ratio(case, base, percentile(50))),
            )
        )
    columns = ("who", "way", *(f"p{p:g} us" for p in PERCENTILES), "p50 x raw", "p50 x datagrams")
    return Table(f"Round trip of one 64 B event{_awake(awake)}", columns, rows, words=2)


def _awake(awake: bool) -> str:
    return ", the processors kept awake" if awake else ""


def one_way(results: Results, *, awake: bool = False) -> Table:
    """From the call that publishes to the consumer, by the rate of events."""
    rows = [
        (
            "idle (200)" if case.rate == IDLE_RATE else f"{case.rate:,}",
            case.label,
            *(fixed(results.spread(case, percentile(p)), 0) for p in PERCENTILES),
            ratio_to_base(results, case, percentile(50)),
            fill_words(results, case),
            lost_words(results, case),
        )
        for case in results.cases(ONE_WAY)
        if case.awake == awake
    ]
    columns = (
        "events/s offered",
        "way",
        *(f"p{p:g} us" for p in PERCENTILES),
        "p50 x raw",
        "events/frame",
        "never arrived",
    )
    return Table(f"One way, 64 B{_awake(awake)}", columns, rows, words=2)


def with_loss(results: Results) -> Table:
    """Multicast where each receiver drops packets, with parity, and sealed, beside without."""
    rows = [
        (
            case.label,
            thousands(results.spread(case, rate)),
            ratio_words(results.ratio(case, case.whole, rate)),
            fixed(results.spread(case, cpu_us), 2),
            lost_words(results, case),
        )
        for case in results.cases(THROUGHPUT)
        if case.loss_at == RECEIVER and (case.loss or case.parity or case.sealed)
    ]
    columns = ("way", "1000 events/s", "x without", "CPU us/event", "never arrived")
    return Table("Multicast: 1% of the packets dropped, parity, seals, 64 B, 1 -> 1", columns, rows)


def with_wire_loss(results: Results) -> Table:
    """Everybody, where the kernel drops packets."""
    rows = []
    for case in results.asked(THROUGHPUT):
        if case.loss_at != WIRE:
            continue
        who, problem = FAMILY_WORDS.get(case.by.family, ""), results.why_not(case)
        if problem:
            rows.append((who, case.label, problem, NONE, NONE, NONE, NONE))
            continue
        rows.append(
            (
                who,
                case.label,
                thousands(results.spread(case, rate)),
                ratio_to_base(results, case, rate),
                ratio_words(results.ratio(case, case.whole, rate)),
                fixed(results.spread(case, cpu_us), 2),
                lost_words(results, case),
            )
        )
    columns = (
        "who",
        "way",
        "1000 events/s",
        "x raw",
        "x without loss",
        "CPU us/event",
        "never arrived",
    )
    return Table("The kernel drops 1% of what is sent, 64 B, 1 -> 1", columns, rows, words=2)


def growth(results: Results) -> Table:
    """The time of an event, the more there is of something."""
    rows = []
    for case in results.cases(GROWTH):
        first = Case(GROWTH, case.way)
        rows.append(
            (
                growing_words(case),
                case.label,
                fixed(results.spread(case, event_ns), 0),
                ratio_words(results.ratio(case, first, event_ns)) if case != first else NONE,
                fixed(results.spread(case, cpu_us), 2),
                fill_words(results, case),
            )
        )
    columns = ("how many", "way", "ns/event", "x with one", "CPU us/event", "events/frame")
    return Table("Growth: the time of an event delivered, 64 B", columns, rows, words=2)


def growing_words(case: Case) -> str:
    """What there is more of, and how much."""
    if case.streams > 1:
        return f"{case.streams:,} streams"
    if case.topics > 1:
        return f"{case.topics:,} topics"
    return f"{case.subscribers} subscriber{'s' if case.subscribers > 1 else ''}"


def event_ns(measurement: Any) -> float:
    """Time for an event."""
    return 1e9 / measurement.rate if measurement.rate else 0.0


def not_available(results: Results) -> Table:
    """Who could not be measured at all."""
    asked = {case.way for case in results.asked()}
    rows = [(LABELS[way], reason) for way, reason in results.missing.items() if way in asked]
    return Table("Not available", ("way", "because"), rows, words=2)


def ratio_to_base(results: Results, case: Case, measure: Measure) -> str:
    return NONE if case.is_base else ratio_words(results.ratio(case, case.base, measure))


def fill_words(results: Results, case: Case) -> str:
    spread = results.spread(case, frame_events)
    return f"{spread.median:,.0f}" if spread is not None and spread.median else NONE


def lost_words(results: Results, case: Case) -> str:
    spread = results.spread(case, lost)
    if spread is None or not case.lossy or not spread.high:
        return "0"
    return f"{spread.median:.1%} (to {spread.high:.1%})"


# --- as plain data ---


def plain(
    results: Results,
    machine: Machine,
    others: float | None,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Everything, for JSON: each measurement and the ratios."""
    return {
        "machine": machine.as_dict(),
        "versions": dict(versions),
        "used_by_others": None if others is None else round(others, 3),
        "missing": dict(results.missing),
        "failures": {case.id: problems for case, problems in results.failures.items()},
        "measurements": [_plain(results, case) for case in results.cases()],
        "targets": list(_plain_targets(results)),
    }


def _plain(results: Results, case: Case) -> dict[str, Any]:
    found = results.of(case)
    entry: dict[str, Any] = {"id": case.id, "label": case.label, "who": case.by.family}
    entry["rounds"] = [m.round for m in found]
    entry["events"] = [m.events for m in found]
    if case.lossy:
        entry["lost"] = [round(m.lost, 5) for m in found]
    if case.kind in RATES_OF:
        entry["events_per_s"] = [round(m.rate) for m in found]
        entry["cpu_us_per_event"] = [round(m.cpu_us, 4) for m in found]
        if any(note for m in found for note in m.notes):
            entry["receivers"] = [m.notes for m in found]
    else:
        for p in PERCENTILES:
            entry[f"p{p:g}_us"] = [round(m.percentile_us(p), 1) for m in found]
    if any(m.frame_events for m in found):
        entry["events_per_frame"] = [round(m.frame_events, 1) for m in found]
    if not case.is_base:
        measure = rate if case.kind in RATES_OF else percentile(50)
        entry["ratio_to_raw"] = _median(results.ratio(case, case.base, measure))
    return entry


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else round(spread.median, 3)


def _plain_targets(results: Results) -> Iterator[dict[str, Any]]:
    for target, reached, met in verdicts(results):
        yield {
            "text": target.text,
            "wanted": target.wanted,
            "reached": round(reached.median, 3),
            "low": round(reached.low, 3),
            "high": round(reached.high, 3),
            "met": met,
        }
