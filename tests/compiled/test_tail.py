"""The compiled tail writes exactly the bytes that the one in Python writes, and refuses alike."""

from __future__ import annotations

import ast
import mmap
import os
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmsg._native import COMPILED
from meshmsg._wire.frame import Frame, encode_headers
from meshmsg._wire.tail_frame import (
    ENTRY,
    TAIL_ROWS_MAX,
    TailEntry,
    padded,
    read_entries,
    read_entry,
)
from tests.support import processes
from tests.support.programs.pure_tail import Row, fill
from tests.unit.meshmsg._wire.test_frame import EPOCH, STREAM, Events, batches

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)
if COMPILED:
    from meshmsg import _speed

START = 64
SALT = crc32c(b"saltsalt")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

#: One program fills the tails of all examples.
ONE_PROGRAM = [HealthCheck.function_scoped_fixture]


def rows_of(events: Events) -> list[Row]:
    """The events as a tail takes them."""
    rows = []
    for n, payload in enumerate(events.payloads):
        headers = events.headers.get(n)
        rows.append(
            (
                events.topics if isinstance(events.topics, str) else events.topics[n],
                payload,
                events.times if isinstance(events.times, int) else events.times[n],
                events.raw if isinstance(events.raw, bool) else bool(events.raw[n]),
                events.keys.get(n),
                None if headers is None else encode_headers(headers),
            )
        )
    return rows


def compiled(rows: list[Row], size: int, first: int = 0) -> tuple[list[Any], bytes, bytes | None]:
    """As `fill`, by the compiled tail."""
    return fill(_speed.TailFrame(first), rows, size, START, SALT, STREAM, EPOCH)


class Pure:
    """The tail in Python, in a process that does without the compiled core."""

    def __init__(self) -> None:
        self._process = processes.start(
            processes.program("pure_tail"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MESHMSG_PURE": "1"},
        )

    def __call__(
        self, rows: list[Row], size: int, first: int = 0
    ) -> tuple[list[Any], bytes, bytes | None]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(repr((rows, size, first, START, SALT, STREAM, EPOCH)) + "\n")
        self._process.stdin.flush()
        said, area, frame = ast.literal_eval(self._process.stdout.readline())
        return said, area, frame


@pytest.fixture
def pure() -> Pure:
    return Pure()


def entries(area: bytes, salt: int = SALT) -> list[TailEntry]:
    found, at = [], START
    while (entry := read_entry(area, at, salt)) is not None:
        found.append(entry)
        at = entry.end
    return found


def walked(data: bytes, at: int, number: int) -> list[TailEntry]:
    """As `read_entries`, one by one."""
    found: list[TailEntry] = []
    while (entry := read_entry(data, at, SALT)) is not None and entry.number == number:
        found.append(entry)
        at, number = entry.end, number + 1
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=ONE_PROGRAM)
@given(batches(), st.sampled_from([100, 500, 4096, 100_000]))
def test_both_tails_have_the_same_bytes_and_frames(pure: Pure, events: Events, size: int) -> None:
    rows, first = rows_of(events), min(events.first, 1 << 62)
    here = compiled(rows, size, first)
    assert here == pure(rows, size, first)
    said, area, frame = here
    taken = [row for row, (added, *_) in zip(rows, said, strict=True) if added]
    for number, (entry, row) in enumerate(zip(entries(area), taken, strict=True)):
        assert (entry.number, *entry[1:7]) == (number, *row)
    assert read_entries(area, START, SALT, 0) == entries(area)
    if frame is not None:
        assert Frame(frame).payloads.split(0, len(taken)) == [row[1] for row in taken]


@settings(max_examples=100, deadline=None, suppress_health_check=ONE_PROGRAM)
@given(
    st.lists(
        st.tuples(
            TEXT.filter(bool),
            st.binary(max_size=30),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.booleans(),
            st.none() | TEXT,
            st.none() | st.binary(max_size=30),
        ),
        max_size=20,
    ),
    st.integers(START, 700).map(lambda size: size & ~7),
)
def test_any_text_and_any_size_of_the_area(pure: Pure, rows: list[Row], size: int) -> None:
    here = compiled(rows, size)
    there = pure(rows, size)
    assert here[:2] == there[:2]


def test_full_tail_takes_smaller_events_and_then_none(pure: Pure) -> None:
    for size in range(START, START + 3 * 64, 8):
        rows: list[Row] = [("t", bytes(n), 1, True, None, None) for n in (70, 30, 9, 7, 1, 0, 0, 0)]
        assert compiled(rows, size) == pure(rows, size)


def test_rows_have_an_end_too(pure: Pure) -> None:
    rows: list[Row] = [("t", b"", 1, True, None, None)] * (TAIL_ROWS_MAX + 2)
    size = START + 48 * (TAIL_ROWS_MAX + 2)
    said, area, frame = compiled(rows, size)
    assert [added for added, *_ in said] == [True] * TAIL_ROWS_MAX + [False] * 2
    assert pure(rows, size) == (said, area, frame)


def test_area_is_not_touched_beyond_its_end_nor_before_its_start() -> None:
    for size in range(START, 400, 8):
        whole = bytearray(b"\xaa" * 800)
        frame = _speed.TailFrame(0)
        frame.use(memoryview(whole)[200 : 200 + size], START, SALT)
        while frame.add("topic", bytes(11), 1):
            pass
        frame.release()
        assert whole[: 200 + START] == b"\xaa" * (200 + START)
        assert whole[200 + size :] == b"\xaa" * (600 - size)


