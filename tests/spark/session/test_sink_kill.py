"""Exactly once through SIGKILL: the daemon's processes are killed in turn and all together.

The longer run is `make sinkfuzz`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.config import make_sink
from tests.spark.killing import Killing, seen_by_duckdb
from tests.spark.session.test_sink_spark import commits, drain


def hold(killing: Killing, spark: Any, count: int) -> None:
    """Nothing is missing and nothing there twice, also when the last batch is run once more."""
    assert killing.status == 0, killing.sink.words
    assert killing.left() == []
    config = make_sink(
        {"state": f"{killing.out}.sink", "once": True},
        [
            {
                "out": killing.out,
                "topics": ("quotes.**",),
                "partition_by": ("topic",),
                "max_events": 7777,
            }
        ],
    )
    checkpoint = Path(config.checkpoint(config.outputs[0]), "commits")
    newest = max(int(path.name) for path in checkpoint.iterdir() if path.name.isdigit())
    (checkpoint / str(newest)).unlink()
    assert not commits(drain(spark, config))
    assert seen_by_duckdb(killing.out) == (count, count, count * (count - 1) // 2)
    found = check_output(config.outputs[0], killing.log)
    assert found["good"], found
    assert found["rows"] == count


@pytest.mark.timeout(1800)
def test_each_event_is_in_the_table_once_whatever_is_killed(spark: Any, tmp_path: Path) -> None:
    count = 100_000
    killing = Killing(tmp_path, seed=1)
    try:
        killing.run(count, ["worker", "java", "driver", "all"])
        hold(killing, spark, count)
    finally:
        killing.close()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_million_events_through_twenty_kills(spark: Any, tmp_path: Path) -> None:
    count = int(os.environ.get("SINK_EVENTS", "1000000"))
    kills = int(os.environ.get("SINK_KILLS", "20"))
    killing = Killing(tmp_path, seed=int(os.environ.get("SINK_SEED", "7")))
    try:
        kinds = ["worker", "java", "driver", "recorder", "all"]
        order = [kinds[n % len(kinds)] for n in range(kills)]
        killing.random.shuffle(order)
        killing.run(count, order)
        hold(killing, spark, count)
    finally:
        killing.close()
