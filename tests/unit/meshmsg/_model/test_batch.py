"""Batches: columns of a whole frame, of a slice, of chosen events, and as Arrow tables."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg._model.batch import Batch
from meshmsg._model.codecs import (
    Codec,
    JsonCodec,
    MsgpackCodec,
    Undecodable,
    UnknownCodec,
    decode_payloads,
)
from meshmsg._model.errors import ConfigError
from meshmsg._model.event import Position
from meshmsg._wire.frame import Frame, encode_frame, encode_headers

STREAM = "pricing/orders.**"
CODEC = MsgpackCodec()


def frame_of(count: int, *, seed: int = 1, plain: bool = False, first: int = 100) -> Frame:
    """Events whose every column differs; a plain frame has no optional section."""
    if plain:
        payloads = [CODEC.encode(n % 100) for n in range(count)]
        return Frame(encode_frame(7, 1700, first, "orders.eu", payloads, 5, raw=False))
    rng = random.Random(seed)
    raws = bytes(rng.random() < 0.3 for _ in range(count))
    return Frame(
        encode_frame(
            7,
            1700,
            first,
            [f"orders.{rng.choice('abc')}" for _ in raws],
            [
                rng.randbytes(rng.randrange(6)) if raw else CODEC.encode({"n": n})
                for n, raw in enumerate(raws)
            ],
            [1000 + rng.randrange(50) for _ in raws],
            raw=raws,
            keys={n: f"key-{n}" for n in range(count) if rng.random() < 0.5},
            headers={n: encode_headers({"n": n}) for n in range(count) if rng.random() < 0.5},
        )
    )


def views(frame: Frame, seed: int = 1) -> list[Batch]:
    """The frame as a whole, cut, and filtered."""
    rng = random.Random(seed)
    low = rng.randrange(frame.count)
    high = rng.randrange(low + 1, frame.count + 1)
    kept = [i for i in range(low, high) if rng.random() < 0.5]
    return [
        Batch(frame, STREAM, CODEC),
        Batch(frame, STREAM, CODEC, low, high),
        Batch(frame, STREAM, CODEC, low, high, kept),
        Batch(frame, STREAM, CODEC, low, high, []),
    ]


# Columns ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 1 << 32), st.booleans())
def test_columns_agree_with_the_events(count: int, seed: int, plain: bool) -> None:
    for batch in views(frame_of(count, seed=seed, plain=plain), seed):
        events = list(batch)
        assert len(batch) == len(events) == len(batch.events())
        assert batch.payloads == [event.payload for event in events]
        assert batch.data == [event.data for event in events]
        assert batch.topics == [event.topic for event in events]
        assert batch.keys == [event.key for event in events]
        assert batch.headers == [event.headers for event in events]
        assert batch.times_ns == [event.time_ns for event in events]
        assert list(batch.seqs) == [event.seq for event in events]
        assert list(batch.indices) == [seq - batch.frame.first for seq in batch.seqs]


def test_a_slice_knows_where_it_starts_and_where_the_next_one_does() -> None:
    batch = Batch(frame_of(10), STREAM, CODEC, 3, 7, [4, 6])
    assert (batch.epoch, batch.first, batch.stop) == (1700, 103, 107)
    assert list(batch.seqs) == [104, 106]
    assert batch.position == Position(STREAM, 1700, 103)
    assert repr(batch) == "<Batch of 2 from pricing/orders.**@1700:103>"


def test_columns_are_made_once() -> None:
    batch = Batch(frame_of(10), STREAM, CODEC)
    assert batch.payloads is batch.payloads
    assert batch.data is batch.data


@pytest.mark.parametrize("keep", [None, [0, 1, 2]])
def test_undecodable_payload_stays_alone(keep: list[int] | None) -> None:
    payloads = [CODEC.encode(1), b"\xc1", CODEC.encode(3)]
    frame = Frame(encode_frame(7, 1, 0, "a", payloads, 0, raw=False))
    data = Batch(frame, STREAM, CODEC, keep=keep).data
    assert (data[0], data[2]) == (1, 3)
    assert isinstance(data[1], Undecodable)


def test_truncated_payload_stays_alone() -> None:
    payloads = [CODEC.encode([1, 2]), CODEC.encode([1, 2])[:-1], CODEC.encode("x")]
    frame = Frame(encode_frame(7, 1, 0, "a", payloads, 0, raw=False))
    data = Batch(frame, STREAM, CODEC).data
    assert (data[0], data[2]) == ([1, 2], "x")
    assert isinstance(data[1], Undecodable)


@pytest.mark.parametrize(
    "payloads",
    [
        [b"\x92\x01", b"\x02\x05"],
        [b"\x01\x02", b""],
        [b"", b"\x01\x02"],
        [b"\xa2a", b"bc", b"\x01\x02"],
        [b"\x81\xa1a", b"\x01", b"\x01\x02"],
        [b"\xc1", b"\x01"],
        [b"\xdd\x00\x00\x00\x02\x01", b"\x02\x05"],
    ],
)
@pytest.mark.parametrize("codec", [CODEC, MsgpackCodec(int | list[int] | str), JsonCodec()])
def test_a_payload_ends_where_it_ends(payloads: list[bytes], codec: Codec) -> None:
    """Joined, they would be as many values: but they are not one value each."""
    wanted = decode_payloads(codec, payloads)
    assert any(isinstance(value, Undecodable) for value in wanted)
    frame = Frame(encode_frame(7, 1, 0, "a", payloads, 0, raw=False))
    count = len(payloads)
    whole = Batch(frame, STREAM, codec)
    assert whole.data == [event._data for event in whole.events()] == wanted
    assert Batch(frame, STREAM, codec, keep=list(range(count))).data == wanted
    assert Batch(frame, STREAM, codec, 1, count).data == wanted[1:]
    mixed = Frame(encode_frame(7, 1, 0, "a", [b"x", *payloads], 0, raw=b"\1" + bytes(count)))
    assert Batch(mixed, STREAM, codec, 1, count + 1).data == wanted


def test_every_payload_of_an_unknown_codec_says_what_to_do() -> None:
    frame = frame_of(3, plain=True)
    for value in Batch(frame, STREAM, UnknownCodec("cbor")).data:
        assert isinstance(value, Undecodable)
        assert "give subscribe(codec=...)" in value.reason


def test_other_codecs_decode_one_by_one() -> None:
    frame = Frame(encode_frame(7, 1, 0, "a", [b"1", b"{", b'"x"'], 0, raw=False))
    data = Batch(frame, STREAM, JsonCodec()).data
    assert (data[0], data[2]) == (1, "x")
    assert isinstance(data[1], Undecodable)


def test_raw_payloads_pass_by_the_codec_in_a_mixed_frame() -> None:
    payloads = [CODEC.encode({"a": 1}), b"\xc1 not msgpack", CODEC.encode(2)]
    frame = Frame(encode_frame(7, 1, 0, "a", payloads, 0, raw=b"\0\1\0"))
    assert Batch(frame, STREAM, CODEC).data == [{"a": 1}, b"\xc1 not msgpack", 2]
    assert Batch(frame, STREAM, CODEC, 1, 3, [1]).data == [b"\xc1 not msgpack"]


# Arrow -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 1 << 32), st.booleans())
def test_arrow_table_has_the_values_of_the_columns(count: int, seed: int, plain: bool) -> None:
    for batch in views(frame_of(count, seed=seed, plain=plain), seed):
        table = batch.to_arrow()
        table.validate(full=True)
        column = {name: table[name].to_pylist() for name in table.column_names if name != "time"}
        size = len(batch)
        assert table.num_rows == size
        assert column["stream"] == [STREAM] * size
        assert column["epoch"] == [1700] * size
        assert column["seq"] == list(batch.seqs)
        assert column["topic"] == batch.topics
        assert column["key"] == batch.keys
        assert column["payload"] == batch.payloads
        assert table["time"].cast(pa.int64()).to_pylist() == batch.times_ns
        packed = [None if h is None else CODEC.decode(h) for h in column["headers"]]
        assert [h or {} for h in packed] == batch.headers


def test_arrow_types_are_pinned_whatever_a_frame_holds() -> None:
    wanted = {
        "stream": "dictionary<values=string, indices=int32, ordered=0>",
        "epoch": "int64",
        "seq": "int64",
        "topic": "dictionary<values=string, indices=int32, ordered=0>",
        "key": "string",
        "headers": "binary",
        "time": "timestamp[ns, tz=UTC]",
        "payload": "binary",
    }
    for plain in (False, True):
        schema = Batch(frame_of(9, plain=plain), STREAM, CODEC).to_arrow().schema
        assert {field.name: str(field.type) for field in schema} == wanted


def test_arrow_tables_of_different_frames_can_be_joined() -> None:
    frames = [frame_of(5), frame_of(3, plain=True, first=105), frame_of(4, seed=2, first=108)]
    tables = [Batch(frame, STREAM, CODEC).to_arrow() for frame in frames]
    joined = pa.concat_tables(tables)
    assert joined["seq"].to_pylist() == list(range(100, 112))


def test_arrow_payloads_lie_in_the_frame_and_are_not_copied() -> None:
    frame = frame_of(50)
    chunk = Batch(frame, STREAM, CODEC).to_arrow()["payload"].chunk(0)
    assert chunk.buffers()[2].to_pybytes() == frame.payloads.blob
    frame_at = pa.py_buffer(frame.data).address
    assert frame_at < chunk.buffers()[2].address < frame_at + len(frame.data)


def test_arrow_reads_a_key_that_is_not_utf8_as_the_event_does() -> None:
    data = bytearray(encode_frame(7, 1, 0, "a", [b"", b""], 0, keys={0: "kk", 1: "good"}))
    at = data.index(b"kk")
    data[at : at + 2] = b"\xff\xfe"
    data[12:16] = crc32c(bytes(data[16:]), crc32c(bytes(data[:12]))).to_bytes(4, "little")
    batch = Batch(Frame(bytes(data)), STREAM, CODEC)
    assert batch.to_arrow()["key"].to_pylist() == batch.keys == ["\ufffd\ufffd", "good"]


def test_arrow_takes_times_at_both_ends_of_the_clock() -> None:
    ends = [-(1 << 63), (1 << 63) - 1]
    batch = Batch(Frame(encode_frame(7, 1, 0, "a", [b"", b""], ends)), STREAM, CODEC)
    assert batch.to_arrow()["time"].cast(pa.int64()).to_pylist() == ends


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshmsg\[arrow\]'"):
        Batch(frame_of(1), STREAM, CODEC).to_arrow()


def steps_of(run: Callable[[], object]) -> int:
    """How many lines and calls, Python's and C's, it takes."""
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    gc.disable()  # what is called when it collects counts as well
    sys.setprofile(count)
    sys.settrace(count)
    try:
        run()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        gc.enable()
    return steps


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_arrow_takes_as_many_steps_for_ten_events_as_for_ten_thousand(
    plain: bool, filtered: bool
) -> None:
    """No loop over events hides in it: a line run once for each would show here."""

    def batch(count: int) -> Batch:
        keep = list(range(1, count - 1)) if filtered else None
        return Batch(frame_of(count, plain=plain), STREAM, CODEC, 1, count - 1, keep)

    small, large = batch(10), batch(10_000)
    small.to_arrow()  # what is imported is imported
    assert abs(steps_of(large.to_arrow) - steps_of(small.to_arrow)) <= 5


def test_the_step_counter_sees_a_loop() -> None:
    """Otherwise the test above would prove nothing."""
    assert steps_of(lambda: [n for n in range(1000)]) > 1000  # noqa: C416
