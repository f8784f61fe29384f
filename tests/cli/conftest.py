"""What the tests of the command share: real processes, and the command inside this one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from meshmsg.cli import app
from tests.support import processes
from tests.support.waiting import wait_until

#: Long enough for any machine; nothing waits for it unless something is broken.
PATIENCE_S = 60.0
T = TypeVar("T")


class Running:
    """A `meshmsg` process, and the lines it wrote so far."""

    def __init__(
        self,
        *arguments: str,
        stdin: int | None = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHMSG_")}
        environment["MESHMSG_DISCOVERY"] = "none"  # tests do not meet each other
        self.process = processes.start(
            [sys.executable, "-W", "error", "-m", "meshmsg", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | dict(env or {}),
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.out),
                (self.process.stderr, self.err),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.decode())

    def wait_until(self, condition: Callable[[], T]) -> T:
        """What a condition gives, as soon as it is true; the process may end meanwhile."""
        wait_until(lambda: condition() or self.process.poll() is not None, PATIENCE_S)
        if not (found := condition()):
            self.end()
            found = condition()
            assert found, f"it ended: out {self.out[-5:]}, err {self.err[-5:]}"
        return found

    def wait_for_line(self, pattern: str, *, err: bool = False) -> re.Match[str]:
        """Until a line of standard output (or error) matches."""
        lines = self.err if err else self.out

        def match() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in lines)), None)

        found = self.wait_until(match)
        assert found is not None
        return found

    def address(self) -> str:
        """Where it listens."""
        return self.wait_for_line(r"listening at (\S+)", err=True)[1]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def freeze(self) -> None:
        """Stop it in its tracks, for sure."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, timeout: float = PATIENCE_S) -> int:
        """Its exit status, once it has ended by itself."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running; out: {self.out[-5:]}, err: {self.err[-5:]}")
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return status

    def objects(self) -> list[dict[str, Any]]:
        """Standard output as one JSON object a line."""
        return [json.loads(line) for line in self.out]

    def errors(self) -> str:
        """Standard error, whole."""
        return "".join(self.err)

    def destroy(self) -> None:
        """Whatever happens, nothing is left behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Start `meshmsg` processes that end with the test."""
    started: list[Running] = []

    def start_one(*arguments: str, **options: Any) -> Running:
        running = Running(*arguments, **options)
        started.append(running)
        return running

    yield start_one
    for running in started:
        running.destroy()


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run `meshmsg` inside this process; gives exit_code, stdout and stderr."""
    cleared = {name: "" for name in os.environ if name.startswith("MESHMSG_")}
    runner = CliRunner(env=cleared | {"MESHMSG_DISCOVERY": "none"})

    def run_one(*arguments: str, input: str | bytes | None = None) -> Any:
        result = runner.invoke(app, list(arguments), input=input, prog_name="meshmsg")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run_one
