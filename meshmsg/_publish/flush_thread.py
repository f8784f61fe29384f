"""The thread that sends what a publisher gathered and left behind.

A thread that publishes event after event sends its open frames itself.  The last of them is sent
here: the frame is reported when it is opened (`call`), and this thread then waits for the
interpreter, which it gets as soon as the publishing thread waits for anything at all: for events,
for a socket, for `sleep`.  No clock is involved, and while events are published without a pause
this thread costs nothing but a look at each switch interval of the interpreter.

The thread is started by the first call: many publishers never gather anything.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

from meshmsg import _platform
from meshmsg._runtime.guard import Guard


class GatheredSender:
    """Calls `send` in a thread of its own after each `call`, and again while that gives True."""

    def __init__(self, name: str, send: Callable[[], bool], counters: Counter[str]) -> None:
        self._send = send
        self.guard = Guard(name, counters)
        self._called = _platform.new_lock()  # taken, until there is a call
        self._called.acquire()
        self._thread = _platform.new_thread(self._run, name)
        self._starting = _platform.new_lock()
        self._closed = False

    def call(self) -> None:
        """Have what was gathered sent; any thread."""
        if self._thread.ident is None:
            with self._starting:
                if self._thread.ident is None and not self._closed:
                    self._thread.start()
        self._release()

    def _release(self) -> None:
        if self._called.locked():
            with contextlib.suppress(RuntimeError):  # a call that was not yet heard is enough
                self._called.release()

    def _run(self) -> None:
        self.guard.drive(self._turn)

    def _turn(self) -> bool:
        self._called.acquire()
        while not self._closed and self._send():
            pass
        return not self._closed

    def close(self) -> None:
        """End the thread; without the publisher's lock."""
        self._closed = True
        self._release()
        if self._thread.ident is not None and _platform.current_thread() is not self._thread:
            self._thread.join()
