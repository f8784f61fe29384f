"""Locks, conditions and events of a simulated world: they wait by its scheduler."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from meshmsg.transports.memory.scheduler import NEVER, Scheduler, Task


class Lock:
    """See `threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: list[Task] = []
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; `False` if that takes too long."""
        scheduler = self._scheduler
        if blocking:
            scheduler.give_way()
        deadline = NEVER if timeout < 0 else scheduler.now + timeout
        while self._held:
            if not blocking or scheduler.now >= deadline:
                return False
            self._waiters.append(scheduler.current)
            scheduler.park(deadline)
        self._held = True
        return True

    def release(self) -> None:
        """Let go of it; any task may."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._scheduler.wake(task)

    def locked(self) -> bool:
        """Return True while somebody has it."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class RLock(Lock):
    """See `threading.RLock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._owner: Task | None = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, once more if we have it."""
        if self._owner is not self._scheduler.current:
            if not super().acquire(blocking, timeout):
                return False
            self._owner = self._scheduler.current
        self._times += 1
        return True

    def release(self) -> None:
        """Give it back once."""
        if self._owner is not self._scheduler.current:
            if self._scheduler.current.place.dead:
                return  # it was killed while it waited to have it again
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if not self._times:
            self._owner = None
            super().release()

    def release_all(self) -> int:
        """Let go of it, however often it was taken; return how often."""
        times, self._times = self._times, 1
        self.release()
        return times

    def acquire_again(self, times: int) -> None:
        """Take it so many times."""
        self.acquire()
        self._times = times

    def _is_owned(self) -> bool:
        return self._owner is self._scheduler.current


class Condition:
    """See `threading.Condition`."""

    def __init__(self, scheduler: Scheduler, lock: RLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or RLock(scheduler)
        self._waiters: list[Task] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; `False` when the time is up."""
        scheduler, me = self._scheduler, self._scheduler.current
        deadline = NEVER if timeout is None else scheduler.now + timeout
        self._waiters.append(me)
        times = self._lock.release_all()
        try:
            scheduler.park(deadline)
        finally:
            is_notified = me not in self._waiters
            if not is_notified:
                self._waiters.remove(me)
            if not me.place.dead:
                self._lock.acquire_again(times)
        return is_notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something holds; return whether it does."""
        deadline = NEVER if timeout is None else self._scheduler.now + timeout
        while not (result := predicate()):
            left = deadline - self._scheduler.now
            if left <= 0:
                break
            self.wait(None if left == NEVER else left)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake so many who wait."""
        woken, self._waiters = self._waiters[:n], self._waiters[n:]
        for task in woken:
            self._scheduler.wake(task)

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiters))


class Event:
    """See `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: list[Task] = []
        self._is_set = False

    def is_set(self) -> bool:
        """Return True once it has happened."""
        return self._is_set

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._scheduler.wake(task)

    def clear(self) -> None:
        """It has not."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has happened; `False` when the time is up."""
        deadline = NEVER if timeout is None else self._scheduler.now + timeout
        while not self._is_set and self._scheduler.now < deadline:
            self._waiters.append(self._scheduler.current)
            self._scheduler.park(deadline)
        return self._is_set
