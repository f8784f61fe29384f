"""Columns of a received frame are checked as they are read."""

from __future__ import annotations

import pytest

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame_columns import TopicTables, UniformSplitter, VarColumn
from meshmsg._wire.frame_layout import column


def made(items: list[bytes], offsets: list[int] | None = None) -> VarColumn:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item))
    head = b"before" + column("I", ends if offsets is None else offsets)
    data = head + b"".join(items) + b"behind"
    return VarColumn(data, 6, len(head), len(data) - 6, len(items))


@pytest.mark.parametrize(
    "items", [[b"a"], [b"ab", b"cd"], [b"", b"", b""], [b"a", b"", b"bcd"], [b"xy"] * 700]
)
def test_items_come_back_one_by_one_and_in_pieces(items: list[bytes]) -> None:
    values = made(items)
    assert values.split(0, len(items)) == items
    assert [values.at(n) for n in range(len(items))] == items
    assert values.split(1, len(items)) == items[1:]
    assert values.split(0, 0) == []
    assert values.blob == b"".join(items)
    assert values.slice_blob(0, 1) == items[0]
    offsets, blob = values.views()
    assert (bytes(offsets), bytes(blob)) == (values.offset_bytes, values.blob)


@pytest.mark.parametrize(
    "offsets", [[1, 2, 4], [0, 2, 3], [0, 2, 5], [0, 5, 4], [0, 0xFFFFFFFF, 4]]
)
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    made([b"ab", b"cd"], [0, 2, 4])
    with pytest.raises(ProtocolError):
        made([b"ab", b"cd"], offsets)


def test_headers_have_to_be_maps_where_there_are_any() -> None:
    good = made([b"\x80", b"no map", b"\x81\xa1n\x01"])
    good.check_headers(b"\x05")
    with pytest.raises(ProtocolError, match="no msgpack map"):
        good.check_headers(b"\x07")


@pytest.mark.parametrize("count", [0, 1, 7, 8, 71, 512, 1000])
@pytest.mark.parametrize("length", [1, 3])
def test_equal_items_are_split_in_blocks(count: int, length: int) -> None:
    data = bytes(n % 256 for n in range(5 + count * length))
    expected = [data[5 + n * length : 5 + (n + 1) * length] for n in range(count)]
    assert UniformSplitter().split(data, 5, length, count) == expected


def test_splitters_remember_few_lengths() -> None:
    splitter = UniformSplitter()
    for length in range(1, 200):
        splitter.split(bytes(10 * length), 0, length, 10)
    assert len(splitter._blocks) <= UniformSplitter.LENGTHS_MAX


def test_topic_tables_are_checked_and_remembered() -> None:
    tables = TopicTables()
    first = tables.read("a.b\nü".encode(), 2)
    assert first == ("a.b", "ü")
    assert tables.read("a.b\nü".encode(), 2) is first


@pytest.mark.parametrize(
    ("table", "count"),
    [(b"a\nb", 1), (b"a", 2), (b"a\n\nb", 3), (b"\xff", 1), (b"a.*", 1), (b"", 1), (b"a b\n", 2)],
)
def test_a_table_that_is_not_what_its_frame_says_is_refused(table: bytes, count: int) -> None:
    tables = TopicTables()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            tables.read(table, count)
    assert not tables.known


def test_a_table_that_is_known_with_another_count_is_refused() -> None:
    tables = TopicTables()
    tables.read(b"a\nb", 2)
    with pytest.raises(ProtocolError, match="the header says 3"):
        tables.read(b"a\nb", 3)


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicTables, "KNOWN_BYTES_MAX", 10_000)
    monkeypatch.setattr(TopicTables, "TOPICS_MAX", 20)
    tables = TopicTables()
    for n in range(200):
        tables.read(b"t%d" % n, 1)
        assert tables._known_bytes <= 10_000
        assert len(tables._checked) <= 20
    large = "\n".join("t" * 200 + str(n) for n in range(30)).encode()
    tables.read(large, 30)
    assert large not in tables.known
