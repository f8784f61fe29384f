"""What docs/log.md says of bytes and names is so."""

from __future__ import annotations

import re
from pathlib import Path

from crc32c import crc32c

from meshmsg._model.log_policy import FsyncWord
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame
from meshmsg._wire.tail_frame import ENTRY as TAIL_ENTRY
from meshmsg._wire.tail_frame import TailFrame
from meshmsg.recovery.log import cursors as log_cursors
from meshmsg.recovery.log import index as log_index
from meshmsg.recovery.log import journal as log_epochs
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.files import REAL
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LOCK_FILE, escape
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    FRAME_RECORD,
    HEAD_PLACES,
    LOSS_RECORD,
    NOTE_BYTES_MAX,
    RECORD_HEAD,
    SEGMENT_HEAD,
    SegmentHead,
    SegmentName,
    encode_record,
    salt_of,
)
from meshmsg.recovery.log.index import ENTRY, IndexEntry, encode_entry
from meshmsg.recovery.log.tail import (
    AREA_HEAD,
    AREAS,
    TAIL_BYTES_MAX,
    TAIL_FILE,
    AreaHead,
    TailReader,
)
from meshmsg.recovery.log.writer import SMALL_BYTES, SMALL_EVENTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "log.md"
EPOCH = 1_700_000_000_000_000
HEAD = SegmentHead(
    stream_wire_id("default", "demo/quotes.**"),
    EPOCH,
    41,
    b"saltsalt",
    1_700_000_000_123_456_789,
    0,
)


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def block(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)^```$", text(), re.DOTALL | re.MULTILINE)
    assert found, marker
    return found[1]


def dumped(marker: str) -> bytes:
    return bytes.fromhex("".join(line.rpartition("  ")[2] for line in block(marker).splitlines()))


def section(heading: str) -> str:
    return text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def records() -> bytes:
    salt = salt_of(HEAD)
    loss = b"".join(encode_record(salt, DATA_START, LOSS_RECORD, 41, 44, 0, b"gone"))
    end = b"".join(encode_record(salt, DATA_START + len(loss), END_RECORD, 44, 44, 0, b""))
    return loss + end


def dump(data: bytes) -> str:
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    return "".join(f"{16 * n:04x}  {row.hex(' ')}\n" for n, row in enumerate(rows))


def test_segment_head_in_the_page_is_real() -> None:
    block_of_file = HEAD.encode()
    assert dumped("segment head") == block_of_file[: SEGMENT_HEAD.size]
    for place in HEAD_PLACES:
        assert block_of_file[place : place + 64] == block_of_file[:64]
    assert len(block_of_file) == DATA_START


def test_records_in_the_page_are_real() -> None:
    assert dumped("records") == records()


def test_index_entry_in_the_page_is_real() -> None:
    entry = IndexEntry(69632, 1900, 1_700_000_000_123_456_789)
    assert dumped("index entry") == encode_entry(entry, b"saltsalt")


TAIL_EVENTS = [("quotes.eu", b"one", None), ("quotes.us", b"two", "k")]


def area() -> bytes:
    head = AreaHead(HEAD.wire_id, EPOCH, 41, b"saltsalt")
    data = bytearray(head.encode() + bytes(200))
    frame = TailFrame(41)
    frame.use(memoryview(data), AREA_HEAD.size, crc32c(b"saltsalt"))
    for n, (topic, payload, key) in enumerate(TAIL_EVENTS):
        assert frame.add(topic, payload, HEAD.created_ns + n, key=key)
    used = frame.at
    frame.release()
    return bytes(data[:used])


def test_tail_in_the_page_is_real(tmp_path: Path) -> None:
    assert dumped("tail") == area()
    half = dumped("tail") + bytes(512 - len(area()))
    (tmp_path / TAIL_FILE).write_bytes(half + bytes(len(half)))
    (piece,) = TailReader(REAL, str(tmp_path)).pieces(HEAD.wire_id, EPOCH)
    frame = Frame(piece.data)
    assert (frame.first, frame.stop) == (41, 43)
    for n, (topic, payload, key) in enumerate(TAIL_EVENTS):
        assert (frame.topic_at(n), frame.payload_at(n), frame.key_at(n)) == (topic, payload, key)
        assert (frame.time_at(n), frame.is_raw(n)) == (HEAD.created_ns + n, True)


def test_cursor_in_the_page_is_real() -> None:
    cursor = Cursor("audit", "pricing/orders.**", EPOCH, 41, hold=True)
    assert block("cursor") == cursor.encode().decode()
    assert log_cursors.decode_cursor(block("cursor").encode()) == cursor


def test_tables_of_fields_add_up() -> None:
    for heading, *sizes in (
        ("Segments", SEGMENT_HEAD.size),
        ("Records", RECORD_HEAD.size),
        ("Index", ENTRY.size),
        ("The tail", AREA_HEAD.size, TAIL_ENTRY.size),
    ):
        tables = section(heading).split("| offset | size | field | |")[1:]
        for table, size in zip(tables, sizes, strict=True):
            at = 0
            for offset, width in re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE):
                assert int(offset) == at
                at += int(width)
            assert at == size


def test_kinds_and_words_in_the_page_are_those_of_the_code() -> None:
    kinds = re.findall(r"^\| (\d) \|", section("Records").partition("| kind |")[2], re.MULTILINE)
    assert list(map(int, kinds)) == [FRAME_RECORD, LOSS_RECORD, END_RECORD]
    assert f"up to {NOTE_BYTES_MAX} bytes" in section("Records")
    words = re.findall(r"^\| `([^`]+)`", section("Guarantees"), re.MULTILINE)[1:]
    assert [FsyncWord.parse(word).word for word in words] == [
        "always",
        "batch",
        "interval",
        "never",
    ]


def test_names_in_the_page_are_those_of_the_code() -> None:
    shown = section("Folders")
    name = SegmentName(EPOCH, 0, 0)
    cursor = f"{CURSORS_FOLDER}/{escape('audit@pricing/orders.**')}{log_cursors.ENDING}"
    for text_ in (
        name.file,
        name.index_file,
        LOCK_FILE,
        f"\n    {TAIL_FILE} ",
        *log_epochs.FILES,
        cursor,
    ):
        assert text_ in shown
    assert f"{escape('pricing/orders.**')}/" in shown


def test_limits_in_the_page_are_those_of_the_code() -> None:
    limits = section("Limits")
    assert f"| epochs in the journal | {log_epochs.EPOCHS_MAX:,} |" in limits
    assert f"| cursors looked at | {log_cursors.CURSORS_MAX:,} |" in limits
    assert f"| area of the tail | {LogSettings().tail_bytes >> 10} KiB, or a quarter of" in limits
    assert f"; {LogSettings().tail_growth} times as much where that is soon full" in limits
    assert f"| tail that is read | {TAIL_BYTES_MAX >> 20} MiB |" in limits
    assert f"up to {LogSettings().area_bytes // 4 >> 10} KiB" in section("A durable stream")
    assert f"{SMALL_EVENTS} events or {SMALL_BYTES >> 10} KiB" in section("A durable stream")
    assert AREAS == 2
    assert f"| index that is read | {log_index.INDEX_BYTES_MAX >> 20} MiB |" in limits
