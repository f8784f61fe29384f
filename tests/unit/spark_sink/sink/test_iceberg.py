"""Files in the snapshots of an Iceberg table: each commit once, in the catalog that is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.iceberg import PROPERTY, IcebergTable, open_catalog, plain_schema
from meshmsg.spark_sink.sink.journal import FOLDER, Commit
from tests.spark.tables import BATCH, SCHEMA, output, write_batch


def written(tmp_path: Path, batches: int = 2, **fields: object) -> IcebergTable:
    table = IcebergTable(output(tmp_path, format="iceberg", **fields))
    table.open(SCHEMA)
    for batch in range(batches):
        write_batch(table, batch)
    return table


def loaded(table: IcebergTable) -> Any:
    return open_catalog(table.output).load_table(table.output.table)


def numbers(table: IcebergTable) -> list[int]:
    return sorted(loaded(table).scan().to_arrow()["seq"].to_pylist())


def test_each_commit_is_entered_once_by_whoever_enters_it(tmp_path: Path) -> None:
    table = written(tmp_path)
    last = table.journal.last
    assert last is not None
    table.register(last)
    table.close()
    again = IcebergTable(table.output)
    again.open(SCHEMA)
    again.register(last)
    again.close()
    assert numbers(table) == list(range(2 * BATCH))
    told = [
        value
        for snapshot in loaded(table).metadata.snapshots
        for key, value in snapshot.summary.additional_properties.items()
        if key == f"{PROPERTY}.{table.journal.about['id']}"
    ]
    assert told == ["1", "2"]


def test_others_may_write_in_between(tmp_path: Path) -> None:
    table = written(tmp_path, 1)
    found = loaded(table)
    found.append(found.scan().to_arrow().slice(0, 3))
    last = table.journal.last
    assert last is not None
    table.register(last)
    assert len(numbers(table)) == BATCH + 3
    table.close()


def test_a_snapshot_that_a_user_removed_is_not_written_again(tmp_path: Path) -> None:
    table = written(tmp_path, 1)
    table.close()
    catalog = open_catalog(table.output)
    catalog.drop_table(table.output.table)
    schema = pa.schema([("seq", pa.int64())])
    catalog.create_table(table.output.table, schema=schema, location=table.output.out)
    again = IcebergTable(table.output)
    again.open(SCHEMA)  # it was published: the journal says so
    again.close()
    assert numbers(table) == []


def test_a_catalog_of_the_users_own_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    mine = {"type": "sql", "uri": f"sqlite:///{tmp_path}/mine/catalog.db"}
    table = written(tmp_path, 1, catalog=mine, table="sales.orders_now")
    table.close()
    assert (tmp_path / "mine" / "catalog.db").exists()
    assert not Path(table.output.out, FOLDER, "catalog.db").exists()
    assert numbers(table) == list(range(BATCH))
    assert open_catalog(table.output).list_tables("sales") == [("sales", "orders_now")]


def test_a_commit_without_files_makes_no_catalog(tmp_path: Path) -> None:
    table = written(tmp_path, 0)
    table.register(Commit(1, 0, [], []))
    table.close()
    assert not Path(table.output.out, FOLDER, "catalog.db").exists()


def test_a_catalog_that_cannot_be_used_is_an_error_with_the_table(tmp_path: Path) -> None:
    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/catalog.db"}
    table = IcebergTable(output(tmp_path, format="iceberg", catalog=nowhere))
    table.open(SCHEMA)
    with pytest.raises(LogError, match=r"the Iceberg table lake\.orders could not be written"):
        write_batch(table, 0)
    table.close()


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshmsg\[iceberg\]'"):
        IcebergTable(output(tmp_path, format="iceberg"))


def test_iceberg_without_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition_by"):
        open_table(output(tmp_path, format="iceberg", partition_by=("topic",)))


# The check -------------------------------------------------------------------------------------


def test_fields_may_be_null_and_have_no_notes() -> None:
    field = pa.field("a", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "7"})
    found = plain_schema(pa.schema([field], metadata={"org.apache.spark": "x"}))
    assert found.field("a").nullable
    assert (found.metadata, found.field("a").metadata) == (None, None)
