"""What an offset stands for, and how far the next one goes; random worlds are in simulation."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source import positions as at
from meshmsg.spark_sink.source.planning import Reached, Taken
from meshmsg.spark_sink.source.positions import Epoch, Positions, Range, StreamState, Survey

A, B = "shop/a.**", "shop/b.**"


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


# --- several streams ---


def streams_of(**streams: list[Epoch]) -> Survey:
    names = {"a": A, "b": B}
    return Survey({names[key]: StreamState(names[key], epochs) for key, epochs in streams.items()})


def test_earliest_and_newest_name_each_stream() -> None:
    found = streams_of(a=[Epoch(5, 0, 3, 10, True), Epoch(7, 0, 0, 4)], b=[Epoch(6, 0, 0, 0)])
    assert planning.earliest(found) == {f"{A}/5": 3, f"{A}/7": 0}
    assert at.newest(found) == {f"{A}/7": 4, f"{B}/6": 0}


def test_new_epochs_and_streams_are_taken_and_older_ones_are_not() -> None:
    found = streams_of(a=[Epoch(4, 0, 0, 9, True), Epoch(5, 0, 0, 10, True), Epoch(7, 0, 0, 4)])
    end = planning.available({f"{A}/5": 8}, found)
    assert end == {f"{A}/5": 10, f"{A}/7": 4}
    assert planning.backlog({f"{A}/5": 8}, end, found) == [Range(A, 5, 8, 10), Range(A, 7, 0, 4)]
    both = streams_of(a=[Epoch(7, 0, 0, 4)], b=[Epoch(3, 0, 0, 2)])
    assert planning.available({f"{A}/7": 1}, both) == {f"{A}/7": 4, f"{B}/3": 2}


def test_positions_do_not_go_back() -> None:
    assert planning.available({f"{A}/7": 9}, streams_of(a=[Epoch(7, 0, 0, 4)])) == {f"{A}/7": 9}
    assert planning.available({f"{A}/7": 9}, Survey()) == {f"{A}/7": 9}


def test_an_epoch_that_expired_as_a_whole_is_still_named() -> None:
    found = streams_of(a=[Epoch(5, 0, 10, 10, True), Epoch(6, 0, 3, 3, True), Epoch(7, 0, 0, 4)])
    end = planning.available({f"{A}/5": 8}, found)
    assert end == {f"{A}/5": 10, f"{A}/6": 3, f"{A}/7": 4}
    # A query that begins has missed nothing.
    assert planning.available({}, found) == {f"{A}/7": 4}


def test_a_recorder_that_came_late_has_lost_nothing() -> None:
    found = streams_of(a=[Epoch(5, 41, 41, 50)])
    assert planning.backlog({}, planning.available({}, found), found) == [Range(A, 5, 41, 50)]


def test_a_log_that_was_begun_anew_lacks_what_came_since_the_last_look() -> None:
    found = streams_of(a=[Epoch(5, 41, 41, 50)])
    start = {f"{A}/5": 30}
    assert planning.backlog(start, planning.available(start, found), found) == [Range(A, 5, 30, 50)]


def test_limit_shares_by_backlog_and_takes_old_epochs_first() -> None:
    found = streams_of(a=[Epoch(5, 0, 0, 10, True), Epoch(7, 0, 0, 1000)], b=[Epoch(3, 0, 0, 10)])
    end = planning.limited({}, planning.available({}, found), found, 101)
    assert end == {f"{A}/5": 10, f"{A}/7": 90, f"{B}/3": 1}
    assert planning.limited({}, planning.available({}, found), found, 5) == {
        f"{A}/5": 4,
        f"{B}/3": 1,
    }


def test_epochs_that_are_read_and_lie_far_back_are_forgotten() -> None:
    epochs = [Epoch(number, 0, 0, 5, True) for number in range(1, 20)] + [Epoch(20, 0, 0, 5)]
    found = streams_of(a=epochs)
    start = {f"{A}/{number}": 5 for number in range(1, 21)}
    start[f"{A}/3"] = 4
    end = planning.pruned(start, planning.available(start, found), found)
    assert sorted(at.by_stream(end)[A]) == [3, *range(13, 21)]
    # Nor do they come back.
    assert planning.available(end, found) == end
    assert planning.backlog(start, end, found) == [Range(A, 3, 4, 5)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Positions, Survey]:
    streams: dict[str, list[Epoch]] = {}
    start: Positions = {}
    for name in draw(st.sets(st.sampled_from("ab"), min_size=1)):
        numbers = sorted(draw(st.sets(st.integers(1, 9), min_size=1)))
        epochs = []
        gone = draw(st.integers(0, len(numbers)))  # retention removes the oldest
        for place, number in enumerate(numbers):
            origin, first, stop = sorted(draw(st.integers(0, 40)) for _ in range(3))
            first = stop if place < gone else first if place == gone else origin
            epochs.append(Epoch(number, origin, first, stop, number != numbers[-1]))
        streams[name] = epochs
        if draw(st.booleans()):
            for epoch in epochs[draw(st.integers(0, len(epochs) - 1)) :][: draw(st.integers(1, 9))]:
                start[at.key_of({"a": A, "b": B}[name], epoch.epoch)] = epoch.first
    return start, streams_of(**streams)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(1, 50))
def test_whatever_the_limit_every_event_is_in_one_batch(
    world: tuple[Positions, Survey], limit: int
) -> None:
    start, found = world
    whole = planning.backlog(start, planning.available(start, found), found)
    wanted = [(r.stream, r.epoch, n) for r in whole for n in range(r.first, r.stop)]
    got: list[tuple[str, int, int]] = []
    for _ in range(1000):
        end = planning.limited(start, planning.available(start, found), found, limit)
        if end != start:
            end = planning.pruned(start, end, found)
        batch = planning.backlog(start, end, found)
        if not batch:
            break
        assert sum(r.events for r in batch) <= limit
        got += [(r.stream, r.epoch, n) for r in batch for n in range(r.first, r.stop)]
        assert json.loads(json.dumps(end)) == end
        assert list(end) == sorted(end)
        start = end
    assert sorted(got) == sorted(wanted)
