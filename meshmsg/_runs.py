"""`Run`: encoded events of one topic that become one frame, and what goes with them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from meshmsg._compiled import COMPILED
from meshmsg._errors import ConfigError
from meshmsg._frame import encode_headers

if COMPILED:
    from meshmsg import _speed

#: What an event costs in a frame of one topic and one time beside its payload.
OFFSET_COST = 4


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


def keys_of(keys: Sequence[str | None] | None, at: int, count: int) -> dict[int, str]:
    if keys is None:
        return {}
    chosen = {i: key for i, key in enumerate(keys[at : at + count]) if key is not None}
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
        return encode_headers(headers)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError("headers", f"cannot be encoded: {error}") from None
