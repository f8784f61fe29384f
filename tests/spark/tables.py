"""Tables of a sink for tests, written batch by batch as Spark would, without it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.tables import Table
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM

BATCH = 100
COLUMNS = {"stream": "string", "epoch": "long", "seq": "long", "topic": "string"}
FIELDS = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in COLUMNS.items()]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})


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


def written(tmp_path: Path, batches: int = 3, **fields: Any) -> Output:
    made = output(tmp_path, **fields)
    table = open_table(made)
    table.open(SCHEMA)
    for batch in range(batches):
        write_batch(table, batch)
    table.close()
    return made
