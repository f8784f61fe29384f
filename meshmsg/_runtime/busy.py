"""Tells the peers of this process when much comes in.

Whoever sends a peer much costs time of the threads with which ZeroMQ reads: connections are looked
at for those that never finish a message only while that is so (see `_access.connections`).  Nothing
in the kernel calls when it is, so one thread looks at the clocks, for all peers of a process: the
peers themselves sleep meanwhile.

What the rest of the process uses does not count.  It says nothing of what comes in, and the looks
themselves are part of it: ten peers that were called for it used enough to be called again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: How often it looks, and the time of ZeroMQ's threads that counts as busy since the last call.
LOOK_S = 0.05
BUSY_CPU_S = 0.01
#: What Linux calls ZeroMQ's threads, and where it lists those of this process.
READERS = "ZMQbg/IO"
THREADS = Path("/proc/self/task")


class ReadingClock:
    """The time that ZeroMQ's threads have used; where nothing lists them, that of the process."""

    def __init__(self) -> None:
        self._clocks: list[int] = []

    def find(self) -> None:
        """Look for the threads anew: a peer has come with its own."""
        names = dict(map(_named, THREADS.iterdir())) if THREADS.is_dir() else {}
        self._clocks = [_clock_of(thread) for thread, name in names.items() if READERS in name]

    def used_s(self) -> float:
        """Of the processors, by now; less than before when a thread has ended."""
        return sum(map(_read, self._clocks)) if self._clocks else time.process_time()


def _named(folder: Path) -> tuple[int, str]:
    try:
        return int(folder.name), (folder / "comm").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return int(folder.name), ""


def _clock_of(thread: int) -> int:
    """As Linux numbers the clocks of threads (`CPUCLOCK_PERTHREAD_MASK`, `CPUCLOCK_SCHED`)."""
    return (~thread << 3) | 4 | 2


def _read(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:  # its thread has ended
        return 0.0


class BusyWatch:
    """Calls all who want to know, from a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._clock = ReadingClock()
        self._ended = threading.Lock()  # taken while the thread is to live
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Call this one, too; it must not wait for anything."""
        with self._lock:
            self._calls = [*self._calls, call]
            self._clock.find()
            if self._thread is None:
                self._ended = threading.Lock()
                self._ended.acquire()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ended,), name="meshmsg-busy", daemon=True
                )
                self._thread.start()

    def remove(self, call: Callable[[], None]) -> None:
        """Do not call it any more."""
        with self._lock:
            self._calls = [other for other in self._calls if other != call]
            if self._calls or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._ended.release()
        thread.join()

    def _run(self, ended: threading.Lock) -> None:
        before_s = 0.0
        while not ended.acquire(timeout=LOOK_S):
            used_s = self._clock.used_s()
            if used_s - before_s >= BUSY_CPU_S:
                for call in self._calls:
                    call()
                before_s = used_s
            before_s = min(before_s, used_s)


#: That of this process; a child that is forked has neither its thread nor its parent's peers.
watch = BusyWatch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch.__init__)  # type: ignore[misc]
