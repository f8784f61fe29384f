"""A table whose disk is full, whose files a user moves, and whose writer goes on all the same."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from meshmsg.spark_sink import sink_journal, sink_tables
from meshmsg.spark_sink.sink_check import check_output
from meshmsg.spark_sink.sink_config import Output
from meshmsg.spark_sink.sink_tables import open_table
from tests.spark.logs import EPOCH, STREAM, write_log
from tests.spark.test_sink_tables import BATCH, SCHEMA, output, positions_in, write_batch


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    by = ("topic",) if request.param != "iceberg" else ()
    return output(tmp_path, format=request.param, partition_by=by)


STEPS = [("parquet", step) for step in ("sync", "journal", "roll", "folder", "rename")]


@pytest.mark.parametrize(("format", "step"), [*STEPS, ("delta", "rename"), ("iceberg", "rename")])
def test_disk_that_was_full_for_a_while(
    format: str, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = output(tmp_path, format=format)
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)
    with monkeypatch.context() as patch:
        if step == "sync":
            patch.setattr(sink_tables, "sync", full)
        elif step == "journal":
            patch.setattr(sink_journal, "write_all", full)
        elif step == "roll":
            patch.setattr(sink_journal, "COMMITS_A_FILE", 1)
            patch.setattr(sink_journal, "replace_small", full)
        elif step == "folder":
            table._made.clear()
            patch.setattr(sink_tables, "make_folders", full)
        else:
            patch.setattr(os, "rename", full)
        for _ in range(2):  # Spark runs it again, as long as there is no room
            with pytest.raises(OSError, match="No space"):
                write_batch(table, 1)
                table.finish()
    counts = f"{STREAM}/{EPOCH}" in table.positions and table.positions[f"{STREAM}/{EPOCH}"] > BATCH
    assert counts == (step in ("folder", "rename"))
    # Nothing fills the disk further but what counts and is to be named.
    assert len(os.listdir(made.staging)) == counts
    # The same process goes on, without a start that would look after what was left.
    write_batch(table, 1)
    write_batch(table, 2)
    table.close()
    again = open_table(made)
    again.open(SCHEMA)
    again.close()
    if format == "parquet":
        assert positions_in(made.out) == list(range(3 * BATCH))
    write_log(tmp_path / "log", 3 * BATCH)
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found


def test_folder_that_a_user_removed_is_made_again(tmp_path: Path) -> None:
    made = output(tmp_path, partition_by=("topic",))
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)
    for folder in Path(made.out).glob("topic=*"):
        shutil.rmtree(folder)
    write_batch(table, 1)
    table.close()
    assert positions_in(made.out) == list(range(BATCH, 2 * BATCH))


def test_files_that_a_user_removed_do_not_stop_the_next_start(made: Output) -> None:
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)
    table.close()
    for path in Path(made.out).rglob("part-*.parquet"):
        path.unlink()
    again = open_table(made)
    again.open(SCHEMA)
    write_batch(again, 1)
    again.close()
    if made.format != "iceberg":
        assert positions_in(made.out) == list(range(BATCH, 2 * BATCH))
