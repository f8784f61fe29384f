"""Declared columns: from a Spark schema to a decoder, and from decoded rows to Arrow columns.

msgspec decodes straight into a class that has the declared fields and nothing else, so a field that
nobody declared costs a skip.  What is declared has to be what came: a text is no number.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from meshmsg import ConfigError
from meshmsg.spark_sink.source.variant import VariantEncoder, variant_array

Maker = Callable[[Sequence[Any]], pa.Array]


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


_SIMPLE: dict[type[t.DataType], Any] = {
    t.BooleanType: bool,
    t.ByteType: _whole(8),
    t.ShortType: _whole(16),
    t.IntegerType: _whole(32),
    t.LongType: _whole(64),
    t.FloatType: float,
    t.DoubleType: float,
    t.StringType: str,
    t.BinaryType: bytes,
    t.DateType: datetime.date,
    t.TimestampType: datetime.datetime,
    t.TimestampNTZType: datetime.datetime,
    t.DecimalType: decimal.Decimal,
}


class RowType:
    """The fields of a struct: a class to decode into, and columns out of its objects."""

    def __init__(self, declared: t.StructType, path: str = "") -> None:
        names = [f"f{n}" for n in range(len(declared.fields))]
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        self._makers: list[tuple[attrgetter[Any], Maker]] = []
        for name, field in zip(names, declared.fields, strict=True):
            where = f"{path}{field.name}"
            kind, make = _field(field.dataType, where)
            if field.nullable:
                fields.append((name, kind | None if kind is not Any else Any, None))
            else:
                fields.append((name, kind))
            self._makers.append((attrgetter(name), make))
        renamed = {name: f.name for name, f in zip(names, declared.fields, strict=True)}
        self.type: Any = msgspec.defstruct(
            "Row", fields, rename=renamed, kw_only=True, gc=False, eq=False
        )
        self._arrow = to_arrow_type(declared, timezone="UTC")

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        """One column a field; a row that is `None` is null in all of them."""
        if None in rows:
            return [
                make([None if row is None else get(row) for row in rows])
                for get, make in self._makers
            ]
        return [make(list(map(get, rows))) for get, make in self._makers]

    def struct(self, rows: Sequence[Any]) -> pa.StructArray:
        """All in one column."""
        mask = pa.array([row is None for row in rows], pa.bool_()) if None in rows else None
        return pa.StructArray.from_arrays(self.columns(rows), fields=list(self._arrow), mask=mask)


def _field(declared: t.DataType, where: str) -> tuple[Any, Maker]:
    """The type to decode into, and what makes a column of such values."""
    if isinstance(declared, t.StructType):
        row = RowType(declared, f"{where}.")
        return row.type, row.struct
    if isinstance(declared, t.ArrayType):
        return _list(declared, where)
    if isinstance(declared, t.MapType):
        return _map(declared, where)
    kind = _simple(declared)
    if kind is None and not isinstance(declared, t.VariantType):
        problem = (
            f"column {where!r} is declared as {declared.simpleString()}, which payloads cannot "
            f"give; there are {', '.join(sorted(simple.typeName() for simple in _SIMPLE))}, array, "
            f"map, struct and variant"
        )
        raise ConfigError("option payload", problem)
    arrow = to_arrow_type(declared, timezone="UTC")
    if kind is None:
        encoder = VariantEncoder()
        return Any, lambda values: variant_array(values, arrow, encoder)
    return kind, lambda values: pa.array(values, arrow)


def _simple(declared: t.DataType) -> Any:
    if isinstance(declared, t.StringType):  # CHAR and VARCHAR are such too
        return str
    return _SIMPLE.get(type(declared))


def _list(declared: t.ArrayType, where: str) -> tuple[Any, Maker]:
    kind, make = _field(declared.elementType, f"{where}[]")
    item = kind | None if declared.containsNull and kind is not Any else kind
    found: Any = list[item]  # type: ignore[valid-type]
    arrow = to_arrow_type(declared, timezone="UTC")
    if _is_plain(declared.elementType):
        return found, lambda values: pa.array(values, arrow)

    def of(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _shape(values)
        items = make(list(chain.from_iterable(value for value in values if value is not None)))
        return pa.ListArray.from_arrays(offsets, items, type=arrow, mask=mask)

    return found, of


def _map(declared: t.MapType, where: str) -> tuple[Any, Maker]:
    key_kind, _ = _field(declared.keyType, f"{where}.key")
    kind, make = _field(declared.valueType, f"{where}.value")
    if not _is_plain(declared.keyType):
        raise ConfigError("option payload", f"{where!r}: the key of a map must be a plain value")
    value = kind | None if declared.valueContainsNull and kind is not Any else kind
    arrow = to_arrow_type(declared, timezone="UTC")
    found: Any = dict[key_kind, value]  # type: ignore[valid-type]
    if _is_plain(declared.valueType):
        return found, lambda values: pa.array(
            [None if value is None else list(value.items()) for value in values], arrow
        )

    def of(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _shape(values)
        there = [value for value in values if value is not None]
        keys = pa.array(list(chain.from_iterable(there)), arrow.key_type)
        items = make(list(chain.from_iterable(value.values() for value in there)))
        return pa.MapArray.from_arrays(offsets, keys, items, type=arrow, mask=mask)

    return found, of


def _is_plain(declared: t.DataType) -> bool:
    """Whether Arrow itself makes a column of such values."""
    if isinstance(declared, t.ArrayType):
        return _is_plain(declared.elementType)
    return not isinstance(declared, t.StructType | t.MapType | t.VariantType)


def _shape(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    """Where each list begins in all of them joined, and which are null."""
    lengths = (0 if value is None else len(value) for value in values)
    offsets = pa.array(list(accumulate(lengths, initial=0)), pa.int32())
    missing = [value is None for value in values]
    return offsets, pa.array(missing, pa.bool_()) if any(missing) else None
