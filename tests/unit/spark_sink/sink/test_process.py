"""The daemon as a process: its figures, how it ends, and its table as it is read meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from meshmsg import WaitTimeout
from meshmsg.spark_sink.sink.process import SinkEnded, SinkProcess
from tests.spark.tables import output, written
from tests.support import processes

PATIENCE_S = 60.0


def sink(tmp_path: Path, mode: str | int, *arguments: str) -> SinkProcess:
    """A daemon in whose place another program runs."""
    prefix = processes.program("sink_stub", mode)
    return SinkProcess(str(tmp_path / "lake" / "orders"), *arguments, prefix=prefix)


def test_before_it_is_started_there_is_nothing_to_end(tmp_path: Path) -> None:
    made = sink(tmp_path, "serve")
    assert made.poll() is None
    assert made.stop() == 0
    assert (made.output(), made.rows()) == ({}, 0)


def test_figures_are_the_newest_that_it_said_up_to_its_end(tmp_path: Path) -> None:
    with sink(tmp_path, "serve", "--topics", "a.**") as made:
        made.wait_ready(PATIENCE_S)
        assert made.output() == {"output": "lake", "rows": 3}
        assert made.poll() is None
        assert made.pid != os.getpid()
        assert made.stop(PATIENCE_S) == 0
        assert made.output() == {"output": "lake", "rows": 4}
        assert made.stop() == 0, "again changes nothing"
    assert made.words.split() == [
        *("sink", "--out", made.out, "--json"),
        *("--topics", "a.**"),
    ]


def test_one_that_ends_by_itself_is_said_with_its_words(tmp_path: Path) -> None:
    with sink(tmp_path, 3) as made:
        with pytest.raises(SinkEnded, match="ended with status 3"):
            made.wait_ready(PATIENCE_S)
        assert made.join(PATIENCE_S) == 3
        assert made.poll() == 3


def test_one_that_does_not_hear_is_killed_when_the_time_is_up(tmp_path: Path) -> None:
    with sink(tmp_path, "deaf") as made:
        made.wait_ready(PATIENCE_S)
        assert made.stop(timeout=0.05) == -signal.SIGKILL


def test_waiting_has_an_end_that_says_how_far_it_was(tmp_path: Path) -> None:
    with sink(tmp_path, "serve") as made:
        made.wait_ready(PATIENCE_S)
        with pytest.raises(WaitTimeout, match=r"not within 0 s; figures: .*'rows': 3"):
            made.wait_rows(1, timeout=0)


def test_the_table_is_read_without_spark(tmp_path: Path) -> None:
    made = sink(tmp_path, "serve")
    written(tmp_path, 2, partition_by=("topic",))
    assert output(tmp_path).out == made.out
    assert made.rows() == 200
    found = made.read(["seq", "topic"])
    assert sorted(found["seq"].to_pylist()) == list(range(200))
    assert set(found["topic"].to_pylist()) == {"orders.0", "orders.1"}
    made.wait_for(lambda: made.rows() == 200, timeout=0)
