"""The folder of a stream: its name gives the stream back, and what it says is checked."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg._model.errors import LogError
from meshmsg._wire.control import stream_wire_id
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.files import write_all
from meshmsg.recovery.log.folder import (
    ABOUT_FILE,
    NAME_BYTES_MAX,
    UNKNOWN,
    About,
    LogFolder,
    decode_checked,
    encode_checked,
    escape,
    find_logs,
    unescape,
)
from meshmsg.recovery.log.format import SegmentHead, SegmentName

DATA = "/data"
STREAM = "pricing/orders.**"
WIRE_ID = stream_wire_id("default", STREAM)
ABOUT = About(STREAM, "default", WIRE_ID, "json")


def folder(stream: str = STREAM, files: FaultyFiles | None = None) -> LogFolder:
    return LogFolder.of(DATA, stream, files=files or FaultyFiles(Random(1)))


def put_segment(log: LogFolder, name: SegmentName, wire_id: int = WIRE_ID) -> None:
    file = log.files.open(f"{log.path}/{name.file}", create=True)
    head = SegmentHead(wire_id, name.epoch, name.first, b"saltsalt", 1, name.term)
    write_all(file, [head.encode()], 0)


@given(st.text(min_size=1, max_size=60).filter(lambda text: "~" not in escape(text)))
def test_a_name_gives_its_stream_back(text: str) -> None:
    made = escape(text)
    assert "/" not in made
    assert made not in (".", "..")
    assert unescape(made) == text


def test_long_names_are_cut_and_stay_different() -> None:
    one, other = escape("a" * 300), escape("a" * 299 + "b")
    assert max(len(one), len(other)) <= NAME_BYTES_MAX
    assert one != other
    assert unescape(one) is None


@pytest.mark.parametrize("name", ["", "a/b", "%2", "%2f", "a b", "%FF", "münchen"])
def test_a_name_that_was_never_made_has_no_stream(name: str) -> None:
    assert unescape(name) is None


def test_checked_fields_come_back_and_every_byte_is_checked() -> None:
    data = encode_checked({"version": 1, "a": "ü"})
    assert decode_checked(data) == {"version": 1, "a": "ü"}
    for at in range(len(data)):
        assert decode_checked(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None, at
    assert decode_checked(data + b"\n") is None
    assert decode_checked(encode_checked({"version": 2})) is None


def test_a_claimed_folder_says_what_it_is_for() -> None:
    log = folder()
    assert log.about() is None
    log.claim(ABOUT)
    assert log.about() == ABOUT
    assert log.problems == []


def test_a_folder_of_another_stream_is_refused() -> None:
    log = folder()
    log.claim(ABOUT)
    other = About("pricing/others", "default", WIRE_ID + 1)
    with pytest.raises(LogError, match="holds stream 'pricing/orders"):
        log.claim(other)
    assert log.about() == ABOUT


def test_a_damaged_description_is_guessed_from_a_segment_and_written_anew() -> None:
    log = folder()
    log.claim(ABOUT)
    put_segment(log, SegmentName(7, 0, 0))
    log.files.flip(f"{log.path}/{ABOUT_FILE}", 3)  # type: ignore[attr-defined]
    assert log.about() == About(STREAM, "default", WIRE_ID)
    assert log.problems == [f"{ABOUT_FILE} is damaged"]
    log.claim(ABOUT)
    fresh = LogFolder(log.path, files=log.files)
    assert (fresh.about(), fresh.problems) == (ABOUT, [])


def test_a_folder_whose_segments_have_no_head_is_known_by_its_name_only() -> None:
    log = folder()
    log.files.open(f"{log.path}/{SegmentName(7, 0, 0).file}", create=True)
    assert log.about() == About(STREAM, "?", UNKNOWN)
    log.claim(ABOUT)
    assert log.about() == ABOUT


def test_a_stream_whose_name_was_cut_is_known_by_its_number() -> None:
    log = folder("a" * 300)
    put_segment(log, SegmentName(7, 0, 0), 0xABC)
    assert log.about() == About("unknown/0000000000000abc", "?", 0xABC)


def test_segments_are_those_that_count_and_sizes_are_of_all() -> None:
    log = folder()
    for name in (SegmentName(7, 0, 0), SegmentName(7, 0, 5), SegmentName(7, 1, 5)):
        put_segment(log, name)
    assert log.segments() == [SegmentName(7, 0, 0), SegmentName(7, 1, 5)]
    assert set(log.sizes().values()) == {4096}


def test_logs_are_found_in_a_data_directory_or_where_they_are() -> None:
    files = FaultyFiles(Random(1))
    one, other = folder("a", files), folder("b/c", files)
    one.claim(About("a", "default", 1))
    put_segment(other, SegmentName(7, 0, 0))
    files.open(f"{DATA}/empty/file", create=True)
    assert [log.path for log in find_logs(f"{DATA}/", files=files)] == [one.path, other.path]
    assert [log.path for log in find_logs(other.path, files=files)] == [other.path]
