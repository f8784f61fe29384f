"""Who is here: joining, leaving, being lost, and nobody blamed for our own sleep."""

from __future__ import annotations

import pytest

from meshmsg.recovery.discovery.presence import LEFT_MAX, Card, Change, MemberBook

TIMEOUT_S = 5.0
INTERVAL_S = 0.5


@pytest.fixture
def book() -> MemberBook:
    return MemberBook(TIMEOUT_S, INTERVAL_S)


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.card.peer) for change in changes]


def run(book: MemberBook, start: float, stop: float) -> list[tuple[str, str]]:
    """Tick at every interval."""
    found: list[Change] = []
    steps = round((stop - start) / INTERVAL_S)
    for step in range(steps + 1):
        found += book.on_tick(now=start + step * INTERVAL_S)
    return kinds(found)


def test_joins_once_with_its_card(book: MemberBook) -> None:
    card = Card("a", 1, 1)
    assert book.here(card, now=0.0) == Change("joined", card)
    assert book.here(card, now=1.0) is None
    assert 1 in book
    assert len(book) == 1


def test_newer_card_is_a_change_and_an_older_one_is_not(book: MemberBook) -> None:
    book.here(Card("a", 1, 2), now=0.0)
    newer = Card("a", 1, 3, streams=("a/x",))
    assert book.here(newer, now=0.0) == Change("changed", newer)
    assert book.here(Card("a", 1, 2, streams=("a/old",)), now=0.0) is None
    assert book.members[1].card == newer


def test_lost_after_the_timeout_and_not_before(book: MemberBook) -> None:
    book.here(Card("a", 1), now=0.0)
    assert run(book, 0.0, TIMEOUT_S - INTERVAL_S) == []
    assert run(book, TIMEOUT_S, TIMEOUT_S) == [("lost", "a")]
    assert run(book, 5.5, 20.0) == []


def test_sign_of_life_puts_it_off(book: MemberBook) -> None:
    book.here(Card("a", 1), now=0.0)
    run(book, 0.0, 4.0)
    book.heard(1, 4.0)
    book.heard(1, 2.0)  # an older sign, of another connection
    assert run(book, 4.0, 8.5) == []
    assert run(book, 9.0, 9.0) == [("lost", "a")]


def test_sign_of_a_stranger_is_nothing(book: MemberBook) -> None:
    book.heard(7, 1.0)
    assert len(book) == 0
    assert book.left(8) is None


def test_lost_peer_joins_again_when_it_is_back(book: MemberBook) -> None:
    book.here(Card("a", 1), now=0.0)
    assert run(book, 0.0, 6.0) == [("lost", "a")]
    change = book.here(Card("a", 1), now=10.0)
    assert change is not None
    assert change.kind == "joined"


def test_lost_peer_whose_connection_gives_signs_again_is_back(book: MemberBook) -> None:
    card = Card("a", 1, 3)
    book.here(card, now=0.0)
    assert run(book, 0.0, 6.0) == [("lost", "a")]
    assert book.heard(1, 1.0) is None, "an old sign"
    assert book.heard(1, 6.5) == Change("joined", card)
    assert book.heard(1, 6.6) is None
    book.left(1)
    assert book.heard(1, 7.0) is None


def test_who_left_is_not_brought_back_by_what_was_under_way(book: MemberBook) -> None:
    book.here(Card("a", 1), now=0.0)
    change = book.left(1)
    assert change is not None
    assert change.kind == "left"
    assert book.left(1) is None
    assert book.here(Card("a", 1, 9), now=0.1) is None
    assert book.here(Card("a", 2), now=0.2) is not None, "a new start is another peer"


def test_memory_of_those_who_left_is_bounded(book: MemberBook) -> None:
    for instance in range(LEFT_MAX + 10):
        book.left(instance)
    assert book.here(Card("old", 0), now=0.0) is not None
    assert book.here(Card("new", LEFT_MAX + 9), now=0.0) is None


@pytest.mark.parametrize("slept_s", [4.9, 60.0, 86_400.0])
def test_own_sleep_is_no_silence_of_others(book: MemberBook, slept_s: float) -> None:
    book.here(Card("a", 1), now=0.0)
    assert run(book, 0.0, 3.0) == []
    awake = 3.0 + slept_s
    assert run(book, awake, awake + 1.0) == [], "it has had no chance to be heard"
    # It is still subject to the time-out: what was silence before the sleep counts.
    assert run(book, awake + 1.5, awake + 2.0) == [("lost", "a")]


def test_ticks_that_are_late_under_load_raise_no_alarm(book: MemberBook) -> None:
    """Each tick comes late, and the signs of life come in one go after it."""
    book.here(Card("a", 1), now=0.0)
    now = 0.0
    for lateness in (0.4, 0.9, 1.7, 3.0, 4.4, 0.5, 4.9):
        now += INTERVAL_S + lateness
        assert book.on_tick(now=now) == []
        book.heard(1, now)


def test_a_card_is_kept_as_far_as_there_is_room() -> None:
    book = MemberBook(5.0, 0.5)
    large = tuple(f"peer/{n:06d}" + "x" * 900 for n in range(1000))
    for instance in range(400):
        assert book.here(Card("peer", instance, 1, streams=large), now=0.0) is not None
    kept = [len(member.card.streams) for member in book.members.values()]
    assert 0 < kept[0] < 100
    assert kept[-1] == 0
    assert sum(member.card.size() for member in book.members.values()) <= 17 * 1024 * 1024
    assert book.shortened == 400
    for instance in range(300):
        book.left(instance)
    assert book.here(Card("peer", 999, 1, streams=large), now=0.0) is not None
    assert len(book.members[999].card.streams) == kept[0]
    assert len(book.on_tick(now=100.0)) == 101
    assert book.here(Card("new", 5000, 1, streams=("a",)), now=100.0) is not None
    assert book.members[5000].card.streams == ("a",)
