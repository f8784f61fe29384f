"""What a member remembers of its work until a publisher has it on disk."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from meshmsg.recovery.groups import claims as work_claims
from meshmsg.recovery.groups.claims import WorkClaims, pieces_of


class Nack(NamedTuple):
    seq: int
    attempt: int


def test_what_came_is_held_until_it_is_said_to_be_done() -> None:
    claims = WorkClaims()
    assert not claims
    claims.take([(0, 10, 1), (20, 22, 3)])
    assert claims.held() == [(0, 10, 1), (20, 21, 3), (21, 22, 3)]
    claims.say(1, [(2, 4, 1), (20, 21, 3)], [Nack(5, 1)])
    assert claims.held() == [(0, 2, 1), (4, 5, 1), (6, 10, 1), (21, 22, 3)]
    assert claims.done() == [(2, 4, 1), (20, 21, 3)]
    assert claims.failed() == [Nack(5, 1)]


def test_confirmed_is_forgotten_and_the_rest_is_not() -> None:
    claims = WorkClaims()
    claims.take([(0, 10, 1)])
    for number in range(5):
        claims.say(number, [(number, number + 1, 1)], [])
    claims.confirm(2)
    assert claims.done() == [(3, 5, 1)]
    claims.confirm(2)
    assert claims.done() == [(3, 5, 1)]
    claims.confirm(9)
    claims.let_go([(5, 10, 1)])
    assert not claims


def test_ack_of_an_earlier_attempt_leaves_the_later_one_held() -> None:
    claims = WorkClaims()
    claims.take([(0, 1, 2)])
    claims.say(1, [(0, 1, 1)], [])
    assert claims.held() == [(0, 1, 2)]


def test_words_are_bounded_while_nobody_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_claims, "RANGES_MAX", 10)
    monkeypatch.setattr(work_claims, "NACKS_MAX", 5)
    claims = WorkClaims()
    claims._join_at = 10
    for number in range(1000):  # in a row: joined to one range
        claims.say(number, [(number, number + 1, 1)], [])
    assert claims.done() == [(0, 1000, 1)]
    assert claims.forgotten == 0
    assert len(claims._words) <= 20
    for number in range(1000, 2000):
        claims.say(number, [(2 * number, 2 * number + 1, 1)], [Nack(number, 1)])
    assert len(claims.done()) <= 30
    assert len(claims.failed()) <= 15
    assert claims.done()[-1] == (3998, 3999, 1)
    assert claims.forgotten > 0
    claims.confirm(1999)
    assert not claims


def test_pieces_are_no_longer_than_a_message_takes() -> None:
    ranges = [(n, n + 1, 1) for n in range(5)]
    assert [len(piece) for piece in pieces_of(ranges, 2)] == [2, 2, 1]
    assert list(pieces_of([], 2)) == []
