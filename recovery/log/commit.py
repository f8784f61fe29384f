"""When a log is made safe: what the words for `fsync` mean, and the thread that does it.

| word | when `append` returns | when `flush` returns |
|---|---|---|
| `always` | on the disk | on the disk |
| `batch` | in the kernel; on the disk as soon as the disk took what came before | on the disk |
| `interval:50ms` | in the kernel; on the disk at most about that much later | on the disk |
| `never` | in the kernel | in the kernel; on the disk when the system sees fit |

What is in the kernel outlives the process (kill -9), not the machine.  What is on the disk outlives
both.
"""

from __future__ import annotations

from collections.abc import Callable

from meshmsg import _platform
from meshmsg._model.errors import LogError

#: After a failure it is tried again after this long.
RETRY_S = 0.2
#: Without anything to do, it looks this often whether something has expired.
IDLE_S = 30.0
#: While much comes, a sync begins so long after the one before it: each costs those who publish
#: about as much as 500 events.
BUSY_S = 0.01


class Committer:
    """A thread that calls `commit` while there is something to commit, and now and then.

    What it returns is in how many seconds at most it is to be called again.  An exception that is
    no `LogError` goes to `on_defect` each time, and counts as a failure.
    """

    def __init__(
        self,
        commit: Callable[[], float],
        interval_s: float,
        name: str,
        on_defect: Callable[[Exception], None],
    ) -> None:
        self._commit = commit
        self._on_defect = on_defect
        self._interval_s = interval_s
        # Taken, until something is wanted.  No event: Ctrl-C in one would leave it locked.
        self._wanted = _platform.new_lock()
        self._wanted.acquire()
        self._stopped = _platform.new_event()
        self._thread = _platform.new_thread(self._run, name)
        self.error: LogError | None = None  #: why the last attempt failed, if it did
        self.busy = False  #: by the last attempt, there is more to come: it need not be at once

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want(self) -> None:
        """There is something to commit."""
        if self._wanted.locked():
            try:
                self._wanted.release()
            except RuntimeError:  # others want it, too
                pass

    def stop(self) -> None:
        """End, without another attempt."""
        self._stopped.set()
        self.want()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        again_s = IDLE_S
        while True:
            self._wanted.acquire(timeout=again_s)
            pause_s = self._interval_s or (BUSY_S if self.busy else 0.0)
            if pause_s and self._stopped.wait(pause_s):
                return
            if self._stopped.is_set():
                return
            self._wanted.acquire(blocking=False)
            try:
                again_s = self._commit()
                self.error = None
            except Exception as error:  # a defect must not end it in silence
                if not isinstance(error, LogError):
                    self._on_defect(error)
                    error = LogError(self._thread.name, f"a commit failed: {error!r}")
                self.error = error
                self.want()
                if self._stopped.wait(RETRY_S):
                    return
