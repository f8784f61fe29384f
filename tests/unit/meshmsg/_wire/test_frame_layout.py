"""Columns of integers, and offsets that are ready made."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame_layout import (
    CHECK_AT,
    HEADER,
    PAD,
    UniformOffsets,
    check_of,
    column,
    read_column,
)


@pytest.mark.parametrize(
    ("code", "values"),
    [("H", [0, 65535]), ("I", [0, 1, 0xFFFFFFFF]), ("q", [-1, 1 << 62]), ("I", [])],
)
def test_a_column_is_little_endian_and_comes_back(code: str, values: list[int]) -> None:
    data = column(code, values)
    assert read_column(code, memoryview(data)).tolist() == values
    if values:
        size = len(data) // len(values)
        assert data[:size] == values[0].to_bytes(size, "little", signed=code == "q")


@pytest.mark.parametrize("count", [1, 63, 64, 100, 4096, 4097])
@pytest.mark.parametrize("length", [0, 1, 8, 1000, UniformOffsets.LENGTH_MAX + 1])
def test_offsets_of_equal_items_are_the_multiples_of_their_length(length: int, count: int) -> None:
    count = min(count, 0xFFFFFFFF // max(1, length))
    table = UniformOffsets()
    for _ in range(2):
        made = read_column("I", memoryview(table.offsets(length, count)))
        assert made.tolist() == [length * n for n in range(count + 1)]


def test_tables_are_bounded_and_small_frames_make_none() -> None:
    table = UniformOffsets()
    for length in range(1, 3 * UniformOffsets.LENGTHS_MAX):
        table.offsets(length, UniformOffsets.EVENTS_MIN - 1)
    assert not table._tables
    for length in range(1, 3 * UniformOffsets.LENGTHS_MAX):
        table.offsets(length, UniformOffsets.EVENTS_MIN)
        assert len(table._tables) <= UniformOffsets.LENGTHS_MAX


def test_the_check_covers_all_but_itself() -> None:
    data = bytes(range(HEADER.size))
    check = check_of(data)
    for at in range(len(data)):
        changed = check_of(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert (changed == check) == (CHECK_AT <= at < CHECK_AT + 4), at


def test_padding_reaches_the_next_multiple_of_eight() -> None:
    assert all((size + len(PAD[size & 7])) % 8 == 0 for size in range(20))
