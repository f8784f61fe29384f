"""Subscriptions whose consumers are busy: the I/O thread reads them when something comes.

A consumer that waits reads its subscription itself.  One that has not read for a while is busy:
what comes meanwhile is read ahead, so that gaps are found and repaired.  The I/O thread waits for
the descriptors of such a subscription, and after something came lets `REST_S` pass before it waits
for them again: a busy stream must not have it run for every message, beside a consumer that works.

Only descriptors are waited for, never ZeroMQ's sockets: those belong to whoever drives the intake.
"""

from __future__ import annotations

from meshmsg._receive.subscription_io import Intake
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.zmq.context import Poller

#: Between two times that a subscription with a busy consumer is read, at least.
REST_S = 0.005


class Arrival:
    """A descriptor of a subscription, as a thing to poll."""

    def __init__(self, intake: Intake, fd: int) -> None:
        self.intake = intake
        self.pollable = fd


class Background:
    """What the I/O thread watches for consumers that are busy; on that thread only."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._watched: dict[Intake, list[Arrival]] = {}
        self._rests: dict[Intake, float] = {}  # until when

    def look(self, intakes: list[Intake], now: float, calm_due: float) -> float:
        """Watch those whose consumers are busy, and no others; returns when to look again.

        For a consumer that waits the I/O thread need not wake up before `calm_due`.
        """
        for gone in (self._watched.keys() | self._rests.keys()) - set(intakes):
            self._forget(gone)
        return min((self._look_at(intake, now, calm_due) for intake in intakes), default=NEVER)

    def on_arrival(self, arrival: Arrival, now: float) -> None:
        """Something came; the turn that follows reads it."""
        self._unwatch(arrival.intake)
        self._rests[arrival.intake] = now + REST_S

    def _look_at(self, intake: Intake, now: float, calm_due: float) -> float:
        busy_at = intake.driven_at + intake.background_s
        if now < busy_at or intake.closed:
            self._forget(intake)
            return busy_at if intake.driven_at <= now else max(busy_at, calm_due)
        rest = self._rests.get(intake, 0.0)
        if now < rest:
            return rest
        self._watch(intake)
        return max(intake.timer_due, now + REST_S)

    def _watch(self, intake: Intake) -> None:
        fds = intake.arrival_fds
        if [arrival.pollable for arrival in self._watched.get(intake, ())] == list(fds):
            return
        self._unwatch(intake)
        self._watched[intake] = [Arrival(intake, fd) for fd in fds]
        for arrival in self._watched[intake]:
            self._poller.add(arrival)

    def _unwatch(self, intake: Intake) -> None:
        for arrival in self._watched.pop(intake, ()):
            self._poller.remove(arrival)

    def _forget(self, intake: Intake) -> None:
        self._unwatch(intake)
        self._rests.pop(intake, None)
