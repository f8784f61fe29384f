"""Tables and their journals, without Spark: what is in a table after a crash at any step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from meshmsg.spark_sink.sink import tables as sink_tables
from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.formats import open_table
from tests.spark.logs import write_log
from tests.spark.tables import BATCH, SCHEMA, output, positions_in, write_batch


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    by = ("topic",) if request.param != "iceberg" else ()
    return output(tmp_path, format=request.param, partition_by=by)


def test_batches_are_in_the_table_once(made: Output, tmp_path: Path) -> None:
    table = open_table(made)
    table.open(SCHEMA)
    for batch in range(3):
        write_batch(table, batch)
        write_batch(table, batch)  # run again
    table.close()
    write_log(tmp_path / "log", 300)
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found
    assert found["rows"] == 300
    assert os.listdir(made.staging) == []


STEPS = ["sync", "journal", "publish", "register"]


@pytest.mark.parametrize("step", STEPS)
def test_crash_at_any_step_neither_loses_nor_doubles(
    made: Output, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        if step == "sync":
            patch.setattr(sink_tables, "sync", crash)
        elif step == "journal":
            patch.setattr(table.journal, "append", crash)
        elif step == "publish":
            patch.setattr(table, "_publish", crash)
        else:
            patch.setattr(table, "register", crash)
        with pytest.raises(Crash):
            write_batch(table, 1)
    table.close()
    if made.format == "parquet":
        seen = positions_in(made.out)
        assert seen == sorted(set(seen))
    # Another limit: the batch that is run again may go further than before.
    again = open_table(made)
    again.open(SCHEMA)
    write_batch(again, 1, stop=250)
    again.close()
    write_log(tmp_path / "log", 250)
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found
    assert found["rows"] == 250
    if made.format == "parquet":
        assert positions_in(made.out) == list(range(250))
    assert os.listdir(made.staging) == []


def test_commit_that_is_half_published_is_finished(tmp_path: Path) -> None:
    made = output(tmp_path, partition_by=("topic",))
    table = open_table(made)
    table.open(SCHEMA)
    real, done = os.rename, []

    def rename_one(source: str, target: str) -> None:
        if done:
            raise Crash
        done.append(target)
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", rename_one)
        with pytest.raises(Crash):
            write_batch(table, 0)
    table.close()
    assert len(positions_in(made.out)) == BATCH // 2
    again = open_table(made)
    again.open(SCHEMA)
    again.close()
    assert positions_in(made.out) == list(range(BATCH))
