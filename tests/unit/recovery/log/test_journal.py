"""The journal of epochs: what has to be there, and that damage to one copy loses nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from meshmsg.recovery.log import journal as log_epochs
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import encode_checked
from meshmsg.recovery.log.format import NUMBER_MAX, SegmentName
from meshmsg.recovery.log.journal import (
    FILES,
    Epoch,
    Journal,
    decode_journal,
    read_journal,
    write_journal,
)

DATA = "/data"
JOURNAL = Journal((Epoch(3, 0, 10), Epoch(5, 0, 4), Epoch(7, 2, None)), (3, 6), 9)


def memory() -> FaultyFiles:
    return FaultyFiles(Random(1))


def test_a_journal_comes_back() -> None:
    assert decode_journal(JOURNAL.encode()) == JOURNAL
    assert decode_journal(Journal().encode()) == Journal()


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "9"},
        {"generation": -1},
        {"generation": True},
        {"floor": [1]},
        {"floor": [1, -1]},
        {"floor": {"1": 2}},
        {"epochs": None},
        {"epochs": [[3, 0]]},
        {"epochs": [[3, 5, 4]]},
        {"epochs": [[3, 0, 1.5]]},
        {"epochs": [[3, 0, 1], [3, 1, 2]]},
        {"epochs": [[5, 0, 1], [3, 1, 2]]},
        {"epochs": [[NUMBER_MAX + 1, 0, None]]},
        {"epochs": ["abc"]},
        {"version": 2},
    ],
)
def test_a_journal_that_makes_no_sense_is_damaged(change: dict[str, Any]) -> None:
    fields = {"version": 1, "generation": 9, "floor": [3, 6], "epochs": [[3, 0, 10]]}
    assert decode_journal(encode_checked(fields)) is not None
    assert decode_journal(encode_checked(fields | change)) is None


def test_every_byte_is_checked() -> None:
    data = JOURNAL.encode()
    for at in range(len(data)):
        assert decode_journal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None, at
        assert decode_journal(data[:at]) is None


def test_what_has_expired_is_not_kept_and_the_newest_is_even_without_events() -> None:
    journal = Journal((Epoch(1, 0, 9), Epoch(3, 0, 10), Epoch(5, 4, 4), Epoch(7, 2, 2)), (3, 6))
    assert journal.kept() == [Epoch(3, 6, 10), Epoch(7, 2, 2)]
    assert Journal((Epoch(3, 0, 6), Epoch(5, 0, 1)), (3, 6)).kept() == [Epoch(5, 0, 1)]


def test_what_is_missing_between_two_places_is_told() -> None:
    journal = Journal((Epoch(3, 0, 10), Epoch(5, 0, 4), Epoch(7, 2, None)))
    assert journal.first_missing((3, 10), (5, 0)) is None
    assert journal.first_missing((3, 8), (5, 0)) == Epoch(3, 8, 10)
    assert journal.first_missing((3, 10), (7, 2)) == Epoch(5, 0, 4)
    assert journal.first_missing((5, 4), (7, 5)) == Epoch(7, 2, 5)
    assert journal.first_missing((5, 4), (9, 0)) is None  # nobody knows where 7 ends


def test_an_epoch_is_replaced_and_kept_in_order_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_epochs, "EPOCHS_MAX", 2)
    journal = Journal().with_epoch(5, 0, None).with_epoch(3, 0, 1).with_epoch(5, 0, 8)
    assert journal.epochs == (Epoch(3, 0, 1), Epoch(5, 0, 8))
    assert journal.with_epoch(7, 0, None).epochs == (Epoch(5, 0, 8), Epoch(7, 0, None))
    assert journal.find(3) == Epoch(3, 0, 1)
    assert journal.find(4) is None


def test_epochs_that_only_segments_tell_of_are_put_in() -> None:
    names = [SegmentName(3, 0, 5), SegmentName(4, 0, 2), SegmentName(4, 0, 9)]
    journal = Journal((Epoch(3, 0, 10),)).with_segments(names)
    assert journal.epochs == (Epoch(3, 0, 10), Epoch(4, 2, None))


@pytest.mark.parametrize("damaged", FILES)
def test_damage_to_one_copy_loses_nothing_and_is_told(damaged: str) -> None:
    files = memory()
    written = write_journal(files, DATA, JOURNAL)
    assert written.generation == JOURNAL.generation + 1
    files.flip(f"{DATA}/{damaged}", 5)
    assert read_journal(files, DATA) == (written, [f"{damaged} is damaged"])


def test_after_a_crash_between_the_copies_the_newer_one_counts() -> None:
    files = memory()
    old = write_journal(files, DATA, JOURNAL)
    before = files.content(f"{DATA}/{FILES[1]}")
    newer = write_journal(files, DATA, old.with_epoch(9, 0, None))
    files.remove(f"{DATA}/{FILES[1]}")
    file = files.open(f"{DATA}/{FILES[1]}", create=True)
    file.write_at([before], 0)
    assert read_journal(files, DATA) == (newer, [])


def test_no_journal_is_an_empty_one_and_an_unreadable_one_is_told() -> None:
    files = memory()
    assert read_journal(files, DATA) == (Journal(), [])
    write_journal(files, DATA, JOURNAL)
    files.faults.read_error = 1.0
    journal, problems = read_journal(files, DATA)
    assert journal == Journal()
    assert len(problems) == 2
