"""`Run`: encoded events of one topic that become one frame, and how many are cut into runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from meshmsg._model.codecs import encode_payload
from meshmsg._model.errors import ConfigError, EventTooLarge, MeshError
from meshmsg._native import COMPILED
from meshmsg._wire.frame import HEADERS_BYTES_MAX, encode_headers

if COMPILED:
    from meshmsg import _speed
if TYPE_CHECKING:
    from meshmsg._publish.published_stream import Outlet

#: What an event costs in a frame of one topic and one time beside its payload.
OFFSET_COST = 4
RUN_EVENTS_MAX = 8192


class Run:
    """Encoded events of one topic that become one frame."""

    __slots__ = ("headers", "keys", "length", "payloads", "raw")

    def __init__(
        self,
        payloads: list[bytes],
        raw: bool | bytes,
        keys: Mapping[int, str],
        headers: Mapping[int, bytes],
        length: int,
    ) -> None:
        self.length = length  #: of each payload, -1 if they differ
        self.payloads = payloads
        self.raw = raw
        self.keys = keys
        self.headers = headers


def cuts(
    payloads: list[bytes], uniform: int, extra: int, frame_bytes: int
) -> Iterator[tuple[int, int]]:
    """Where to cut payloads of these lengths into frames of about the size that frames have."""
    count = len(payloads)
    if uniform >= 0:
        step = max(1, frame_bytes // (uniform + extra + OFFSET_COST))
        for lo in range(0, count, step):
            yield lo, min(count, lo + step)
        return
    ends = list(accumulate(len(payload) + extra + OFFSET_COST for payload in payloads))
    lo = done = 0
    while lo < count:
        hi = max(lo + 1, bisect_right(ends, done + frame_bytes))
        yield lo, hi
        lo, done = hi, ends[hi - 1]


def scan(chunk: list[Any]) -> tuple[bool, int, int]:
    """Whether all are bytes, and if so the one length they have or -1, and the largest length."""
    if not chunk:
        return True, -1, 0
    if COMPILED:
        return _speed.scan(chunk)
    # Three C calls in a row over the types; a set of them costs twice as much.
    if not (chunk[0].__class__ is bytes and list(map(type, chunk)).count(bytes) == len(chunk)):
        return False, -1, 0
    lengths = list(map(len, chunk))
    largest = lengths[0]
    if lengths.count(largest) == len(lengths):
        return True, largest, largest
    return True, -1, max(lengths)


def keys_of(keys: Sequence[str | None] | None) -> dict[int, str]:
    chosen = {i: key for i, key in enumerate(keys or ()) if key is not None}
    for key in chosen.values():
        check_notes(key, None)
    return chosen


def check_notes(key: str | None, headers: Mapping[str, Any] | None) -> bytes | None:
    if key is not None:
        if not isinstance(key, str):
            raise ConfigError("key", f"must be a str, not {type(key).__name__}")
        if not key.isascii():
            try:
                key.encode()
            except UnicodeEncodeError as error:
                raise ConfigError("key", f"is not text that UTF-8 can carry: {error}") from None
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise ConfigError("headers", "must be a mapping with str keys")
    try:
        packed = encode_headers(headers)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError("headers", f"cannot be encoded: {error}") from None
    if len(packed) > HEADERS_BYTES_MAX:
        problem = f"{len(packed):,} bytes are more than the {HEADERS_BYTES_MAX:,} of an event"
        raise ConfigError("headers", f"{problem}: put what is large into the payload")
    return packed


def headers_fit(headers: Mapping[str, Any]) -> bool:
    """Whether an event has room for headers, and they can be encoded."""
    try:
        return check_notes(None, headers) is not None
    except ConfigError:
        return False


def encode(outlet: Outlet, data: Any) -> tuple[bytes, bool]:
    """A payload, and whether it was given as bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), True
    return encode_payload(outlet.codec, data), False


