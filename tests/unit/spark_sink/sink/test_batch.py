"""What of a batch is written: only what the table lacks, and nothing from a wrong place on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from meshmsg import LogError
from meshmsg.spark_sink.sink.batch import (
    BatchWriter,
    Stopped,
    is_behind,
    new_ranges,
    overlaps,
)
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.tables import Table
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM
from tests.spark.tables import BATCH, SCHEMA, output, write_batch

A, B = "a/x.**", "b/x.**"
KEY = f"{STREAM}/{EPOCH}"
#: No batch here comes as far as to look at its rows.
ROWS = cast("Any", None)


def test_new_ranges_are_what_the_table_lacks() -> None:
    done = {f"{A}/5": 100}
    assert new_ranges(done, {f"{A}/5": 150, f"{B}/7": 10}) == [
        Range(A, 5, 100, 150),
        Range(B, 7, 0, 10),
    ]
    assert new_ranges(done, {f"{A}/5": 100}) == []
    assert new_ranges(done, {f"{A}/5": 40}) == []
    # An older epoch that the table no longer names was read to its end.
    assert new_ranges(done, {f"{A}/4": 70, f"{A}/5": 100}) == []
    assert new_ranges(done, {f"{A}/5": 100, f"{A}/6": 3}) == [Range(A, 6, 0, 3)]


def test_table_behind_its_checkpoint_is_seen() -> None:
    assert is_behind({}, {f"{A}/5": 1})
    assert is_behind({f"{A}/5": 99}, {f"{A}/5": 100})
    assert not is_behind({f"{A}/5": 100, f"{A}/6": 1}, {f"{A}/5": 100})


def test_batch_that_overlaps_the_table_is_seen() -> None:
    assert overlaps({f"{A}/5": 50}, {f"{A}/5": 100})
    assert overlaps(None, {f"{A}/5": 100})
    assert not overlaps({f"{A}/5": 100}, {f"{A}/5": 100})
    assert not overlaps({}, {})


class Writing:
    """A writer of a table that has the first batch, its checkpoint, and what it reports."""

    def __init__(self, folder: Path) -> None:
        made = output(folder)
        self.table: Table = open_table(made)
        self.table.open(SCHEMA)
        write_batch(self.table, 0)
        self.checkpoint = folder / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        self.said: list[dict[str, Any]] = []
        self.writer = BatchWriter(made, self.table, str(self.checkpoint), {}, self.said.append)

    def offset(self, batch: int, at: int) -> None:
        (self.checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"{KEY}": {at}}}')


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    made = Writing(tmp_path)
    yield made
    made.table.close()


def test_a_batch_that_the_table_has_is_told_and_not_written(writing: Writing) -> None:
    writing.offset(0, BATCH)
    writing.writer(ROWS, 0)
    assert writing.said == [{"kind": "again", "output": "orders", "batch": 0}]
    assert (writing.writer.written, writing.writer.failure) == (-1, None)
    assert writing.table.positions == {KEY: BATCH}


def test_a_batch_without_an_offset_is_an_error_that_is_kept(writing: Writing) -> None:
    with pytest.raises(LogError, match="offsets/3 is not there") as caught:
        writing.writer(ROWS, 3)
    assert writing.writer.failure is caught.value
    assert writing.said == []


def test_a_table_that_lacks_what_the_checkpoint_counts_is_not_written(writing: Writing) -> None:
    writing.offset(4, BATCH + 1)
    writing.offset(5, BATCH + 9)
    with pytest.raises(LogError, match="lacks events that Spark's checkpoint counts as written"):
        writing.writer(ROWS, 5)
    assert writing.table.positions == {KEY: BATCH}


def test_no_batch_begins_behind_the_end(writing: Writing) -> None:
    writing.offset(0, BATCH)
    writing.writer.stop()
    with pytest.raises(Stopped):
        writing.writer(ROWS, 0)
    assert writing.writer.failure is None
    assert writing.said == []


def test_what_goes_wrong_with_the_rows_is_kept_and_the_table_is_as_it_was(writing: Writing) -> None:
    writing.offset(0, BATCH)
    writing.offset(1, 2 * BATCH)
    with pytest.raises(AttributeError) as caught:  # these are no rows
        writing.writer(ROWS, 1)
    assert writing.writer.failure is caught.value
    assert writing.said == []
    assert writing.table.positions == {KEY: BATCH}
