"""Streaming queries into folders of parquet files, for tests: run to their end, or going on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

WAIT_S = 240


def is_slow_start(error: BaseException) -> bool:
    """Spark gives the Python of a query ten seconds to start; a busy machine may take longer."""
    return "failed to connect back" in str(error)


def drain(writer: Any, timeout_s: float) -> list[dict[str, Any]]:
    """Run a query of `Trigger.AvailableNow` to its end; the progress of each batch with rows."""
    found: list[dict[str, Any]] = []
    while True:
        query = writer.start()
        try:
            assert query.awaitTermination(timeout_s), query.lastProgress
        except StreamingQueryException as error:
            if not is_slow_start(error):
                raise
        found += [progress for progress in query.recentProgress if progress["numInputRows"]]
        if query.exception() is None:
            return found


class Running:
    """A query that goes on, and is started again where its Python was given up too early."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._query = begin()

    def look(self) -> None:
        """Fails if the query has failed."""
        error = self._query.exception()
        if error is not None:
            assert is_slow_start(error), error
            self._query = self._begin()

    @property
    def source(self) -> dict[str, Any]:
        """What the newest progress says of its source; empty before there is any."""
        found: dict[str, Any] = ((self._query.lastProgress or {}).get("sources") or [{}])[0]
        return found

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when it is so."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.look()
            assert time.monotonic() < deadline, self._query.lastProgress
            time.sleep(0.05)

    def stop(self) -> None:
        """No more."""
        self._query.stop()


class Query:
    """A streaming query into a folder of parquet files, which can be run again."""

    def __init__(self, spark: Any, path: Path | None, work: Path, **options: Any) -> None:
        self.spark = spark
        self.path = path
        self.out = work / "out"
        self.checkpoint = work / "checkpoint"
        self.options = options

    def start(self, **options: Any) -> Running:
        """Run it until it is stopped."""
        return Running(self._writer(**options).start)

    def _writer(self, **options: Any) -> Any:
        table = (
            self.spark.readStream.format("meshmsg")
            .options(**{**self.options, **options})
            .load(None if self.path is None else str(self.path))
        )
        writer = table.writeStream.foreachBatch(self.write)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def drain(self, **options: Any) -> list[dict[str, Any]]:
        """Run it until everything that is there now is written; the progress of each batch."""
        return drain(self._writer(**options).trigger(availableNow=True), WAIT_S)

    def write(self, batch: Any, number: int) -> None:
        """A batch that comes again takes the place of what it wrote before."""
        batch.write.mode("overwrite").parquet(str(self.out / f"batch={number}"))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """What is in whole batches; read by pyarrow, so that a test does not wait for Spark."""
        names = list(columns or ("epoch", "seq"))
        found: list[tuple[Any, ...]] = []
        for whole in self.out.glob("*/_SUCCESS"):
            for file in whole.parent.glob("*.parquet"):
                table = pq.read_table(file, columns=names, partitioning=None)
                found += zip(*(table[name].to_pylist() for name in names), strict=True)
        return sorted(found)
