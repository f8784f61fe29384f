"""Log lines that others cause: each now and then, and only so many of all.

Whoever can make us write a line can make us write a million.  Of lines with one key, one is written
in `EVERY_S`; of all keys together, which are as many as somebody makes up, `LINES_MAX` in the same
time, and `LINES_EACH_MAX` by one cause where that is known, so that it does not silence the others.
What is left out is counted, and the next line of its key says how many there were.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from meshmsg import _platform

EVERY_S = 10.0
LINES_MAX = 30
LINES_EACH_MAX = 10
KEYS_MAX = 1000


class LogLimit:
    """Writes to one logger, from any thread."""

    def __init__(
        self,
        log: logging.Logger,
        counters: Counter[str],
        clock: Callable[[], float] = _platform.monotonic,
    ) -> None:
        self._log = log
        self._counters = counters
        self._clock = clock
        self._lock = _platform.new_lock()
        self._written_at: dict[object, float] = {}
        self._left_out: Counter[object] = Counter()
        self._window_ends = 0.0
        self._lines = 0
        self._lines_by: Counter[object] = Counter()

    def error(self, text: str, *values: object, key: object = None, by: object = None) -> None:
        """Write an error; lines with the same key (text and values, if none is given) are few."""
        self.write(logging.ERROR, text, *values, key=key, by=by)

    def warning(
        self,
        text: str,
        *values: object,
        key: object = None,
        by: object = None,
        stream: str = "",
    ) -> bool:
        """Write a warning, likewise; return False if it was left out."""
        return self.write(logging.WARNING, text, *values, key=key, by=by, stream=stream)

    def info(self, text: str, *values: object, key: object = None, by: object = None) -> None:
        """Write what is worth knowing, likewise."""
        self.write(logging.INFO, text, *values, key=key, by=by)

    def write(
        self,
        level: int,
        text: str,
        *values: object,
        key: object = None,
        by: object = None,
        trace: bool = False,
        stream: str = "",
    ) -> bool:
        """Write a line that somebody caused, about a stream if it names one.

        With `trace`, the exception in hand follows it.
        """
        if not self._log.isEnabledFor(level):
            return True
        key = (text, values) if key is None else key
        with self._lock:
            if not self._may_write(key, by):
                self._counters["log_lines_dropped"] += 1
                return False
            left_out = self._left_out.pop(key, 0)
        if left_out:
            text, values = f"{text} (and %d times before)", (*values, left_out)
        self._log.log(level, text, *values, exc_info=trace, extra={"stream": stream})
        return True

    def _may_write(self, key: object, by: object) -> bool:
        now = self._clock()
        if now >= self._window_ends:
            self._window_ends, self._lines = now + EVERY_S, 0
            self._lines_by.clear()
        if now - self._written_at.get(key, -EVERY_S) < EVERY_S:
            self._left_out[key] += 1
            return False
        if self._lines >= LINES_MAX or (by is not None and self._lines_by[by] >= LINES_EACH_MAX):
            return False
        if len(self._written_at) >= KEYS_MAX:
            self._written_at.clear()
            self._left_out.clear()
        self._lines += 1
        self._lines_by[by] += 1
        self._written_at[key] = now
        return True
