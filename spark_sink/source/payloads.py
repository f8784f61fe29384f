"""What a payload becomes: bytes as they are, JSON text, a VARIANT, or declared columns.

A payload that is not what was declared never stops a query: its row has the reason in `_error` and
the bytes in `_raw`, and nulls where its values would be.

Payloads of many frames stand one behind the other, and behind an array header they are one msgpack
array: where each is proved to be one value, all of them are decoded in one call.  Else they are
decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from meshmsg._native import COMPILED
from meshmsg.spark_sink.source.columns import Gathered
from meshmsg.spark_sink.source.typed import RowType
from meshmsg.spark_sink.source.variant import VariantEncoder, variant_array

if COMPILED:
    from meshmsg import _speed

ERROR_COLUMNS = {"_error": "STRING", "_raw": "BINARY"}
REASON_CHARS_MAX = 300
_FAILURES = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
)

Reasons = dict[int, str]
"""Why a payload was not taken, by its place."""


class BinaryPayloads:
    """As they are."""

    def columns(self, found: Gathered, codec: str) -> list[pa.Array]:
        """The one column."""
        return [found.payloads]


class DecodedPayloads:
    """Values made of payloads; what fails is set aside."""

    def __init__(self, make: ValueColumns) -> None:
        self._make = make

    def columns(self, found: Gathered, codec: str) -> list[pa.Array]:
        """The columns of the values, `_error` and `_raw`."""
        values, reasons = self._values(found, codec)
        try:
            made = self._make.arrays(values)
        except _FAILURES:
            made = self._one_by_one(values, reasons)
        return [*made, *_set_aside(found, reasons)]

    def _values(self, found: Gathered, codec: str) -> tuple[list[Any], Reasons]:
        if codec not in self._make.decoders:
            reason = f"the stream uses codec {codec!r}, which is not known here: read it as binary"
            return [self._make.missing] * found.events, dict.fromkeys(range(found.events), reason)
        if not any(found.raw) or (self._make.strict and all(raw is True for raw in found.raw)):
            try:
                return self._block(found, codec), {}
            except _FAILURES:
                pass
        return self._each(found, codec)

    def _block(self, found: Gathered, codec: str) -> list[Any]:
        payloads = found.payloads
        if codec == "msgpack" and is_value_each(payloads):
            head = b"\xdd" + found.events.to_bytes(4, "big")
            return self._make.decode_list(head + blob_of(payloads))
        return list(map(self._make.decoders[codec], payloads.to_pylist()))

    def _each(self, found: Gathered, codec: str) -> tuple[list[Any], Reasons]:
        values: list[Any] = []
        reasons: Reasons = {}
        flags = _flags(found)
        for place, payload in enumerate(found.payloads.to_pylist()):
            try:
                values.append(self._decode(payload, codec, flags[place]))
            except _FAILURES as error:
                reasons[place] = f"{codec}: {error}"[:REASON_CHARS_MAX]
                values.append(self._make.missing)
        return values, reasons

    def _decode(self, payload: bytes, codec: str, raw: int) -> Any:
        decoders = self._make.decoders
        if not raw:
            return decoders[codec](payload)
        # It was given as bytes, and nobody but its publisher knows what they are.
        try:
            return decoders["json"](payload)
        except _FAILURES:
            return decoders["msgpack"](payload)

    def _one_by_one(self, values: list[Any], reasons: Reasons) -> list[pa.Array]:
        """Values decoded, and some do not fit their columns."""
        for place, value in enumerate(values):
            if value is self._make.missing:
                continue
            try:
                self._make.arrays([value])
            except _FAILURES as error:
                reasons[place] = f"does not fit its column: {error}"[:REASON_CHARS_MAX]
                values[place] = self._make.missing
        return self._make.arrays(values)


class ValueColumns:
    """How values are decoded, and what columns they make."""

    #: Whether a decoder refuses what was not meant for it.
    strict = False
    #: Stands for a value that could not be decoded.
    missing: Any = msgspec.UNSET
    decoders: dict[str, Callable[[bytes], Any]]

    def __init__(self, type: Any = Any) -> None:
        self.decoders = {
            "msgpack": msgspec.msgpack.Decoder(type).decode,
            "json": msgspec.json.Decoder(type).decode,
        }
        self.decode_list: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[type]).decode

    def arrays(self, values: list[Any]) -> list[pa.Array]:
        """The columns; raises where a value does not fit."""
        raise NotImplementedError


class JsonText(ValueColumns):
    """Each value as JSON text."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder().encode

    def arrays(self, values: list[Any]) -> list[pa.Array]:
        """See `ValueColumns`."""
        encode, missing = self._encode, self.missing
        texts = [None if value is missing else encode(value) for value in values]
        return [pa.array(texts, pa.string())]


class Variants(ValueColumns):
    """Each value as a variant."""

    def __init__(self, type: pa.DataType) -> None:
        super().__init__()
        self._type = type
        self._encoder = VariantEncoder()

    def arrays(self, values: list[Any]) -> list[pa.Array]:
        """See `ValueColumns`."""
        return [variant_array(values, self._type, self._encoder, self.missing)]


class TypedColumns(ValueColumns):
    """Each value as the declared columns, or as one column with all of them."""

    strict = True
    missing = None

    def __init__(self, row: RowType, *, nested: bool) -> None:
        super().__init__(row.type)
        self._row = row
        self._nested = nested

    def arrays(self, values: list[Any]) -> list[pa.Array]:
        """See `ValueColumns`."""
        return [self._row.struct(values)] if self._nested else self._row.columns(values)


def is_value_each(payloads: pa.Array) -> bool:
    """Prove that each of them is one msgpack value, as `VarColumn.is_value_each` does."""
    _, offsets, data = payloads.buffers()
    if not COMPILED or data is None:
        return False
    return _speed.is_value_each(offsets, 4 * payloads.offset, data, 0, len(payloads))


def blob_of(payloads: pa.Array) -> memoryview:
    """The joined bytes of a column of byte strings, where they lie."""
    _, offsets, data = payloads.buffers()
    if data is None:
        return memoryview(b"")
    first, stop = (
        int.from_bytes(memoryview(offsets)[4 * place : 4 * place + 4], "little")
        for place in (payloads.offset, payloads.offset + len(payloads))
    )
    return memoryview(data)[first:stop]


def _flags(found: Gathered) -> bytes:
    """One byte an event: whether it was given as bytes."""
    return b"".join(
        raw if isinstance(raw, bytes) else bytes((raw,)) * count
        for raw, count in zip(found.raw, found.counts, strict=True)
    )


def _set_aside(found: Gathered, reasons: Reasons) -> list[pa.Array]:
    if not reasons:
        return [pa.nulls(found.events, pa.string()), pa.nulls(found.events, pa.binary())]
    bad = pa.array([place in reasons for place in range(found.events)], pa.bool_())
    texts = pa.array([reasons.get(place) for place in range(found.events)], pa.string())
    raw = pc.if_else(bad, found.payloads, pa.scalar(None, pa.binary()))
    return [texts, raw]
