"""Tables and their journals, without Spark: what is in a table after a crash at any step."""

from __future__ import annotations

import json
import os
import urllib.parse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink import journal as sink_journal
from meshmsg.spark_sink.sink import tables as sink_tables
from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.journal import Journal, read_commits
from meshmsg.spark_sink.sink.tables import Table
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM, write_log

BATCH = 100
COLUMNS = {"stream": "string", "epoch": "long", "seq": "long", "topic": "string"}
FIELDS = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in COLUMNS.items()]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})


class Crash(BaseException):
    """The process is gone."""


def output(tmp_path: Path, **fields: Any) -> Output:
    return Output(str(tmp_path / "lake" / "orders"), **fields)


def rows(first: int, stop: int, topic: str = "orders.eu") -> pa.Table:
    count = stop - first
    return pa.table(
        {
            "stream": pa.array([STREAM] * count),
            "epoch": pa.array([EPOCH] * count, pa.int64()),
            "seq": pa.array(range(first, stop), pa.int64()),
            "topic": pa.array([topic] * count),
        }
    )


def write_batch(table: Table, batch: int, stop: int | None = None) -> None:
    """A batch as Spark's would be: of what it plans, only what is not there is written."""
    at = table.positions.get(f"{STREAM}/{EPOCH}", 0)
    stop = (batch + 1) * BATCH if stop is None else stop
    if stop <= at:
        return
    folder = table.stage()
    middle = (at + stop) // 2
    for number, (first, last) in enumerate([(at, middle), (middle, stop)]):
        path = Path(folder, "out", f"topic=orders.{number}")
        path.mkdir(parents=True)
        pq.write_table(rows(first, last).drop_columns("topic"), path / "part-0.parquet")
    table.commit(batch, [Range(STREAM, EPOCH, at, stop)], folder, rows=stop - at)


def positions_in(path: str) -> list[int]:
    """What a reader that is not Spark sees."""
    if not os.path.isdir(path):
        return []
    found = ds.dataset(path, partitioning="hive").to_table(columns=["seq"])
    return sorted(found["seq"].to_pylist())


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


def test_line_that_was_cut_off_never_counted(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)
    write_batch(table, 1)
    table.close()
    journal = next((Path(made.out) / "_meshmsg").glob("commits-*"))
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        journal.write_bytes(whole[:-cut])
        again = Journal(made.out)
        again.open({})
        assert again.last is not None
        assert again.last.number == 1
        assert again.positions == {f"{STREAM}/{EPOCH}": BATCH}
        again.close()
        journal.write_bytes(whole)


def test_damage_in_the_middle_of_a_journal_is_said(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    for batch in range(3):
        write_batch(table, batch)
    table.close()
    journal = next((Path(made.out) / "_meshmsg").glob("commits-*"))
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(bytes(data))
    with pytest.raises(LogError, match="damaged"):
        open_table(made).open(SCHEMA)


def test_journal_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_journal, "COMMITS_A_FILE", 3)
    made = output(tmp_path)
    for batch in range(8):
        table = open_table(made)
        table.open(SCHEMA)
        assert table.positions.get(f"{STREAM}/{EPOCH}", 0) == batch * BATCH
        write_batch(table, batch)
        table.close()
    assert [commit.number for commit in read_commits(made.out)] == list(range(1, 9))
    assert len(list((Path(made.out) / "_meshmsg").glob("commits-*"))) == 3


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    with pytest.raises(ConfigError, match="another sink writes"):
        open_table(made).open(SCHEMA, wait_s=0)
    table.close()


def test_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    table = open_table(output(tmp_path))
    table.open("a")
    table.close()
    with pytest.raises(ConfigError, match=r"partition_by.*was begun with"):
        open_table(output(tmp_path, partition_by=("topic",))).open("a")
    with pytest.raises(ConfigError, match=r"topics.*was begun with"):
        open_table(output(tmp_path, topics=("a.**",))).open("a")
    with pytest.raises(ConfigError, match="schema"):
        open_table(output(tmp_path)).open("b")


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    made = output(tmp_path)
    Path(made.out).mkdir(parents=True)
    Path(made.out, "notes.txt").touch()
    with pytest.raises(ConfigError, match="not made by meshmsg sink"):
        open_table(made).open(SCHEMA)


def test_iceberg_without_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition_by"):
        open_table(output(tmp_path, format="iceberg", partition_by=("topic",)))


# The check -------------------------------------------------------------------------------------


def written(tmp_path: Path, batches: int = 3, **fields: Any) -> Output:
    made = output(tmp_path, **fields)
    table = open_table(made)
    table.open(SCHEMA)
    for batch in range(batches):
        write_batch(table, batch)
    table.close()
    return made


def test_check_finds_missing_events(tmp_path: Path) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 300)
    victim = sorted(Path(made.out).rglob("part-0000000002-*.parquet"))[0]
    gone = pq.read_metadata(victim).num_rows
    victim.unlink()
    found = check_output(made, str(tmp_path / "log"))
    assert not found["good"]
    assert found["missing"] == gone
    assert (found["duplicates"], found["out_of_range"]) == (0, 0)


def test_check_finds_duplicates_and_strays(tmp_path: Path) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 300)
    pq.write_table(rows(290, 310), Path(made.out, "naive.parquet"))
    found = check_output(made, str(tmp_path / "log"))
    assert not found["good"]
    assert (found["missing"], found["duplicates"], found["out_of_range"]) == (0, 10, 10)
    assert "in no commit" in " ".join(found["problems"])


def test_check_of_an_unknown_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a table that meshmsg sink wrote"):
        check_output(output(tmp_path), str(tmp_path / "log"))


def test_check_reads_positions_from_folders(tmp_path: Path) -> None:
    made = output(tmp_path, partition_by=("stream", "epoch"))
    table = open_table(made)
    table.open(SCHEMA)
    folder = table.stage()
    inside = f"stream={urllib.parse.quote(STREAM, safe='')}/epoch={EPOCH}"
    path = Path(folder, "out", inside)
    path.mkdir(parents=True)
    pq.write_table(rows(0, 50).drop_columns(["stream", "epoch"]), path / "part-0.parquet")
    table.commit(0, [Range(STREAM, EPOCH, 0, 50)], folder, rows=50)
    table.close()
    write_log(tmp_path / "log", 50)
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found
    assert found["rows"] == 50
