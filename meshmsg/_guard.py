"""Guards of the threads that work for others: a failure costs one piece of work, not the thread.

A thread works in turns, and a turn in parts.  What fails in a part is counted and logged with its
trace (`failed`), and the next part goes on.  What fails a whole turn is tried again after a pause
(`drive`), and shows as the guard's `problem` meanwhile.  A thread that must end all the same says
so in the log, and leaves its `problem` behind for the statistics and for those who wait for it.

A `try` costs nothing where nothing fails.  So pieces of work on a hot path have theirs in place,
and call `failed` from the `except`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

from meshmsg._log_limit import LogLimit

log = logging.getLogger("meshmsg.peer")

#: Turns that may fail one after the other before the thread ends.
FAILURES_MAX = 100
#: The pause after the first of them, and the longest one.
PAUSE_S = 0.01
PAUSE_MAX_S = 0.5


class Guard:
    """Of one thread, or of one object that several threads drive in turn."""

    def __init__(self, who: str, counters: Counter[str], counter: str = "io_errors") -> None:
        self.who = who
        self.problem: str | None = None  #: why it ended, or why it does not get on just now
        self._counters = counters
        self._counter = counter
        self.notes = LogLimit(log, counters)  #: log lines that others cause

    def failed(self, what: str) -> None:
        """Count and log the exception that is being handled: what it was about is dropped."""
        self._counters[self._counter] += 1
        kind = type(sys.exception())
        self.notes.write(
            logging.ERROR, "%s: %s failed", self.who, what, key=(what, kind), trace=True
        )

    def each(self, functions: Iterable[Callable[[], object]]) -> None:
        """Call one after the other, whatever becomes of those before."""
        for function in functions:
            try:
                function()
            except Exception:
                self.failed(getattr(function, "__name__", "a call"))

    def drive(
        self, turn: Callable[[], bool], pause: Callable[[float], object] = time.sleep
    ) -> None:
        """Take turns until one returns False, or until they fail again and again."""
        failures = 0
        try:
            while True:
                try:
                    go_on = turn()
                except Exception as error:
                    failures += 1
                    self.failed("a turn")
                    self.problem = f"{self.who} fails: {error!r}"
                    if failures >= FAILURES_MAX:
                        raise
                    pause(min(PAUSE_MAX_S, PAUSE_S * failures))
                    continue
                if failures:
                    failures, self.problem = 0, None
                if not go_on:
                    return
        except BaseException as error:
            self.problem = f"{self.who} ended by an error: {error!r}"
            self._counters["threads_ended"] += 1
            log.critical("%s", self.problem, exc_info=True)
