"""Entries of a log's tail: an entry is read whole and unharmed, or not at all."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import Frame
from meshmsg._wire.tail_frame import (
    ENTRY,
    TAIL_ROWS_MAX,
    TailFrame,
    padded,
    pass_over,
    read_entries,
    read_entry,
)

SALT = 12345


def frame_on(area: bytearray, at: int = 0) -> TailFrame:
    frame = TailFrame(10)
    frame.use(memoryview(area), at, SALT)
    return frame


@pytest.mark.parametrize(
    ("key", "headers", "raw", "payload"),
    [(None, None, True, b"x"), ("", None, False, b""), ("kü", b"\x80", True, b"y" * 100)],
)
def test_an_event_stands_in_the_area_and_in_the_frame(
    key: str | None, headers: bytes | None, raw: bool, payload: bytes
) -> None:
    area = bytearray(1024)
    frame = frame_on(area, 16)
    assert frame.add("tü", payload, -5, raw=raw, key=key, headers=headers)
    entry = read_entry(bytes(area), 16, SALT)
    assert entry is not None
    assert entry[:-1] == (0, "tü", payload, -5, raw, key, headers)
    assert (entry.end, entry.end % 8, frame.at) == (frame.at, 0, frame.at)
    sealed = Frame(frame.seal(7, 8))
    assert (sealed.first, sealed.payloads.at(0), sealed.key_at(0)) == (10, payload, key)


def test_entries_follow_each_other_and_are_counted() -> None:
    area = bytearray(1024)
    frame = frame_on(area)
    for n in range(3):
        assert frame.add("t", b"%d" % n, n)
    at, found = 0, []
    while (entry := read_entry(bytes(area), at, SALT)) is not None:
        found.append((entry.number, entry.payload))
        at = entry.end
    assert found == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_entries_are_read_up_to_the_first_that_is_not_whole() -> None:
    area = bytearray(1024)
    frame, places = frame_on(area), []
    for n in range(5):
        places.append(frame.at)
        assert frame.add("t" if n % 2 else "tü", b"%d" % n, n, key="k" if n == 3 else None)
    found = read_entries(bytes(area), 0, SALT, 0)
    assert [entry.payload for entry in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert read_entries(bytes(area), places[2], SALT, 2) == found[2:]
    assert read_entries(bytes(area), places[2], SALT, 1) == []  # another one stands there
    area[places[3] + ENTRY.size] ^= 1
    assert read_entries(bytes(area), 0, SALT, 0) == found[:3]


def test_entries_are_passed_over_unread() -> None:
    area = bytearray(1024)
    frame, places = frame_on(area), []
    for n in range(5):
        places.append(frame.at)
        assert frame.add("t", b"x" * n, n)
    assert [pass_over(bytes(area), 0, n) for n in range(5)] == places
    assert pass_over(bytes(area), 0, 6) is None  # there is none yet
    assert pass_over(bytes(area), places[1], 2) == places[3]
    assert pass_over(bytes(area[: places[4]]), 0, 5) is None


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    size = padded(ENTRY.size + 1 + 8)
    area = bytearray(size)
    frame = frame_on(area)
    assert not frame.add("t", b"123456789" * 2, 0)
    assert (frame.count, frame.at, bytes(area)) == (0, 0, bytes(size))
    assert frame.add("t", b"12345678", 0)
    assert not frame.add("t", b"", 0)


def test_a_frame_has_a_bound_of_rows() -> None:
    area = bytearray((TAIL_ROWS_MAX + 2) * padded(ENTRY.size + 1))
    frame = frame_on(area)
    added = sum(frame.add("t", b"", 0) for _ in range(TAIL_ROWS_MAX + 2))
    assert added == TAIL_ROWS_MAX


def test_every_byte_of_an_entry_is_checked() -> None:
    area = bytearray(256)
    frame_on(area).add("t", b"xyz", 5, key="k", headers=b"\x80")
    used = ENTRY.unpack_from(area)[0]
    for at in range(used):
        bad = bytearray(area)
        bad[at] ^= 1
        assert read_entry(bytes(bad), 0, SALT) is None, at
    assert read_entry(bytes(area), 0, SALT + 1) is None
    assert read_entry(bytes(area[: used - 1]), 0, SALT) is None
    assert read_entry(b"", 0, SALT) is None
    assert read_entry(bytes(256), 0, SALT) is None


def test_a_frame_that_let_go_of_its_memory_takes_nothing() -> None:
    frame = frame_on(bytearray(256))
    frame.shut = False
    frame.release()
    assert frame.shut
    assert not frame.add("t", b"x", 0)