def _encode_many(outlet: Outlet, chunk: list[Any]) -> tuple[list[bytes], bool | bytes, int, int]:
    """Payloads, which of them are raw, the one length they have or -1, the largest length."""
    given, uniform, largest = scan(chunk)
    if given:
        return chunk, True, uniform, largest
    pairs = [encode(outlet, data) for data in chunk]
    flags = bytes(flag for _, flag in pairs)
    raw = bool(flags[0]) if len(set(flags)) == 1 else flags
    payloads = [payload for payload, _ in pairs]
    return payloads, raw, *scan(payloads)[1:]


class _Chunk(NamedTuple):
    """Events that were encoded together."""

    payloads: list[bytes]
    raw: bool | bytes
    uniform: int
    notes: dict[int, str]
    packed: bytes | None
    extra: int

    def runs(self, frame_bytes: int) -> Iterator[Run]:
        """Cut into frames."""
        payloads, raw, packed = self.payloads, self.raw, self.packed
        for lo, hi in cuts(payloads, self.uniform, self.extra, frame_bytes):
            yield Run(
                payloads[lo:hi] if hi - lo < len(payloads) else payloads,
                raw if isinstance(raw, bool) else raw[lo:hi],
                {i - lo: key for i, key in self.notes.items() if lo <= i < hi},
                {} if packed is None else dict.fromkeys(range(hi - lo), packed),
                self.uniform,
            )


def _encode_chunk(
    outlet: Outlet,
    topic: str,
    chunk: list[Any],
    keys: Sequence[str | None] | None,
    packed: bytes | None,
) -> _Chunk:
    """Encode some events; raises what one of them would raise by itself."""
    payloads, raw, uniform, largest = _encode_many(outlet, chunk)
    notes = keys_of(keys)
    extra = len(packed or b"") + max((4 * len(key) for key in notes.values()), default=0)
    if largest + extra > outlet.event_bytes_max:
        _check_each(outlet, topic, payloads, notes, len(packed or b""))
    return _Chunk(payloads, raw, uniform, notes, packed, extra)


def _check_each(
    outlet: Outlet, topic: str, payloads: list[bytes], notes: Mapping[int, str], headers: int
) -> None:
    for index, payload in enumerate(payloads):
        size = len(payload) + headers + 4 * len(notes.get(index, ""))
        if size > outlet.event_bytes_max:
            raise EventTooLarge(topic, size, outlet.event_bytes_max)


def _first_bad(
    outlet: Outlet,
    topic: str,
    chunk: list[Any],
    keys: Sequence[str | None] | None,
    packed: bytes | None,
) -> tuple[int, MeshError | None]:
    """The first event of a chunk that cannot be published, by its index, and why not."""
    for index, item in enumerate(chunk):
        try:
            _encode_chunk(outlet, topic, [item], keys and keys[index : index + 1], packed)
        except MeshError as error:
            return index, error
    return 0, None  # a codec that fails now and then


def runs_of(
    outlet: Outlet,
    topic: str,
    items: Iterable[Any],
    keys: Sequence[str | None] | None,
    headers: Mapping[str, Any] | None,
) -> Iterator[Run]:
    """Cut many events of one topic into runs of a frame each, encoded.

    Of an event that cannot be published, it is said after the runs of all before it.
    """
    packed = check_notes(None, headers)
    values = items if isinstance(items, list) else list(items)
    if keys is not None and len(keys) != len(values):
        raise ConfigError("keys", f"{len(keys)} keys for {len(values)} events")
    for at in range(0, len(values), RUN_EVENTS_MAX):
        chunk = values[at : at + RUN_EVENTS_MAX] if len(values) > RUN_EVENTS_MAX else values
        some = keys and keys[at : at + RUN_EVENTS_MAX]
        failed: MeshError | None = None
        try:
            encoded = _encode_chunk(outlet, topic, chunk, some, packed)
        except MeshError as error:
            good, why = _first_bad(outlet, topic, chunk, some, packed)
            failed = why or error
            encoded = _encode_chunk(outlet, topic, chunk[:good], some and some[:good], packed)
        yield from encoded.runs(outlet.size_max)
        if failed is not None:
            raise failed
