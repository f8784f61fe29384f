"""Code in forked children: what it returns or raises there, and children that only wait."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

CHILD_S = 60.0


def in_child(function: Callable[[], Any], timeout: float = CHILD_S) -> Any:
    """What a function returns in a forked child, or the error that it raised there.

    A child that does not answer in time is killed, and that is a `TimeoutError`.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = function()
        except BaseException as error:  # whatever it is, the test is told
            result = error
        os.write(writes, pickle.dumps(result))
        os._exit(0)
    os.close(writes)
    try:
        if not select.select([reads], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
            return TimeoutError(f"the child said nothing for {timeout:g} s")
        return pickle.loads(os.read(reads, 1 << 20))
    finally:
        os.close(reads)
        os.waitpid(child, 0)


def raised_in_child(function: Callable[[], Any]) -> str:
    """The name of the error's type, or what the function returned."""
    found = in_child(function)
    return type(found).__name__ if isinstance(found, BaseException) else repr(found)


def sockets() -> list[str]:
    """The sockets of this process that other hosts could know of."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                found.append(f"{sock.type.name} {sock.getsockname()}")
    return found


def idle_child(fork: Callable[[], int] = os.fork) -> int:
    """The pid of a child that does nothing and outlives its parent, until it is killed."""
    child = fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def forked_in_c() -> int:
    """The pid of an idle child whose fork Python was not told of: it keeps all it has."""
    return idle_child(ctypes.PyDLL(None).fork)


def status_of_child(code: str, names: dict[str, Any]) -> int:
    """The exit status of a child that runs the code, to the end of the interpreter."""
    child = os.fork()
    if child == 0:
        for stream in (0, 1):  # nothing of it is for who talks to the parent
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        exec(code, dict(names))
        os._exit(9)  # not reached
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
