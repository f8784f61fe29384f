"""A group's books: what is settled, what a restart needs to know, what is lost."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.groups import settled as group_ledger
from meshmsg.recovery.groups.numbering import Line, Past, Shelf
from meshmsg.recovery.groups.policy import DeadLetter, Trouble
from meshmsg.recovery.groups.settled import GroupLedger
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

EPOCH = 7


def ledger(start: int = 0, line: Line | None = None) -> GroupLedger:
    return GroupLedger("g", start, Shelf(RetransmitBuffer(1000), line or Line(EPOCH)))


def letter(seq: int, attempt: int = 5) -> DeadLetter:
    frame = Frame(encode_frame(5, EPOCH, seq, "t", [b"x"], 0))
    return DeadLetter(frame, 0, Trouble(attempt))


def test_restore_goes_on_behind_what_is_settled_in_a_row() -> None:
    books = ledger()
    books.restore([(0, 4), (6, 8)], {})
    assert (books.floor, books.cursor, books.acked) == (4, 4, 6)
    assert books.state() == (4, [(6, 8)], {})


def test_restore_ignores_what_lies_before_the_start() -> None:
    books = ledger(start=10)
    books.restore([(0, 5), (8, 12)], {})
    assert (books.floor, books.acked) == (12, 2)


def test_restore_remembers_attempts_only_of_what_is_not_settled() -> None:
    books = ledger()
    books.restore([(0, 4), (6, 7)], {2: 3, 6: 2, 9: 4, 11: 1}, {9: 2})
    assert books.state()[2] == {9: 4}
    assert books.spared == {9: 2}


def test_no_more_attempts_are_spared_than_there_were() -> None:
    books = ledger()
    books.restore([], {3: 2}, {3: 50})
    assert books.spared == {3: 2}


def test_doubtful_events_are_those_that_are_not_settled() -> None:
    books = ledger()
    books.restore([(0, 2), (5, 6)], {}, doubtful=[(0, 8)])
    assert books.doubtful == [(2, 5), (6, 8)]


def test_an_unpublished_dead_letter_counts_as_not_settled_across_a_restart() -> None:
    books = ledger()
    books._settle(0, 10)
    books._advance()
    books.dead_letters.append(letter(3, attempt=5))
    assert books.state() == (3, [(4, 10)], {3: 5})
    again = ledger()
    again.restore(books.state()[1], books.state()[2])
    assert again.floor == 0
    assert again.state()[2] == {3: 5}


def test_dead_letters_beyond_the_bound_are_still_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_ledger, "LETTERS_MAX", 2)
    books = ledger()
    books._settle(0, 10)
    books._advance()
    books.owe([letter(n) for n in (2, 4, 6)])
    assert [one.seq for one in books.dead_letters] == [2, 4]
    floor, settled, attempts = books.state()
    assert (floor, settled) == (2, [(3, 4), (5, 6), (7, 10)])
    assert attempts == {2: 5, 4: 5}


def test_losses_next_to_each_other_are_told_as_one_and_others_apart() -> None:
    books = ledger()
    books.shelf.put([], [(4, 6, "corrupt")])
    books._lose(0, 2)
    books._lose(2, 6)
    assert books.losses == [(0, 4, "overflow"), (4, 6, "corrupt")]
    assert books.lost == {"overflow": 4, "corrupt": 2}
    books._advance()
    assert books.floor == 6


def test_a_loss_between_settled_events_moves_the_floor_over_both() -> None:
    books = ledger()
    books._settle(1, 3)
    books._advance()
    assert books.floor == 0
    before = books.changes
    books._lose(0, 1)
    books._advance()
    assert books.floor == 3
    assert books.changes > before


def test_letters_of_an_earlier_epoch_are_owed_by_their_place_on_the_line() -> None:
    line = Line(9, 0, [Past(EPOCH, 3, 5)])
    books = ledger(line.start, line)
    books._settle(line.start, 0)
    books._advance()
    books.owe([letter(4)])
    assert books.state()[0] == -1
