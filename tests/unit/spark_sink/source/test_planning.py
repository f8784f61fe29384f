"""What an offset stands for, and how far the next one goes; random worlds are in simulation."""

from __future__ import annotations

from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source.planning import Reached, Taken
from meshmsg.spark_sink.source.positions import Epoch, Range, StreamState, Survey

A = "shop/a.**"


def survey(*epochs: Epoch, spread: bool = False, away: str = "") -> Survey:
    problems = {away: "it does not answer"} if away else {}
    return Survey({A: StreamState(A, list(epochs))}, problems, spread)


def test_taken_owes_what_was_passed() -> None:
    taken = Taken()
    taken.take(0, 3)
    taken.take(5, 9)
    assert (taken.next, list(taken.owed), list(taken.events())) == (9, [(3, 5)], [(0, 3), (5, 9)])
    taken.take(4, 5)
    assert (taken.next, list(taken.owed)) == (9, [(3, 4)])


def test_an_offset_says_the_same_as_what_was_reached() -> None:
    taken = Taken(9, found=4)
    taken.owed.add(2, 5)
    places = {A: Reached({7: taken, 8: Taken(1)}, done=6, begun=7)}
    offset = planning.written(places)
    assert planning.reached(offset) == places
    assert list(offset) == sorted(offset)


def test_a_query_begins_before_the_oldest_or_behind_the_newest() -> None:
    found = survey(Epoch(5, 0, 2, 4, True), Epoch(7, 0, 0, 3))
    assert planning.earliest(found) == {f"{A}/5": 2, f"{A}/7": 0}
    assert planning.latest(found) == {f"{A}/7": 3}
    assert planning.from_place(found.streams[A], 7, 1, spread=False) == {f"{A}/7": 1}


def test_a_batch_is_the_difference_of_two_offsets() -> None:
    found = survey(Epoch(5, 0, 0, 4, True), Epoch(7, 0, 0, 3))
    end = planning.available({f"{A}/5": 1}, found)
    assert planning.backlog({f"{A}/5": 1}, end, found) == [Range(A, 5, 1, 4), Range(A, 7, 0, 3)]
    assert planning.backlog(end, end, found) == []


def test_a_limit_takes_old_epochs_first_and_names_no_later_one() -> None:
    found = survey(Epoch(5, 0, 0, 4, True), Epoch(7, 0, 0, 3))
    assert planning.next_offset({}, found, found, 3) == {f"{A}/5": 3}
    assert planning.next_offset({f"{A}/5": 3}, found, found, 3) == {f"{A}/5": 4, f"{A}/7": 2}


def test_what_a_peer_that_is_away_may_have_is_owed() -> None:
    start = planning.earliest(survey(Epoch(7, 0, 4, 4), spread=True, away="backup"))
    seen = survey(Epoch(7, 0, 4, 9), spread=True, away="backup")
    end = planning.available(start, seen)
    assert planning.backlog(start, end, seen) == [Range(A, 7, 4, 9)]
    back = survey(Epoch(7, 0, 0, 9), spread=True)
    assert planning.backlog(end, planning.available(end, back), back) == [Range(A, 7, 0, 4)]


def test_what_only_a_peer_that_is_away_may_have_of_a_begun_epoch_is_owed() -> None:
    start = {**planning.latest(survey(Epoch(7, 0, 0, 5), spread=True))}
    seen = survey(Epoch(7, 0, 8, 9), spread=True, away="backup")
    end = planning.available(start, seen)
    assert planning.backlog(start, end, seen) == [Range(A, 7, 8, 9)]
    assert end[f"{A}/7/owed from 5"] == 8
    alone = survey(Epoch(7, 0, 8, 9), spread=True)
    missed = planning.available(start, alone)  # nobody else has it: it is read, and found lost
    assert planning.backlog(start, missed, alone) == [Range(A, 7, 5, 9)]


def test_a_given_end_leaves_out_what_lies_behind_it() -> None:
    everything = {f"{A}/5": 4, f"{A}/7": 3, f"{A}/9": 2}
    assert planning.ending({f"{A}/7": 1}, everything) == {f"{A}/5": 4, f"{A}/7": 1}
    assert planning.ending({}, everything) == everything
