"""A table whose disk is full, whose files a user moves, and whose writer goes on all the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from meshmsg.spark_sink.sink import journal as sink_journal
from meshmsg.spark_sink.sink import tables as sink_tables
from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.checkpoint import torn_file
from meshmsg.spark_sink.sink.config import Output, SinkConfig
from meshmsg.spark_sink.sink.driver import Again, Job
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.tables import Table
from tests.spark.logs import EPOCH, STREAM, write_log
from tests.spark.tables import BATCH, SCHEMA, output, positions_in, write_batch


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    by = ("topic",) if request.param != "iceberg" else ()
    return output(tmp_path, format=request.param, partition_by=by)


def run(table: Table) -> None:
    """A batch as a writer runs it."""
    table.finish()
    write_batch(table, 1)


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
                run(table)
    counts = table.positions[f"{STREAM}/{EPOCH}"] > BATCH
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


# Checkpoints ------------------------------------------------------------------------------------


class FakeDriver:
    """As much of one as a job asks before there is a query."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self.said: list[str] = []
        self.stopping = False

    def report(self, fields: dict[str, Any]) -> None:
        self.said.append(fields["text"])


def job_of(made: Output, tmp_path: Path, *, once: bool = False) -> tuple[Job, FakeDriver]:
    config = SinkConfig((made,), source=str(tmp_path / "log"), state=str(tmp_path), once=once)
    driver = FakeDriver(config)
    return Job(cast("Any", driver), made), driver


def checkpointed(made: Output, tmp_path: Path, at: int) -> Path:
    """A table with a batch, and a checkpoint that has come so far."""
    job, _ = job_of(made, tmp_path)
    job.table.open(SCHEMA)
    write_batch(job.table, 0)
    job._reconcile()
    job.table.close()
    offset = json.dumps({f"{STREAM}/{EPOCH}": at})
    for name, text in (
        ("metadata", '{"id":"x"}'),
        ("offsets/0", f"v1\n{{}}\n{offset}"),
        ("commits/0", "v1\n{}"),
    ):
        path = Path(job.checkpoint, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Path(job.checkpoint)


def test_checkpoint_is_taken_up_as_it_is(tmp_path: Path) -> None:
    made = output(tmp_path)
    write_log(tmp_path / "log", 200)
    checkpoint = checkpointed(made, tmp_path, BATCH)
    assert torn_file(str(checkpoint)) == ""
    for name in ("offsets", "commits"):
        (checkpoint / name / "0").unlink()
        assert torn_file(str(checkpoint)) == ""


@pytest.mark.parametrize(
    ("name", "left"),
    [("offsets/0", 0), ("offsets/0", 3), ("offsets/0", 12), ("commits/0", 0), ("metadata", 0)],
)
def test_checkpoint_that_a_crash_cut_off_is_set_aside(tmp_path: Path, name: str, left: int) -> None:
    made = output(tmp_path)
    write_log(tmp_path / "log", 200)
    checkpoint = checkpointed(made, tmp_path, BATCH)
    path = checkpoint / name
    path.write_text(path.read_text()[:left])
    for start in range(2):  # the new one has an owner: the next start takes it up
        job, driver = job_of(made, tmp_path)
        job.table.open(SCHEMA)
        assert job._reconcile() == {f"{STREAM}/{EPOCH}": BATCH}
        job.table.close()
        assert [name in text for text in driver.said] == [True] * (not start)
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"a/b/1":5}')


def test_checkpoint_ahead_of_its_table_is_set_aside_once(tmp_path: Path) -> None:
    made = output(tmp_path)
    write_log(tmp_path / "log", 200)
    checkpoint = checkpointed(made, tmp_path, BATCH + 1)
    for start in range(2):
        job, driver = job_of(made, tmp_path)
        job.table.open(SCHEMA)
        job._reconcile()
        job.table.close()
        assert len(driver.said) == (not start)
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"a/b/1":5}')


class EndedQuery:
    """A query that Spark has ended without an exception."""

    isActive = False  # noqa: N815

    def exception(self) -> None:
        return None


@pytest.mark.parametrize(("once", "reached"), [(False, 200), (True, 199)])
def test_query_that_ends_too_early_is_not_taken_for_done(
    tmp_path: Path, once: bool, reached: int
) -> None:
    job, driver = job_of(output(tmp_path), tmp_path, once=once)
    job.query = cast("Any", EndedQuery())
    job._target = {f"{STREAM}/{EPOCH}": 200}
    job.table.journal.positions = {f"{STREAM}/{EPOCH}": reached}
    with pytest.raises(Again):
        job.look()
    driver.stopping = True
    job.look()
    assert job.done


def test_query_of_once_is_done_when_all_is_written(tmp_path: Path) -> None:
    job, _ = job_of(output(tmp_path), tmp_path, once=True)
    job.query = cast("Any", EndedQuery())
    job._target = job.table.journal.positions = {f"{STREAM}/{EPOCH}": 200}
    job.look()
    assert job.done
