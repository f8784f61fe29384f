"""Ports for those who listen, go away and come back to the same address."""

from __future__ import annotations

import contextlib
import socket
from random import Random

LISTENERS = range(20_000, 32_000)  # below those that the kernel gives to connections


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """One that no connection takes by chance while nobody listens at it."""
    while True:
        port = Random().choice(LISTENERS)
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as probe:
            probe.bind(("127.0.0.1", port))
            return port
