"""`Meter`: what a process and its threads use of the processor, and where the time goes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from benchmarks.task import LIMIT_S, Report, Samples, Task, ThreadTime

SAMPLE_S = 0.001
THREADS = Path("/proc/self/task")


class Meter:
    """Counts from the beginning of the block to its end, which is added to a report."""

    def __init__(self, task: Task) -> None:
        self._sampled = task.sampled
        self._samples: Samples | None = None

    def __enter__(self) -> Meter:
        self._threads = thread_times() if self._sampled else {}
        self._cpu_s = time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cpu_s = time.process_time() - self._cpu_s
        if self._sampled:
            self._threads = _since(self._threads, thread_times())

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Around the loop that is measured, and nothing else: sampled if that was asked for."""
        if not self._sampled:
            yield
            return
        lines: Counter[tuple[str, int, str]] = Counter()
        end = time.monotonic() + LIMIT_S

        def look(number: int, frame: FrameType | None) -> None:
            if frame is not None:
                code = frame.f_code
                lines[code.co_filename, frame.f_lineno or 0, code.co_qualname] += 1
            if time.monotonic() > end:
                os._exit(1)

        # The timer is the one that bounds the life of the process, hence the look at the clock.
        before = signal.signal(signal.SIGALRM, look)
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SAMPLE_S, SAMPLE_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            signal.signal(signal.SIGALRM, before)
            self._samples = Samples(dict(lines), time.perf_counter() - began)

    def add_to(self, report: Report) -> Report:
        """The report, completed."""
        report.cpu_s = self._cpu_s
        report.samples = self._samples
        report.threads = [ThreadTime(*row) for row in self._threads.values()]
        return report


def thread_times() -> dict[int, tuple[str, float, float]]:
    """Name, time on a processor and time spent waiting for one, by thread; empty but on Linux."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for folder in THREADS.glob("[0-9]*"):
        try:
            ran_ns, waited_ns, _ = map(int, (folder / "schedstat").read_text().split())
            name = names.get(int(folder.name)) or (folder / "comm").read_text().strip()
        except (OSError, ValueError):  # it has ended, or this kernel does not count
            continue
        found[int(folder.name)] = (name, ran_ns / 1e9, waited_ns / 1e9)
    return found


def _since(
    before: dict[int, tuple[str, float, float]], after: dict[int, tuple[str, float, float]]
) -> dict[int, tuple[str, float, float]]:
    grown = {}
    for thread, (name, ran, waited) in after.items():
        _, ran_before, waited_before = before.get(thread, ("", 0.0, 0.0))
        grown[thread] = (name, ran - ran_before, waited - waited_before)
    return grown


def rss_mb() -> float:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
