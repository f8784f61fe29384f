"""Processes that tests start: whatever becomes of a test, none of them outlives it.

A process that is left running, or a pipe to it that is left open, warns when it is collected, and
that is at some time later: the failure of one test would become that of another.  So every process
is started here, and what a test has not ended is ended after it (`conftest.py`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"

_started: list[subprocess.Popen[Any]] = []


def start(command: Any, **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen`, which ends with the test at the latest."""
    process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
    _started.append(process)
    return process


def program(name: str, *arguments: object, options: Sequence[str] = ()) -> list[str]:
    """The command that runs a file of tests/support/programs; Python itself has the options."""
    return [sys.executable, *options, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


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
