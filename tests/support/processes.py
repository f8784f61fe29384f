"""Processes that tests start: whatever becomes of a test, none of them outlives it.

A process that is left running, or a pipe to it that is left open, warns when it is collected, and
that is at some time later: the failure of one test would become that of another.  So every process
is started here, and what a test has not ended is ended after it (`conftest.py`).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

_started: list[subprocess.Popen[Any]] = []


def start(command: Any, **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen`, which ends with the test at the latest."""
    process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
    _started.append(process)
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Kill it if it still runs, and free its pipes; safe to call again."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was still to be written to it
                pipe.close()


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """What is started in the block has ended behind it; what was started before goes on."""
    before = len(_started)
    try:
        yield
    finally:
        while len(_started) > before:
            end(_started.pop())
