"""`Crew`: the processes of one measurement, started together and ended whatever happens."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from benchmarks.task import LIMIT_S, Failure, Task
from benchmarks.way import WAYS

STOP_S = 5.0
#: A fresh interpreter each: nothing of ours is in it, and no thread was there before.
PROCESSES = get_context("spawn")


class CrewFailed(Exception):
    """A process ended, raised, or said nothing for too long."""


class Worker:
    """One process, and the line to it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.line, theirs = PROCESSES.Pipe()
        self.process: BaseProcess = PROCESSES.Process(target=work, args=(task, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def __repr__(self) -> str:
        return f"{self.task.way} {self.task.role}"


class Crew:
    """All processes of a measurement; the first one sends, the others receive."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self.workers: list[Worker] = []

    def __enter__(self) -> Crew:
        try:
            for task in self._tasks:
                self.workers.append(Worker(task))
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(at_once=kind is not None)

    def tell(self, workers: Sequence[Worker], message: Any) -> None:
        """Say something to some of them."""
        for worker in workers:
            try:
                worker.line.send(message)
            except OSError:
                raise CrewFailed(f"{worker} has gone") from None

    def hear(self, workers: Sequence[Worker], timeout_s: float) -> list[Any]:
        """One answer of each of these; raises `CrewFailed` as soon as any process fails."""
        answers: dict[Worker, Any] = {}
        # A process that has nothing to say may still fail: all but those that have answered.
        lines = {worker.line: worker for worker in self.workers}
        deadline = time.monotonic() + timeout_s
        while len(answers) < len(workers):
            ready = wait(list(lines), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = [str(worker) for worker in workers if worker not in answers]
                raise CrewFailed(f"{', '.join(late)}: no answer in {timeout_s:g} s")
            for line in ready:
                worker = lines.pop(line)  # type: ignore[call-overload]
                answer = _answer(worker)
                if worker not in workers:
                    raise CrewFailed(f"{worker} was not asked and said {answer!r}")
                answers[worker] = answer
        return [answers[worker] for worker in workers]

    def _end(self, *, at_once: bool) -> None:
        for worker in self.workers:
            if at_once:
                worker.process.kill()
            worker.line.close()  # a process that waits for its next order ends by itself
        for worker in self.workers:
            worker.process.join(STOP_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()


def _answer(worker: Worker) -> Any:
    try:
        answer = worker.line.recv()
    except (EOFError, OSError):
        worker.process.join(STOP_S)
        status = worker.process.exitcode
        raise CrewFailed(f"{worker} ended with {status}") from None
    if isinstance(answer, Failure):
        raise CrewFailed(f"{worker} failed:\n{answer.text}")
    return answer


# --- in the process ---


def work(task: Task, boss: Connection) -> None:
    """Do what the task says; never for longer than `LIMIT_S`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started us
    signal.alarm(LIMIT_S)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    try:
        # Raw pyzmq and others run in a process that has not even imported meshmsg.
        getattr(import_module(WAYS[task.way].import_name), task.role)(task, boss)
    except EOFError:  # told to end
        pass
    except Exception:
        boss.send(Failure(traceback.format_exc()))
