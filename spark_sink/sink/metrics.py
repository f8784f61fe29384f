"""The daemon's figures as a part of a monitor, beside those of its peer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshmsg import Monitor
from meshmsg._model.extras import need
from meshmsg.monitor.metrics import Metric, Sample, numbers
from meshmsg.monitor.parts import Part, View, disk_samples, look_at_disks
from meshmsg.monitor.readiness import Problem, full_disks
from meshmsg.spark_sink.sink.config import SinkConfig


def _metric(name: str, kind: str, text: str, *labels: str) -> Metric:
    return Metric(f"meshmsg_sink_{name}", kind, text, labels)


WHOLE = {
    "events_in": _metric("recorded_events", "counter", "Events recorded since the start"),
    "restarts": _metric("driver_restarts", "counter", "Times that Spark's driver began anew"),
    "streams": _metric("streams", "gauge", "Streams in the log"),
}
OUTPUT = {
    key: _metric(name, kind, text, "output")
    for key, name, kind, text in (
        ("commits", "commits", "counter", "Batches written"),
        ("events", "events", "counter", "Events of the written batches"),
        ("rows", "rows", "counter", "Rows written"),
        ("lost", "lost_events", "counter", "Events that are lost, in the table of losses"),
        ("quarantined", "quarantined_events", "counter", "Payloads not as declared"),
        ("bytes", "written_bytes", "counter", "Size of the written files"),
        ("failures", "failures", "counter", "Times that the query failed and began anew"),
        ("repeated", "repeated_batches", "counter", "Batches run again that the table had"),
        ("lag_events", "lag_events", "gauge", "Events in the log and not in the table"),
        ("lag_s", "lag_seconds", "gauge", "Age of the newest event in it, if there are newer"),
        ("batch_s", "batch_seconds", "gauge", "Time that the last batch took"),
    )
}


def sink_part(figures: Callable[[], dict[str, Any]], config: SinkConfig, limits: Monitor) -> Part:
    """How a daemon is looked at."""
    folders = [os.path.dirname(output.out) for output in config.outputs]
    folders += [] if config.source else [config.state]

    def look() -> View:
        found, disks = figures(), look_at_disks(dict.fromkeys(folders))
        problems = [*_problems(found), *full_disks(disks, limits)]
        samples = [*_samples(found), *disk_samples(disks)]
        return View({"sink": found}, samples, problems, ("sink", "disks"))

    return look


def _samples(found: Mapping[str, Any]) -> Iterator[Sample]:
    yield from numbers(WHOLE, found)
    for row in found["outputs"]:
        yield from numbers(OUTPUT, {**row, "batch_s": row["batch_ms"] / 1000}, row["output"])


def _problems(found: Mapping[str, Any]) -> Iterator[Problem]:
    for row in found["outputs"]:
        if row["problem"]:
            yield Problem("sink", row["output"], str(row["problem"]))
    if not found["ready"] and not any(row["problem"] for row in found["outputs"]):
        yield Problem("sink", "", found["problem"] or "it has not written anything yet")


def open_monitor(config: Monitor) -> Any:
    """Return a monitor for a daemon that has no peer; `None` where its port is taken.

    Raises `BindError`, `ConfigError`.
    """
    return need("meshmsg.monitor", "monitor", "monitor").open_server(config, "sink")
