"""Answers from the logs of durable streams: where replay starts, and frames that memory has not.

On a thread of its own with readers of its own, so that neither those who publish nor the I/O thread
wait for a disk.  What waits is bounded: of one subscription and stream, only the newest question.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from meshmsg._control import Start
from meshmsg._errors import ClosedError, LogError
from meshmsg.recovery.log_folder import LogFolder
from meshmsg.recovery.log_reader import LogReader
from meshmsg.recovery.log_repair import find_frames

log = logging.getLogger("meshmsg.peer")

Range = tuple[int, int]
#: Questions that wait; of those who ask again anyway, more are left unanswered.
JOBS_MAX = 10_000


class Chapter(NamedTuple):
    """An epoch that is over, as far as a subscription wants it."""

    epoch: int
    origin: int
    start: int
    stop: int


class Replay:
    """A thread that reads the logs of one peer."""

    def __init__(self, name: str, counters: Counter[str]) -> None:
        self.counters = counters
        self._wanted = threading.Condition()
        self._jobs: dict[object, Callable[[], None]] = {}
        self._readers: dict[str, LogReader] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"{name} replay", daemon=True)

    def submit(self, key: object, job: Callable[[], None], *, may_wait: bool = True) -> None:
        """Have something done; what waits under the same key is replaced.

        `may_wait=False`: not if very much waits already.
        """
        with self._wanted:
            if self._stopped:
                return
            if not may_wait and len(self._jobs) >= JOBS_MAX and key not in self._jobs:
                self.counters["replay_full"] += 1
                return
            if not self._thread.is_alive():
                self._thread.start()
            self._jobs[key] = job
            self._wanted.notify()

    def stop(self) -> None:
        """End the thread; what waits is forgotten."""
        with self._wanted:
            self._stopped = True
            self._jobs.clear()
            self._wanted.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._jobs or self._stopped)
                if self._stopped:
                    break
                job = self._jobs.pop(next(iter(self._jobs)))
            try:
                job()
            except ClosedError:  # the peer was closed meanwhile
                self.counters["replay_unsent"] += 1
            except LogError as error:
                self.counters["replay_errors"] += 1
                log.error("%s", error)
            except Exception:  # a defect of ours must not stop the service of the others
                self.counters["replay_errors"] += 1
                log.exception("a log could not be read")
        for reader in self._readers.values():
            reader.close()

    # --- for jobs: on the thread ---

    def frames(
        self, folder: LogFolder, epoch: int, ranges: Iterable[Range], bytes_max: int
    ) -> tuple[list[bytes], dict[str, list[Range]]]:
        """Frames for ranges of an epoch, and what is gone, by reason; raises `LogError`."""
        reader = self._reader(folder)
        try:
            found, gone, _ = find_frames(reader, epoch, ranges, bytes_max=bytes_max)
        finally:
            reader.close()  # so that what retention removes is gone from the disk, too
        return found, gone

    def chapters(
        self, folder: LogFolder, start: Start, current: int
    ) -> tuple[list[Chapter], int | None]:
        """What a start means: epochs before the `current` one, and a place in that if it says so.

        Raises `LogError`.
        """
        reader = self._reader(folder)
        epoch, seq = self._place(reader, start)
        past = [e for e in reader.journal.epochs if epoch <= e.epoch < current]
        chapters = []
        for known in past:
            first = seq if known.epoch == epoch else known.first
            stop = first if known.stop is None else known.stop
            # One that the subscription is in has to be ended, even if nothing of it is left.
            if first < stop or (start.kind == "resume" and known.epoch == start.epoch):
                chapters.append(Chapter(known.epoch, known.first, min(first, stop), stop))
        return chapters, seq if epoch == current else None

    def _place(self, reader: LogReader, start: Start) -> tuple[int, int]:
        if start.kind == "resume":
            reader.refresh()
            return start.epoch, start.value
        if start.kind == "earliest":
            reader.seek_earliest()
        elif start.kind == "last":
            reader.seek_last(start.value)
        else:
            reader.seek_time(start.value)
        return reader.epoch, reader.next

    def _reader(self, folder: LogFolder) -> LogReader:
        reader = self._readers.get(folder.path)
        if reader is None:
            reader = LogReader(folder)
            reader.open()
            self._readers[folder.path] = reader
        return reader
