"""The bytes of a log prove themselves: names, heads and records that were changed are refused."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    FRAME_RECORD,
    HEAD_PLACES,
    LOSS_RECORD,
    NOTE_BYTES_MAX,
    NUMBER_MAX,
    RECORD_HEAD_BYTES,
    RecordHead,
    SegmentHead,
    SegmentName,
    encode_record,
    frame_is_good,
    in_effect,
    latest_time,
    parse_name,
    read_head,
    read_record_head,
    record_size,
    salt_of,
)

NAME = SegmentName(7, 0, 40)
HEAD = SegmentHead(5, 7, 40, b"saltsalt", 123, 0)
SALT = salt_of(HEAD)
FRAME = encode_frame(5, 7, 40, "a.b", [b"x", b"yz"], 99)


def test_a_segment_name_gives_itself_back() -> None:
    assert parse_name(NAME.file) == NAME
    assert NAME.index_file == NAME.file.replace(".seg", ".idx")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "stream.json",
        NAME.index_file,
        NAME.file + ".new",
        "0" * 19 + "-0000-" + "0" * 19 + ".seg",  # no epoch
        f"{NUMBER_MAX + 1:019d}-0000-" + "0" * 19 + ".seg",
        f"{7:019d}-00000-{40:019d}.seg",  # the same segment, spelled otherwise
        f"{7:019d}-0000-{40:018d}.seg",
        f"{7:019d}-0000-{40:019d}.seg\n",
        f"{7:019d}-0000-{'٤' * 19}.seg",
    ],
)
def test_another_name_is_none_of_a_segment(name: str) -> None:
    assert parse_name(name) is None


def test_a_later_term_takes_the_place_of_all_from_its_first_number_on() -> None:
    old = [SegmentName(7, 0, first) for first in (0, 10, 20)]
    fresh = SegmentName(7, 1, 10)
    other = SegmentName(8, 0, 0)
    assert in_effect([other, fresh, *old]) == [old[0], fresh, other]


def test_the_head_is_read_from_either_copy() -> None:
    block = HEAD.encode()
    assert len(block) == DATA_START
    assert read_head(block, NAME) == (HEAD, 0)
    for at in HEAD_PLACES:
        assert read_head(block[:at] + b"\xff" + block[at + 1 :], NAME) == (HEAD, 1)
    assert read_head(b"", NAME) == (None, 2)
    assert read_head(bytes(DATA_START), NAME) == (None, 2)


def test_the_head_of_another_segment_does_not_count() -> None:
    assert read_head(HEAD.encode(), NAME._replace(first=41)) == (None, 2)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64])
def test_records_are_padded_to_eight_bytes(length: int) -> None:
    parts = encode_record(SALT, 4096, LOSS_RECORD, 1, 2, 0, b"r" * length)
    assert len(b"".join(parts)) == record_size(length)
    assert record_size(length) % 8 == 0


def written(kind: int, first: int, stop: int, content: bytes, offset: int = DATA_START) -> bytes:
    return b"".join(encode_record(SALT, offset, kind, first, stop, 99, content))


@pytest.mark.parametrize(
    ("kind", "first", "stop", "content"),
    [
        (FRAME_RECORD, 40, 42, FRAME),
        (LOSS_RECORD, 40, 42, b"r" * NOTE_BYTES_MAX),
        (END_RECORD, 42, 42, b""),
    ],
)
def test_a_record_is_valid_at_its_own_offset_of_its_own_segment_only(
    kind: int, first: int, stop: int, content: bytes
) -> None:
    data = written(kind, first, stop, content)
    expected = RecordHead(len(content), kind, first, stop, 99)
    assert read_record_head(SALT, DATA_START, data, 0) == expected
    assert read_record_head(SALT, DATA_START, b"12345678" + data, 8) == expected
    assert read_record_head(SALT, DATA_START + 8, data, 0) is None
    assert read_record_head(SALT ^ 1, DATA_START, data, 0) is None
    assert read_record_head(SALT, DATA_START, data[: RECORD_HEAD_BYTES - 1], 0) is None


def test_every_byte_of_a_head_and_of_a_note_is_checked() -> None:
    data = written(LOSS_RECORD, 40, 42, b"corrupt")
    for at in range(RECORD_HEAD_BYTES + 7):
        bad = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        assert read_record_head(SALT, DATA_START, bad, 0) is None, at


@pytest.mark.parametrize(
    ("kind", "first", "stop", "content"),
    [
        (FRAME_RECORD, 40, 40, FRAME),
        (FRAME_RECORD, 40, 42, b"short"),
        (LOSS_RECORD, 42, 40, b"r"),
        (LOSS_RECORD, 40, 42, b"r" * (NOTE_BYTES_MAX + 1)),
        (END_RECORD, 40, 41, b""),
        (END_RECORD, 40, 40, b"x"),
        (0, 40, 42, b""),
        (9, 40, 42, b""),
        (LOSS_RECORD, 40, NUMBER_MAX + 1, b""),
    ],
)
def test_a_record_that_makes_no_sense_is_none(
    kind: int, first: int, stop: int, content: bytes
) -> None:
    assert read_record_head(SALT, DATA_START, written(kind, first, stop, content), 0) is None


def test_a_frame_is_good_only_as_the_one_its_record_speaks_of() -> None:
    head = RecordHead(len(FRAME), FRAME_RECORD, 40, 42, 99)
    assert frame_is_good(FRAME, 5, 7, head)
    assert not frame_is_good(FRAME, 6, 7, head)
    assert not frame_is_good(FRAME, 5, 8, head)
    assert not frame_is_good(FRAME, 5, 7, head._replace(first=41))
    assert not frame_is_good(FRAME, 5, 7, head._replace(stop=43))
    assert not frame_is_good(FRAME[:-1], 5, 7, head)
    assert not frame_is_good(FRAME[:-1], 5, 7, head._replace(length=len(FRAME) - 1))
    assert not frame_is_good(b"", 5, 7, head._replace(length=0))
    for at in range(len(FRAME)):
        bad = FRAME[:at] + bytes([FRAME[at] ^ 1]) + FRAME[at + 1 :]
        assert not frame_is_good(bad, 5, 7, head), at


@pytest.mark.parametrize("topics", ["a.b", ["a.b", "a.c", "a.b"]])
@pytest.mark.parametrize(
    ("times", "latest"), [(50, 50), ([50, 60, 70], 70), ([50, 60, 40], 50), ([-5, -4, -3], -3)]
)
def test_the_latest_time_is_the_later_of_the_first_and_the_last(
    topics: str | list[str], times: int | list[int], latest: int
) -> None:
    assert latest_time(encode_frame(5, 7, 0, topics, [b"x"] * 3, times)) == latest
