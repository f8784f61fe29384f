"""Answers from the logs of durable streams: where replay starts, and frames that memory has not.

On a thread of its own with readers of its own, so that neither those who publish nor the I/O thread
wait for a disk.  What waits is bounded: of one subscription and stream, only the newest question.

Live delivery comes first: while there is any, replay rests after each answer for about as long as
that took, so that on a machine that is short of time it takes less of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from meshmsg import _platform
from meshmsg._model.errors import ClosedError, LogError
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import Start
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.read_cache import IDLE_S, LogWindows
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.stream.retransmit_buffer import ANSWER_FRAMES_MAX

log = logging.getLogger("meshmsg.peer")

Range = tuple[int, int]
#: Questions that wait; of those who ask again anyway, more are left unanswered.
JOBS_MAX = 10_000
#: Beside live delivery, replay rests as many times as long as it worked, and no longer than this.
REST_TIMES = 1.0
REST_MAX_S = 0.05


class Chapter(NamedTuple):
    """An epoch that is over, as far as a subscription wants it."""

    epoch: int
    origin: int
    start: int
    stop: int


class Replay:
    """A thread that reads the logs of one peer."""

    def __init__(
        self, name: str, counters: Counter[str], is_live: Callable[[], bool] = lambda: False
    ) -> None:
        self.counters = counters
        self._is_live = is_live
        self._wanted = _platform.new_condition()
        self._jobs: dict[object, Callable[[], None]] = {}
        self._answers: set[object] = set()  # keys of jobs that give way to live delivery
        self._rests_until = 0.0
        self._readers: dict[str, LogReader] = {}
        self._windows = LogWindows()
        self._stopped = False
        self.guard = Guard(f"{name} replay", counters, "replay_errors")
        self._thread = _platform.new_thread(self._run, f"{name} replay")

    def submit(self, key: object, job: Callable[[], None], *, gives_way: bool = False) -> None:
        """Have something done; what waits under the same key is replaced.

        A job that gives way answers somebody who asks again anyway: it may wait a little for its
        turn beside live delivery, and is not done at all if very much waits already.
        """
        with self._wanted:
            if self._stopped:
                return
            if gives_way and len(self._jobs) >= JOBS_MAX and key not in self._jobs:
                self.counters["replay_full"] += 1
                return
            if not self._thread.is_alive():
                self._thread.start()
            self._jobs[key] = job
            if gives_way:
                self._answers.add(key)
            self._wanted.notify()

    def stop(self) -> None:
        """End the thread; what waits is forgotten."""
        with self._wanted:
            self._stopped = True
            self._jobs.clear()
            self._wanted.notify()
        if self._thread.is_alive() and _platform.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        self.guard.drive(self._turn)
        with self._wanted:
            self._stopped = True
            self._jobs.clear()
        for reader in self._readers.values():
            reader.close()
        self._windows.close()

    def _turn(self) -> bool:
        """Do the next job; `False` when it is over."""
        with self._wanted:
            key = self._next_key()
            if key is None:
                return False
            job = self._jobs.pop(key)
            gives_way = key in self._answers
            self._answers.discard(key)
        began = _platform.monotonic()
        try:
            job()
        except ClosedError:  # the peer was closed meanwhile
            self.counters["replay_unsent"] += 1
        except LogError as error:
            self.counters["replay_errors"] += 1
            log.error("%s", error)
        except Exception:
            self.guard.failed("the reading of a log")
        now = _platform.monotonic()
        if gives_way and self._is_live():
            self._rests_until = now + min(REST_MAX_S, REST_TIMES * (now - began))
        self._windows.rest(now=now)
        return True

    def _next_key(self) -> object | None:
        """With the lock held: wait for a job that may be done now; `None` when it is over."""
        while not self._stopped:
            now = _platform.monotonic()
            resting = now < self._rests_until
            for key in self._jobs:
                if not (resting and key in self._answers):
                    return key
            if self._jobs:
                self._wanted.wait(self._rests_until - now)
            elif not self._wanted.wait(IDLE_S if self._windows else None):
                self._windows.rest(now=_platform.monotonic())
        return None

    # --- for jobs: on the thread ---

    def frames(
        self,
        folder: LogFolder,
        epoch: int,
        ranges: Iterable[Range],
        bytes_max: int,
        frames_max: int = ANSWER_FRAMES_MAX,
    ) -> tuple[list[bytes], dict[str, list[Range]]]:
        """Frames for ranges of an epoch, and what is gone, by reason; raises `LogError`."""
        reader = self._windows.choose(folder, now=_platform.monotonic())
        shared = reader.shared
        found, gone, _ = find_frames(
            reader, epoch, ranges, bytes_max=bytes_max, frames_max=frames_max
        )
        if reader.shared > shared:
            self.counters["replay_shared_frames"] += reader.shared - shared
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
