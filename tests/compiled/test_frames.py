"""The compiled encoder and decoder give and take exactly what those in Python do."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg._native import COMPILED
from meshmsg._wire import frame as _frame
from meshmsg._wire.frame import FrameBuilder, encode_frame_in_python, encode_headers
from tests.long.test_fuzz_frames import harm, harm_header, mend, some_frame
from tests.support.both_ways import check_read_alike
from tests.unit.meshmsg._wire.test_frame import EPOCH, STREAM, Events, batches

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)
if COMPILED:
    from meshmsg import _speed

SHORT = 1_500


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 767, 768, 769, 6143, 6144, 6145, 70_001])
@pytest.mark.parametrize("by_table", [False, True])
def test_checksum_is_that_of_the_package(size: int, by_table: bool) -> None:
    data = random.Random(size).randbytes(size)
    assert _speed.crc32c(data, by_table) == crc32c(data)


def encodings(events: Events) -> tuple[bytes, bytes]:
    packed = {index: encode_headers(value) for index, value in events.headers.items()}
    columns = (events.topics, events.payloads, events.times)
    notes: dict[str, Any] = {"raw": events.raw, "keys": events.keys, "headers": packed}
    compiled = _speed.encode_frame(STREAM, EPOCH, events.first, *columns, **notes)
    return compiled, encode_frame_in_python(STREAM, EPOCH, events.first, *columns, **notes)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_encoders_give_the_same_bytes(events: Events) -> None:
    compiled, pure = encodings(events)
    assert compiled == pure
    check_read_alike(compiled)


@settings(max_examples=200, deadline=None)
@given(batches(), st.booleans())
def test_open_frames_are_encoded_alike(events: Events, fresh: bool) -> None:
    first = min(events.first, 1 << 62)
    builders: list[Any] = [FrameBuilder(first), _speed.OpenFrame(first)]
    if not fresh:  # filled and sealed once, so that rows and columns are used again
        for builder in builders:
            builder.add("old", b"old", 3)
            builder.annotate("old", None)
            builder.seal(STREAM, EPOCH, 0)
    frames: list[list[bytes]] = [[], []]
    for builder, sealed in zip(builders, frames, strict=True):
        for index, payload in enumerate(events.payloads):
            topic = events.topics if isinstance(events.topics, str) else events.topics[index]
            time = events.times if isinstance(events.times, int) else events.times[index]
            raw = events.raw if isinstance(events.raw, bool) else bool(events.raw[index])
            if len(builder) == FrameBuilder.CAPACITY_MIN:  # both have room for so many
                sealed.append(builder.seal(STREAM, EPOCH))
            assert builder.add(topic, payload, time, raw=raw) == builder.next - 1
            key, headers = events.keys.get(index), events.headers.get(index)
            if key is not None or headers is not None:
                builder.annotate(key, None if headers is None else encode_headers(headers))
        assert builder.is_open()
        assert not builder.reserve(1)
        sealed.append(builder.seal(STREAM, EPOCH))
        assert not builder.is_open()
        assert not builder.notes
        assert builder.reserve(5)
    assert frames[0] == frames[1]
    assert builders[0].next == builders[1].next


def test_open_frame_that_is_interrupted_is_sealed_again() -> None:
    frame = _speed.OpenFrame(7)
    frame.add("a", b"x", 1)
    assert frame.begin() == (7, 1)
    frame.add("a", b"y", 2)
    assert frame.begin() == (7, 1)
    assert frame.first_at(2) == 0
    first = frame.encode(STREAM, EPOCH)
    assert frame.encode(STREAM, EPOCH) == first
    frame.finish()
    frame.finish()
    assert frame.begin() == (8, 1)
    assert len(frame) == 0


def test_open_frame_is_full_at_last_and_larger_the_next_time() -> None:
    frame = _speed.OpenFrame()
    for capacity in (64, 256, 1024, 4096, 4096):
        for _ in range(capacity):
            frame.add("a", b"", 0)
        with pytest.raises(IndexError):
            frame.add("a", b"", 0)
        assert _frame.Frame(frame.seal(STREAM, EPOCH)).count == capacity


def test_open_frame_takes_only_what_it_can_encode() -> None:
    frame = _speed.OpenFrame()
    wrong: list[tuple[Any, ...]] = [(b"a", b"", 0), ("a", "", 0), ("a", b"", None), ("a", b"")]
    for arguments in wrong:
        with pytest.raises(TypeError):
            frame.add(*arguments)
    with pytest.raises(AssertionError):
        frame.encode(STREAM, EPOCH)
    assert not frame.is_open()


def test_encoder_refuses_what_makes_no_frame() -> None:
    good: list[Any] = [STREAM, EPOCH, 0, "a", [b""], 0]
    wrong: list[tuple[int, Any]] = [
        (0, -1),
        (0, 1 << 64),
        (1, "x"),
        (3, ["a", "b"]),
        (3, [b"a"]),
        (3, "\ud800"),
        (4, []),
        (4, [b""] * 65_536),
        (4, ["text"]),
        (4, [None]),
        (4, 5),
        (5, [1, 2]),
        (5, [1 << 63]),
        (5, ["x"]),
    ]
    for place, value in wrong:
        arguments = [*good]
        arguments[place] = value
        with pytest.raises((TypeError, ValueError, OverflowError, AssertionError)):
            _speed.encode_frame(*arguments)
    notes: list[dict[str, Any]] = [
        {"keys": {1: "k"}},
        {"keys": {0: b"k"}},
        {"keys": {"0": "k"}},
        {"headers": {-1: b""}},
        {"headers": {0: "x"}},
        {"raw": b""},
        {"raw": None},
        {"other": 1},
    ]
    for note in notes:
        with pytest.raises((TypeError, IndexError)):
            _speed.encode_frame(*good, **note)


def test_decoder_helpers_never_read_outside_of_the_data() -> None:
    data = _speed.encode_frame(STREAM, EPOCH, 0, "a", [b"one", b"two"], 0)
    column = _frame.Frame(data).payloads
    places = (column._offsets_at, column._blob_at, column._blob_stop, 2)
    assert _speed.split(data, *places, 0, 2) == [b"one", b"two"]
    edges = (-(1 << 63), -1, 0, 1, len(data) - 4, len(data), len(data) + 1, (1 << 63) - 1)
    for at in range(4):
        for edge in edges:
            changed = [*places]
            changed[at] = edge
            try:
                _speed.column_length(data, *changed)
                _speed.split(data, *changed, 0, max(0, min(edge, 2)))
            except (ValueError, IndexError, _frame.ProtocolError):
                pass
    for lo, hi in ((-1, 1), (1, 0), (0, 3), (3, 3)):
        with pytest.raises(IndexError):
            _speed.split(data, *places, lo, hi)


def check_harmed(number: int, seed: int) -> None:
    rng = random.Random(seed)
    for case in range(number):
        data = some_frame(rng)
        data = harm_header(data, rng) if rng.random() < 0.4 else harm(data, rng)
        data = mend(data, rng)
        try:
            check_read_alike(data)
        except BaseException as error:
            raise AssertionError(f"case {case} of seed {seed}: {data.hex()}") from error


def test_harmed_frames_are_taken_or_refused_alike() -> None:
    check_harmed(SHORT, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_harmed_frames_are_taken_or_refused_alike() -> None:
    check_harmed(int(os.environ.get("FUZZ_FRAMES", SHORT)), seed=2)


def test_every_cut_of_a_frame_is_refused_alike() -> None:
    rng = random.Random(3)
    for _ in range(6):
        data = some_frame(rng)
        for size in range(0, len(data), 1 + len(data) // 200):
            cut = data[:size]
            check_read_alike(cut)
            if size >= 20:
                cut = cut[:16] + size.to_bytes(4, "little") + cut[20:]
                check = crc32c(cut[16:], crc32c(cut[:12])).to_bytes(4, "little")
                check_read_alike(cut[:12] + check + cut[16:])


def test_refused_frames_leave_nothing_behind() -> None:
    rng = random.Random(4)
    harmed = [mend(harm_header(some_frame(rng), rng), rng) for _ in range(50)]

    def read_all() -> None:
        for data in harmed:
            try:
                _frame.Frame(data)
            except _frame.ProtocolError:
                pass

    for _ in range(5):
        read_all()
    before = sys.getallocatedblocks()
    for _ in range(50):
        read_all()
    assert sys.getallocatedblocks() - before < 100


def test_a_frame_that_was_not_read_gives_no_batch_but_an_error() -> None:
    from meshmsg._model.codecs import codec_for

    empty = object.__new__(_frame.Frame)
    with pytest.raises(AttributeError, match="has no count"):
        _speed.whole_batch(empty, "p/s", codec_for("msgpack"))
