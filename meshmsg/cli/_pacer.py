"""Even pacing: so many turns a second."""

from __future__ import annotations

import time
from collections.abc import Callable

#: What was missed is made up for, but never more than this much time's worth at once.
CATCH_UP_S = 0.1


class Pacer:
    """Hands out turns at a rate, by the clock and not by the pause, so that it does not drift."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step_s = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._due: float | None = None

    def wait(self) -> None:
        """Until the next turn; the first is at once."""
        now = self._clock()
        due = now if self._due is None else self._due
        if due > now:
            self._sleep(due - now)
        self._due = max(due, now - CATCH_UP_S) + self._step_s
