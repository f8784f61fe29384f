"""What goes wrong in a process besides, for `RemotePeer.use`: a wrong clock, no files left."""

from __future__ import annotations

import threading
import time
from typing import IO

from meshmsg import Peer, _platform

REAL_TIME_NS = time.time_ns


def shift_clock(peer: Peer, seconds: int) -> None:
    """Have this process's clock differ from the real one."""
    _platform.Platform.time_ns = staticmethod(lambda: REAL_TIME_NS() + seconds * 10**9)


def open_files_until_none_is_left(peer: Peer) -> list[IO[str]]:
    """What a program does that has too many files open."""
    files: list[IO[str]] = []
    try:
        while True:
            files.append(open("/dev/null"))  # noqa: SIM115
    except OSError:
        return files


def take_turns(peer: Peer) -> None:
    """Have the I/O thread read what there is, several times."""
    for _ in range(3):
        done = threading.Event()
        peer._open_node().call(done.set)
        assert done.wait(60)
