"""What a peer runs on: its clock, its threads and locks, its dice.

Belongs here: the operating system as such a platform, and the way to the one that is current.  Does
not belong here: sockets, which `transports.sockets` opens, and any other platform: a simulated
mesh (`transports.memory`) brings its own.

A peer is opened on the platform that is current then, and everything of it runs there: as with the
running loop of asyncio, who asks for the time, a lock or a thread asks the platform of its context.
Outside of a simulated mesh that is always the system.  Only what runs in a peer asks here.  Edges,
commands and coroutines are programs of the system, and use `time` and `threading`.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from operator import attrgetter
from typing import Any


class Killed(BaseException):
    """The platform ends a peer where it stands, as SIGKILL does: nobody may hold this up."""


class Condition(threading.Condition):
    """A condition of which `with` takes and frees the lock in a single call of compiled code.

    Otherwise `with` calls functions written in Python, which take the lock and return, or are
    called and free it.  Python calls handlers of signals there: one that raises (Ctrl-C) leaves the
    lock taken for ever.
    """

    def __init__(self, lock: Any = None) -> None:
        lock = threading.RLock() if lock is None else lock
        super().__init__(lock)
        self._take, self._free = lock.__enter__, lock.__exit__

    __enter__ = property(attrgetter("_take"))
    __exit__ = property(attrgetter("_free"))


class Platform:
    """The operating system; others have the same, and what they give behaves alike."""

    #: What compiled code asks for the time; without it, the system.
    own_clock_ns: Callable[[], int] | None = None
    #: Where peers get their sockets, and the log its files; `None` for the system's.
    sockets: Any = None
    files: Any = None
    #: At which moment of each second its peers do what they do once a second.
    phase_s = 0.0

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    #: What the calling thread has used of a processor.
    thread_time: Callable[[], float] = staticmethod(time.thread_time)
    time_ns: Callable[[], int] = staticmethod(time.time_ns)
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    randbits: Callable[[int], int] = staticmethod(secrets.randbits)
    random: Callable[[], random.Random] = random.Random
    lock: Callable[[], Any] = staticmethod(threading.Lock)
    rlock: Callable[[], Any] = staticmethod(threading.RLock)
    condition: Callable[[Any], Any] = Condition
    event: Callable[[], Any] = threading.Event
    thread: Callable[..., Any] = threading.Thread
    current_thread: Callable[[], Any] = staticmethod(threading.current_thread)

    def at(self, name: str) -> AbstractContextManager[None]:
        """What the peer of this name begins within the block is on one machine."""
        return nullcontext()


SYSTEM = Platform()
SYSTEM.phase_s = random.random()  # processes of a machine do not all wake up at once
_current: ContextVar[Platform] = ContextVar("platform", default=SYSTEM)
current = _current.get


@contextmanager
def entered(platform: Platform) -> Iterator[None]:
    """Make this the current platform of the calling context, within the block."""
    token = _current.set(platform)
    try:
        yield
    finally:
        _current.reset(token)


def monotonic() -> float:
    """Seconds since some moment; see `time.monotonic`."""
    return current().monotonic()


def thread_time() -> float:
    """Seconds of a processor that this thread has used; see `time.thread_time`."""
    return current().thread_time()


def time_ns() -> int:
    """Nanoseconds since 1970."""
    return current().time_ns()


def sleep(seconds: float) -> None:
    """Let so much time pass."""
    current().sleep(seconds)


def randbits(count: int) -> int:
    """A number of so many bits that nobody else has drawn."""
    return current().randbits(count)


def new_random() -> random.Random:
    """A generator with a seed of its own."""
    return current().random()


def new_lock() -> threading.Lock:
    """See `threading.Lock`."""
    return current().lock()  # type: ignore[no-any-return]


def new_rlock() -> threading.RLock:
    """See `threading.RLock`."""
    return current().rlock()  # type: ignore[no-any-return]


def new_condition(lock: threading.RLock | None = None) -> threading.Condition:
    """See `threading.Condition`."""
    return current().condition(lock)  # type: ignore[no-any-return]


def new_event() -> threading.Event:
    """See `threading.Event`."""
    return current().event()  # type: ignore[no-any-return]


def new_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread that has yet to start."""
    return current().thread(target=target, name=name, daemon=True)  # type: ignore[no-any-return]


def current_thread() -> threading.Thread:
    """Return who is asking."""
    return current().current_thread()  # type: ignore[no-any-return]
