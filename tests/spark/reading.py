"""A streaming query without Spark, for tests: the source is asked as Spark asks it."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as t

from meshmsg import Loss
from meshmsg.spark_sink.source.log_source import EventSource
from meshmsg.spark_sink.source.options import parse_options
from meshmsg.spark_sink.source.positions import Positions, Range
from meshmsg.spark_sink.source.source import BatchReader, StreamReader

Row = tuple[int, int]  # epoch and number
Lost = tuple[int, int, int, str]  # epoch, first, stop, reason


def schema_of(rows: str) -> t.StructType:
    """The columns of payload `binary`, made without a Java."""
    made = t.StructType().add("stream", "string").add("epoch", "long").add("seq", "long")
    made.add("topic", "string").add("key", "string")
    made.add("headers", t.MapType(t.StringType(), t.StringType())).add("time", "timestamp")
    made.add("payload", "binary")
    if rows == "all":
        loss = t.StructType().add("first", "long").add("stop", "long").add("reason", "string")
        made.add("loss", loss)
    return made


class Reading:
    """One query: its checkpoint is `offsets`, what it wrote are `rows` and `losses`."""

    def __init__(self, **options: Any) -> None:
        self.options = {name: str(value) for name, value in {"rows": "all", **options}.items()}
        self.offsets: list[str] = []  #: the end of each batch
        self.rows: list[Row] = []
        self.losses: list[Lost] = []
        self.reader = self._reader()

    def _reader(self) -> StreamReader:
        options = parse_options(self.options)
        return StreamReader(options, schema_of(options.rows))

    def restart(self) -> None:
        """The process ends; only the checkpoint is left."""
        self.reader.stop()
        self.reader = self._reader()

    def start_of(self, batch: int) -> Positions:
        """Where a batch begins."""
        if batch == 0:
            return self.reader.initialOffset()
        found: Positions = json.loads(self.offsets[batch - 1])
        return found

    def trigger(self) -> bool:
        """Run one batch; whether there was any."""
        start = self.start_of(len(self.offsets))
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return False
        self.offsets.append(json.dumps(end))
        rows, losses = self.run(len(self.offsets) - 1)
        self.rows += rows
        self.losses += losses
        return True

    def run(self, batch: int) -> tuple[list[Row], list[Lost]]:
        """What a batch has, by its offsets alone."""
        tasks = self.reader.partitions(self.start_of(batch), json.loads(self.offsets[batch]))
        return _read(self.reader, tasks)

    def drain(self) -> None:
        """Until there is nothing to do, also for a peer that is asked again when it was away."""
        idle = 0
        while idle < 2:
            idle = 0 if self.trigger() else idle + 1


def _read(reader: Any, tasks: list[Any]) -> tuple[list[Row], list[Lost]]:
    rows: list[Row] = []
    losses: list[Lost] = []
    for task in tasks:
        for batch in reader.read(task):
            for row in batch.to_pylist():
                loss = row.get("loss")
                if loss is None:
                    rows.append((row["epoch"], row["seq"]))
                else:
                    losses.append((row["epoch"], loss["first"], loss["stop"], loss["reason"]))
    return rows, losses


def read(source: EventSource, *where: Any) -> list[int | tuple[int, int, str]]:
    """What a range gives: the numbers of the events, and losses."""
    found: list[int | tuple[int, int, str]] = []
    for item in source.read(Range(*where)):
        if isinstance(item, Loss):
            found.append((item.first, item.stop, item.reason))
        else:
            found += range(item.frame.first + item.lo, item.frame.first + item.hi)
    return found


def read_all(**options: Any) -> tuple[list[Row], list[Lost]]:
    """What `spark.read` would give."""
    parsed = parse_options({name: str(value) for name, value in {"rows": "all", **options}.items()})
    reader = BatchReader(parsed, schema_of(parsed.rows))
    return _read(reader, reader.partitions())
