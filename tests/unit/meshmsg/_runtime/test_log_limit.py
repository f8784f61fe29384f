"""Log lines that others cause are few, and say how many were left out."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from meshmsg._runtime.log_limit import EVERY_S, KEYS_MAX, LINES_EACH_MAX, LINES_MAX, LogLimit


class Bench:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self.caplog = caplog
        caplog.set_level(logging.WARNING, "test.limit")
        log = logging.getLogger("test.limit")
        self.limit = LogLimit(log, self.counters, lambda: self.now)

    def lines(self) -> list[str]:
        found = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return found


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(caplog)


def test_a_line_is_written_once_in_a_while_and_counts_what_was_left_out(bench: Bench) -> None:
    results = [bench.limit.warning("from %s", "a") for _ in range(3)]
    assert results == [True, False, False]
    bench.now = EVERY_S - 0.01
    assert not bench.limit.warning("from %s", "a")
    bench.now = EVERY_S
    assert bench.limit.warning("from %s", "a")
    assert bench.lines() == ["from a", "from a (and 3 times before)"]
    assert bench.counters["log_lines_dropped"] == 3


def test_lines_with_other_values_are_others_unless_a_key_joins_them(bench: Bench) -> None:
    bench.limit.error("from %s", "a")
    bench.limit.error("from %s", "b")
    bench.limit.error("joined %s", "a", key="k")
    bench.limit.error("joined %s", "b", key="k")
    assert bench.lines() == ["from a", "from b", "joined a"]


def test_all_keys_together_have_a_bound(bench: Bench) -> None:
    for n in range(2 * LINES_MAX):
        bench.limit.warning("line %d", n)
    assert len(bench.lines()) == LINES_MAX
    bench.now = EVERY_S
    assert bench.limit.warning("line %d", 99)


def test_one_cause_does_not_silence_the_others(bench: Bench) -> None:
    for n in range(2 * LINES_MAX):
        bench.limit.warning("line %d", n, by="attacker")
    assert len(bench.lines()) == LINES_EACH_MAX
    assert bench.limit.warning("line of another", by="other")


def test_keys_are_forgotten_when_they_are_too_many(bench: Bench) -> None:
    for n in range(KEYS_MAX + 10):
        bench.now += EVERY_S
        assert bench.limit.warning("line %d", n)
    assert len(bench.limit._written_at) <= KEYS_MAX


def test_a_level_that_is_not_written_costs_nothing_and_is_not_dropped(bench: Bench) -> None:
    for _ in range(3):
        assert bench.limit.write(logging.DEBUG, "quiet")
    assert bench.lines() == []
    assert not bench.counters


def test_a_trace_follows_its_line(bench: Bench) -> None:
    try:
        raise ValueError("on purpose")
    except ValueError:
        bench.limit.write(logging.ERROR, "it failed", trace=True)
    [record] = bench.caplog.records  # Spark may have set how lines look
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "on purpose"
