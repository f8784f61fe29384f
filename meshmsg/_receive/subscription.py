"""`Subscription`: what a consumer holds.  The async one, in `async_peer`, shares the base."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshmsg import _platform
from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import MemberOptions
from meshmsg._groups.work_batch import WorkBatch
from meshmsg._model.batch import Batch, Event, place_of
from meshmsg._model.config import ORDER_WORDS, check_group
from meshmsg._model.errors import ClosedError, ConfigError, WaitTimeout
from meshmsg._model.event import EventsLost, Loss, Position
from meshmsg._model.message_fields import ATTEMPTS_MAX, DURATION_MAX_S, PREFETCH_MAX
from meshmsg._model.units import one_of, parse_time
from meshmsg._native import COMPILED
from meshmsg._peer.forks import is_forked
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._receive.subscription_io import Intake

if COMPILED:
    from meshmsg import _speed
if TYPE_CHECKING:
    from meshmsg._peer.node import Node

log = logging.getLogger("meshmsg.peer")

#: Times are signed 64-bit nanoseconds.
TIME_MAX_S = 2**63 // 10**9
OnLoss = str | Callable[[Loss], None]
StartFrom = str | float | int | datetime | Position


def parse_start(start: StartFrom) -> StartAt:
    """Read `start=`; raises `ConfigError` that says what can be written."""
    if isinstance(start, Position):
        return StartAt(position=start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError("start", "a datetime needs a time zone: datetime.now(timezone.utc)")
        return StartAt("time", int(start.timestamp() * 1e9))
    if isinstance(start, int | float) and not isinstance(start, bool) and 0 <= start < TIME_MAX_S:
        return StartAt("time", int(start * 1e9))
    if start == "live" or start == "earliest":
        return StartAt("live" if start == "live" else "earliest")
    if start == "committed":
        return StartAt("earliest", committed={})
    if isinstance(start, str) and start.startswith("last:") and start[5:].isdecimal():
        return StartAt("last", int(start[5:]))
    if isinstance(start, str) and "@" in start:
        return StartAt(position=Position.parse(start))
    raise ConfigError(
        "start",
        f"{start!r} is not one of 'live', 'earliest', 'last:N', 'committed', a time in seconds "
        f"since 1970, a datetime or a Position",
    )


def check_on_loss(on_loss: OnLoss) -> None:
    """`on_loss=` is a word or a callable; raises `ConfigError`."""
    if not callable(on_loss):
        one_of("on_loss", on_loss, ("report", "raise"))


def member_options(
    group: str,
    prefetch: int,
    ack_timeout: float | str,
    max_attempts: int,
    order: str,
    auto_ack: bool,
) -> MemberOptions:
    """Check what a member of a group asks for; raises `ConfigError`."""
    check_group("group", group)
    one_of("order", order, ORDER_WORDS)
    for field, value, most in (
        ("prefetch", prefetch, PREFETCH_MAX),
        ("max_attempts", max_attempts, ATTEMPTS_MAX),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(field, f"{value!r} is not a number from 1 to {most:,}")
    timeout_s = _duration("ack_timeout", ack_timeout)
    if timeout_s <= 0:
        raise ConfigError("ack_timeout", "must be more than 0 seconds")
    return MemberOptions(group, prefetch, timeout_s, max_attempts, order, bool(auto_ack))


def _duration(field: str, value: float | str) -> float:
    """A time that publishers take; a longer one would cost all that is said with it."""
    seconds = parse_time(field, value)
    if seconds > DURATION_MAX_S:
        raise ConfigError(field, f"at most {DURATION_MAX_S:,.0f} seconds")
    return seconds


class SubscriptionBase:
    """What the sync and the async subscription have in common."""

    def __init__(self, node: Node, intake: Intake | Member, on_loss: OnLoss) -> None:
        self._node = node
        self._intake = intake
        self._on_loss = on_loss
        self._monotonic = _platform.current().monotonic  # at hand: asked for each event

    @property
    def losses(self) -> list[Loss]:
        """What was declared lost so far, in order of its report (the last 10,000)."""
        return list(self._intake.losses)

    @property
    def lost(self) -> int:
        """How many events were declared lost so far."""
        return self._intake.counters["lost"]

    @property
    def evictions(self) -> list[str]:
        """Why publishers stopped waiting for this subscription, where they did."""
        return list(self._intake.evictions)

    @property
    def name(self) -> str:
        """How publishers call it in their statistics."""
        return self._node.label(self._intake.sub)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return is_forked(self._intake) or self._intake.closed

    @property
    def group(self) -> str | None:
        """The work group that it is a member of, if any."""
        return self._intake.options.group if isinstance(self._intake, Member) else None

    def _commit(self) -> None:
        intake = self._intake
        if isinstance(intake, Member):
            raise ConfigError("commit", "a member of a group says what is done by events.ack")
        if intake.bookmarks is None:
            problem = "needs a place and a name: Peer(data_dir=...), subscribe(name='...')"
            raise ConfigError("commit", problem)
        positions = intake.positions()
        intake.bookmarks.keep(positions)
        intake.committed(positions)
        if intake.hold:
            self._node.tell_committed(intake, positions)

    def ack(self, done: Event | Batch | Iterable[Event], *more: Event | Batch) -> None:
        """Of a work group: an event, a batch or several events are done and do not come again.

        Said to the publishers soon, many at a time; never waits.  Raises `ConfigError` outside of
        groups.

        >>> events.ack(event)                                                 # doctest: +SKIP
        """
        if done.__class__ is Event:
            batch, index = place_of(done)
            batch.ack_at(index)
        elif isinstance(done, WorkBatch):
            done.member.ack_batch(done)
        elif isinstance(done, Batch):
            done.ack_at(0)
        elif isinstance(done, str | bytes) or not isinstance(done, Iterable):
            raise ConfigError("ack", f"{done!r} is not an event, a batch or a list of events")
        else:
            for event in done:
                self.ack(event)
        for item in more:
            self.ack(item)

    def nack(self, event: Event, delay: float | str = 0.0, error: str = "") -> None:
        """Of a work group: the event was not handled, and comes again, for any member.

        Not before `delay` seconds are over; `error` is kept for the dead letters.  Raises
        `ConfigError` outside of groups.
        """
        if not isinstance(event, Event):
            raise ConfigError("nack", f"{event!r} is not an event: give back one at a time")
        batch, index = place_of(event)
        if not isinstance(batch, WorkBatch):
            raise ConfigError("nack", "only events of a group (group=...) can be")
        batch.member.nack(batch, index, _duration("delay", delay), str(error))

    def stats(self) -> dict[str, Any]:
        """Figures of this subscription, as plain data."""
        return self._node.inlet_stats(self._intake)

    def _publishers(self) -> int:
        return len(self._intake.sources())

    def _no_publishers(self, count: int, timeout: float | None) -> str:
        """What is known of the peers and the feeds that were waited for."""
        known = [f"{link.address} is {link.state}" for link in self._node.links.table.all()]
        if isinstance(self._intake, Intake):
            known += self._intake.reading.unheard()
        return (
            f"{self._publishers()} of {count} streams after {timeout:g} s "
            f"({', '.join(known) or 'this peer knows no other: give it connect='})"
        )

    def _handle_loss(self, loss: Loss) -> None:
        if self._on_loss == "raise":
            raise EventsLost(loss)
        if callable(self._on_loss):
            self._on_loss(loss)
        else:
            self._intake.guard.notes.warning("%s", loss)

    def _gather(self, first: Event, max: int) -> list[Event]:
        """An event and those that are ready behind it."""
        events = [first]
        while len(events) < max:
            events += islice(self._intake.iterator, max - len(events))
            if len(events) < max and not self._unpack_ready():
                break
        return events

    def _unpack_ready(self) -> bool:
        """Go on to the next batch if there is one now; a loss waits for the next call."""
        intake = self._intake
        if not intake.lock.acquire(blocking=False):  # somebody waits in there: for more, if we ask
            return False
        try:
            if intake.closed or intake.loss_is_next():
                return False
            if intake.take(as_events=True) is not None:
                return True
            now = self._monotonic()
            got = intake.receive(now, now, as_events=True)
            if got is None or isinstance(got, Batch):
                return got is not None
            if not (got or intake.pump(now)) or intake.loss_is_next():
                return False
            return intake.take(as_events=True) is not None
        finally:
            intake.lock.release()

    def _check_refused(self) -> None:
        refusal = self._intake.refusal or self._node.refusal()
        if refusal is not None:
            raise refusal

    def _check_open(self) -> None:
        if self._intake.closed:
            self._node.check_running()
            raise ClosedError("the subscription is closed")


class Subscription(SubscriptionBase):
    """Events of a set of topics, in order for each stream.

    >>> with peer.subscribe("orders.**") as events:                           # doctest: +SKIP
    ...     for event in events:
    ...         print(event.topic, event.data)
    """

    def __enter__(self) -> Subscription:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_intake") and not self.closed and not self._node.stopped.is_set():
            warnings.warn("a subscription was not closed", ResourceWarning, stacklevel=2)

    def __iter__(self) -> Iterator[Event]:
        """Event after event, until the subscription or its peer is closed."""
        if COMPILED:
            return _speed.Iteration(self._intake, self._next_events)
        return self._iterate()

    def _next_events(self) -> Batch | None:
        return self._next_batch(None, as_events=True)

    def _iterate(self) -> Iterator[Event]:
        intake = self._intake
        while True:
            yield from intake.iterator
            if self._next_batch(None, as_events=True) is None:
                return

    def get(self, timeout: float | None = None) -> Event | None:
        """The next event, or `None` when the time is up.  Raises `ClosedError`, `EventsLost`."""
        intake = self._intake
        deadline = None if timeout is None else self._monotonic() + timeout
        while True:
            event = next(intake.iterator, None)
            if event is not None:
                return event
            if intake.closed:
                self._check_open()
            if self._next_batch(deadline, as_events=True) is None:
                self._check_open()
                return None

    def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Event]:
        """Up to `max` events as soon as there is one; empty when the time is up."""
        if max < 1:
            raise ConfigError("max", f"{max!r} is not a number of events: at least 1")
        first = self.get(timeout)
        return [] if first is None else self._gather(first, max)

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Batch after batch: the fast path.  Ends when none came for `timeout` seconds."""
        while True:
            deadline = None if timeout is None else self._monotonic() + timeout
            batch = self._next_batch(deadline, as_events=False)
            if batch is None:
                return
            yield batch

    def wait_for_publishers(self, count: int = 1, timeout: float | None = 5.0) -> None:
        """Wait until this many streams feed it.  Raises `WaitTimeout`, `PeerRefused`."""
        deadline = None if timeout is None else self._monotonic() + timeout
        intake = self._intake
        while self._publishers() < count:
            self._check_open()
            self._check_refused()
            left = None if deadline is None else deadline - self._monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout(self._no_publishers(count, timeout))
            with intake.lock:
                now = self._monotonic()
                if not intake.closed and not intake.pump(now):
                    intake.wait(0.05 if left is None else min(left, 0.05), now)

    def commit(self) -> None:
        """Keep, under the subscription's name, that all it gave so far is done.

        With `start="committed"` the next subscription of that name goes on behind it, also after a
        restart of either side.  Raises `LogError`, and `ConfigError` without a name or `data_dir`.
        """
        self._commit()

    def close(self) -> None:
        """Stop receiving; the publishers are told.  A member's open work goes to others.

        A member waits up to 1 s until its publishers have counted what it has done, and durable
        ones have it on disk.
        """
        if is_forked(self._intake):
            return
        self._node.drop(self._intake)
        self._node.see_off()

    def _next_batch(self, deadline: float | None, *, as_events: bool) -> Batch | None:
        """The next batch, `None` when the time is up or all is closed."""
        while True:
            found = self._drive(deadline, as_events)
            if isinstance(found, Batch) or found is None:
                return found
            self._handle_loss(found)

    def _drive(self, deadline: float | None, as_events: bool) -> Batch | Loss | None:
        """Wait for a batch or a loss; `None` when the time is up or all is closed."""
        intake = self._intake
        lock = intake.lock
        try:
            # Taken inside `try`, and released by its owner only: Ctrl-C may come in between.
            if not (lock.acquire(blocking=False) or lock.acquire(timeout=_left(deadline))):
                return None
            while not intake.closed:
                found = intake.take(as_events=as_events)
                if found is not None:
                    return found
                self._node.publisher.send_own()
                now = self._monotonic()
                got = intake.receive(now, deadline, as_events=as_events)
                if isinstance(got, Batch):
                    return got
                if got or intake.pump(now) or intake.inbox:
                    continue
                self._check_refused()
                if deadline is not None and now >= deadline:
                    return None
                intake.wait(None if deadline is None else deadline - now, now)
            self._node.check_running()  # what ends by a failure does not end as if all were done
            return None
        finally:
            if lock._is_owned():  # type: ignore[attr-defined]
                lock.release()


def _left(deadline: float | None) -> float:
    return -1 if deadline is None else max(0.001, deadline - _platform.monotonic())
