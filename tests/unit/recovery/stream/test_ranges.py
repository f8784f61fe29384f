"""RangeSet, by named behaviour and against a plain set of integers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meshmsg.recovery.stream.ranges import RangeSet


def spans(ranges: RangeSet) -> list[tuple[int, int]]:
    return list(ranges)


def test_any_number_of_a_range_that_is_in_the_set_touches_it() -> None:
    ranges = RangeSet([(2, 4), (8, 9)])
    numbers = {2, 3, 8}
    for first in range(12):
        for stop in range(first, 12):
            assert ranges.touches(first, stop) == bool(numbers & set(range(first, stop)))
    assert not RangeSet().touches(0, 1 << 62)


def test_new_set_is_empty() -> None:
    empty = RangeSet()
    assert not empty
    assert len(empty) == 0
    assert empty.count == 0
    assert spans(empty) == []
    assert 0 not in empty


@pytest.mark.parametrize(
    ("first", "stop", "expected"),
    [
        (30, 35, [(10, 15), (20, 25), (30, 35)]),
        (25, 30, [(10, 15), (20, 30)]),
        (22, 30, [(10, 15), (20, 30)]),
        (20, 25, [(10, 15), (20, 25)]),
        (21, 24, [(10, 15), (20, 25)]),
        (0, 5, [(0, 5), (10, 15), (20, 25)]),
        (0, 10, [(0, 15), (20, 25)]),
        (17, 18, [(10, 15), (17, 18), (20, 25)]),
        (15, 17, [(10, 17), (20, 25)]),
        (17, 20, [(10, 15), (17, 25)]),
        (15, 20, [(10, 25)]),
        (12, 22, [(10, 25)]),
        (0, 40, [(0, 40)]),
        (-5, -1, [(-5, -1), (10, 15), (20, 25)]),
    ],
)
def test_add_merges_what_overlaps_or_touches(
    first: int, stop: int, expected: list[tuple[int, int]]
) -> None:
    ranges = RangeSet([(10, 15), (20, 25)])
    ranges.add(first, stop)
    assert spans(ranges) == expected
    assert ranges.count == sum(end - start for start, end in expected)


@pytest.mark.parametrize(
    ("first", "stop", "expected"),
    [
        (0, 10, [(10, 15), (20, 25)]),
        (15, 20, [(10, 15), (20, 25)]),
        (25, 40, [(10, 15), (20, 25)]),
        (10, 12, [(12, 15), (20, 25)]),
        (10, 15, [(20, 25)]),
        (0, 17, [(20, 25)]),
        (0, 22, [(22, 25)]),
        (0, 40, []),
        (11, 14, [(10, 11), (14, 15), (20, 25)]),
        (12, 22, [(10, 12), (22, 25)]),
        (12, 40, [(10, 12)]),
        (20, 25, [(10, 15)]),
        (23, 25, [(10, 15), (20, 23)]),
    ],
)
def test_remove_trims_and_splits(first: int, stop: int, expected: list[tuple[int, int]]) -> None:
    ranges = RangeSet([(10, 15), (20, 25)])
    ranges.remove(first, stop)
    assert spans(ranges) == expected
    assert ranges.count == sum(end - start for start, end in expected)


def test_remove_from_empty_set_changes_nothing() -> None:
    ranges = RangeSet()
    ranges.remove(0, 10)
    assert ranges == RangeSet()


@pytest.mark.parametrize("method", ["add", "remove", "covers", "missing", "overlap"])
def test_backward_range_is_refused_with_its_numbers(method: str) -> None:
    ranges = RangeSet([(0, 10)])
    with pytest.raises(ValueError, match=r"\[7, 3\) runs backward"):
        getattr(ranges, method)(7, 3)
    assert spans(ranges) == [(0, 10)]


def test_empty_range_changes_nothing() -> None:
    ranges = RangeSet([(0, 10)])
    ranges.add(20, 20)
    ranges.remove(5, 5)
    assert spans(ranges) == [(0, 10)]


def test_empty_window_is_covered_and_has_no_parts() -> None:
    ranges = RangeSet([(0, 10)])
    assert ranges.covers(50, 50)
    assert ranges.missing(50, 50) == []
    assert ranges.overlap(5, 5) == []


def test_contains_first_but_not_stop() -> None:
    ranges = RangeSet([(3, 5)])
    assert [n for n in range(8) if n in ranges] == [3, 4]


def test_covers_needs_every_number_of_the_window() -> None:
    ranges = RangeSet([(0, 5), (6, 10)])
    assert ranges.covers(0, 5)
    assert ranges.covers(7, 9)
    assert not ranges.covers(4, 7)
    assert not ranges.covers(9, 11)
    assert not ranges.covers(-1, 2)


def test_missing_and_overlap_split_the_window_between_them() -> None:
    ranges = RangeSet([(0, 4), (6, 9), (12, 20)])
    assert ranges.missing(2, 14) == [(4, 6), (9, 12)]
    assert ranges.overlap(2, 14) == [(2, 4), (6, 9), (12, 14)]
    assert ranges.missing(-3, 25) == [(-3, 0), (4, 6), (9, 12), (20, 25)]
    assert ranges.overlap(13, 15) == [(13, 15)]
    assert ranges.overlap(4, 6) == []
    assert ranges.missing(4, 6) == [(4, 6)]
    assert ranges.missing(-3, 25, most=2) == [(-3, 0), (4, 6)]
    assert ranges.missing(-3, 25, most=9) == ranges.missing(-3, 25)


def test_bounds_span_all_ranges() -> None:
    assert RangeSet([(6, 9), (1, 2)]).bounds == (1, 9)


def test_bounds_of_empty_set_raise_index_error() -> None:
    with pytest.raises(IndexError, match="no bounds"):
        _ = RangeSet().bounds


def test_pop_first_takes_the_lowest_range() -> None:
    ranges = RangeSet([(6, 9), (1, 2)])
    assert ranges.pop_first() == (1, 2)
    assert ranges.count == 3
    assert ranges.pop_first() == (6, 9)
    with pytest.raises(IndexError, match="empty RangeSet"):
        ranges.pop_first()


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (-1, [(0, 4), (6, 9)]),
        (0, [(0, 4), (6, 9)]),
        (1, [(1, 4), (6, 9)]),
        (4, [(6, 9)]),
        (5, [(6, 9)]),
        (8, [(8, 9)]),
        (9, []),
        (99, []),
    ],
)
def test_discard_before_keeps_n_and_above(n: int, expected: list[tuple[int, int]]) -> None:
    ranges = RangeSet([(0, 4), (6, 9)])
    ranges.discard_before(n)
    assert spans(ranges) == expected
    assert ranges.count == sum(stop - first for first, stop in expected)


def test_clear_empties_the_set() -> None:
    ranges = RangeSet([(0, 4), (6, 9)])
    ranges.clear()
    assert not ranges
    assert ranges.count == 0


def test_copy_changes_independently() -> None:
    ranges = RangeSet([(0, 4)])
    twin = ranges.copy()
    assert twin == ranges
    twin.add(4, 6)
    assert spans(ranges) == [(0, 4)]
    assert ranges.count == 4
    assert twin.count == 6


def test_equality_is_by_content() -> None:
    assert RangeSet([(0, 2), (2, 4)]) == RangeSet([(0, 4)])
    assert RangeSet([(0, 4)]) != RangeSet([(0, 5)])
    assert RangeSet() != []


def test_set_that_can_change_is_not_hashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(RangeSet())


def test_repr_builds_the_same_set() -> None:
    ranges = RangeSet([(0, 4), (6, 9)])
    assert repr(ranges) == "RangeSet([(0, 4), (6, 9)])"
    assert eval(repr(ranges)) == ranges


def test_numbers_beyond_64_bits_are_exact() -> None:
    high = 2**64
    ranges = RangeSet([(high - 1, high + 1)])
    assert high in ranges
    assert high + 1 not in ranges
    assert ranges.count == 2


LOWEST, HIGHEST = -4, 48
numbers = st.integers(LOWEST, HIGHEST)
windows = st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))


class RangeSetMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves the same numbers in a RangeSet as in a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(window=windows)
    def add(self, window: tuple[int, int]) -> None:
        self.ranges.add(*window)
        self.model.update(range(*window))

    @rule(gap=st.integers(0, 3), size=st.integers(1, 4))
    def add_at_the_end(self, gap: int, size: int) -> None:
        first = max(self.model, default=0) + gap
        self.ranges.add(first, first + size)
        self.model.update(range(first, first + size))

    @rule(window=windows)
    def remove(self, window: tuple[int, int]) -> None:
        self.ranges.remove(*window)
        self.model.difference_update(range(*window))

    @rule(n=numbers)
    def discard_before(self, n: int) -> None:
        self.ranges.discard_before(n)
        self.model = {kept for kept in self.model if kept >= n}

    @precondition(lambda self: self.model)
    @rule()
    def pop_first(self) -> None:
        first, stop = self.ranges.pop_first()
        assert first == min(self.model)
        assert stop not in self.model
        popped = set(range(first, stop))
        assert popped <= self.model
        self.model -= popped

    @rule()
    def clear(self) -> None:
        self.ranges.clear()
        self.model.clear()

    @rule()
    def carry_on_with_a_copy(self) -> None:
        original = self.ranges
        self.ranges = original.copy()
        original.clear()

    @rule(window=windows)
    def ask_about_a_window(self, window: tuple[int, int]) -> None:
        wanted = set(range(*window))
        missing, overlap = self.ranges.missing(*window), self.ranges.overlap(*window)
        assert_well_formed(missing)
        assert_well_formed(overlap)
        assert expand(missing) == wanted - self.model
        assert expand(overlap) == wanted & self.model
        assert self.ranges.covers(*window) == (wanted <= self.model)

    @invariant()
    def holds_the_same_numbers(self) -> None:
        ranges = list(self.ranges)
        assert_well_formed(ranges)
        assert expand(ranges) == self.model
        assert self.ranges.count == len(self.model)
        assert len(self.ranges) == len(ranges)
        assert bool(self.ranges) == bool(self.model)
        assert self.ranges == RangeSet((n, n + 1) for n in self.model)
        for n in range(LOWEST - 1, HIGHEST + 2):
            assert (n in self.ranges) == (n in self.model)
        if self.model:
            assert self.ranges.bounds == (min(self.model), max(self.model) + 1)


def expand(ranges: list[tuple[int, int]]) -> set[int]:
    return {n for first, stop in ranges for n in range(first, stop)}


def assert_well_formed(ranges: list[tuple[int, int]]) -> None:
    assert all(first < stop for first, stop in ranges)
    assert all(stop < first for (_, stop), (first, _) in pairwise(ranges))


TestRangeSetAgainstPlainSet = RangeSetMachine.TestCase
TestRangeSetAgainstPlainSet.settings = settings(deadline=None, stateful_step_count=40)
