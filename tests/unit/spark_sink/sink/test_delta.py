"""Files in the log of a Delta table: each commit once, with the values of its folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deltalake
import pytest

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink.delta import DeltaTable, delta_schema, partition_values
from meshmsg.spark_sink.sink.journal import Commit
from tests.spark.tables import BATCH, SCHEMA, output, write_batch


def written(tmp_path: Path, batches: int = 2, **fields: object) -> DeltaTable:
    table = DeltaTable(output(tmp_path, format="delta", **fields))
    table.open(SCHEMA)
    for batch in range(batches):
        write_batch(table, batch)
    return table


def numbers(table: DeltaTable) -> list[int]:
    found = deltalake.DeltaTable(table.output.out).to_pyarrow_table(columns=["seq"])
    return sorted(found["seq"].to_pylist())


def test_each_commit_is_entered_once_by_whoever_enters_it(tmp_path: Path) -> None:
    table = written(tmp_path, partition_by=("topic",))
    last = table.journal.last
    assert last is not None
    table.register(last)
    table.close()
    again = DeltaTable(table.output)
    again.open(SCHEMA)
    version = deltalake.DeltaTable(table.output.out).version()
    again.register(last)
    again.close()
    assert numbers(table) == list(range(2 * BATCH))
    assert deltalake.DeltaTable(table.output.out).version() == version


def test_the_table_has_the_columns_of_spark_and_its_folders(tmp_path: Path) -> None:
    table = written(tmp_path, 1, partition_by=("topic",))
    table.close()
    found = deltalake.DeltaTable(table.output.out)
    assert found.metadata().partition_columns == ["topic"]
    assert [field.name for field in found.schema().fields] == ["stream", "epoch", "seq", "topic"]
    topics = found.to_pyarrow_table()["topic"].to_pylist()
    assert {topic: topics.count(topic) for topic in topics} == {
        "orders.0": BATCH // 2,
        "orders.1": BATCH // 2,
    }


def test_others_may_write_in_between(tmp_path: Path) -> None:
    table = written(tmp_path)
    seen = deltalake.DeltaTable(table.output.out)
    deltalake.write_deltalake(table.output.out, seen.to_pyarrow_table().slice(0, 3), mode="append")
    write_batch(table, 2)
    table.close()
    assert len(numbers(table)) == 3 * BATCH + 3


def test_a_commit_without_files_makes_no_table(tmp_path: Path) -> None:
    table = written(tmp_path, 0)
    table.register(Commit(1, 0, [], []))
    table.close()
    assert not Path(table.output.out, "_delta_log").exists()


def test_a_log_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    table = written(tmp_path)
    table.close()
    for path in Path(table.output.out, "_delta_log").glob("*.json"):
        path.write_text("{")
    again = DeltaTable(table.output)
    last = table.journal.last
    assert last is not None
    again.journal.about = table.journal.about
    with pytest.raises(LogError, match="the Delta log could not be written"):
        again.register(last)


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshmsg\[delta\]'"):
        DeltaTable(output(tmp_path, format="delta"))


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("part-1.parquet", {}),
        (
            "topic=a.b/date=2026-11-16/part-1.parquet",
            {"topic": "a.b", "date": "2026-11-16"},
        ),
        ("topic=a%2Fb%3D/x=1=2/part-1.parquet", {"topic": "a/b=", "x": "1=2"}),
        ("a%20b=/part-1.parquet", {"a b": ""}),
        ("key=__HIVE_DEFAULT_PARTITION__/part-1.parquet", {"key": None}),
        ("plain/part=1.parquet", {}),
    ],
)
def test_folders_say_the_values(path: str, values: dict[str, str | None]) -> None:
    assert partition_values(path) == values


def test_every_field_may_be_null_and_has_no_notes() -> None:
    field = {"name": "a", "type": "long", "nullable": False, "metadata": {"__CHAR": "x"}}
    found = json.loads(delta_schema(json.dumps({"type": "struct", "fields": [field]})))
    assert found["fields"] == [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]
