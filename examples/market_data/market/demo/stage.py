"""What the demo stands on: phases, waiting for conditions, and showing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from market.demo.workers import WorkerFailed
from meshmsg import Ledger, Peer

#: Longer than anything takes that is not broken.
WAIT_S = 60.0
SHOW_S = 0.1


class Overdue(WorkerFailed):
    """Something did not come in time."""


class Stage:
    """Hears its workers, and shows itself every now and then."""

    _peer: Peer

    def __init__(self, phase: str, show: Callable[[Any], None]) -> None:
        self.phase = phase
        self._show = show
        self._shown_at = 0.0
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def hear(self) -> None:
        """Take what the workers have said; raises `WorkerFailed`."""
        raise NotImplementedError

    def look(self) -> None:
        """Bring the figures up to date that are to be shown."""
        raise NotImplementedError

    def tend(self, *, show: bool = False) -> None:
        """Hear the workers, and show how things are."""
        self.hear()
        now = time.monotonic()
        if show or now - self._shown_at >= SHOW_S:
            self._shown_at = now
            self.look()
            self._show(self)

    def until(self, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Wait for it; raises `Overdue` when it does not come, `WorkerFailed` when it cannot."""
        deadline = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline:
                raise Overdue(f"waited for {wait_s:g} s in vain while: {self.phase}")
            self.tend()
            time.sleep(0.002)

    def settled_ledger(self) -> Ledger:
        """The ledger once nothing is in flight, or after a long time."""
        deadline = time.monotonic() + WAIT_S
        while True:
            ledger = self._peer.ledger(timeout=5)
            if not ledger.in_flight or time.monotonic() > deadline:
                return ledger
            self.tend()
