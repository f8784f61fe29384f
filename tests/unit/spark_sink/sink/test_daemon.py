"""What the daemon keeps and shows, without Spark."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshmsg import Monitor, Peer, Record, Stream
from meshmsg.monitor import MonitorServer
from meshmsg.monitor.page import page_answers
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.spark_sink.sink import daemon as sink_daemon
from meshmsg.spark_sink.sink.config import Output, make_sink
from meshmsg.spark_sink.sink.daemon import SinkDaemon
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.metrics import _problems, sink_part
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM, write_log
from tests.support.waiting import wait_until


def test_log_keeps_what_no_table_has_yet(tmp_path: Path) -> None:
    """Also of a stream that nobody knew: its cursor is there before its log is."""
    record = Record("a.**", retention="200KB", segment_bytes="64KiB", hold="sink-lake")
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("rec", record=record, data_dir=tmp_path, connect=pub.address) as rec,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        for _ in range(10):
            last = pub.publish_many("a.b", [bytes(1000)] * 100)
        stream, epoch = last.stream, last.epoch
        wait_until(lambda: [s["next"] for s in rec.stats()["recorder"]["streams"]] == [1000])
        folder = LogFolder.of(str(tmp_path), stream)
        log = rec._open_node().recorder.logs[stream]  # type: ignore[union-attr]
        log.writer.retain()
        assert folder.segments()[0].first == 0
        cursors = Cursors(f"{folder.path}/cursors")
        assert cursors.get("sink-lake", stream) == Cursor("sink-lake", stream, 0, 0, hold=True)
        cursors.set(Cursor("sink-lake", stream, epoch, 500, hold=True))
        log.writer.retain()
        assert 0 < folder.segments()[0].first <= 500


def daemon_of(tmp_path: Path) -> SinkDaemon:
    write_log(tmp_path / "log", 100)
    sink = {"source": str(tmp_path / "log"), "state": str(tmp_path / "state")}
    return SinkDaemon(make_sink(sink, [{"out": str(tmp_path / "lake")}]))


def test_cursor_follows_the_table_and_figures_say_how_far_it_is(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    daemon._hold_all()
    cursors = Cursors(f"{LogFolder.of(str(tmp_path / 'log'), STREAM).path}/cursors")
    assert cursors.held() == (0, 0)
    assert daemon.figures()["outputs"][0]["lag_events"] == 100
    said = {"output": "lake", "positions": {f"{STREAM}/{EPOCH}": 60}}
    figures = dict.fromkeys(("events", "rows", "lost", "quarantined", "bytes"), 60)
    times = {"write_ms": 5.0, "stage_ms": 4.0, "newest_time": time.time()}
    daemon._take({"kind": "commit", **said, **figures, **times})
    daemon._take({"kind": "took", "output": "lake", "ms": 9})
    daemon._move_cursors()
    assert cursors.held() == (EPOCH, 60)
    found = daemon.figures()["outputs"][0]
    assert (found["rows"], found["lag_events"], found["batch_ms"]) == (60, 40, 9)


def commit(daemon: SinkDaemon, stop: int) -> None:
    counts = dict.fromkeys(("events", "rows", "lost", "quarantined", "bytes"), stop)
    times = {"write_ms": 5.0, "stage_ms": 4.0, "newest_time": time.time()}
    positions = {f"{STREAM}/{EPOCH}": stop}
    daemon._take({"kind": "commit", "output": "lake", "positions": positions, **counts, **times})


def test_sink_is_ready_while_events_get_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_of(tmp_path)
    assert not daemon.figures()["ready"]
    daemon._take({"kind": "ready"})
    assert not daemon.figures()["ready"], "events wait, and none has been written"
    commit(daemon, 60)
    assert daemon.figures()["ready"]
    monkeypatch.setattr(sink_daemon, "STUCK_S", -10.0)
    figures = daemon.figures()
    assert not figures["ready"]
    assert figures["problem"].startswith("40 events wait, and no batch was written for")
    commit(daemon, 100)
    assert daemon.figures()["ready"], "nothing waits"
    daemon._take({"kind": "ready"})
    assert daemon.figures()["ready"], "another driver, and nothing waits"


def test_sink_is_not_ready_while_its_recorder_writes_nothing(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    commit(daemon, 100)
    daemon._take({"kind": "ready"})
    with Peer("rec", record="a.**", data_dir=tmp_path / "rec") as daemon.peer:
        assert daemon.figures()["ready"]
        daemon.peer._open_node().recorder.problem = "the disk is full"  # type: ignore[union-attr]
        figures = daemon.figures()
        assert (figures["ready"], figures["problem"]) == (False, "the disk is full")
        assert [problem.problem for problem in _problems(figures)] == ["the disk is full"]


def test_figures_name_what_keeps_batches_back_until_one_is_written(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    daemon._take({"kind": "ready"})
    daemon._take({"kind": "failed", "output": "lake", "text": "the disk is full: /lake"})
    figures = daemon.figures()
    assert (figures["ready"], figures["problem"]) == (False, "the disk is full: /lake")
    assert figures["outputs"][0]["problem"] == "the disk is full: /lake"
    commit(daemon, 60)
    figures = daemon.figures()
    assert (figures["ready"], figures["problem"]) == (True, None)
    daemon._take({"kind": "failed", "output": "", "text": "no Java"})  # of all outputs
    assert daemon.figures()["problem"] == "no Java"


def test_lag_is_that_of_the_table_before_spark_has_started(tmp_path: Path) -> None:
    table = open_table(Output(str(tmp_path / "lake")))
    table.open()
    staged = Path(table.stage(), "out")
    staged.mkdir(parents=True)
    pq.write_table(pa.table({"seq": list(range(70))}), staged / "a.parquet")
    table.commit(0, [Range(STREAM, EPOCH, 0, 70)], str(staged.parent), rows=70)
    daemon = daemon_of(tmp_path)
    daemon._look_up()  # the table's writer may still have it
    table.close()
    assert daemon.figures()["outputs"][0]["lag_events"] == 30


def test_stream_that_is_new_in_the_log_of_another_is_held(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    daemon._hold_all()
    write_log(tmp_path / "log", 10, stream="new/orders.**")
    daemon._hold_all()
    for stream in (STREAM, "new/orders.**"):
        cursors = Cursors(f"{LogFolder.of(str(tmp_path / 'log'), stream).path}/cursors")
        assert cursors.held() == (0, 0)


def shown_columns() -> set[str]:
    """What the live page reads of each table of a sink."""
    script = page_answers()["/page.js"].body.decode()
    (table,) = re.findall(r'table\("#sink".*?\n  \]', script, re.DOTALL)
    named = re.findall(r'(?:text|num|bad)\("[^"]*", "(\w+)"', table)
    return {*named, *re.findall(r"\bo\.(\w+)", table)}


def test_the_live_page_gets_the_tables_with_all_that_it_shows(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    commit(daemon, 60)
    limits = Monitor("127.0.0.1:0")
    with MonitorServer(limits, "sink") as server:
        server.add(sink_part(daemon.figures, daemon.config, limits))
        url = "http://{}:{}/events".format(*server.address)
        with urllib.request.urlopen(url, timeout=30) as answer:
            line = next(line for line in answer if line.startswith(b"data: "))
    event = json.loads(line[6:])
    assert event["view"] is None, "it has no peer here"
    (row,) = event["sink"]["outputs"]
    assert (row["output"], row["rows"], row["lag_events"]) == ("lake", 60, 40)
    columns = shown_columns()
    assert {"output", "lag_s", "problem"} <= columns <= row.keys()


def test_prometheus_gets_the_figures(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path)
    limits = Monitor("127.0.0.1:0")
    with MonitorServer(limits, "sink") as server:
        server.add(sink_part(daemon.figures, daemon.config, limits))
        address = "http://{}:{}".format(*server.address)
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{address}/ready", timeout=30)
        assert caught.value.code == 503
        assert json.loads(caught.value.read())[0]["problem"] == "it has not written anything yet"
        caught.value.close()
    assert 'meshmsg_sink_lag_events{output="lake"} 100.0' in text
    assert "meshmsg_sink_recorded_events_total 0.0" in text
    assert 'meshmsg_sink_rows_total{output="lake"} 0.0' in text
    assert 'meshmsg_ready{check="sink"} 0.0' in text
    assert 'meshmsg_disk_free_bytes{path="' in text
