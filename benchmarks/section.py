"""`Section`: another benchmark that is part of the whole run, a program of its own each.

Each writes its figures as JSON; here is how they are started and which tables they make.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.log import WAYS as LOG_WAYS
from benchmarks.memory import LABELS as STALLED
from benchmarks.page import ROOT
from benchmarks.results import Spread
from benchmarks.table import NONE, Table, fixed, thousands

Data = dict[str, Any]
LIMIT_S = 3600


@dataclass(frozen=True, slots=True)
class Section:
    """One program, and what it has to tell."""

    name: str
    script: str
    tables: Callable[[Data], list[Table]]
    full: Sequence[str] = ()
    """Its options in a full run."""
    quick: Sequence[str] = ()
    """And in a quick one."""
    rounds: bool = False
    """Whether it takes `--rounds`."""

    writes_page: bool = False
    """Whether it writes a page of its own, unless told not to."""

    sizes: bool = False
    """Whether it takes sizes of a log, as `--gb`, in place of its own."""

    def run(self, file: Path, quick: bool, rounds: int | None, more: Sequence[str]) -> str:
        """Measure; what went wrong, in words, or nothing."""
        own = () if self.sizes and more else self.quick if quick else self.full
        words = [*own, *more, "--json", str(file)]
        if rounds is not None and self.rounds:
            words += ["--rounds", str(rounds)]
        command = [sys.executable, str(ROOT / "benchmarks" / self.script), *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return f"no end in {LIMIT_S} s"
        if done.returncode == 0 and file.exists():
            return ""
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        return f"status {done.returncode}: {said[-1]}"

    def read(self, file: Path) -> Data | None:
        """Its figures, if there are any."""
        try:
            found: Data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found


def _groups(data: Data) -> list[Table]:
    from benchmarks.group_ways import WAYS

    raw = data["rates"].get("raw", [])
    rows = []
    for way in WAYS:
        rates = data["rates"].get(way.name)
        if rates is None:
            reason = data["missing"].get(way.name, "not measured")
            rows.append((way.label, f"not available: {reason}", NONE))
            continue
        pairs = zip(rates, raw, strict=False)
        ratio = Spread.of(mine / base for mine, base in pairs if base)
        rows.append((way.label, thousands(Spread.of(rates)), fixed(ratio, 2)))
    title = f"Work groups with acks, {data['bytes']} B, 1 publisher, {data['workers']} workers"
    return [Table(title, ("way", "1000 jobs/s", "x raw PUSH/PULL"), rows)]


def _log(data: Data) -> list[Table]:
    found = []
    for size, events in data["events"].items():
        plain = data["append_s"][f"{size}/plain write"]
        rows = []
        for way in LOG_WAYS:
            took = data["append_s"][f"{size}/{way}"]
            ratio = Spread.of(base / mine for mine, base in zip(took, plain, strict=True))
            rate = Spread.of(events / seconds for seconds in took)
            rows.append((way, thousands(rate), fixed(ratio, 2)))
        title = f"Append to the log, {size} B, all on the disk"
        found.append(Table(title, ("way", "1000 events/s", "x a plain write"), rows))
    replay, raw = data["replay_events_per_s"], data["raw_pyzmq_events_per_s"]
    ratio = Spread.of(mine / base for mine, base in zip(replay, raw, strict=True))
    rows = [
        ("replay, 64 B, 1000 events/s", thousands(Spread.of(replay))),
        ("replay, of raw pyzmq live", fixed(ratio, 2)),
        ("start-up with 10 GB, ms", fixed(Spread.of(s * 1e3 for s in data["start_up_s"]), 0)),
    ]
    found.append(Table("Replay of the log", ("what", "figure"), rows))
    return found


def _durable(data: Data) -> list[Table]:
    durable, volatile = data["durable"], data["volatile"]
    ratio = Spread.of(d / max(v, 1.0) for d, v in zip(durable, volatile, strict=True))
    rows = [
        ("publish_many, volatile", thousands(Spread.of(volatile)), NONE),
        (
            "publish_many, durability=log, fsync=batch",
            thousands(Spread.of(durable)),
            fixed(ratio, 2),
        ),
    ]
    for name, rates in data["single"].items():
        rows.append((f"publish, fsync={name}", thousands(Spread.of(rates)), NONE))
    return [Table("Durable streams", ("way", "1000 events/s", "x volatile"), rows)]


def _single(data: Data) -> list[Table]:
    from benchmarks.single import GOALS, PAYLOAD_BYTES

    goals = {goal.what: goal for goal in GOALS}
    rows = []
    for what, figures in data["figures"].items():
        spread = Spread.of(figures)
        shown = fixed(spread, 0) if what.startswith("bytes") else f"{thousands(spread)} k/s"
        goal = goals.get(what)
        if goal is None:
            rows.append((what, shown, NONE, NONE, NONE))
            continue
        ratio = f"{goal.reached(data['figures']):.2f}" if goal.beside else NONE
        word = "met" if goal.is_met(data["figures"]) else "MISSED"
        rows.append((what, shown, ratio, goal.wanted, word))
    title = (
        f"Durable events one at a time, {PAYLOAD_BYTES} B, {data['paced_events']:,} of them paced"
    )
    columns = ("what", "figure", "x volatile", "wanted", "")
    return [Table(title, columns, rows)]


def _log_growth(data: Data) -> list[Table]:
    rows = [
        (
            f"{row['gb']:g} GB",
            *(f"{row[name]:,.0f}" for name in ("append_ns", "open_ms")),
            f"{row['newest_ms']:,.1f}",
            f"{row['replay_ns']:,.0f}",
        )
        for row in data["sizes"]
    ]
    for text in data["left_out"]:
        size, _, reason = text.partition(": ")
        rows.append((size, reason, NONE, NONE, NONE))
    columns = ("log", "append ns/event", "open ms", "newest 1000, ms", "replay ns/event")
    return [Table(f"Growth: the log, events of {data['event_bytes']} B", columns, rows)]


def _memory(data: Data) -> list[Table]:
    rows = [
        (
            STALLED[way],
            f"{row['accepted']:,}",
            f"{row['publisher_mb']:,.0f}",
            f"{row['disk_mb']:,.0f}",
            f"{row['received']:,}",
            f"{row['declared']:,}",
            f"{row['unmentioned']:,}",
        )
        for way, row in data["ways"].items()
    ]
    for way, reason in data.get("missing", {}).items():
        rows.append((STALLED[way], f"not available: {reason}", *[NONE] * 5))
    columns = (
        "way",
        "accepted",
        "publisher +MB",
        "disk MB",
        "received later",
        "declared lost",
        "never mentioned",
    )
    title = f"A subscriber stands still for seconds, events of {data['event_bytes']} B"
    return [Table(title, columns, rows)]


def _spark(data: Data) -> list[Table]:
    rows = [(name, f"{figure:,.0f}") for name, figure in data["figures"].items()]
    title = f"Spark, batches of {data['rows']:,} rows"
    return [Table(title, ("source -> sink", "rows/s, or ms"), rows)]


def _sink(data: Data) -> list[Table]:
    rows = [
        ("events/s offered", f"{data['rate']:,}"),
        ("rows written", f"{data['rows']:,}"),
        ("lost", f"{data['lost']:,}"),
        ("lag at most, s", f"{data['lag_s_max']:.2f}"),
        ("lag in the second half, s", f"{data['lag_s_second_half']:.2f}"),
        ("a batch, ms", f"{data['batch_ms']:,.0f}"),
    ]
    return [Table("The sink daemon, into parquet", ("what", "figure"), rows)]


def _statsd(data: Any) -> list[Table]:
    rows = [
        (
            one["shape"],
            one["way"],
            f"{one['rate']:,.0f}",
            f"{one['lost']:,}",
            f"{one['cpu_us']:.2f}",
            f"{one['per_core']:,.0f}",
            f"{one['of_plain']:.2f}",
        )
        for one in data
    ]
    columns = ("packets", "way", "sent/s", "lost", "CPU us/metric", "metrics/s a core", "x plain")
    return [Table("StatsD metrics received", columns, rows, words=2)]


def _idle(data: Any) -> list[Table]:
    rows = [
        (
            one["who"],
            f"{one['cpu_ms']:.2f}",
            NONE if one["most"] is None else f"at most {one['most']:g}",
        )
        for one in data
    ]
    columns = ("who", "ms of CPU a second", "wanted")
    return [Table("Nothing is published: what connected peers use", columns, rows)]


def _security(data: Any) -> list[Table]:
    rows = [
        (
            one["way"],
            f"{one['size_bytes']} B",
            thousands(Spread.of([one["events_per_s"]])),
            NONE if one["ratio"] is None else f"{one['ratio']:.2f}",
            NONE if one["least"] is None else f"at least {one['least']:g}",
        )
        for one in data
    ]
    columns = ("way", "payload", "1000 events/s", "x without", "wanted")
    return [Table("Encrypted and authenticated, in batches, 1 -> 1", columns, rows, words=2)]


SECTIONS = (
    Section("groups", "groups.py", _groups, (), ("--scale", "0.2"), rounds=True),
    Section("memory", "memory.py", _memory, ("--seconds", "4"), ("--seconds", "2")),
    Section("log", "log.py", _log, (), ("--quick",), rounds=True),
    Section(
        "log-growth",
        "log_growth.py",
        _log_growth,
        ("--gb", "1", "--gb", "5", "--gb", "20"),
        ("--gb", "0.2", "--gb", "1"),
        sizes=True,
    ),
    Section("durable", "durable.py", _durable, (), ("--quick",), rounds=True),
    Section("single", "single.py", _single, (), ("--quick",), rounds=True),
    Section("spark", "spark.py", _spark, (), ("--quick",), writes_page=True),
    Section("sink", "sink.py", _sink, ("--seconds", "60"), ("--seconds", "20")),
    Section("statsd", "statsd.py", _statsd),
    Section("idle", "idle.py", _idle, (), ("--seconds", "4")),
    Section("security", "security.py", _security, (), ("--passes", "1")),
)
