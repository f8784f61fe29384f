"""Gives the processor to ZeroMQ's thread for a moment, so that what was sent leaves now.

A send only hands a message to ZeroMQ's thread.  Where that thread shares the processor with the
one that sent, Linux lets the latter run on until it waits for something (since 6.6 a thread that
wakes up takes the processor from nobody).  All that a program does after `publish`, and a round
trip in `get` before it waits, would come before the event.  So a thread that sent a single event
yields once: ZeroMQ's thread runs if it waits for this processor, and nothing happens if it has one
of its own.

Another program that waits for the processor would get it, too, for a time slice.  A yield that
took long is the last one for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from meshmsg import _platform

#: ZeroMQ's thread takes 10 to 50 us; who has the processor for longer than this is somebody else.
LONG_S = 0.0002
#: After that nobody is given way for so long.
REST_S = 0.1

sched_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class HandOver:
    """Yields after a send, unless that took long lately; any thread."""

    def __init__(self) -> None:
        self._monotonic = _platform.current().monotonic
        self._rests_until = 0.0

    def give_way(self) -> int:
        """Let ZeroMQ's thread run; return the ns it took, 0 while that would be too many."""
        began = self._monotonic()
        if began < self._rests_until:
            return 0
        sched_yield()
        ended = self._monotonic()
        if ended - began > LONG_S:
            self._rests_until = ended + REST_S
        return int((ended - began) * 1e9)
