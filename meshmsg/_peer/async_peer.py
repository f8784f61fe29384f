"""`AsyncPeer`: the same verbs for asyncio.

Not a wrapper around threads: the event loop itself waits for a subscription's socket and reads it,
and events come out of whole batches, so the loop is asked once a batch and not once an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from meshmsg._model.batch import Batch, Event
from meshmsg._model.codecs import Codec
from meshmsg._model.config import PeerConfig, load_toml
from meshmsg._model.errors import ConfigError, MeshError, PublishTimeout, WaitTimeout
from meshmsg._model.event import Loss, Position
from meshmsg._native import COMPILED
from meshmsg._peer.async_presence import AsyncPeerWatch
from meshmsg._peer.forks import is_forked
from meshmsg._peer.peer import (
    WAITED_FOR,
    PeerBase,
    behind_text,
    check_wait,
    config_arguments,
    drain_s,
)
from meshmsg._publish.event_runs import runs_of
from meshmsg._publish.publisher import PublisherSide
from meshmsg._receive.subscription import OnLoss, StartFrom, SubscriptionBase, check_on_loss
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.recovery.stream.loss_detector import NEVER

if COMPILED:
    from meshmsg import _speed

    # So that tasks, `gather`, `wait_for` and `asyncio.run` take it for what it is.
    Coroutine.register(_speed.Coroutine)

#: A consumer or publisher that never has to wait still lets the loop run this often.
TURN_S = 0.005
POLL_S = 0.005


class AsyncSubscription(SubscriptionBase):
    """Events of a set of topics, for `async for`.

    >>> async with peer.subscribe("orders.**") as events:                     # doctest: +SKIP
    ...     async for event in events:
    ...         print(event.topic, event.data)
    """

    _yielded_at = 0.0
    _loop: asyncio.AbstractEventLoop | None = None  # that watches the descriptors
    _fds: tuple[int, ...] = ()
    _waiting: frozenset[_Woken] = frozenset()
    _timer: asyncio.TimerHandle | None = None
    _timer_at = NEVER

    async def __aenter__(self) -> AsyncSubscription:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if not is_forked(self._node) and self._node.inlets.parting:
            await asyncio.to_thread(self._node.see_off)

    def __aiter__(self) -> AsyncIterator[Event]:
        if COMPILED:
            return _speed.AsyncEvents(self._intake, self._next_event)
        return self._iterate()

    async def _next_event(self) -> Event:
        """The next event when none is at hand: what `_iterate` does between two batches."""
        intake = self._intake
        while True:
            if await self._next_batch(None, as_events=True) is None:
                raise StopAsyncIteration
            for event in intake.iterator:
                return event

    async def _iterate(self) -> AsyncIterator[Event]:
        intake = self._intake
        while True:
            for event in intake.iterator:
                yield event
            if await self._next_batch(None, as_events=True) is None:
                return

    async def get(self, timeout: float | None = None) -> Event | None:
        """The next event, or `None` when the time is up.  Raises `ClosedError`, `EventsLost`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            event = next(self._intake.iterator, None)
            if event is not None:
                return event
            if self._intake.closed:
                self._check_open()
            if await self._next_batch(deadline, as_events=True) is None:
                self._check_open()
                return None

    async def get_many(self, max: int = 1000, timeout: float | None = None) -> list[Event]:
        """Up to `max` events as soon as there is one; empty when the time is up."""
        if max < 1:
            raise ConfigError("max", f"{max!r} is not a number of events: at least 1")
        first = await self.get(timeout)
        return [] if first is None else self._gather(first, max)

    async def batches(self, timeout: float | None = None) -> AsyncIterator[Batch]:
        """Batch after batch: the fast path.  Ends when none came for `timeout` seconds."""
        while True:
            deadline = None if timeout is None else time.monotonic() + timeout
            batch = await self._next_batch(deadline, as_events=False)
            if batch is None:
                return
            yield batch

    async def wait_for_publishers(self, count: int = 1, timeout: float | None = 5.0) -> None:
        """Wait until this many streams feed it.  Raises `WaitTimeout`, `PeerRefused`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._publishers() < count:
            self._check_open()
            self._check_refused()
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(self._no_publishers(count, timeout))
            self._intake.tend(time.monotonic(), force=True)
            await asyncio.sleep(POLL_S)

    async def commit(self) -> None:
        """Keep, under the subscription's name, that all it gave so far is done.

        See `Subscription.commit`.
        """
        await asyncio.to_thread(self._commit)

    def close(self) -> None:
        """Stop receiving; the publishers are told.  A member's open work goes to others."""
        if is_forked(self._intake):  # nor is the loop's selector the child's own
            return
        self._unwatch()
        self._node.drop(self._intake)
        self._wake_all()

    def _wake_all(self) -> None:
        for woken in self._waiting:
            _resolve(woken)

    async def _next_batch(self, deadline: float | None, *, as_events: bool) -> Batch | None:
        intake = self._intake
        while True:
            now = time.monotonic()
            if now - self._yielded_at > TURN_S:
                await asyncio.sleep(0)
                self._yielded_at = time.monotonic()
            with intake.lock:
                if intake.closed:
                    self._node.check_running()
                    return None
                found: Batch | Loss | bool | None = intake.take(as_events=as_events)
                if found is None:
                    found = intake.receive(now, now, as_events=as_events)
                if found is False:
                    found = intake.pump(now) or bool(intake.inbox)
            idle = found is None or found is False
            if self._waiting and not idle:
                self._wake_all()  # there may be more, and the descriptor says it once only
            if isinstance(found, Batch):
                return found
            if isinstance(found, Loss):
                self._handle_loss(found)
            elif idle:
                self._check_refused()
                if deadline is not None and now >= deadline:
                    return None
                await self._readable(deadline)

    async def _readable(self, deadline: float | None) -> None:
        """Until the socket may have something, a timer is due, or the time is up."""
        intake = self._intake
        self._node.publisher.send_own()
        loop = asyncio.get_running_loop()
        woken = _Woken(loop=loop)
        self._waiting |= {woken}
        try:
            with intake.lock:  # with which it is closed
                if intake.closed:
                    return
                intake.on_close = self._on_close
                self._watch(loop)
            until = min(intake.timer_due, NEVER if deadline is None else deadline)
            if until < self._timer_at:
                self._set_timer(loop, until)
            await woken
        finally:
            self._waiting -= {woken}
            if not self._waiting:
                intake.on_close = None
            self._yielded_at = time.monotonic()

    def _on_close(self) -> None:
        """Any thread: the peer was closed, or its I/O thread has ended."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits there
                loop.call_soon_threadsafe(self._on_end)

    def _on_end(self) -> None:
        self._unwatch()
        self._wake_all()

    def _set_timer(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """One timer for all who wait, left to run: mostly an event comes first, time after time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = loop.call_at(until, self._on_timer)  # its clock is time.monotonic()

    def _on_timer(self) -> None:
        self._timer_at = NEVER
        self._wake_all()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        fds = self._intake.fds
        if self._loop is not loop or self._fds != fds:
            self._unwatch()
            self._loop = loop
            self._fds = fds
            called, *data = fds
            loop.add_reader(called, self._on_call)
            for fd in data:
                loop.add_reader(fd, self._on_readable)

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        self._timer_at = NEVER
        if self._timer is not None:
            self._timer.cancel()
        if loop is not None and not loop.is_closed():
            for fd in self._fds:
                loop.remove_reader(fd)

    def _on_readable(self) -> None:
        if not self._waiting:
            # ZeroMQ's descriptor stays readable until the socket is asked: nobody asks just now.
            self._unwatch()
        elif len(self._waiting) == 1:
            next(iter(self._waiting)).go_on()
        else:
            self._wake_all()

    def _on_call(self) -> None:
        """The wake-up call of another thread; data comes without."""
        self._intake.clear_wakeup()
        self._on_readable()


