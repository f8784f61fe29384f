"""A wake-up call between threads that a poller can wait for."""

from __future__ import annotations

import os
import socket


class Wakeup:
    """`set` from any thread makes `fd` readable until `clear`."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:  # pragma: no cover - other systems than Linux
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self.fd = self._pair[0].fileno()

    def set(self) -> None:
        """Wake whoever waits; harmless after `close`."""
        try:
            if self._pair is None:
                os.eventfd_write(self.fd, 1)
            else:  # pragma: no cover
                self._pair[1].send(b"\1")
        except (BlockingIOError, OSError):
            return  # full means that a call is already waiting

    def clear(self) -> None:
        """Forget the calls so far."""
        try:
            if self._pair is None:
                os.eventfd_read(self.fd)
            else:  # pragma: no cover
                self._pair[0].recv(4096)
        except (BlockingIOError, OSError):
            return

    def close(self) -> None:
        """Free the descriptor."""
        if self._pair is None:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
        else:  # pragma: no cover
            for end in self._pair:
                end.close()
