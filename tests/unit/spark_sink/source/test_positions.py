"""Offsets of the Spark source: what they name, what lies between two, and how far a batch goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmsg import ConfigError
from meshmsg.spark_sink.errors import OtherCheckpoint
from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source import positions as at
from meshmsg.spark_sink.source.positions import Epoch, Positions, Range, StreamState, Survey

A, B = "shop/a.**", "shop/b.**"


def survey(**streams: list[Epoch]) -> Survey:
    names = {"a": A, "b": B}
    return Survey({names[key]: StreamState(names[key], epochs) for key, epochs in streams.items()})


def test_keys_hold_stream_and_epoch() -> None:
    assert at.key_of("x/y/z.**", 17) == "x/y/z.**/17"
    assert at.parse_key("x/y/z.**/17") == ("x/y/z.**", 17)
    for text in ("", "17", "x/17", "x/y/", "x/y/z", "x/y/-3"):
        assert at.parse_key(text) is None


@pytest.mark.parametrize(
    "offset", [5, [], {"x": 1}, {"p/s/5": "7"}, {"p/s/5": -1}, {"p/s/5": True}, {"topic": {"0": 4}}]
)
def test_offsets_of_others_are_refused(offset: object) -> None:
    with pytest.raises(OtherCheckpoint, match="name another folder, or delete this one"):
        at.check_offset(offset)


def test_earliest_and_newest_name_each_stream() -> None:
    found = survey(a=[Epoch(5, 0, 3, 10, True), Epoch(7, 0, 0, 4)], b=[Epoch(6, 0, 0, 0)])
    assert planning.earliest(found) == {f"{A}/5": 3, f"{A}/7": 0}
    assert at.newest(found) == {f"{A}/7": 4, f"{B}/6": 0}


def test_new_epochs_and_streams_are_taken_and_older_ones_are_not() -> None:
    found = survey(a=[Epoch(4, 0, 0, 9, True), Epoch(5, 0, 0, 10, True), Epoch(7, 0, 0, 4)])
    end = planning.available({f"{A}/5": 8}, found)
    assert end == {f"{A}/5": 10, f"{A}/7": 4}
    assert planning.backlog({f"{A}/5": 8}, end, found) == [Range(A, 5, 8, 10), Range(A, 7, 0, 4)]
    both = survey(a=[Epoch(7, 0, 0, 4)], b=[Epoch(3, 0, 0, 2)])
    assert planning.available({f"{A}/7": 1}, both) == {f"{A}/7": 4, f"{B}/3": 2}


def test_positions_do_not_go_back() -> None:
    assert planning.available({f"{A}/7": 9}, survey(a=[Epoch(7, 0, 0, 4)])) == {f"{A}/7": 9}
    assert planning.available({f"{A}/7": 9}, Survey()) == {f"{A}/7": 9}


def test_an_epoch_that_expired_as_a_whole_is_still_named() -> None:
    found = survey(a=[Epoch(5, 0, 10, 10, True), Epoch(6, 0, 3, 3, True), Epoch(7, 0, 0, 4)])
    end = planning.available({f"{A}/5": 8}, found)
    assert end == {f"{A}/5": 10, f"{A}/6": 3, f"{A}/7": 4}
    # A query that begins has missed nothing.
    assert planning.available({}, found) == {f"{A}/7": 4}


def test_a_recorder_that_came_late_has_lost_nothing() -> None:
    found = survey(a=[Epoch(5, 41, 41, 50)])
    assert planning.backlog({}, planning.available({}, found), found) == [Range(A, 5, 41, 50)]


def test_a_log_that_was_begun_anew_lacks_what_came_since_the_last_look() -> None:
    found = survey(a=[Epoch(5, 41, 41, 50)])
    start = {f"{A}/5": 30}
    assert planning.backlog(start, planning.available(start, found), found) == [Range(A, 5, 30, 50)]


def test_limit_shares_by_backlog_and_takes_old_epochs_first() -> None:
    found = survey(a=[Epoch(5, 0, 0, 10, True), Epoch(7, 0, 0, 1000)], b=[Epoch(3, 0, 0, 10)])
    end = planning.limited({}, planning.available({}, found), found, 101)
    assert end == {f"{A}/5": 10, f"{A}/7": 90, f"{B}/3": 1}
    assert planning.limited({}, planning.available({}, found), found, 5) == {
        f"{A}/5": 4,
        f"{B}/3": 1,
    }


def test_epochs_that_are_read_and_lie_far_back_are_forgotten() -> None:
    epochs = [Epoch(number, 0, 0, 5, True) for number in range(1, 20)] + [Epoch(20, 0, 0, 5)]
    found = survey(a=epochs)
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
    return start, survey(**streams)


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


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(1, 99)), max_size=6),
    st.integers(1, 9),
)
def test_shares_are_about_equal_and_whole(pieces: list[tuple[int, int, int]], shares: int) -> None:
    ranges = [Range(A, n, first, first + count) for n, (_, first, count) in enumerate(pieces)]
    parts = at.split(ranges, shares)
    assert len(parts) <= shares
    flat = [(r.epoch, n) for part in parts for r in part for n in range(r.first, r.stop)]
    assert flat == [(r.epoch, n) for r in ranges for n in range(r.first, r.stop)]
    sizes = [sum(r.events for r in part) for part in parts]
    if sizes:
        assert max(sizes) - min(sizes) <= max(1, sum(sizes) // shares)


@pytest.mark.parametrize("text", ["{", "[]", '{"p/s": 5}', '{"p/s/5": "soon"}', '{"p/s/5": -1}'])
def test_positions_that_a_user_wrote_wrongly(text: str) -> None:
    with pytest.raises(ConfigError, match="JSON object of positions"):
        at.parse_positions(text, "option startingPosition")
