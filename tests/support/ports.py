"""Ports for those who listen, go away and come back to the same address."""

from __future__ import annotations

import socket
import sys
from random import Random

LISTENERS = range(20_000, 32_000)  # below those that the kernel gives to connections

_held: list[socket.socket] = []


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """One that nobody else takes while nobody listens at it, until this process ends.

    No connection takes it by chance.  Nor does another test, in this run or in one beside it: the
    port stays bound.  On Linux whoever sets SO_REUSEADDR, as ZeroMQ and the servers of Python do,
    may listen there all the same, and who does not, as those who look for a port here, may not.
    """
    while True:
        port = Random().choice(LISTENERS)
        probe = socket.socket(socket.AF_INET, kind)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            continue
        if kind == socket.SOCK_STREAM and sys.platform == "linux":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held.append(probe)
        else:
            probe.close()
        return port
