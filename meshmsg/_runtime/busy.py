"""Tells the peers of this process when it uses much of a processor.

Whoever sends a peer much costs it time of the processor: connections are looked at for those that
never finish a message only while that is so (see `_access.access_control`).  Nothing in the kernel
calls when it is, so one thread looks at the clock, for all peers of a process: the peers themselves
sleep meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

#: How often it looks, and the time of the processor that counts as busy since the last call.
LOOK_S = 0.05
BUSY_CPU_S = 0.01


class BusyWatch:
    """Calls all who want to know, from a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._ended = threading.Lock()  # taken while the thread is to live
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Call this one, too; it must not wait for anything."""
        with self._lock:
            self._calls = [*self._calls, call]
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
        used_s = time.process_time()
        while not ended.acquire(timeout=LOOK_S):
            if time.process_time() - used_s >= BUSY_CPU_S:
                used_s = time.process_time()
                for call in self._calls:
                    call()


#: That of this process; a child that is forked has neither its thread nor its parent's peers.
watch = BusyWatch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch.__init__)  # type: ignore[misc]