def test_what_cannot_be_added_adds_nothing() -> None:
    area = bytearray(1000)
    frame = _speed.TailFrame(5)
    assert frame.shut
    assert not frame.add("t", b"x", 1)  # without memory
    frame.use(memoryview(area), START, SALT)
    wrong: list[Any] = [
        ((b"t", b"", 1), {}),
        (("t", "", 1), {}),
        (("t", bytearray(), 1), {}),
        (("t", b"", "1"), {}),
        (("t", b"", 1 << 63), {}),
        (("t", b""), {}),
        (("t", b"", 1), {"key": b"k"}),
        (("t", b"", 1), {"headers": "h"}),
    ]
    for arguments, named in wrong:
        with pytest.raises((TypeError, OverflowError)):
            frame.add(*arguments, **named)
    for text in ({"topic": "\ud800"}, {"topic": "t", "key": "\ud800"}):
        with pytest.raises(UnicodeEncodeError):
            frame.add(text["topic"], b"", 1, key=text.get("key"))
    assert not frame.add("t" * 65_536, b"", 1)
    assert not frame.add("t", bytes(5000), 1)
    assert (bytes(area), frame.count, frame.at) == (bytes(1000), 0, START)
    frame.release()
    frame.release()
    assert not frame.add("t", b"x", 1)


def test_memory_that_will_not_do_is_refused() -> None:
    frame = _speed.TailFrame(0)
    wrong: list[Any] = [(1, SALT), (-8, SALT), (1008, SALT), (4, SALT)]
    for at, salt in wrong:
        with pytest.raises(ValueError, match="multiple of 8"):
            frame.use(memoryview(bytearray(1000)), at, salt)
    with pytest.raises(ValueError, match="multiple of 8"):
        frame.use(memoryview(bytearray(1001))[1:], 64, SALT)
    with pytest.raises((BufferError, TypeError)):
        frame.use(memoryview(bytes(1000)), 64, SALT)
    assert frame.shut
    assert not frame.add("t", b"", 1)


@pytest.mark.parametrize("is_pure", ["0", "1"])
@pytest.mark.parametrize("before", [48, 64, 1000])
def test_entry_that_was_not_finished_has_no_length(
    tmp_path: Path, is_pure: str, before: int
) -> None:
    """A process dies while it writes one, and nobody takes what it wrote for whole."""
    path, at = tmp_path / "area", mmap.PAGESIZE - before
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    child = processes.start(
        processes.program("torn_tail", path, at),
        # With sanitizers: the signal is meant.
        env={**os.environ, "MESHMSG_PURE": is_pure, "ASAN_OPTIONS": "handle_segv=0:detect_leaks=0"},
    )
    assert child.wait() in (-signal.SIGSEGV, -signal.SIGBUS)
    data = path.read_bytes()
    assert data[at : at + 4] == bytes(4)
    assert read_entry(data, at, 1) is None


def test_mutated_bytes_are_refused_or_the_same() -> None:
    """A reader may find anything in the file: it takes what was added, or nothing."""
    rng = Random(5)
    rows: list[Row] = [
        ("topic.ü", rng.randbytes(n), n, n % 2 == 0, "k" if n % 3 else None, b"\x80")
        for n in range(20)
    ]
    _, area, _ = compiled(rows, 2000)
    true = {at: read_entry(area, at, SALT) for at in range(0, len(area), 8)}
    for _ in range(20_000):
        data = bytearray(area)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(START, len(data))] = rng.randrange(256)
        at = rng.randrange(START, len(data)) & ~7
        found = read_entry(bytes(data), at, SALT)
        assert found is None or found == true[at]
        assert read_entry(bytes(data), at, SALT ^ 1) is None
        number = found.number if found is not None and rng.random() < 0.9 else 3
        assert read_entries(bytes(data), at, SALT, number) == walked(bytes(data), at, number)
        assert read_entries(bytes(data), START, SALT, 0) == walked(bytes(data), START, 0)
    for _ in range(20_000):
        data = bytearray(rng.randbytes(rng.randrange(200)))
        if len(data) >= ENTRY.size:  # lengths that add up, and a check that is right
            sizes = [rng.randrange(12) for _ in range(4)]
            used = ENTRY.size + sizes[0] + sizes[3] + sum(max(0, n - 1) for n in sizes[1:3])
            ENTRY.pack_into(data, 0, used, 0, 1, 2, *sizes, rng.randrange(3), rng.randrange(2))
            data[4:8] = crc32c(bytes(data[8:used]), SALT).to_bytes(4, "little")
        entry = read_entry(bytes(data), 0, SALT)
        assert entry is None or entry.end == padded(used) <= padded(len(data))
        assert read_entries(bytes(data), 0, SALT, 2) == walked(bytes(data), 0, 2)


@pytest.mark.parametrize(
    "args",
    [
        (),
        (TailEntry, b"", 0, 0),
        (list, b"", 0, 0, 0),
        (TailEntry, "", 0, 0, 0),
        (TailEntry, b"", "0", 0, 0),
        (TailEntry, b"", -1, 0, 0),
        (TailEntry, b"", 0, -1, 0),
        (TailEntry, b"", 0, 0, 1 << 32),
        (TailEntry, b"", 1 << 70, 0, 0),
    ],
)
def test_what_makes_no_sense_is_an_error(args: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        _speed.tail_entries(*args)


def test_nothing_is_read_behind_the_end() -> None:
    assert read_entries(b"", 0, SALT, 0) == []
    assert read_entries(b"", 1 << 40, SALT, 0) == []
