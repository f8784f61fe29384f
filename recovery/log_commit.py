"""When a log is made safe: the words for `fsync`, and the thread that does it off the hot path.

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

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from meshmsg._errors import ConfigError, LogError
from meshmsg._values import parse_time

#: After a failure it is tried again after this long.
RETRY_S = 0.2
#: Without anything to do, it looks this often whether something has expired.
IDLE_S = 30.0


@dataclass(frozen=True, slots=True)
class FsyncWord:
    """A parsed `fsync` setting."""

    word: str
    interval_s: float = 0.0

    @property
    def by_thread(self) -> bool:
        """Whether the committer makes things safe."""
        return self.word in ("batch", "interval")

    @classmethod
    def parse(cls, text: str) -> FsyncWord:
        """From `"always"`, `"batch"`, `"interval:50ms"` or `"never"`; raises `ConfigError`."""
        if text in ("always", "batch", "never"):
            return cls(text)
        word, colon, value = str(text).partition(":")
        if word == "interval" and colon:
            with contextlib.suppress(ConfigError):
                interval_s = parse_time("fsync", value)
                if interval_s > 0:
                    return cls("interval", interval_s)
        problem = f"{text!r} is not one of always, batch, interval:50ms, never"
        raise ConfigError("fsync", problem)


class Committer:
    """A thread that calls `commit` while there is something to commit, and now and then."""

    def __init__(self, commit: Callable[[], None], interval_s: float, name: str) -> None:
        self._commit = commit
        self._interval_s = interval_s
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: LogError | None = None  #: why the last attempt failed, if it did

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want(self) -> None:
        """There is something to commit."""
        # Asking costs a twentieth of setting.
        if not self._wanted.is_set():
            self._wanted.set()

    def stop(self) -> None:
        """End, without another attempt."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(IDLE_S)
            if self._interval_s and self._stopped.wait(self._interval_s):
                return
            if self._stopped.is_set():
                return
            self._wanted.clear()
            try:
                self._commit()
                self.error = None
            except LogError as error:
                self.error = error
                self._wanted.set()
                if self._stopped.wait(RETRY_S):
                    return
