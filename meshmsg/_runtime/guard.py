"""Guards of the threads that work for others: a failure costs one piece of work, not the thread.

A thread works in turns, and a turn in parts.  What fails in a part is counted and logged with its
trace (`failed`), and the next part goes on.  What fails a whole turn is tried again after a pause
(`drive`), and shows as the guard's `problem` for a while.  A thread that must end all the same says
so in the log, and leaves behind why it `ended`, for the statistics and for those who wait for it.

A `try` costs nothing where nothing fails.  So pieces of work on a hot path have theirs in place,
and call `failed` from the `except`.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from meshmsg import _platform
from meshmsg._runtime.log_limit import LogLimit

log = logging.getLogger("meshmsg.peer")

#: Turns that may fail one after the other before the thread ends.
FAILURES_MAX = 100
#: The pause after the first of them, and the longest one.
PAUSE_S = 0.01
PAUSE_MAX_S = 0.5
#: How long a failure shows as a problem: longer than a part that comes by the clock takes to fail
#: again.
PROBLEM_S = 5.0


class Guard:
    """Of one thread, or of one object that several threads drive in turn."""

    def __init__(self, who: str, counters: Counter[str], counter: str = "io_errors") -> None:
        self.who = who
        self.ended: str | None = None  #: why it ended, if that was by an error
        self._trouble = ""
        self._trouble_at = 0.0
        self._counters = counters
        self._counter = counter
        self.notes = LogLimit(log, counters)  #: log lines that others cause
        self._failures = LogLimit(log, counters)  # those must not leave out what fails

    @property
    def problem(self) -> str | None:
        """Why it ended, or what has failed in the last seconds; any thread."""
        if self.ended is None and _platform.monotonic() - self._trouble_at > PROBLEM_S:
            return None
        return self.ended or self._trouble or None

    def has_trouble(self, text: str) -> None:
        """Show a problem for a while."""
        self._trouble, self._trouble_at = text, _platform.monotonic()

    def failed(self, what: str) -> None:
        """Count and log the exception that is being handled: what it was about is dropped."""
        self._counters[self._counter] += 1
        kind = type(sys.exception())
        self._failures.write(
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
        self, turn: Callable[[], bool], pause: Callable[[float], object] = _platform.sleep
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
                    self.has_trouble(f"{self.who} fails: {error!r}")
                    if failures >= FAILURES_MAX:
                        raise
                    pause(min(PAUSE_MAX_S, PAUSE_S * failures))
                    continue
                failures = 0
                if not go_on:
                    return
        except (_platform.Killed, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.ended = f"{self.who} ended by an error: {error!r}"
            self._counters["threads_ended"] += 1
            log.critical("%s", self.ended, exc_info=True)
