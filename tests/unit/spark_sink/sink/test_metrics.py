"""The daemon's figures as a part of a monitor: samples, what is wrong, and the disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshmsg import Monitor
from meshmsg.monitor.parts import View
from meshmsg.spark_sink.sink.config import Output, SinkConfig
from meshmsg.spark_sink.sink.metrics import OUTPUT, WHOLE, sink_part

LIMITS = Monitor("127.0.0.1:0")
NO_ROOM = Monitor("127.0.0.1:0", disk_free_min=2**60, disk_share_min=1.0)


def row(name: str, **values: Any) -> dict[str, Any]:
    counts = dict.fromkeys(OUTPUT.keys() - {"batch_s"}, 3)
    return {"output": name, "problem": None, "batch_ms": 250.0, **counts, **values}


def figures(*rows: dict[str, Any], ready: bool = True) -> dict[str, Any]:
    counts = {"events_in": 7, "restarts": 1, "streams": 2}
    return {**counts, "ready": ready, "problem": None, "outputs": list(rows)}


def look(
    tmp_path: Path, found: dict[str, Any], limits: Monitor = LIMITS, source: str | None = None
) -> View:
    outputs = tuple(Output(f"{tmp_path}/lake/{name}") for name in ("a", "b"))
    config = SinkConfig(outputs, state=str(tmp_path / "state"), source=source)
    return sink_part(lambda: found, config, limits)()


def values(view: View, name: str) -> dict[tuple[str, ...], float]:
    return {s.labels: s.value for s in view.samples if s.metric.name == f"meshmsg_{name}"}


def test_each_output_has_its_samples_and_the_whole_has_its_own(tmp_path: Path) -> None:
    found = figures(row("a", rows=10), row("b", rows=20, batch_ms=1500.0))
    view = look(tmp_path, found)
    assert values(view, "sink_rows") == {("a",): 10.0, ("b",): 20.0}
    assert values(view, "sink_batch_seconds") == {("a",): 0.25, ("b",): 1.5}
    assert values(view, "sink_recorded_events") == {(): 7.0}
    assert view.figures == {"sink": found}
    names = [sample.metric for sample in view.samples]
    for metric in WHOLE.values():
        assert names.count(metric) == 1
    for metric in OUTPUT.values():
        assert names.count(metric) == 2


def test_a_figure_that_is_not_there_yet_is_no_sample(tmp_path: Path) -> None:
    bare = {"output": "a", "problem": None, "batch_ms": 0.0}
    view = look(tmp_path, figures(bare))
    assert values(view, "sink_rows") == {}
    assert values(view, "sink_batch_seconds") == {("a",): 0.0}


def test_what_is_wrong_is_said_of_the_output_that_it_is_of(tmp_path: Path) -> None:
    view = look(tmp_path, figures(row("a"), row("b", problem="the disk is full"), ready=False))
    assert [tuple(one) for one in view.problems] == [("sink", "b", "the disk is full")]
    assert set(view.checks) == {"sink", "disks"}


def test_a_sink_that_has_written_nothing_is_not_ready(tmp_path: Path) -> None:
    waiting = look(tmp_path, figures(row("a"), ready=False))
    assert [one.problem for one in waiting.problems] == ["it has not written anything yet"]
    assert look(tmp_path, figures(row("a"))).problems == []
    assert look(tmp_path, figures(ready=True)).problems == []


def test_disks_are_those_that_are_written(tmp_path: Path) -> None:
    view = look(tmp_path, figures(), NO_ROOM)
    paths = {f"{tmp_path}/lake", f"{tmp_path}/state"}
    assert {labels[0] for labels in values(view, "disk_free_bytes")} == paths
    assert {one.check for one in view.problems} == {"disks"}
    assert len(view.problems) == 2
    others = look(tmp_path, figures(), NO_ROOM, source=str(tmp_path / "log"))
    assert {labels[0] for labels in values(others, "disk_free_bytes")} == {f"{tmp_path}/lake"}


def test_what_a_page_says_of_metrics_is_so() -> None:
    page = (
        Path(__file__).resolve().parents[4].joinpath("docs", "sink.md").read_text(encoding="utf-8")
    )
    for metric in (*WHOLE.values(), *OUTPUT.values()):
        assert f"`{metric.shown}`" in page, metric.shown
