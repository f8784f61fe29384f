"""Declared columns: what a class decodes, and the Arrow columns that are made of its objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from meshmsg import ConfigError
from meshmsg.spark_sink.source.typed import RowType

POINT = t.StructType().add("x", "long", nullable=False).add("y", "long")


def decode(row: RowType, *values: Any) -> list[Any]:
    decoder = msgspec.msgpack.Decoder(row.type)
    return [None if one is None else decoder.decode(msgspec.msgpack.encode(one)) for one in values]


def test_a_field_of_any_name_is_found_and_others_are_passed_over() -> None:
    names = ["class", "a b", "f0", "größe", "self"]
    declared = t.StructType([t.StructField(name, t.LongType()) for name in names])
    row = RowType(declared)
    there = {name: n for n, name in enumerate(reversed(names))}
    columns = row.columns(decode(row, {**there, "more": [1, {"x": None}]}, {}))
    assert [column.to_pylist() for column in columns] == [[n, None] for n in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(t.ByteType(), 8), (t.ShortType(), 16), (t.IntegerType(), 32), (t.LongType(), 64)],
)
def test_whole_numbers_fit_to_the_last(kind: t.DataType, bits: int) -> None:
    row = RowType(t.StructType().add("n", kind))
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    (column,) = row.columns(decode(row, {"n": low}, {"n": high}))
    assert column.to_pylist() == [low, high]
    assert column.type == to_arrow_type(kind)
    for beyond in (low - 1, high + 1):
        with pytest.raises((msgspec.ValidationError, OverflowError)):
            decode(row, {"n": beyond})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (t.LongType(), "7"),
        (t.StringType(), 7),
        (t.BooleanType(), 1),
        (t.DoubleType(), "1.5"),
        (t.ArrayType(t.LongType()), {"a": 1}),
        (t.ArrayType(t.LongType(), containsNull=False), [1, None]),
        (t.MapType(t.StringType(), t.LongType(), valueContainsNull=False), {"a": None}),
        (POINT, {"y": 1}),
    ],
)
def test_what_is_declared_has_to_be_what_came(kind: t.DataType, value: Any) -> None:
    row = RowType(t.StructType().add("v", kind))
    with pytest.raises(msgspec.ValidationError, match=r"\$\.v"):
        decode(row, {"v": value})


def test_a_row_that_is_missing_is_null_in_all_columns() -> None:
    row = RowType(POINT)
    rows = decode(row, {"x": 1, "y": 2}, None, {"x": 3})
    assert [column.to_pylist() for column in row.columns(rows)] == [[1, None, 3], [2, None, None]]
    whole = row.struct(rows)
    assert whole.to_pylist() == [{"x": 1, "y": 2}, None, {"x": 3, "y": None}]
    assert whole.null_count == 1
    assert row.struct([]).to_pylist() == []


@pytest.mark.parametrize(
    "values",
    [
        [[{"x": 1, "y": None}], None, [], [None, {"x": 2, "y": 3}]],
        [None, None],
        [[]],
        [[None]],
    ],
)
def test_lists_of_structs_keep_what_is_null_and_what_is_empty(values: list[Any]) -> None:
    declared = t.StructType().add("v", t.ArrayType(POINT))
    row = RowType(declared)
    (column,) = row.columns(decode(row, *({"v": value} for value in values)))
    column.validate(full=True)
    assert column.to_pylist() == values
    assert column.type == to_arrow_type(declared.fields[0].dataType, timezone="UTC")


def test_maps_of_structs_keep_what_is_null_and_what_is_empty() -> None:
    row = RowType(t.StructType().add("v", t.MapType(t.StringType(), POINT)))
    values = [{"a": {"x": 1, "y": 2}, "b": None}, None, {}, {"c": {"x": 3, "y": None}}]
    (column,) = row.columns(decode(row, *({"v": value} for value in values)))
    column.validate(full=True)
    wanted = [None if value is None else list(value.items()) for value in values]
    assert column.to_pylist() == wanted


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            t.StructType().add("a", t.StructType().add("b", t.DayTimeIntervalType())),
            r"column 'a\.b' is declared as .*interval",
        ),
        (t.StructType().add("a", t.ArrayType(t.NullType())), r"column 'a\[\]' is declared as void"),
        (t.StructType().add("m", t.MapType(POINT, t.LongType())), "'m': the key of a map must be"),
        (
            t.StructType().add("m", t.MapType(t.StringType(), t.NullType())),
            r"column 'm\.value' is declared",
        ),
    ],
)
def test_types_that_payloads_cannot_give_are_named(declared: t.StructType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RowType(declared)
