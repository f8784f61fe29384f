"""Payloads as JSON, variants and declared columns, and what does not fit set aside."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.variant_utils import VariantUtils

from meshmsg.spark_sink.source.columns import Gathered
from meshmsg.spark_sink.source.payloads import DecodedPayloads, JsonText, TypedColumns, Variants
from meshmsg.spark_sink.source.typed import RowType
from meshmsg.spark_sink.source.variant import DEPTH_MAX, VariantEncoder

encode = msgspec.msgpack.encode


def gathered(payloads: list[bytes], raw: bytes | bool = False) -> Gathered:
    return Gathered([], pa.array(payloads, pa.binary()), [raw], [len(payloads)])


def typed(declared: t.StructType) -> DecodedPayloads:
    return DecodedPayloads(TypedColumns(RowType(declared), nested=False))


def rows_of(
    decoder: DecodedPayloads,
    payloads: list[bytes],
    *,
    raw: bytes | bool = False,
    codec: str = "msgpack",
) -> list[tuple[Any, ...]]:
    columns = decoder.columns(gathered(payloads, raw), codec)
    for column in columns:
        column.validate(full=True)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


PERSON = t.StructType().add("id", "long").add("name", "string")


def test_fields_are_taken_by_name_and_others_are_passed_over() -> None:
    payloads = [encode({"name": "x", "more": [1, {}], "id": 1}), encode({"id": None}), encode({})]
    assert rows_of(typed(PERSON), payloads) == [
        (1, "x", None, None),
        (None, None, None, None),
        (None, None, None, None),
    ]


def test_one_bad_payload_does_not_spoil_the_others() -> None:
    good = encode({"id": 1, "name": "x"})
    bad = [b"", b"\xc1", good[:-1], good + b"\x01", encode([1]), encode({"id": "1"}), encode(None)]
    rows = rows_of(typed(PERSON), [good, *bad, good])
    assert rows[0] == rows[-1] == (1, "x", None, None)
    for row, payload in zip(rows[1:-1], bad, strict=True):
        assert row[:2] == (None, None)
        assert row[2].startswith("msgpack: ")
        assert row[3] == payload


@pytest.mark.parametrize(
    ("codec", "payloads"),
    [
        ("msgpack", [b"\x92\x01", b"\x02\x05"]),
        ("msgpack", [b"\xa2a", b"bc", b"\x01\x02"]),
        ("msgpack", [b"\x81\xa2id", b"\x01", b"\x80\x80"]),
        ("json", [b'"a', b'b"', b"1,2"]),
        ("json", [b'{"id":1', b'"name":"x"}', b"{},{}"]),
    ],
)
def test_a_payload_ends_where_it_ends(codec: str, payloads: list[bytes]) -> None:
    """Joined, they would be as many values: but they are not one value each."""
    for decoder in (typed(PERSON), DecodedPayloads(JsonText())):
        whole = rows_of(decoder, payloads, codec=codec)
        alone = [rows_of(decoder, [payload], codec=codec)[0] for payload in payloads]
        assert whole == alone
        assert any(row[-2] is not None for row in whole)


def test_numbers_out_of_range_are_set_aside() -> None:
    declared = t.StructType().add("b", "byte").add("l", "long").add("d", t.DecimalType(4, 2))
    fits = {"b": 127, "l": 2**63 - 1, "d": "99.99"}
    cases = [fits, {"b": 128}, {"l": 2**63}, {"d": "100.00"}, {"d": "1.234"}]
    rows = rows_of(typed(declared), [encode(case) for case in cases])
    assert rows[0] == (127, 2**63 - 1, decimal.Decimal("99.99"), None, None)
    assert [bool(row[3]) for row in rows[1:]] == [True] * 4
    assert "does not fit its column" in rows[3][3]


def test_all_types_come_through() -> None:
    when = datetime.datetime(2026, 11, 16, 12, 30, 0, 250_000, tzinfo=datetime.UTC)
    data = {
        "bo": True,
        "f": 1.5,
        "bi": b"\x00\xff",
        "da": datetime.date(2026, 11, 16),
        "ts": when,
        "nt": when.replace(tzinfo=None),
        "ar": [[1, None], None, []],
        "ma": {"x": {"y": 1}},
        "st": {"in": [{"k": "v"}]},
        "ms": {"one": {"q": 1}, "two": None},
    }
    declared = (
        t.StructType()
        .add("bo", "boolean")
        .add("f", "float")
        .add("bi", "binary")
        .add("da", "date")
        .add("ts", "timestamp")
        .add("nt", t.TimestampNTZType())
        .add("ar", t.ArrayType(t.ArrayType(t.IntegerType())))
        .add("ma", t.MapType(t.StringType(), t.MapType(t.StringType(), t.LongType())))
        .add("st", t.StructType().add("in", t.ArrayType(t.StructType().add("k", "string"))))
        .add("ms", t.MapType(t.StringType(), t.StructType().add("q", "long")))
    )
    full, empty = rows_of(typed(declared), [encode(data), encode({})])
    wanted = {**data, "ma": [("x", [("y", 1)])], "ms": [("one", {"q": 1}), ("two", None)]}
    assert full == (*wanted.values(), None, None)
    assert empty == (None,) * 12
    columns = typed(declared).columns(gathered([encode(data)]), "msgpack")
    for column, field in zip(columns, declared.fields, strict=False):
        assert column.type == to_arrow_type(field.dataType, timezone="UTC")


def test_a_nested_struct_keeps_what_it_must_have() -> None:
    inner = t.StructType().add("k", "string", nullable=False)
    rows = rows_of(
        typed(t.StructType().add("s", inner)), [encode({"s": {"k": "v"}}), encode({"s": {}})]
    )
    assert rows[0][0] == {"k": "v"}
    assert "missing required field `k`" in rows[1][1]


def test_json_streams_and_bytes_are_read_too() -> None:
    payload = b'{"id": 1, "name": "x"}'
    assert rows_of(typed(PERSON), [payload, b"{"], codec="json")[0] == (1, "x", None, None)
    assert rows_of(typed(PERSON), [payload], raw=True) == [(1, "x", None, None)]
    mixed = [payload, encode({"id": 2}), encode({"id": 3})]
    rows = rows_of(typed(PERSON), mixed, raw=b"\x01\x01\x00")
    assert [row[0] for row in rows] == [1, 2, 3]


def test_a_codec_of_ones_own_is_set_aside_with_what_to_do() -> None:
    (row,) = rows_of(typed(PERSON), [b"x"], codec="mine")
    assert row == (
        None,
        None,
        "the stream uses codec 'mine', which is not known here: read it as binary",
        b"x",
    )


def test_json_text() -> None:
    decoder = DecodedPayloads(JsonText())
    values = [{"a": [1, None]}, None, "x", {"b": b"\x00"}]
    rows = rows_of(decoder, [encode(value) for value in values] + [b"\xc1"])
    assert [json.loads(row[0]) for row in rows[:3]] == values[:3]
    assert json.loads(rows[3][0]) == {"b": "AA=="}
    assert rows[4][0] is None
    assert rows[4][2] == b"\xc1"
    # Bytes that happen to be msgpack are not taken for a number.
    raw = rows_of(decoder, [b"a", b'{"x":1}'], raw=True)
    assert raw[1][0] == '{"x":1}'


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=80)
    | st.binary(max_size=70)
    | st.dates()
    | st.datetimes(timezones=st.just(datetime.UTC)),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_spark_reads_our_variants(value: Any) -> None:
    found = VariantUtils.to_python(*VariantEncoder().encode(value))
    assert same(found, value)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, float):
        return math.isclose(ours, theirs)
    return bool(ours == theirs)


def test_large_variants() -> None:
    value = {f"key {n}": list(range(n)) for n in range(400)}
    assert VariantUtils.to_python(*VariantEncoder().encode(value)) == value


def test_what_a_variant_cannot_hold_is_refused() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    for value in (deep, 10**38, object(), "x" * (16 * 1024 * 1024)):
        with pytest.raises(ValueError, match=r"variant|nested"):
            VariantEncoder().encode(value)
    decoder = DecodedPayloads(Variants(to_arrow_type(t.VariantType())))
    rows = rows_of(decoder, [encode(1), encode(deep), encode(None)])
    assert [bool(row[1]) for row in rows] == [False, True, False]
    assert rows[2][0] is not None  # null is a value