class _Woken(asyncio.Future[None]):
    """What a coroutine waits for that waits for its subscription's descriptor.

    A future has its coroutine go on in the loop's next turn.  The loop would look at all
    descriptors before, find this one still readable, wake the coroutine for the same event again
    when it waits for the next, and take a third turn to find nothing: of a round trip, a third.
    """

    _wakeup: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Of the task that awaits it, and nobody else."""
        super().add_done_callback(fn, context=context)
        self._wakeup = (fn, copy_context() if context is None else context)

    def go_on(self) -> None:
        """Have the task go on now: for the loop to call, while no task runs."""
        if self._wakeup is None or self.done():
            _resolve(self)
            return
        wakeup, context = self._wakeup
        self.remove_done_callback(wakeup)
        self.set_result(None)
        context.run(wakeup, self)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class AsyncPeer(PeerBase):
    """One node of the mesh, for asyncio.

    >>> async with AsyncPeer("dashboard", connect=address) as peer:           # doctest: +SKIP
    ...     async with peer.subscribe("quotes.**") as events:
    ...         async for event in events:
    ...             show(event.data)
    """

    _publish: Callable[..., Position | None] | None = None
    _waits_for_disk = False

    @classmethod
    def from_toml(cls, path: str | Path) -> AsyncPeer:
        """A peer as a `mesh.toml` describes it.  Raises `ConfigError`."""
        return cls.from_config(load_toml(path))

    @classmethod
    def from_config(cls, config: PeerConfig) -> AsyncPeer:
        """A peer as a configuration describes it."""
        return cls(**config_arguments(config))

    def _start(self) -> None:
        super()._start()
        publisher = self._open_node().publisher
        self._publish = publisher.publish
        publish = publisher.publish
        self._waits_for_disk = publisher.waits_for_disk()
        if (
            COMPILED
            and not self._waits_for_disk
            and isinstance(publish, _speed.Publish)
            and type(self).publish is AsyncPeer.publish
        ):
            # A coroutine costs as much as publishing does.
            gated = partial(_publish_gated, publisher)
            self.publish = _speed.AsyncPublish(publish, _ignore, gated)  # type: ignore[method-assign]

        if self._spans is not None:
            self.publish_many = self._spans.many_async(self.publish_many, publisher.stream_of)  # type: ignore[method-assign]

    async def __aenter__(self) -> AsyncPeer:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(timeout=drain_s(kind))

    async def close(self, timeout: float | None = None) -> None:
        """Hand over what was published, say good-bye, free everything.  Safe to call again."""
        wait = self.config.tuning.close_timeout_s if timeout is None else timeout
        self._publish = None
        self.__dict__.pop("publish", None)
        self.__dict__.pop("publish_many", None)
        await asyncio.shield(asyncio.to_thread(self._shut, time.monotonic() + wait))

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Publish one event; returns its position.  Waits where the stream is blocked.

        Raises what `Peer.publish` does.
        """
        publish = self._publish
        if publish is None:
            publish = self._open_node().publisher.publish  # which says that it is closed
        if self._waits_for_disk and self._open_node().publisher.waits_for_disk(topic):
            # Not in the loop, which has others to serve; those who wait share one sync.
            slow = partial(publish, topic, data, key=key, headers=headers, timeout=timeout)
            return await asyncio.to_thread(slow)  # type: ignore[arg-type]
        if key is None and headers is None:
            position = publish(topic, data, on_gate=_ignore)
        else:
            position = publish(topic, data, key=key, headers=headers, on_gate=_ignore)
        if position is not None:
            if not position.seq & 0xFFF:
                await asyncio.sleep(0)  # a loop that only publishes lets the others run, too
            return position
        publisher = self._open_node().publisher
        return await _publish_gated(publisher, topic, data, key, headers, timeout)

    async def publish_many(
        self,
        topic: str,
        items: Iterable[Any],
        *,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Position | None:
        """Publish many events of one topic: the fast path.  Returns the last one's position."""
        publisher = self._open_node().publisher
        if self._waits_for_disk and publisher.waits_for_disk(topic):
            return await asyncio.to_thread(
                publisher.publish_all, topic, items, keys, headers, timeout
            )
        last, published = None, 0
        turn = time.monotonic()
        try:
            outlet = publisher.find(topic)
            for run in runs_of(outlet, topic, items, keys, headers):
                position = publisher.publish_run(outlet, topic, run, on_gate=_ignore)
                if position is None:
                    attempt = partial(publisher.publish_run, outlet, topic, run, None)
                    position = await _when_open(publisher, attempt, topic, timeout)
                last = position
                published += len(run.payloads)
                if time.monotonic() - turn > TURN_S:
                    await asyncio.sleep(0)
                    turn = time.monotonic()
        except MeshError as error:
            error.after(published, last)
            raise
        return last

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was published is handed over.  Raises `WaitTimeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        await asyncio.to_thread(self._open_node().publisher.durable.flush, timeout)
        while behind := self._open_node().publisher.flush(0.0, words=WAITED_FOR):
            self._open_node().check_running()
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(behind_text(behind, timeout))
            await asyncio.sleep(POLL_S)

    async def wait_for_subscribers(
        self, topic: str, count: int = 1, timeout: float | None = None
    ) -> None:
        """Wait until `count` subscribers take the topic.  Raises `WaitTimeout`."""
        check_wait(topic, count)
        deadline = None if timeout is None else time.monotonic() + timeout
        while (have := self._open_node().publisher.subscribers.wait_for(topic, count, 0.0)) < count:
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"{have} of {count} subscribers for {topic!r} after {timeout:g} s"
                )
            await asyncio.sleep(POLL_S)

    def subscribe(
        self,
        *topics: str,
        start: StartFrom = "live",
        on_loss: OnLoss = "report",
        name: str = "",
        codec: str | Codec | None = None,
        type: Any = Any,
        hold: bool = False,
        group: str | None = None,
        prefetch: int = 64,
        ack_timeout: float | str = 30.0,
        max_attempts: int = 5,
        order: str = "key",
        auto_ack: bool = False,
    ) -> AsyncSubscription:
        """Receive the events of one or several topic patterns; see `Peer.subscribe`."""
        check_on_loss(on_loss)
        options = (group, prefetch, ack_timeout, max_attempts, order, auto_ack)
        inlet = self._inlet(topics, start, name, codec, type, hold, options)
        return AsyncSubscription(self._open_node(), inlet, on_loss)

    def watch_peers(self) -> AsyncPeerWatch:
        """Who joins, changes, leaves or is lost, for `async for`; see `Peer.watch_peers`."""
        watch: AsyncPeerWatch = self._open_node().finder.hub.watch(AsyncPeerWatch)
        return watch

    async def ledger(self, timeout: float = 2.0) -> Ledger:
        """Published = delivered + filtered + lost + in flight, for each stream and subscription."""
        node = self._open_node()
        await asyncio.to_thread(node.publisher.subscribers.refresh, timeout)
        return node.ledger()


async def _publish_gated(
    publisher: PublisherSide,
    topic: str,
    data: Any,
    key: str | None,
    headers: Mapping[str, Any] | None,
    timeout: float | None,
) -> Position:
    """Publish one event as soon as its stream, which is blocked, lets it through."""

    def attempt(ring: Callable[[], None]) -> Position | None:
        return publisher.publish(topic, data, key=key, headers=headers, on_gate=ring)

    return await _when_open(publisher, attempt, topic, timeout)


async def _when_open(
    publisher: PublisherSide,
    attempt: Callable[[Callable[[], None]], Position | None],
    topic: str,
    timeout: float | None,
) -> Position:
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        opened: asyncio.Future[None] = loop.create_future()

        def ring(opened: asyncio.Future[None] = opened) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, opened)

        position = attempt(ring)
        if position is not None:
            return position
        left = None if deadline is None else deadline - time.monotonic()
        try:
            await asyncio.wait_for(opened, left)
        except TimeoutError:
            if publisher.gates.lets_through(topic):
                continue
            stream, names = publisher.gates.blockers(topic)
            raise PublishTimeout(stream, timeout or 0.0, names) from None
        finally:
            publisher.gates.forget_waiter(topic, ring)


def _ignore() -> None:
    """Rung for nobody: the first attempt only asks whether the stream is open."""
