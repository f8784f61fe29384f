"""What a test starts ends with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_what_a_failed_test_left_is_ended_with_its_pipes() -> None:
    earlier = processes.start(SLEEP)
    left: list[subprocess.Popen[bytes]] = []

    def fails() -> None:
        left.extend(processes.start(SLEEP, **PIPES) for _ in range(2))
        assert left[0].stdin is not None
        left[0].stdin.write(b"never read")  # which a pipe that is closed complains about
        left[1].kill()
        raise AssertionError("in the middle")

    with pytest.raises(AssertionError, match="in the middle"), processes.ended():
        fails()
    for process in left:
        assert process.returncode is not None
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            assert pipe.closed
    assert earlier.poll() is None, "what somebody else started goes on"
    processes.end(earlier)
    processes.end(earlier)


def test_every_process_is_started_where_it_is_ended() -> None:
    folder = Path(__file__).resolve().parents[2]
    found = [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*.py"))
        if "Popen" + "(" in path.read_text(encoding="utf-8")
    ]
    assert found == ["support/processes.py"], "use processes.start"
