"""A frame is encoded alike by both cores, and reads back as what was put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshmsg._wire.frame import Frame
from meshmsg._wire.frame_encoder import encode_frame, encode_frame_in_python, encode_headers
from meshmsg._wire.frame_layout import ENCODINGS, HEADERS, KEYS, RAW, TIMES, TOPIC_INDEX

each_way = pytest.mark.parametrize("encode", list({encode_frame, encode_frame_in_python}))
Encode = Callable[..., bytes]


@each_way
@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, RAW),
        ({"raw": False}, 0),
        ({"raw": b"\1\0\1"}, ENCODINGS),
        ({"topics": ["a", "a", "a"]}, RAW),
        ({"topics": ["a", "ü", "a"]}, RAW | TOPIC_INDEX),
        ({"times": [5, 5, 5]}, RAW),
        ({"times": [5, 4, -6]}, RAW | TIMES),
        ({"keys": {1: "kü"}}, RAW | KEYS),
        ({"keys": {}}, RAW),
        ({"headers": dict.fromkeys(range(3), b"\x80")}, RAW | HEADERS),
        ({"keys": {0: ""}, "headers": {2: b"\x81\xa1n\x01"}}, RAW | KEYS | HEADERS),
    ],
)
def test_what_was_put_in_comes_out(encode: Encode, fields: dict[str, Any], flags: int) -> None:
    given = {"topics": "a", "times": 5, "raw": True, "keys": None, "headers": None} | fields
    payloads = [b"", b"x", b"yz"]
    topics, times = given.pop("topics"), given.pop("times")
    frame = Frame(encode(7, 8, 40, topics, payloads, times, **given))
    assert (frame.stream, frame.epoch, frame.first, frame.count) == (7, 8, 40, 3)
    assert frame.flags == flags
    assert frame.payloads.split(0, 3) == payloads
    for n in range(3):
        assert frame.topic_at(n) == (topics if isinstance(topics, str) else topics[n])
        assert frame.time_at(n) == (times if isinstance(times, int) else times[n])
        assert frame.key_at(n) == (given["keys"] or {}).get(n)
        raw = given["raw"]
        assert frame.is_raw(n) == (raw if isinstance(raw, bool) else bool(raw[n]))


@each_way
def test_a_length_that_is_known_makes_the_same_bytes(encode: Encode) -> None:
    payloads = [b"1234"] * 100
    assert encode(7, 8, 0, "a", payloads, 5, length=4) == encode(7, 8, 0, "a", payloads, 5)


@pytest.mark.parametrize("count", [1, 2, 8, 65, 300])
def test_both_ways_make_the_same_bytes(count: int) -> None:
    args = (7, 8, 0, [f"t{n % 3}" for n in range(count)], [b"x" * (n % 5) for n in range(count)])
    more = {
        "keys": {n: f"k{n}" for n in range(0, count, 2)},
        "raw": bytes([n % 2 for n in range(count)]),
    }
    one = encode_frame(*args, list(range(count)), **more)  # type: ignore[arg-type]
    assert one == encode_frame_in_python(*args, list(range(count)), **more)  # type: ignore[arg-type]


def test_headers_are_a_msgpack_map() -> None:
    assert encode_headers({}) == b"\x80"
    assert encode_headers({"n": 1}) == b"\x81\xa1n\x01"
