"""The table that a query sees: its columns, and record batches of them out of a range of events.

Belongs here: joining positions, columns and payloads for one task.  Does not belong here: what
Spark asks and when (`source`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from meshmsg import ConfigError, Loss
from meshmsg._model.topics import TopicFilter
from meshmsg.spark_sink.errors import LossInRange
from meshmsg.spark_sink.source.columns import (
    EVENT_COLUMNS,
    LOSS_COLUMNS,
    LOSS_TYPE,
    Gathered,
    gather,
    loss_among_events,
    loss_row,
)
from meshmsg.spark_sink.source.ddl import is_nested
from meshmsg.spark_sink.source.log_source import EventSource
from meshmsg.spark_sink.source.options import PAYLOADS, Options
from meshmsg.spark_sink.source.payloads import (
    ERROR_COLUMNS,
    BinaryPayloads,
    DecodedPayloads,
    JsonText,
    TypedColumns,
    ValueColumns,
    Variants,
)
from meshmsg.spark_sink.source.positions import Range
from meshmsg.spark_sink.source.typed import RowType

log = logging.getLogger("meshmsg.spark_sink")

_LOSS_DDL = "STRUCT<first: BIGINT, stop: BIGINT, reason: STRING>"


class Payloads(Protocol):
    """What makes columns of payloads."""

    def columns(self, found: Gathered, codec: str) -> list[pa.Array]:
        """The columns behind those that every event has."""


def schema_ddl(options: Options) -> str:
    """The columns, as Spark reads them."""
    if options.rows == "losses":
        return _ddl(LOSS_COLUMNS)
    words = {"binary": "payload BINARY", "json": "payload STRING", "variant": "payload VARIANT"}
    payload = words.get(options.payload)
    if payload is None:
        payload = f"payload {options.payload}" if is_nested(options.payload) else options.payload
    parts = [_ddl(EVENT_COLUMNS), payload]
    if options.payload != "binary":
        parts.append(_ddl(ERROR_COLUMNS))
    if options.rows == "all":
        parts.append(f"loss {_LOSS_DDL}")
    return ", ".join(parts)


def _ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def declared_fields(options: Options, schema: t.StructType) -> t.StructType:
    """The fields that the payload option declares; raises `ConfigError` for other schemas."""
    names = [field.name for field in schema.fields]
    before = list(EVENT_COLUMNS)
    after = [] if options.payload == "binary" else list(ERROR_COLUMNS)
    after += ["loss"] if options.rows == "all" else []
    stop = len(names) - len(after)
    declared = schema.fields[len(before) : stop]
    if names[: len(before)] != before or names[stop:] != after or not declared:
        problem = (
            f"columns {names} were asked for with .schema(...): leave it out, and declare the "
            f"columns of the payload with option payload, as in 'id BIGINT, price DOUBLE'"
        )
        raise ConfigError("schema", problem)
    taken = {name.lower() for name in before + after}
    seen: set[str] = set()
    for field in declared:
        if field.name.lower() in seen:
            raise ConfigError("option payload", f"declares {field.name!r} twice")
        seen.add(field.name.lower())
        if field.name.lower() in taken:
            problem = (
                f"declares {field.name!r}, which every row has already: write "
                f"'STRUCT<{field.name}: ...>' to have all fields inside one column payload"
            )
            raise ConfigError("option payload", problem)
        if not field.nullable:
            problem = f"{field.name!r} cannot be NOT NULL: a payload that does not fit has nulls"
            raise ConfigError("option payload", problem)
    return t.StructType(declared)


def payloads_for(options: Options, schema: t.StructType) -> Payloads:
    """What the payload option asks for; raises `ConfigError`."""
    fields = declared_fields(options, schema)
    if options.payload == "binary":
        return BinaryPayloads()
    make: ValueColumns
    if options.payload == "json":
        make = JsonText()
    elif options.payload == "variant":
        make = Variants(to_arrow_schema(fields, timezone="UTC").field(0).type)
    elif options.payload not in PAYLOADS and is_nested(options.payload):
        inner = fields.fields[0].dataType
        assert isinstance(inner, t.StructType)
        make = TypedColumns(RowType(inner), nested=True)
    else:
        make = TypedColumns(RowType(fields), nested=False)
    return DecodedPayloads(make)


def read_ranges(
    options: Options, schema: t.StructType, source: EventSource, ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """The rows of some ranges; raises `LossInRange`, `ShortRead`."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    if options.rows == "losses":
        for wanted in ranges:
            for item in source.read(wanted):
                if isinstance(item, Loss):
                    yield loss_row(item, arrow)
        return
    payloads = payloads_for(options, schema)
    topics = TopicFilter(options.topics)
    for wanted in ranges:
        for found in gather(source.read(wanted), wanted.stream, topics):
            if isinstance(found, Loss):
                if options.rows == "all":
                    yield loss_among_events(found, arrow)
                elif options.fail_on_loss:
                    raise LossInRange(found)
                else:
                    log.warning("%s", found)
                continue
            # Asked only now: whoever has the stream may have been away until here.
            codec = source.codec_of(wanted.stream)
            columns: list[Any] = [*found.columns, *payloads.columns(found, codec)]
            if options.rows == "all":
                columns.append(pa.nulls(found.events, LOSS_TYPE))
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)
