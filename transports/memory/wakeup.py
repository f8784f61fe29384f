"""A wake-up call between tasks; see `transports.wakeup`."""

from __future__ import annotations

from meshmsg.transports.memory.network import Signal
from meshmsg.transports.memory.scheduler import Scheduler


class Wakeup:
    """`set` makes `fd` ready until `clear`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._is_set = self._closed = False
        self.fd = Signal(scheduler, lambda: self._is_set)

    def set(self) -> None:
        """Wake whoever waits; harmless after `close`."""
        if not self._closed:
            self._is_set = True
            self.fd.notify()

    def clear(self) -> None:
        """Forget the calls so far."""
        self._is_set = False

    def close(self) -> None:
        """It is not heard any more."""
        self._closed, self._is_set = True, False
