"""Python values as VARIANT, against bytes that follow from Parquet's description of it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from meshmsg.spark_sink.source.variant import DEPTH_MAX, VariantEncoder, variant_array

EMPTY = bytes((1, 0, 0))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"\x00"),
        (True, b"\x04"),
        (False, b"\x08"),
        (-1, b"\x0c\xff"),
        (128, b"\x10\x80\x00"),
        (1 << 15, b"\x14\x00\x80\x00\x00"),
        (1 << 31, b"\x18\x00\x00\x00\x80\x00\x00\x00\x00"),
        (1 << 63, b"\x28\x00" + (1 << 63).to_bytes(16, "little")),
        (1.0, b"\x1c\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        ("ab", b"\x09ab"),
        ("a" * 64, b"\x40\x40\x00\x00\x00" + b"a" * 64),
        (b"\xff", b"\x3c\x01\x00\x00\x00\xff"),
        (date(1970, 1, 2), b"\x2c\x01\x00\x00\x00"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"\x30" + (10**6).to_bytes(8, "little")),
        (datetime(1970, 1, 1, 0, 0, 1), b"\x34" + (10**6).to_bytes(8, "little")),
        (Decimal("-1.5"), b"\x28\x01" + (-15).to_bytes(16, "little", signed=True)),
        ([1, "a"], b"\x03\x02\x00\x02\x04\x0c\x01\x05a"),
    ],
)
def test_values_are_encoded_as_parquet_says(value: Any, encoded: bytes) -> None:
    assert VariantEncoder().encode(value) == (encoded, EMPTY)


def test_an_object_stands_in_the_order_of_its_keys_with_a_dictionary_of_them() -> None:
    value, metadata = VariantEncoder().encode({"b": 1, "a": 2})
    assert value == b"\x02\x02\x00\x01\x00\x02\x04\x0c\x02\x0c\x01"
    assert metadata == b"\x01\x02\x00\x01\x02ab"


def test_keys_that_are_no_text_become_text() -> None:
    encoder = VariantEncoder()
    assert encoder.encode({2: True}) == encoder.encode({"2": True})


@pytest.mark.parametrize(
    "value", [10**38, Decimal("1e-39"), Decimal("nan"), object()], ids=["int", "scale", "nan", "it"]
)
def test_what_a_variant_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be in a variant"):
        VariantEncoder().encode(value)


@pytest.mark.parametrize("deeper", [lambda value: [value], lambda value: {"a": value}])
def test_depth_has_a_bound(deeper: Any) -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX):
        value = deeper(value)
    VariantEncoder().encode(value)
    with pytest.raises(ValueError, match="nested"):
        VariantEncoder().encode(deeper(value))


def test_a_column_is_null_where_a_value_is_missing() -> None:
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    column = variant_array([1, None], kind, VariantEncoder())
    assert column.to_pylist() == [{"value": b"\x0c\x01", "metadata": EMPTY}, None]
