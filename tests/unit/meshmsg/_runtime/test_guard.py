"""Guards and the limit of log lines: what fails is counted, told now and then, and tried again."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from meshmsg._runtime.guard import FAILURES_MAX, PAUSE_MAX_S, Guard
from meshmsg._runtime.log_limit import EVERY_S, KEYS_MAX, LINES_EACH_MAX, LINES_MAX, LogLimit

LOG = logging.getLogger("meshmsg.test")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limit() -> tuple[LogLimit, Clock, Counter[str]]:
    clock, counters = Clock(), Counter[str]()
    return LogLimit(LOG, counters, clock), clock, counters


# --- the log -------------------------------------------------------------------------------------


def test_a_line_is_written_once_and_then_says_how_often(caplog: pytest.LogCaptureFixture) -> None:
    notes, clock, counters = limit()
    for _ in range(5):
        notes.error("refused %s", "a")
    notes.error("refused %s", "b")
    assert [r.getMessage() for r in caplog.records] == ["refused a", "refused b"]
    assert counters["log_lines_dropped"] == 4
    clock.now += EVERY_S
    notes.error("refused %s", "a")
    assert caplog.records[-1].getMessage() == "refused a (and 4 times before)"


def test_lines_of_made_up_keys_are_few(caplog: pytest.LogCaptureFixture) -> None:
    notes, clock, counters = limit()
    for n in range(10_000):
        notes.warning("refused %s", n)
    assert len(caplog.records) == LINES_MAX
    assert counters["log_lines_dropped"] == 10_000 - LINES_MAX
    for _ in range(100):
        clock.now += EVERY_S
        for n in range(100):
            notes.warning("refused %s at %s", n, clock.now)
    assert len(notes._written_at) <= KEYS_MAX
    assert len(notes._left_out) <= KEYS_MAX


def test_one_who_causes_many_lines_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    notes, _, _ = limit()
    for n in range(100):
        notes.error("refused %s", n, by="10.0.0.1")
    assert len(caplog.records) == LINES_EACH_MAX
    notes.error("refused %s", "b", by="10.0.0.2")
    assert caplog.records[-1].getMessage() == "refused b"


def test_what_fails_is_told_whatever_others_cause(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("a thread", Counter())
    for n in range(100):
        guard.notes.error("refused %s", n)
    guard.each([lambda: 1 // 0])
    assert "failed" in caplog.records[-1].getMessage()


def test_a_line_that_is_not_wanted_is_not_counted() -> None:
    notes, _, counters = limit()
    for _ in range(5):
        notes.write(logging.DEBUG - 1, "nothing")
    assert not counters


# --- guards --------------------------------------------------------------------------------------


def test_a_failure_is_counted_and_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counter[str]()
    guard = Guard("a thread", counters)
    for _ in range(3):
        try:
            raise MemoryError
        except Exception:
            guard.failed("a message")
    assert counters == {"io_errors": 3, "log_lines_dropped": 2}
    (record,) = caplog.records
    assert record.getMessage() == "a thread: a message failed"
    assert record.exc_info is not None
    assert record.exc_info[0] is MemoryError


def test_what_follows_a_failure_is_done() -> None:
    done: list[int] = []
    counters = Counter[str]()
    Guard("a thread", counters).each(
        [lambda: done.append(1), lambda: 1 // 0, lambda: done.append(2)]
    )
    assert done == [1, 2]
    assert counters["io_errors"] == 1


def test_a_turn_that_fails_is_tried_again_after_a_pause() -> None:
    pauses: list[float] = []
    problems: list[str | None] = []
    counters = Counter[str]()
    guard = Guard("a thread", counters, "record_failures")
    turns = iter([ValueError("one"), ValueError("two"), True, ValueError("three"), False])

    def turn() -> bool:
        problems.append(guard.problem)
        what = next(turns)
        if isinstance(what, Exception):
            raise what
        return what

    guard.drive(turn, pauses.append)
    told = ["ValueError('one')", "ValueError('two')", "ValueError('two')", "ValueError('three')"]
    assert problems == [None, *(f"a thread fails: {t}" for t in told)]  # each for a while
    assert guard.ended is None
    assert pauses == [0.01, 0.02, 0.01]
    assert counters["record_failures"] == 3


def test_a_thread_that_fails_again_and_again_ends_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    counters = Counter[str]()
    guard = Guard("a thread", counters)
    guard.drive(lambda: bool(1 // 0), pauses.append)
    assert guard.problem is not None
    assert guard.problem.startswith("a thread ended by an error: ZeroDivisionError")
    assert len(pauses) == FAILURES_MAX - 1
    assert max(pauses) == PAUSE_MAX_S
    assert counters["threads_ended"] == 1
    assert caplog.records[-1].levelno == logging.CRITICAL


def test_a_thread_that_is_told_to_exit_says_so_too() -> None:
    guard = Guard("a thread", Counter())

    def turn() -> bool:
        raise SystemExit(3)

    guard.drive(turn)
    assert guard.problem == "a thread ended by an error: SystemExit(3)"
