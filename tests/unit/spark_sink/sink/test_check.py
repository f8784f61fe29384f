"""What `meshmsg sink --check` finds in a table that somebody has changed, and in one that grows."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from meshmsg import ConfigError
from meshmsg.cli import app
from meshmsg.spark_sink.sink import check as sink_check
from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.tables import write_losses
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM, Log, numbered, write_log
from tests.spark.tables import SCHEMA, output, rows, write_batch, written


def lossy(tmp_path: Path) -> Output:
    """A table and its log, in which events 50 to 59 are lost."""
    with Log(tmp_path / "log") as log:
        log.begin()
        log.write(numbered(0, 50))
        log.lose(10, "gone")
        log.write(numbered(60, 100))
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    folder = Path(table.stage())
    (folder / "out").mkdir(parents=True)
    pq.write_table(rows(0, 50), folder / "out" / "a.parquet")
    pq.write_table(rows(60, 100), folder / "out" / "b.parquet")
    write_losses(f"{folder}/losses", [(STREAM, EPOCH, 50, 60, 10, "gone")])
    table.commit(0, [Range(STREAM, EPOCH, 0, 100)], str(folder), rows=90, lost=10)
    table.close()
    return made


def status(made: Output, log: Path) -> int:
    words = ["sink", "--out", made.out, "--from", str(log), "--check"]
    return CliRunner().invoke(app, words).exit_code


def test_losses_belong_to_the_table_of_losses(tmp_path: Path) -> None:
    made = lossy(tmp_path)
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found
    assert (found["lost"], found["missing"]) == (10, 0)
    assert status(made, tmp_path / "log") == 0
    next(Path(made.losses).glob("*.parquet")).unlink()
    found = check_output(made, str(tmp_path / "log"))
    assert not found["good"]
    assert any("10 lost events" in text for text in found["problems"])
    assert status(made, tmp_path / "log") == 1


def test_file_that_was_changed_is_found(tmp_path: Path) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 300)
    path = sorted(Path(made.out).rglob("*.parquet"))[0]
    whole = pq.ParquetFile(path).read()
    pq.write_table(whole.slice(1), path)
    found = check_output(made, str(tmp_path / "log"))
    assert (found["good"], found["missing"], found["duplicates"]) == (False, 1, 0)
    assert status(made, tmp_path / "log") == 1


def test_epoch_that_was_left_out_is_missing(tmp_path: Path) -> None:
    """No commit names it, and the table is at a later one: nobody would write it any more."""
    made = written(tmp_path)
    for epoch, count in ((EPOCH - 1, 20), (EPOCH, 300)):
        with Log(tmp_path / "log") as log:
            log.begin(epoch)
            log.write(numbered(0, count))
    found = check_output(made, str(tmp_path / "log"))
    assert (found["good"], found["missing"], found["waiting"]) == (False, 20, 0)
    assert status(made, tmp_path / "log") == 1


def test_what_is_still_to_be_written_is_told_and_not_missing(tmp_path: Path) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 310)
    with Log(tmp_path / "log") as log:
        log.begin(EPOCH + 1)
        log.write(numbered(0, 5))
    write_log(tmp_path / "log", 7, stream="new/orders.**")
    found = check_output(made, str(tmp_path / "log"))
    assert (found["good"], found["missing"], found["waiting"]) == (True, 0, 22)
    words = ["sink", "--out", made.out, "--from", str(tmp_path / "log"), "--check"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0
    assert "good  300 rows" in said.output
    assert "waiting 22" in said.output


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_format_is_the_table_s_own(tmp_path: Path, format: str) -> None:
    """Files that lie in the folder and are not in the format's own log do not count."""
    made = written(tmp_path, format=format)
    write_log(tmp_path / "log", 300)
    pq.write_table(rows(0, 100), Path(made.out, "not-mine.parquet"))
    plain = Output(made.out)
    found = check_output(plain, str(tmp_path / "log"))
    assert found["good"], found


def test_compacted_table_is_as_good(tmp_path: Path) -> None:
    made = written(tmp_path, format="delta", partition_by=("topic",))
    write_log(tmp_path / "log", 300)
    deltalake.DeltaTable(made.out).optimize.compact()
    found = check_output(made, str(tmp_path / "log"))
    assert found["good"], found
    assert found["rows"] == 300
    again = open_table(made)
    again.open(SCHEMA)  # and it goes on
    write_batch(again, 3)
    again.close()
    deltalake.DeltaTable(made.out).delete("seq = 7")
    write_log(tmp_path / "other", 400)
    found = check_output(made, str(tmp_path / "other"))
    assert (found["good"], found["missing"]) == (False, 1)


def test_daemon_may_go_on_while_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 500)
    real: Any = sink_check.table_files
    table = open_table(made)
    table.open(SCHEMA)

    def one_more(*words: Any) -> Iterator[str]:
        write_batch(table, table.journal.next_number)
        yield from real(*words)

    monkeypatch.setattr(sink_check, "table_files", one_more)
    found = check_output(made, str(tmp_path / "log"))
    table.close()
    assert found["good"], found
    assert found["rows"] == 300


def test_commit_that_is_not_finished_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(tmp_path)
    write_log(tmp_path / "log", 400)
    table = open_table(made)
    table.open(SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(table, "_publish", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_batch(table, 3)
    table.close()
    assert os.listdir(made.staging)
    monkeypatch.setattr(sink_check, "FINISH_S", 0.0)
    found = check_output(made, str(tmp_path / "log"))
    assert (found["good"], found["missing"]) == (False, 100)
    assert any("start the sink" in text for text in found["problems"])


@pytest.mark.parametrize(("topic", "folder"), [("a+b", "a+b"), ("grün", "grün"), ("a:b", "a%3Ab")])
def test_delta_finds_files_in_folders_of_any_name(tmp_path: Path, topic: str, folder: str) -> None:
    made = output(tmp_path, format="delta", partition_by=("topic",))
    table = open_table(made)
    table.open(SCHEMA)
    staged = Path(table.stage())
    inside = staged / "out" / f"topic={folder}"  # as Spark writes it
    inside.mkdir(parents=True)
    pq.write_table(rows(0, 50).drop_columns("topic"), inside / "a.parquet")
    table.commit(0, [Range(STREAM, EPOCH, 0, 50)], str(staged), rows=50)
    table.close()
    found = deltalake.DeltaTable(made.out).to_pyarrow_table()
    assert set(found["topic"].to_pylist()) == {topic}
    assert found.num_rows == 50


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
