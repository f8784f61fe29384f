"""Parts of frames keep positions and columns; work messages are read back or refused."""

from __future__ import annotations

import random

import pytest

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg._wire.subframe import Work, cut, decode_work, encode_work, flags_of, parts_of


def rich_frame() -> Frame:
    return Frame(
        encode_frame(
            5,
            7,
            100,
            ["a", "b", "a", "c", "b", "a"],
            [b"zero", b"1", b"", b"three", b"4", b"five"],
            [10, 11, 12, 13, 14, 15],
            raw=bytes([1, 0, 1, 0, 1, 0]),
            keys={0: "k", 3: "l", 5: "m"},
            headers={1: encode_headers({"x": 1}), 3: encode_headers({"y": "z"})},
        )
    )


def row(frame: Frame, seq: int) -> tuple[object, ...]:
    at = seq - frame.first
    return (
        frame.topic_at(at),
        frame.payload_at(at),
        frame.key_at(at),
        dict(frame.headers_at(at)),
        frame.time_at(at),
        frame.is_raw(at),
    )


@pytest.mark.parametrize(("lo", "hi"), [(0, 6), (0, 1), (5, 6), (2, 5)])
def test_part_in_a_row_has_the_same_rows_under_the_same_numbers(lo: int, hi: int) -> None:
    whole = rich_frame()
    part = Frame(cut(whole, lo, hi))
    assert (part.stream, part.epoch, part.first, part.count) == (5, 7, 100 + lo, hi - lo)
    for seq in range(part.first, part.stop):
        assert row(part, seq) == row(whole, seq)


def test_part_of_a_plain_frame() -> None:
    whole = Frame(encode_frame(5, 7, 100, "a", [b"%d" % n for n in range(50)], 3))
    part = Frame(cut(whole, 10, 30))
    assert [row(part, seq) for seq in range(110, 130)] == [row(whole, s) for s in range(110, 130)]


def test_chosen_events_are_whole_and_the_others_blank() -> None:
    whole = rich_frame()
    part = Frame(cut(whole, 1, 6, [1, 3, 5]))
    assert part.first == 101
    for seq in (101, 103, 105):
        assert row(part, seq) == row(whole, seq)
    for seq in (102, 104):
        assert part.payload_at(seq - 101) == b""
        assert part.key_at(seq - 101) is None
        assert part.headers_at(seq - 101) == {}


@pytest.mark.parametrize(
    "work",
    [
        Work(b"", 0, 6, None, 1),
        Work(b"", 2, 5, None, 3),
        Work(b"", 1, 6, [1, 3, 5], 1),
        Work(b"", 1, 6, [1, 3, 5], 0, [1, 2, 9]),
        Work(b"", 1, 3, None, 0, [4, 1]),
    ],
)
def test_work_message_is_read_back(work: Work) -> None:
    data = rich_frame().data
    sent = Work(data, work.lo, work.hi, work.chosen, work.attempt, work.attempts)
    frame, got = decode_work(99, encode_work(99, sent))
    assert frame.data == data
    assert got == sent
    assert got.count == (work.hi - work.lo if work.chosen is None else len(work.chosen))


def test_work_for_somebody_else_is_refused() -> None:
    message = encode_work(99, Work(rich_frame().data, 0, 6, None, 1))
    with pytest.raises(ProtocolError, match="for this member"):
        decode_work(98, message)


@pytest.mark.parametrize(
    "work",
    [
        Work(b"", 0, 7, None, 1),
        Work(b"", 3, 3, None, 1),
        Work(b"", 0, 6, [1, 1], 1),
        Work(b"", 0, 6, [3, 2], 1),
        Work(b"", 0, 6, [6], 1),
        Work(b"", 2, 6, [1], 1),
        Work(b"", 0, 2, None, 0, [1, 0]),
        Work(b"", 0, 2, None, 2_000_000),
    ],
)
def test_places_and_attempts_out_of_range_are_refused(work: Work) -> None:
    sent = Work(rich_frame().data, work.lo, work.hi, work.chosen, work.attempt, work.attempts)
    with pytest.raises(ProtocolError):
        decode_work(99, encode_work(99, sent))


def test_harmed_work_messages_are_refused_or_read() -> None:
    rng = random.Random(4)
    good = encode_work(99, Work(rich_frame().data, 1, 6, [1, 3, 5], 0, [1, 2, 9]))
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        data = bytes(bad[: rng.randint(0, len(bad))])
        try:
            frame, work = decode_work(99, data)
        except ProtocolError:
            continue
        assert work.hi <= frame.count


def test_numbers_are_cut_where_blanks_would_cost_too_much() -> None:
    assert parts_of([1, 2, 3]) == [(0, 3)]
    assert parts_of([1, 30, 500, 510, 9000]) == [(0, 2), (2, 4), (4, 5)]


def test_flags_are_read_without_the_rest() -> None:
    assert flags_of(rich_frame().data) == rich_frame().flags
