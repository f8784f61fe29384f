"""The open frame of a stream: numbers are given once, and an interrupted seal is made again."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import Frame
from meshmsg._wire.frame_builder import FrameBuilder


def filled(count: int, first: int = 10) -> FrameBuilder:
    builder = FrameBuilder(first)
    for n in range(count):
        builder.add("t", b"%d" % n, 100 + n)
    return builder


def test_events_get_the_next_number_each() -> None:
    builder = FrameBuilder(10)
    assert not builder.is_open()
    assert [builder.add("t", b"x", 0), builder.add("t", b"x", 0)] == [10, 11]
    assert (len(builder), builder.next, builder.is_open()) == (2, 12, True)


def test_a_sealed_frame_has_all_that_was_added_and_leaves_it_empty() -> None:
    builder = FrameBuilder(10)
    builder.add("a", b"x", 5)
    builder.annotate("k", None)
    builder.add("b", b"y", 6, raw=False)
    builder.annotate(None, b"\x80")
    frame = Frame(builder.seal(7, 8))
    assert (frame.first, frame.count, frame.key_at(0), frame.key_at(1)) == (10, 2, "k", None)
    assert [frame.topic_at(n) for n in range(2)] == ["a", "b"]
    assert [frame.is_raw(n) for n in range(2)] == [True, False]
    assert (builder.count, builder.first, builder.notes) == (0, 12, {})


def test_an_interrupted_seal_is_made_again_while_others_add() -> None:
    builder = filled(2)
    assert builder.begin() == (10, 2)
    builder.add("t", b"later", 0)
    builder.annotate("k", None)
    assert builder.begin() == (10, 2)
    assert Frame(builder.encode(7, 8)).count == 2
    builder.finish()
    assert builder.is_open()
    later = Frame(builder.seal(7, 8))
    assert (later.first, later.key_at(0)) == (12, "k")
    builder.finish()  # nothing was begun
    assert not builder.is_open()


def test_a_frame_may_be_sealed_under_another_number() -> None:
    assert Frame(filled(1).seal(7, 8, first=99)).first == 99


def test_numbers_are_passed_over_only_where_no_events_wait() -> None:
    builder = FrameBuilder(10)
    assert builder.reserve(5)
    assert builder.add("t", b"x", 0) == 15
    assert not builder.reserve(5)
    assert builder.next == 16


def test_a_full_frame_refuses_and_the_next_ones_are_larger() -> None:
    builder = filled(FrameBuilder.CAPACITY_MIN)
    with pytest.raises(IndexError):
        builder.add("t", b"x", 0)
    assert builder.count == FrameBuilder.CAPACITY_MIN
    builder.seal(7, 8)
    for _ in range(20):
        room = len(builder.payloads)
        for _ in range(room):
            builder.add("t", b"x", 0)
        builder.seal(7, 8)
    assert len(builder.payloads) == FrameBuilder.CAPACITY_MAX


def test_payloads_that_were_sealed_are_let_go() -> None:
    builder = filled(3)
    first, count, columns = builder.take()
    assert (first, count, columns[1][:3]) == (10, 3, [b"0", b"1", b"2"])
    builder.give_back(columns, count)
    assert columns[1][:3] == [None] * 3


def test_a_time_is_found_among_the_events() -> None:
    builder = filled(3)
    assert [builder.first_at(t) for t in (0, 100, 101, 102, 103)] == [0, 0, 1, 2, 3]
