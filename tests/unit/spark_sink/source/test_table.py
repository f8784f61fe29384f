"""The columns that a query sees, and rows out of ranges, with what is lost between them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from meshmsg import ConfigError
from meshmsg.spark_sink.errors import LossInRange, ShortRead
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.options import Options
from meshmsg.spark_sink.source.positions import Range
from meshmsg.spark_sink.source.table import declared_fields, payloads_for, read_ranges, schema_ddl
from tests.spark.logs import EPOCH, STREAM, Log, numbered
from tests.spark.reading import schema_of

EVENT = "stream STRING, epoch BIGINT, seq BIGINT, topic STRING, key STRING"
LOSSES = t.StructType().add("stream", "string").add("epoch", "long").add("first", "long")
LOSSES = LOSSES.add("stop", "long").add("events", "long").add("reason", "string")


def with_payload(*fields: t.StructField) -> t.StructType:
    """The columns of rows whose payload is declared."""
    made = t.StructType(schema_of("events").fields[:-1] + list(fields))
    return made.add("_error", "string").add("_raw", "binary")


def field(name: str, kind: t.DataType | None = None, nullable: bool = True) -> t.StructField:
    return t.StructField(name, kind or t.LongType(), nullable)


@pytest.mark.parametrize(
    ("options", "last"),
    [
        (Options(path="x"), ["payload BINARY"]),
        (Options(path="x", payload="json"), ["payload STRING", "_error STRING", "_raw BINARY"]),
        (Options(path="x", payload="a INT"), ["a INT", "_error STRING", "_raw BINARY"]),
        (
            Options(path="x", payload="STRUCT<a: INT>"),
            ["payload STRUCT<a: INT>", "_error STRING", "_raw BINARY"],
        ),
        (
            Options(path="x", rows="all"),
            ["payload BINARY", "loss STRUCT<first: BIGINT", "stop: BIGINT", "reason: STRING>"],
        ),
    ],
)
def test_columns_follow_the_options(options: Options, last: list[str]) -> None:
    found = schema_ddl(options)
    assert found.startswith(EVENT)
    assert found.split(", ")[-len(last) :] == last


def test_losses_are_a_table_of_their_own() -> None:
    found = schema_ddl(Options(path="x", rows="losses", payload="a INT"))
    assert [part.split()[0] for part in found.split(", ")] == LOSSES.names


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([field("id"), field("ID")], "declares 'ID' twice"),
        ([field("Topic")], "declares 'Topic', which every row has already"),
        ([field("_error")], "declares '_error', which every row has"),
        ([field("id", nullable=False)], "'id' cannot be NOT NULL"),
        ([], r"asked for with \.schema\(\.\.\.\)"),
    ],
)
def test_columns_that_cannot_be_declared_are_named(fields: list[t.StructField], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        declared_fields(Options(path="x", payload="id BIGINT"), with_payload(*fields))


def test_a_schema_of_other_columns_is_refused_whatever_it_lacks() -> None:
    whole = with_payload(field("id"))
    assert declared_fields(Options(path="x", payload="id BIGINT"), whole).names == ["id"]
    for without in ("stream", "time", "_error", "_raw"):
        rest = t.StructType([one for one in whole.fields if one.name != without])
        with pytest.raises(ConfigError, match="leave it out"):
            payloads_for(Options(path="x", payload="id BIGINT"), rest)


@pytest.fixture
def source(tmp_path: Path) -> LogSource:
    """Ten events, three lost, ten more of another topic."""
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 10))
        log.lose(3, "overflow")
        log.write(numbered(13, 23, topic="orders.us"))
    return LogSource(str(tmp_path))


WHOLE = [Range(STREAM, EPOCH, 0, 23)]


def column(batches: list[pa.RecordBatch], name: str) -> list[Any]:
    return [value for batch in batches for value in batch[name].to_pylist()]


def test_events_and_losses_stand_in_their_order(source: LogSource) -> None:
    options = Options(path="x", rows="all")
    batches = list(read_ranges(options, schema_of("all"), source, WHOLE))
    assert column(batches, "seq") == [*range(10), 10, *range(13, 23)]
    (lost,) = [loss for loss in column(batches, "loss") if loss is not None]
    assert lost == {"first": 10, "stop": 13, "reason": "overflow"}


def test_only_the_topics_that_are_asked_for_are_rows(source: LogSource) -> None:
    options = Options(path="x", topics=("orders.us",), fail_on_loss=False)
    batches = list(read_ranges(options, schema_of("events"), source, WHOLE))
    assert column(batches, "seq") == list(range(13, 23))


def test_a_loss_ends_the_task_or_is_said_as_the_option_has_it(
    source: LogSource, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LossInRange, match="failOnLoss=false") as caught:
        list(read_ranges(Options(path="x"), schema_of("events"), source, WHOLE))
    assert (caught.value.loss.first, caught.value.loss.stop) == (10, 13)
    with caplog.at_level(logging.WARNING, "meshmsg.spark_sink"):
        options = Options(path="x", fail_on_loss=False)
        batches = list(read_ranges(options, schema_of("events"), source, WHOLE))
    assert column(batches, "seq") == [*range(10), *range(13, 23)]
    assert "overflow" in caplog.text


def test_rows_of_losses_have_no_events(source: LogSource) -> None:
    options = Options(path="x", rows="losses")
    (batch,) = read_ranges(options, LOSSES, source, WHOLE)
    assert batch.to_pylist() == [
        {
            "stream": STREAM,
            "epoch": EPOCH,
            "first": 10,
            "stop": 13,
            "events": 3,
            "reason": "overflow",
        }
    ]
    assert list(read_ranges(options, LOSSES, source, [Range(STREAM, EPOCH, 0, 10)])) == []


def test_declared_fields_are_columns_or_one_struct(source: LogSource) -> None:
    ranges = [Range(STREAM, EPOCH, 2, 4), Range(STREAM, EPOCH, 8, 10)]
    flat = with_payload(field("n"), field("name", t.StringType()))
    options = Options(path="x", payload="n BIGINT, name STRING")
    batches = list(read_ranges(options, flat, source, ranges))
    assert column(batches, "n") == [2, 3, 8, 9]
    assert column(batches, "name")[0] == "name 2"
    inner = t.StructType().add("n", "long")
    nested = with_payload(field("payload", inner))
    options = Options(path="x", payload="STRUCT<n: BIGINT>")
    batches = list(read_ranges(options, nested, source, ranges))
    assert column(batches, "payload") == [{"n": n} for n in (2, 3, 8, 9)]


def test_less_than_was_planned_is_no_shorter_table(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 10))
        batches = read_ranges(
            Options(path="x"),
            schema_of("events"),
            LogSource(str(tmp_path)),
            [Range(STREAM, EPOCH, 5, 12)],
        )
        with pytest.raises(ShortRead, match="should have events 10 to 11"):
            list(batches)
