"""Peers in processes of their own, driven from a test: real sockets, real signals, real exits.

    with RemotePeer("sub", connect=address) as sub:
        sub.run("events = peer.subscribe('a.**')")
        assert sub.eval("events.get(30).data") == 1

That is for commands and expressions of a line.  What has definitions, loops or threads is a
function in a file of `tests/support/programs/`, and `use` brings it to the other end:

        sub.use("readers")
        assert sub.eval("read_seqs(events, 100)") == list(range(100))

Run as a program, this file is the other end: it reads a JSON object a line (code to run), answers
with one, and ends when its input does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
ANSWER_S = 60.0


class RemoteError(AssertionError):
    """The code in the other process raised; the text is its traceback."""


class RemotePeer:
    """A `meshmsg.Peer` in another process."""

    def __init__(self, name: str, *, within: Sequence[str] = (), **arguments: Any) -> None:
        """`within` is put before the command: a network namespace."""
        from tests.support import (  # which the other end has not, and does not need
            failures,
            processes,
        )

        self.name = name
        self._process = processes.start(
            [*within, sys.executable, "-u", "-W", "ignore", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        arguments |= {"name": name}
        self._waiting = 0
        try:
            self.run("peer = make(arguments).open()", arguments=arguments)
        except BaseException:
            self.close()
            raise
        failures.watch(self, RemotePeer._stats)

    def __repr__(self) -> str:
        return f"RemotePeer({self.name!r})"

    def _stats(self) -> Any:
        if self._waiting:
            return f"{self._waiting} answers are due"
        return self.eval("peer.stats()", timeout=3.0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        return str(self.eval("peer.address"))

    def send(self, code: str, *, evaluate: bool = False, **names: Any) -> None:
        """Start something without waiting for it; `answer` waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"code": code, "eval": evaluate, "names": names}) + "\n"
        )
        self._process.stdin.flush()
        self._waiting += 1

    def answer(self, timeout: float = ANSWER_S) -> Any:
        """The answer to the oldest code that was sent."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            raise RemoteError(f"{self.name} did not answer in {timeout:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RemoteError(f"{self.name} ended with {self._process.wait(30)}")
        self._waiting -= 1
        reply = json.loads(line)
        if "error" in reply:
            raise RemoteError(f"in {self.name}:\n{reply['error']}")
        return reply.get("value")

    def run(self, code: str, timeout: float = ANSWER_S, **names: Any) -> None:
        self.send(code, **names)
        self.answer(timeout)

    def eval(self, code: str, timeout: float = ANSWER_S, **names: Any) -> Any:
        self.send(code, evaluate=True, **names)
        return self.answer(timeout)

    def use(self, program: str) -> None:
        """Have the functions of a file of tests/support/programs at hand, without their `peer`."""
        self.run("use(program)", program=program)

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Freeze the process."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no good-bye."""
        self.signal(signal.SIGKILL)
        self._process.wait(30)
        self.close()

    def close(self) -> int:
        """Close the peer and wait for the process to end; returns its exit status."""
        from tests.support import failures, processes

        failures.forget(self)
        if self._process.poll() is None:
            self.go_on()
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(30)
        processes.end(self._process)
        return int(self._process.returncode)

    def __enter__(self) -> RemotePeer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from tests.support import failures

        failures.leave(error)
        self.close()


def _make(arguments: dict[str, Any]) -> Any:
    """A peer of plain data: streams, feeds, their transports and the tuning as their fields."""
    import meshmsg

    def transported(fields: dict[str, Any]) -> dict[str, Any]:
        if "transport" in fields:
            fields["transport"] = meshmsg.Multicast(**fields["transport"])
        return fields

    streams = [meshmsg.Stream(**transported(s)) for s in arguments.pop("streams", [])]
    feeds = [meshmsg.Feed(**transported(f)) for f in arguments.pop("feeds", [])]
    tuning = meshmsg.Tuning(**arguments.pop("tuning", {}))
    kinds = {
        "discovery": meshmsg.Discovery,
        "record": meshmsg.Record,
        "security": meshmsg.Security,
    }
    for name, kind in kinds.items():
        if isinstance(arguments.get(name), dict):
            arguments[name] = kind(**arguments[name])
    return meshmsg.Peer(**arguments, streams=streams, feeds=feeds, tuning=tuning)


def _functions(program: str, peer: Any) -> dict[str, Any]:
    """The public functions of a file of tests/support/programs, with their first argument."""
    module = importlib.import_module(f"tests.support.programs.{program}")
    return {
        name: functools.partial(function, peer)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_") and name != "main"
    }


def _serve() -> None:
    import meshmsg
    from meshmsg import testing

    sys.path.append(str(ROOT))  # for `tests`
    names: dict[str, Any] = {
        "make": _make,
        "meshmsg": meshmsg,
        "peer": None,
        "testing": testing,
        "time": time,
        "use": lambda program: names.update(_functions(program, names["peer"])),
    }
    for line in sys.stdin:
        order = json.loads(line)
        names.update(order["names"])
        reply: dict[str, Any] = {}
        try:
            if order["eval"]:
                reply["value"] = eval(order["code"], names)
            else:
                exec(order["code"], names)
            text = json.dumps(reply)
        except BaseException:
            text = json.dumps({"error": traceback.format_exc()})
        print(text, flush=True)  # noqa: T201 - this is the answer
    if names["peer"] is not None:
        names["peer"].close()


if __name__ == "__main__":
    _serve()
