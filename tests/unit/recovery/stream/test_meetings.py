"""Which streams of a peer are new, and to which subscriptions."""

from __future__ import annotations

import pytest

from meshmsg.recovery.stream import meetings as module
from meshmsg.recovery.stream.meetings import Meetings

PEER, ONE, TWO = 7, 1, 2


def names(text: str) -> frozenset[str]:
    return frozenset(text)


def welcome(
    meetings: Meetings,
    streams: str,
    subs: set[int],
    *,
    again: bool = False,
    peer: int = PEER,
    begins: bool = True,
    more: bool = False,
) -> dict[int, tuple[str, str]]:
    offers = meetings.on_welcome(peer, names(streams), subs, again=again, begins=begins, more=more)
    return {o.sub: ("".join(sorted(o.streams)), "".join(sorted(o.born))) for o in offers}


def test_what_a_peer_has_when_it_is_met_is_not_new() -> None:
    assert welcome(Meetings(), "ab", {ONE}) == {ONE: ("ab", "")}


def test_stream_announced_over_a_standing_connection_is_new_to_all() -> None:
    meetings = Meetings()
    welcome(meetings, "a", {ONE})
    # The second was made meanwhile, and is yet to be offered what there was before.
    assert welcome(meetings, "ab", {ONE, TWO}, again=True) == {ONE: ("b", "b"), TWO: ("ab", "b")}
    assert not meetings.meet(PEER, TWO)
    assert welcome(meetings, "ab", {ONE, TWO}, again=True) == {ONE: ("", ""), TWO: ("", "")}


def test_stream_declared_while_the_connection_was_broken_is_new_to_those_met_before() -> None:
    meetings = Meetings()
    welcome(meetings, "a", {ONE})
    assert welcome(meetings, "ab", {ONE, TWO}) == {ONE: ("ab", "b"), TWO: ("ab", "")}


def test_another_start_of_a_peer_is_another_peer() -> None:
    meetings = Meetings()
    welcome(meetings, "a", {ONE})
    assert welcome(meetings, "ab", {ONE}, peer=8) == {ONE: ("ab", "")}


def test_subscription_is_offered_once_what_a_peer_has() -> None:
    meetings = Meetings()
    assert meetings.meet(PEER, ONE)  # of a peer that was forgotten
    welcome(meetings, "a", set())
    assert meetings.meet(PEER, ONE)
    assert not meetings.meet(PEER, ONE)
    meetings.forget(ONE)
    assert meetings.meet(PEER, ONE)


def test_who_dials_us_without_streams_is_met() -> None:
    meetings = Meetings()
    meetings.on_hello(PEER, {ONE}, has_streams=False)
    meetings.on_hello(PEER, {ONE, TWO}, has_streams=True)
    assert welcome(meetings, "a", {ONE, TWO, 3}) == {
        ONE: ("a", "a"),
        TWO: ("a", "a"),
        3: ("a", ""),
    }
    meetings.on_hello(PEER, {3, 4}, has_streams=True)
    assert meetings.meet(PEER, 4)


def test_who_dials_us_with_streams_is_not() -> None:
    meetings = Meetings()
    meetings.on_hello(PEER, {ONE}, has_streams=True)
    assert welcome(meetings, "a", {ONE}) == {ONE: ("a", "")}


def test_number_of_peers_and_of_their_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEERS_MAX", 10)
    monkeypatch.setattr(module, "NAMES_MAX", 20)
    meetings = Meetings()
    for peer in range(100):
        welcome(meetings, "a", {ONE}, peer=peer)
    assert len(meetings) == 10
    welcome(meetings, "abcdefghijklmnopqrst", {ONE}, peer=100)
    assert len(meetings) == 1
    assert welcome(meetings, "abcdefghijklmnopqrstu", {ONE}, again=True, peer=100) == {
        ONE: ("u", "u")
    }


def test_who_was_not_here_for_long_is_met_anew() -> None:
    meetings = Meetings()
    welcome(meetings, "a", {ONE})
    for now, here in ((0.0, {PEER}), (1.0, set()), (10.0, set()), (10.5, {PEER}), (11.0, set())):
        meetings.sweep(here, 10.0, now=now)
        assert len(meetings) == 1
    meetings.sweep(set(), 10.0, now=21.0)
    assert len(meetings) == 0
    assert welcome(meetings, "ab", {ONE}) == {ONE: ("ab", "")}


def test_each_page_is_judged_by_what_was_known_before_the_first() -> None:
    meetings = Meetings()
    assert welcome(meetings, "ab", {ONE}, more=True) == {ONE: ("ab", "")}
    assert not meetings.meet(PEER, ONE)
    assert meetings.meet(PEER, TWO)
    pages = {ONE: ("cd", ""), TWO: ("cd", "")}
    assert welcome(meetings, "cd", {ONE, TWO}, begins=False) == pages
    assert welcome(meetings, "ab", {ONE}, again=True, more=True) == {ONE: ("", "")}
    assert welcome(meetings, "cde", {ONE}, again=True, begins=False) == {ONE: ("e", "e")}


def test_subscription_made_between_two_pages_is_offered_those_before_too() -> None:
    meetings = Meetings()
    assert welcome(meetings, "ab", {ONE}, more=True) == {ONE: ("ab", "")}
    pages = welcome(meetings, "cd", {ONE, TWO}, begins=False, more=True)
    assert pages == {ONE: ("cd", ""), TWO: ("abcd", "")}
    assert not meetings.meet(PEER, TWO)
    assert welcome(meetings, "e", {ONE, TWO}, begins=False) == {ONE: ("e", ""), TWO: ("e", "")}


def test_subscription_made_between_two_pages_is_told_what_is_new() -> None:
    meetings = Meetings()
    welcome(meetings, "ac", {ONE})
    assert welcome(meetings, "ab", {ONE}, again=True, more=True) == {ONE: ("b", "b")}
    pages = welcome(meetings, "cd", {ONE, TWO}, again=True, begins=False)
    assert pages == {ONE: ("d", "d"), TWO: ("abcd", "bd")}


def test_pages_that_come_to_no_end_make_nothing_new() -> None:
    meetings = Meetings()
    welcome(meetings, "abcd", {ONE})
    assert welcome(meetings, "ab", {ONE}, again=True, more=True) == {ONE: ("", "")}
    assert welcome(meetings, "ab", {ONE}, again=True, more=True) == {ONE: ("", "")}
    assert welcome(meetings, "cd", {ONE}, again=True, begins=False) == {ONE: ("", "")}
