"""An index proves each of its entries; whatever is wrong with it, only entries are missing."""

from __future__ import annotations

import pytest

from meshmsg.recovery.log.format import DATA_START
from meshmsg.recovery.log.index import IndexEntry, decode_index, encode_index

SALT = b"saltsalt"
ENTRIES = [IndexEntry(DATA_START + 8 * n, 10 * n, 100 * n) for n in range(4)]


def test_entries_come_back() -> None:
    assert decode_index(encode_index(ENTRIES, SALT), SALT) == ENTRIES
    assert decode_index(b"", SALT) == []


def test_a_torn_last_entry_is_left_out() -> None:
    data = encode_index(ENTRIES, SALT)
    assert decode_index(data[:-1], SALT) == ENTRIES[:-1]


@pytest.mark.parametrize("at", [0, 8, 16, 24, 28])
def test_a_damaged_entry_is_left_out_and_the_others_stay(at: int) -> None:
    data = bytearray(encode_index(ENTRIES, SALT))
    data[32 + at] ^= 1
    assert decode_index(bytes(data), SALT) == [ENTRIES[0], *ENTRIES[2:]]


def test_the_index_of_another_segment_is_not_believed() -> None:
    assert decode_index(encode_index(ENTRIES, SALT), b"tlastlas") == []


@pytest.mark.parametrize(
    "entry",
    [
        IndexEntry(DATA_START - 8, 50, 500),  # in the head
        IndexEntry(DATA_START + 100, 50, 500),  # no record begins there
        IndexEntry(DATA_START + 80, 29, 500),  # numbers fall
        IndexEntry(DATA_START + 80, 50, 299),  # the latest time falls
        IndexEntry(ENTRIES[-1].offset, 50, 500),  # twice the same record
    ],
)
def test_an_entry_out_of_order_is_left_out(entry: IndexEntry) -> None:
    assert decode_index(encode_index([*ENTRIES, entry], SALT), SALT) == ENTRIES
