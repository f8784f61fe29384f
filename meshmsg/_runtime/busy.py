"""Tells the peers of this process when much comes in.

Whoever sends a peer much costs time of the threads with which ZeroMQ reads: connections are looked
at for those that never finish a message only while that is so (see `_access.connections`).  Linux
has timers that run by the clock of a thread (`timer_create(2)`): one for each of ZeroMQ's threads
sends a signal to the one thread that waits for it here, for all peers of the process.  No other
thread can get that signal, and while nothing comes in nothing runs.

What the rest of the process uses does not count.  It says nothing of what comes in, and the calls
themselves are part of it.  Where there are no such timers, the process's clock is looked at.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Between two calls, at least, and the time of one of ZeroMQ's threads after which there is one: as
#: much as it can use meanwhile.  However slowly somebody sends, that much time moves so many bytes;
#: small messages one by one use it, too, and the fewer calls they cause the better.
REST_S = 0.05
BUSY_CPU_S = 0.05
#: What Linux calls ZeroMQ's threads, and where it lists those of this process.
READERS = "ZMQbg/IO"
THREADS = Path("/proc/self/task")
#: Of `sigevent`: to one thread.
SIGEV_THREAD_ID = 4
EVERY = (ctypes.c_long * 4)(0, int(BUSY_CPU_S * 1e9), 0, int(BUSY_CPU_S * 1e9))


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 64),
    )


class ReadingTimers:
    """Timers on the clocks of ZeroMQ's threads; raises `OSError` where there are none."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("threads have clocks of their own on Linux")
        self.signal = signal.SIGRTMAX - 3
        self._libc: Any = ctypes.CDLL(None)
        self._timers: list[ctypes.c_void_p] = []
        self._waiting = threading.current_thread()
        self._start(threading.get_native_id())
        if not self._timers:
            raise OSError("no timer on the clock of a thread")
        self.stop()

    def begin(self) -> None:
        """Let this thread be the one that waits."""
        self._waiting = threading.current_thread()
        signal.pthread_sigmask(signal.SIG_BLOCK, {self.signal})

    def find(self) -> None:
        """Look for ZeroMQ's threads anew: a peer has come with its own."""
        self.stop()
        for thread in filter(_is_reader, THREADS.iterdir()):
            self._start(int(thread.name))

    def _start(self, thread: int) -> None:
        clock = (~thread << 3) | 4 | 2  # `CPUCLOCK_PERTHREAD_MASK`, `CPUCLOCK_SCHED`
        event = _SigEvent(None, self.signal, SIGEV_THREAD_ID, self._waiting.native_id)
        timer = ctypes.c_void_p()
        if self._libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)) == 0:
            self._timers.append(timer)  # else the thread has ended
            self._libc.timer_settime(timer, 0, ctypes.byref(EVERY), None)

    def stop(self) -> None:
        """Free them."""
        while self._timers:
            self._libc.timer_delete(self._timers.pop())

    def wait(self) -> None:
        """Return when a thread has used so much, or `wake` is called."""
        signal.sigwaitinfo({self.signal})

    def wake(self) -> None:
        """End the wait."""
        assert self._waiting.ident is not None
        signal.pthread_kill(self._waiting.ident, self.signal)


class ProcessClock:
    """In place of `ReadingTimers` elsewhere: looks at the clock of the process now and then."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def begin(self) -> None:
        """Any thread may wait."""

    find = stop = begin

    def wait(self) -> None:
        """Return when the process has used so much, or `wake` is called."""
        began_s = time.process_time()
        while time.process_time() - began_s < BUSY_CPU_S and not self._woken.wait(REST_S):
            pass

    def wake(self) -> None:
        """End the wait."""
        self._woken.set()


def _is_reader(thread: Path) -> bool:
    try:
        return READERS in (thread / "comm").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return False


def new_clock() -> ReadingTimers | ProcessClock:
    """The best that there is here."""
    try:
        return ReadingTimers()
    except (OSError, AttributeError):
        return ProcessClock()


class BusyWatch:
    """Calls all who want to know, from a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._clock: ReadingTimers | ProcessClock | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def add(self, call: Callable[[], None]) -> None:
        """Call this one, too; it must not wait for anything."""
        with self._lock:
            self._calls = [*self._calls, call]
            if self._clock is None:
                self._clock, self._ended = new_clock(), threading.Event()
                begun = threading.Event()
                words = (self._clock, begun, self._ended)
                self._thread = threading.Thread(
                    target=self._run, args=words, name="meshmsg-busy", daemon=True
                )
                self._thread.start()
                begun.wait()  # else the signal would end the process
            self._clock.find()

    def remove(self, call: Callable[[], None]) -> None:
        """Do not call it any more."""
        with self._lock:
            self._calls = [other for other in self._calls if other != call]
            if self._calls or self._clock is None:
                return
            assert self._thread is not None
            clock, self._clock = self._clock, None
            thread, self._thread = self._thread, None
            clock.stop()
            self._ended.set()
            clock.wake()
        thread.join()

    def _run(
        self,
        clock: ReadingTimers | ProcessClock,
        begun: threading.Event,
        ended: threading.Event,
    ) -> None:
        clock.begin()
        begun.set()
        while True:
            clock.wait()
            if ended.is_set():
                return
            for call in self._calls:
                call()
            ended.wait(REST_S)


#: That of this process; a child that is forked has neither its thread nor its parent's peers.
watch = BusyWatch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch.__init__)  # type: ignore[misc]
