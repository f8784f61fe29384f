"""The live view of a monitor: looks at the mesh while somebody watches, and tells all of them.

Nobody is asked anything until a page is opened; `KEEP_S` after the last one was closed it ends,
so that a page that is loaded again still has its plots.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from meshmsg._model.errors import ClosedError
from meshmsg._peer.peer import PeerBase
from meshmsg._runtime.guard import Guard
from meshmsg.monitor.snapshots import Snapshots
from meshmsg.overview.look import PERIOD_S, MeshLook
from meshmsg.overview.mesh import MeshView
from meshmsg.overview.rows import View

KEEP_S = 300.0
#: For a look that is under way: those who are asked may be gone.
CLOSE_S = 5.0


class LiveView:
    """One for all who watch; `send_all` and `watchers` are those of the HTTP server."""

    def __init__(
        self,
        name: str,
        send_all: Callable[[bytes], None],
        watchers: Callable[[], int],
        others: Callable[[], Any],
        counters: Counter[str],
    ) -> None:
        self._name = name
        self._send_all = send_all
        self._watchers = watchers
        self._others = others
        self._snapshots = Snapshots(counters)
        self._guard = Guard(f"the live view of {name}", counters, "failures")
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self._thread: threading.Thread | None = None
        self._watched_at = 0.0
        self._peer: Callable[[], PeerBase | None] | None = None
        self._mesh = MeshView()
        self._last: View | None = None
        self._first: bytes | None = None
        self._pause_s = PERIOD_S

    def show(self, peer: PeerBase) -> None:
        """Look at the mesh of this peer, once somebody watches."""
        self._peer = weakref.ref(peer)

    def first(self) -> bytes:
        """What somebody who begins to watch is sent at once: what is known, with the plots."""
        with self._lock:
            self._watched_at = time.monotonic()
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="meshmsg-monitor-view", daemon=True
                )
                self._thread.start()
            if self._first is None:  # it is long: one for all who come until the next look
                self._first = self._event(with_history=True)
            return self._first

    def close(self) -> None:
        """Look no more.  Safe to call again."""
        self._stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)

    # --- the thread ---

    def _run(self) -> None:
        peer = None if self._peer is None else self._peer()
        look = None
        try:
            look = None if peer is None else MeshLook(peer)
            del peer
            self._guard.drive(lambda: self._turn(look), self._stopping.wait)
        except ClosedError:
            pass  # before it began
        finally:
            if look is not None:
                look.close()
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _turn(self, look: MeshLook | None) -> bool:
        try:
            found = None if look is None else look.look()
        except ClosedError:
            return False
        with self._lock:
            if found is not None:
                self._last = self._mesh.take(found, now=time.monotonic())
            self._pause_s = PERIOD_S if look is None else look.pause_s
            event, self._first = self._event(with_history=False), None
        self._send_all(event)
        if self._stopping.wait(self._pause_s):
            return False
        with self._lock:  # who comes later finds no thread, and begins one
            if self._watchers():
                self._watched_at = time.monotonic()
            elif time.monotonic() - self._watched_at >= KEEP_S:
                self._thread = None
        return self._thread is not None

    def _event(self, *, with_history: bool) -> bytes:
        return self._snapshots.event(
            self._last,
            self._others(),
            time=time.time(),
            step_s=self._pause_s,
            history=self._mesh.history if with_history else None,
        )
