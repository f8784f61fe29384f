"""One micro-batch into a table, once: what Spark calls for each batch.

Spark may run a batch again, and after a crash it does.  What decides is the table's own journal: of
the positions that a batch covers only those are written that are not in the table.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshmsg import LogError
from meshmsg.spark_sink.sink.checkpoint import read_offset
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.shape import make_shape, partitioned
from meshmsg.spark_sink.sink.tables import Table, write_losses
from meshmsg.spark_sink.source.positions import Positions, Range, by_stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("meshmsg.spark_sink")

Report = Callable[[dict[str, Any]], None]
#: What is counted, which rows go into the table and which are set aside, columns that are left out.
Words = tuple[list["Column"], "Column", "Column", list[str]]

#: What Spark makes in a folder before it writes the first file.
SPARK_FOLDERS = "_temporary/0/_temporary"


class Stopped(Exception):
    """No batch begins any more."""


# --- positions -----------------------------------------------------------------------------------


def new_ranges(done: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """What lies between the table and an offset; an epoch with a later one in `done` is over."""
    known = by_stream(done)
    found = []
    for stream, epochs in sorted(by_stream(end).items()):
        there = known.get(stream, {})
        newest = max(there, default=0)
        for epoch, stop in sorted(epochs.items()):
            if epoch not in there and epoch < newest:
                continue
            first = there.get(epoch, 0)
            if stop > first:
                found.append(Range(stream, epoch, first, stop))
    return found


def is_behind(done: Mapping[str, int], start: Mapping[str, int]) -> bool:
    """Whether the table lacks something that a batch which begins at `start` would not bring."""
    return bool(new_ranges(done, start))


def overlaps(start: Mapping[str, int] | None, done: Mapping[str, int]) -> bool:
    """Whether a batch that begins at `start` has something that the table has."""
    return bool(done) if start is None else bool(new_ranges(start, done))


# --- a batch -------------------------------------------------------------------------------------


class BatchWriter:
    """Writes the batches of one output."""

    def __init__(
        self,
        output: Output,
        table: Table,
        checkpoint: str,
        begin: Positions,
        report: Report,
    ) -> None:
        self.output = output
        self.table = table
        self.failure: BaseException | None = None
        self.written = -1  #: the last batch that was
        self._checkpoint = checkpoint
        self._begin = begin  #: where batch 0 begins
        self._report = report
        self._shape = make_shape(output)
        self._words: Words | None = None  #: made once: each costs a call to Java
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Return when no batch is being written; from then on none is begun."""
        with self._lock:
            self._stopped = True

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write one batch; raises what went wrong."""
        with self._lock:
            if self._stopped:
                raise Stopped
            try:
                self._write(rows, batch)
            except BaseException as error:
                self.failure = error
                raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        began = time.monotonic()
        self.table.finish()
        end = read_offset(self._checkpoint, batch)
        if end is None:
            raise LogError(self._checkpoint, f"offsets/{batch} is not there")
        start = self._begin if batch == 0 else read_offset(self._checkpoint, batch - 1)
        done = self.table.positions
        ranges = new_ranges(done, end)
        if start is not None and is_behind(done, start):
            problem = "the table lacks events that Spark's checkpoint counts as written"
            raise LogError(
                self.output.out, f"{problem}: start the daemon again, it reads them anew"
            )
        if not ranges:
            self._report({"kind": "again", "output": self.output.name, "batch": batch})
            return
        if overlaps(start, done):
            rows = rows.where(_wanted(ranges))
        folder = self.table.stage()
        try:
            figures = self._stage(rows, folder, ranges)
        except Exception:
            self.table.discard(folder)
            raise
        staged = time.monotonic()
        commit = self.table.commit(
            batch,
            ranges,
            folder,
            rows=figures["rows"],
            lost=figures["lost"],
            quarantined=figures["quarantined"],
        )
        ended = time.monotonic()
        self.written = batch
        self._report(
            {
                "kind": "commit",
                "output": self.output.name,
                "batch": batch,
                "commit": commit.number,
                "events": figures["events"],
                "rows": sum(file.rows for file in commit.files if file.root == "out"),
                "lost": figures["lost"],
                "quarantined": figures["quarantined"],
                "bytes": sum(file.size for file in commit.files),
                "files": len(commit.files),
                "newest_time": figures["newest"],
                "positions": self.table.positions,
                "stage_ms": round((staged - began) * 1000, 1),
                "write_ms": round((ended - began) * 1000, 1),
            }
        )

    def _stage(self, rows: DataFrame, folder: str, ranges: list[Range]) -> dict[str, Any]:
        """Spark writes the rows; the few that are none are fetched apart, if there are any."""
        from pyspark.sql import Observation

        if self._words is None:
            self._words = _words(rows.columns)
        counts, good, bad, side = self._words
        seen = Observation()
        shaped = self._shape(rows.observe(seen, *counts).where(good).drop(*side))
        shaped = partitioned(shaped, self.output)
        # Folders that are there already cost Spark no `chmod` each: it runs a process for that.
        os.makedirs(f"{folder}/out/{SPARK_FOLDERS}")
        writer = shaped.write.format("parquet").mode("append")
        if self.output.partition_by:
            writer = writer.partitionBy(*self.output.partition_by)
        writer.save(f"{folder}/out")
        found = seen.get
        events = found["all"] - found["lost"]
        lost_events = self._stage_losses(rows, folder, ranges) if found["lost"] else 0
        if found["bad"]:
            self._stage_quarantine(rows.where(bad), folder)
        return {
            "events": events,
            "rows": events - found["bad"],
            "lost": lost_events,
            "quarantined": found["bad"],
            "newest": (found["newest"] or 0) / 1e6,
        }

    def _stage_losses(self, rows: DataFrame, folder: str, ranges: list[Range]) -> int:
        low = {(r.stream, r.epoch): r.first for r in ranges}
        losses = []
        for row in rows.where("loss IS NOT NULL").select("stream", "epoch", "loss.*").collect():
            first = max(row.first, low.get((row.stream, row.epoch), row.stop))
            if row.stop > first:
                events = row.stop - first
                losses.append((row.stream, row.epoch, first, row.stop, events, row.reason))
        losses.sort()
        if losses:
            write_losses(f"{folder}/losses", losses)
        return sum(loss[4] for loss in losses)

    def _stage_quarantine(self, rows: DataFrame, folder: str) -> None:
        """Payloads that are not what was declared: where they were, why, and their bytes."""
        kept = ["stream", "epoch", "seq", "topic", "key", "time", "_error", "_raw"]
        renamed = rows.select(*kept).withColumnsRenamed({"_error": "reason", "_raw": "payload"})
        renamed.write.format("parquet").save(f"{folder}/quarantine")


def _words(columns: list[str]) -> Words:
    """What is asked of each batch."""
    from pyspark.sql import functions as f

    side = ["loss", *(name for name in ("_error", "_raw") if name in columns)]
    lost = f.col("loss").isNotNull() if "loss" in columns else f.lit(False)
    bad = f.col("_error").isNotNull() if "_error" in columns else f.lit(False)
    counts = [
        f.count(f.lit(1)).alias("all"),
        f.count_if(lost).alias("lost"),
        f.count_if(bad).alias("bad"),
        f.unix_micros(f.max("time")).alias("newest"),
    ]
    return counts, ~lost & ~bad, bad, side


def _wanted(ranges: list[Range]) -> Column:
    """A condition that only rows of these ranges, and losses that reach into them, fulfil."""
    from pyspark.sql import functions as f

    found = f.lit(False)
    for r in ranges:
        last = f.coalesce(f.col("loss.stop") - 1, f.col("seq"))
        inside = (f.col("seq") < r.stop) & (last >= r.first)
        found = found | ((f.col("stream") == r.stream) & (f.col("epoch") == r.epoch) & inside)
    return found
