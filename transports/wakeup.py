"""A wake-up call between threads that a poller can wait for."""

from __future__ import annotations

import os
import socket
import threading

from meshmsg._native import COMPILED

if COMPILED:
    from meshmsg import _speed


class Wakeup:
    """`set` from any thread makes `fd` readable until `clear`."""

    def __init__(self) -> None:
        # A closed descriptor's number is soon somebody else's: writing to it would wake, or break,
        # whatever has it by then.
        self._lock = threading.Lock()
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._poke = getattr(_speed, "poke", None) if COMPILED else None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:  # pragma: no cover - other systems than Linux
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self.fd = self._pair[0].fileno()

    def set(self) -> None:
        """Wake whoever waits; harmless after `close`."""
        with self._lock:
            if self.fd < 0:
                return
            try:
                if self._poke is not None and self._pair is None:
                    self._poke(self.fd)
                elif self._pair is None:
                    os.eventfd_write(self.fd, 1)
                else:  # pragma: no cover
                    self._pair[1].send(b"\1")
            except BlockingIOError:
                return  # full means that a call is already waiting

    def clear(self) -> None:
        """Forget the calls so far."""
        with self._lock:
            if self.fd < 0:
                return
            try:
                if self._pair is None:
                    os.eventfd_read(self.fd)
                else:  # pragma: no cover
                    self._pair[0].recv(4096)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Free the descriptor."""
        with self._lock:
            if self.fd < 0:
                return
            if self._pair is None:
                os.close(self.fd)
            else:  # pragma: no cover
                for end in self._pair:
                    end.close()
            self.fd = -1
