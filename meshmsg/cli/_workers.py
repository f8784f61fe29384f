"""Worker processes of `bench`: each says what it has to say in lines of JSON.

A worker is a module with `main(settings)`.  It writes objects with `say`, and ends when its
standard input does, so that it never outlives the command that started it.  It runs in a session
of its own: Ctrl-C in the terminal reaches the command, which then ends its workers.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshmsg import MeshError

# The worker imports from where its parent does, and not from the directory it happens to be in.
_BOOT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[2])
importlib.import_module(sys.argv[1]).main(json.loads(sys.argv[3]))
"""
ERROR_LINES_MAX = 30
STOP_S = 2.0


class WorkerFailed(MeshError):
    """A worker process ended, or said nothing for too long."""


class Worker:
    """One process, and what it said."""

    def __init__(self, name: str, module: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        command = [sys.executable, "-P", "-c", _BOOT, module]
        self._process = subprocess.Popen(
            [*command, json.dumps(sys.path), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read_output, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def next(self, timeout_s: float) -> dict[str, Any]:
        """What it says next; raises `WorkerFailed`."""
        try:
            said = self._said.get(timeout=timeout_s)
        except queue.Empty:
            raise WorkerFailed(f"{self.name} said nothing for {timeout_s:g} s") from None
        if said is None:
            self._said.put(None)
            raise WorkerFailed(self._why())
        return said

    def _why(self) -> str:
        status = self._process.wait()
        self._threads[1].join(STOP_S)
        last = self._errors[-1].strip() if self._errors else "and did not say why"
        return f"{self.name} ended with status {status}: {last}"

    def ask_to_stop(self) -> None:
        """It ends by itself when its standard input does."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:  # it has ended already
            pass

    def end(self, *, at_once: bool = False) -> None:
        """Have it ended, and everything of it freed."""
        self.ask_to_stop()
        try:
            self._process.wait(0 if at_once else 2 * STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # a stopped process too
            self._process.wait()
        for thread in self._threads:
            thread.join(STOP_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def workers(
    module: str, settings: Mapping[str, Any], names: Sequence[str]
) -> Iterator[list[Worker]]:
    """Workers of one kind, ended with the block; each finds its `name` in its settings."""
    made: list[Worker] = []
    calm = False
    try:
        for name in names:
            made.append(Worker(name, module, {**settings, "name": name}))
        yield made
        calm = True
    finally:
        for worker in made:
            worker.ask_to_stop()
        for worker in made:
            worker.end(at_once=not calm)


# --- for the worker's own side ---


def say(message: Mapping[str, Any]) -> None:
    """Tell the command that started us."""
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        os._exit(1)  # nobody is left to work for


def stop_asked() -> threading.Event:
    """Set when the command that started us wants us to end, or has gone.

    Whoever does not heed it is ended a little later, whatever it does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = threading.Event()

    def wait() -> None:
        # Not through sys.stdin: a thread that waits inside it spoils the interpreter's exit.
        while os.read(0, 4096):
            pass
        asked.set()
        time.sleep(STOP_S)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    return asked
