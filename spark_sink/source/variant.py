"""Python values as Spark's VARIANT: two byte strings, the value and its dictionary of keys.

The encoding is Apache Parquet's Variant, version 1, as Spark writes it.  Here, because Spark parses
JSON only, and a msgpack payload has bytes, times and whole numbers that JSON would lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import accumulate
from struct import Struct
from typing import Any

import pyarrow as pa

NULL, TRUE, FALSE = b"\x00", b"\x04", b"\x08"
_INT8, _INT16 = 3 << 2, 4 << 2
_INT32, _INT64, _DOUBLE, _DECIMAL16, _DATE, _TIME, _LOCAL_TIME = (
    n << 2 for n in (5, 6, 7, 10, 11, 12, 13)
)
_BINARY, _STRING = 15 << 2, 16 << 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_DAY_ZERO = date(1970, 1, 1).toordinal()
#: What Spark takes at most.
SIZE_MAX = 16 * 1024 * 1024
DEPTH_MAX = 200
METADATA_KEPT = 4096
#: Some key is no text.
_UNNAMED: tuple[str, ...] = ("",) * 2


class VariantEncoder:
    """Encodes values one by one; dictionaries that come again are made once."""

    def __init__(self) -> None:
        self._structs = {code: Struct("<B" + code) for code in "bhiqd"}
        self._metadata: dict[tuple[str, ...], bytes] = {}
        self._orders: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def encode(self, value: Any) -> tuple[bytes, bytes]:
        """Value and metadata; raises `ValueError` for what a variant cannot hold."""
        ids: dict[str, int] = {}
        encoded = self._value(value, ids, 0)
        if len(encoded) > SIZE_MAX:
            raise ValueError(f"a variant of {len(encoded)} bytes; Spark takes {SIZE_MAX}")
        keys = tuple(ids)
        metadata = self._metadata.get(keys)
        if metadata is None:
            if len(self._metadata) >= METADATA_KEPT:
                self._metadata.clear()
            metadata = self._metadata[keys] = _encode_metadata(keys)
        return encoded, metadata

    def _value(self, value: Any, ids: dict[str, int], depth: int) -> bytes:
        kind = value.__class__
        if kind is str:
            return _string(value)
        if kind is int:
            return self._int(value)
        if kind is float:
            return self._structs["d"].pack(_DOUBLE, value)
        if kind is dict:
            return self._object(value, ids, depth + 1)
        if kind is list or kind is tuple:
            return self._array(value, ids, depth + 1)
        if value is None:
            return NULL
        if kind is bool:
            return TRUE if value else FALSE
        return self._rare(value)

    def _int(self, value: int) -> bytes:
        structs = self._structs
        if -0x80 <= value < 0x80:
            return structs["b"].pack(_INT8, value)
        if -0x8000 <= value < 0x8000:
            return structs["h"].pack(_INT16, value)
        if -0x80000000 <= value < 0x80000000:
            return structs["i"].pack(_INT32, value)
        if -(1 << 63) <= value < 1 << 63:
            return structs["q"].pack(_INT64, value)
        return _decimal(value, 0)

    def _rare(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            return b"".join((bytes((_BINARY,)), len(data).to_bytes(4, "little"), data))
        if isinstance(value, datetime):
            local = value.tzinfo is None
            since = value - (_LOCAL_EPOCH if local else _EPOCH)
            micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            return self._structs["q"].pack(_LOCAL_TIME if local else _TIME, micros)
        if isinstance(value, date):
            return self._structs["i"].pack(_DATE, value.toordinal() - _DAY_ZERO)
        if isinstance(value, Decimal) and value.is_finite():
            sign, digits, exponent = value.as_tuple()
            number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
            scale = -int(exponent)
            return _decimal(number, scale) if scale >= 0 else _decimal(number * 10**-scale, 0)
        raise ValueError(f"a {type(value).__name__} cannot be in a variant")

    def _object(self, value: dict[Any, Any], ids: dict[str, int], depth: int) -> bytes:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested more than {DEPTH_MAX} deep")
        keys = tuple(value)
        order = self._orders.get(keys)
        if order is None:
            order = self._order(keys)
        if order is _UNNAMED:
            value = {str(key): item for key, item in value.items()}
            order = tuple(sorted(value))
        numbers: list[int] = []
        items: list[bytes] = []
        for key in order:
            numbers.append(ids.setdefault(key, len(ids)))
            items.append(self._value(value[key], ids, depth))
        count = len(items)
        offsets, size = _offsets(items)
        id_size = _width(max(numbers, default=0))
        head = (count > 255) << 4 | (id_size - 1) << 2 | (size - 1)
        return b"".join(
            (
                bytes((head << 2 | 2,)),
                count.to_bytes(4 if count > 255 else 1, "little"),
                _packed(numbers, id_size),
                offsets,
                *items,
            )
        )

    def _order(self, keys: tuple[Any, ...]) -> tuple[str, ...]:
        """The keys as they stand in an object, kept for the next of this shape."""
        if len(self._orders) >= METADATA_KEPT:
            self._orders.clear()
        named = all(key.__class__ is str for key in keys)
        # Keys that are equal and not the same (1 and 1.0) are not told apart by a dictionary.
        order = self._orders[keys] = tuple(sorted(keys)) if named else _UNNAMED
        return order

    def _array(self, value: Any, ids: dict[str, int], depth: int) -> bytes:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested more than {DEPTH_MAX} deep")
        items = [self._value(item, ids, depth) for item in value]
        count = len(items)
        offsets, size = _offsets(items)
        head = (count > 255) << 2 | (size - 1)
        length = count.to_bytes(4 if count > 255 else 1, "little")
        return b"".join((bytes((head << 2 | 3,)), length, offsets, *items))


def _string(value: str) -> bytes:
    data = value.encode()
    size = len(data)
    if size < 64:
        return bytes((size << 2 | 1,)) + data
    return b"".join((bytes((_STRING,)), size.to_bytes(4, "little"), data))


def _decimal(number: int, scale: int) -> bytes:
    if abs(number) >= 10**38 or scale > 38:
        raise ValueError("a number of more than 38 digits cannot be in a variant")
    return bytes((_DECIMAL16, scale)) + number.to_bytes(16, "little", signed=True)


def _width(value: int) -> int:
    """Bytes that a number needs."""
    return 1 if value < 1 << 8 else 2 if value < 1 << 16 else 3 if value < 1 << 24 else 4


def _packed(values: list[int], width: int) -> bytes:
    if width == 1:
        return bytes(values)
    return b"".join([value.to_bytes(width, "little") for value in values])


def _offsets(items: list[bytes]) -> tuple[bytes, int]:
    """The offsets of items that stand one behind the other, and the bytes that each takes."""
    places = list(accumulate(map(len, items), initial=0))
    width = _width(places[-1])
    return _packed(places, width), width


def _encode_metadata(keys: tuple[str, ...]) -> bytes:
    names = [key.encode() for key in keys]
    width = max(_width(sum(map(len, names))), _width(len(names)))
    offsets, at = [0], 0
    for name in names:
        at += len(name)
        offsets.append(at)
    head = 1 | (width - 1) << 6
    length = len(names).to_bytes(width, "little")
    return b"".join((bytes((head,)), length, _packed(offsets, width), *names))


def variant_array(
    values: Sequence[Any], type: pa.DataType, encoder: VariantEncoder, missing: Any = None
) -> pa.StructArray:
    """A column of variants, null where a value is missing."""
    pairs = [(b"", b"") if value is missing else encoder.encode(value) for value in values]
    mask = pa.array([value is missing for value in values], pa.bool_())
    columns = [
        pa.array([pair[0] for pair in pairs], pa.binary()),
        pa.array([pair[1] for pair in pairs], pa.binary()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(type), mask=mask)
