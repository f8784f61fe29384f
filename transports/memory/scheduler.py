"""Whose turn it is, and what time: threads that run one at a time, on a clock that jumps.

Each task is a real thread, but only the one with the baton runs.  It passes the baton on where it
would wait: for a lock, a message, a time.  When all of them wait, the clock jumps to what is due
next.  Which of several goes on is drawn by the seed.  So the same seed gives the same run, as long
as nothing in it looks at the world outside.

A look at the clock takes a microsecond of it: whoever looks again and again sees time pass.
"""

from __future__ import annotations

import contextvars
import heapq
import random
import threading
from collections.abc import Callable
from itertools import count
from typing import Protocol

from meshmsg._platform import Killed

NEVER = float("inf")
#: What a look at the clock takes.
LOOK_S = 1e-6
#: One in so many calls that could wait, and need not, lets others run all the same.
GIVES_WAY_ONE_IN = 8
#: When the first task waits for so long, what it waits for will not happen.
PATIENCE_S = 3600.0


class Stuck(AssertionError):
    """Everybody waits, and nothing is due."""


class Place(Protocol):
    """Where a task runs."""

    name: str
    dead: bool


class _Nowhere:
    name = "nowhere"
    dead = True


class Task:
    """A thread of the simulated world; what `threading.Thread` is to the system."""

    def __init__(
        self, scheduler: Scheduler, target: Callable[[], object] | None, name: str, place: Place
    ) -> None:
        self.name = name
        self.place = place
        self.number = scheduler.new_number()
        self.ident: int | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self.waits = 0  #: how often it has begun to wait
        self.is_parked = False
        self.over = False
        self.joined: list[Task] = []
        self.thread: threading.Thread | None = None
        self._scheduler = scheduler
        self._target = target

    def start(self) -> None:
        """Begin, when it is its turn."""
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._run,), name=self.name)
        self.thread.daemon = True
        self.thread.start()
        self.ident = self.number
        self._scheduler.add(self)

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if not self.place.dead and self._target is not None:
                self._target()
        except Killed:
            pass
        except BaseException as error:
            self._scheduler.failures.append(error)
        finally:
            self._scheduler.end(self)

    def is_alive(self) -> bool:
        """Return True from its start to its end."""
        return self.ident is not None and not self.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        deadline = NEVER if timeout is None else self._scheduler.now + timeout
        while self.is_alive() and self._scheduler.now < deadline:
            self.joined.append(self._scheduler.current)
            self._scheduler.park(deadline)


class Scheduler:
    """The clock of a world, and who runs."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.failures: list[BaseException] = []
        self.steps = 0  #: how often the baton was passed
        self.trace: Callable[[str], None] | None = None
        self._numbers = count(1)
        self._ties = count()
        self._runnable: list[Task] = []
        self._due: list[tuple[float, int, Task | Callable[[], None], int]] = []
        self._tasks: dict[Task, None] = {}
        self._deadline = NEVER  # of the first task's patience
        self._verdict: Stuck | None = None
        self.main: Task | None = None

    def new_number(self) -> int:
        """A number that no other task has."""
        return next(self._numbers)

    def adopt(self, place: Place) -> Task:
        """Make the calling thread the first task."""
        self.main = self._current = task = Task(self, None, "main", place)
        task.ident = task.number
        self._tasks[task] = None
        return task

    @property
    def current(self) -> Task:
        """Who runs."""
        return self._current

    def look(self) -> float:
        """Return the time, and let some pass."""
        self.now += LOOK_S
        return self.now

    # --- what is due ---

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call something at a time; it must not wait."""
        heapq.heappush(self._due, (max(when, self.now), next(self._ties), call, 0))

    # --- who runs ---

    def add(self, task: Task) -> None:
        """A task that begins."""
        self._tasks[task] = None
        self._runnable.append(task)

    def end(self, task: Task) -> None:
        """A task that is over passes the baton for the last time."""
        task.over = True
        self._tasks.pop(task, None)
        for other in task.joined:
            self.wake(other)
        self._pass(self._next())

    def wake(self, task: Task) -> None:
        """Have a task go on that waits; nothing if it does not."""
        if task.is_parked:
            task.is_parked = False
            self._runnable.append(task)

    def park(self, deadline: float = NEVER) -> None:
        """Let others run until somebody wakes the caller, or the time has come."""
        me = self.current
        self._check(me)
        me.waits += 1
        me.is_parked = True
        if deadline < NEVER:
            heapq.heappush(self._due, (deadline, next(self._ties), me, me.waits))
        elif me is self.main:
            self._deadline = self.now + PATIENCE_S
        self._switch(me)
        self._deadline = NEVER if me is self.main else self._deadline
        self._check(me)

    def give_way(self) -> None:
        """Let others run now and then, as a system does at any time."""
        if self.rng.randrange(GIVES_WAY_ONE_IN) == 0:
            self.pass_on()

    def pass_on(self) -> None:
        """Let others run who can."""
        me = self.current
        self._check(me)
        self._runnable.append(me)
        self._switch(me)
        self._check(me)

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.now + max(seconds, LOOK_S)
        while self.now < until:
            self.park(until)

    def _check(self, me: Task) -> None:
        if self._verdict is not None and me is self.main:
            verdict, self._verdict = self._verdict, None
            raise verdict
        if me.place.dead:
            raise Killed

    def _switch(self, me: Task) -> None:
        task = self._next()
        if task is not me:
            self._pass(task)
            me.baton.acquire()

    def _pass(self, task: Task) -> None:
        self._current = task
        self.steps += 1
        task.baton.release()

    def _next(self) -> Task:
        """Draw who goes on; let time pass while nobody can."""
        while True:
            while self._due and self._due[0][0] <= self.now:
                _, _, what, waits = heapq.heappop(self._due)
                if not isinstance(what, Task):
                    what()
                elif what.is_parked and what.waits == waits:
                    self.wake(what)
            if self._runnable:
                at = self.rng.randrange(len(self._runnable)) if len(self._runnable) > 1 else 0
                task = self._runnable.pop(at)
                if self.trace is not None:
                    self.trace(f"{self.now:.6f} {task.name}")
                return task
            if not self._due or self.now > self._deadline:
                return self._stuck()
            self.now = max(self.now, self._due[0][0])

    def _stuck(self) -> Task:
        assert self.main is not None
        waiting = ", ".join(sorted(task.name for task in self._tasks))
        self._verdict = Stuck(f"at {self.now:.3f} s all wait and nothing helps: {waiting}")
        self.main.is_parked = False
        return self.main

    def release(self, place: Place) -> None:
        """End what runs at a place that is dead; a caller of there ends where it waits next."""
        ending = [task for task in self._tasks if task.place is place and task is not self.current]
        for task in ending:
            self.wake(task)
        while not self.current.place.dead and any(not task.over for task in ending):
            self.pass_on()

    def close(self) -> None:
        """End all tasks but the caller, which must be the first."""
        for task in [task for task in self._tasks if task is not self.main]:
            task.place = _Nowhere()
            self.wake(task)
        while len(self._tasks) > 1:
            self.pass_on()
