"""Attackers that speak ZeroMQ by hand: what its own library would not send."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
WAIT_S = 60.0


def target(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def ready(kind: bytes) -> bytes:
    """The end of a handshake, as a socket of this type."""
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return b"\x04" + bytes([len(body)]) + body


def part(data: bytes, *, more: bool) -> bytes:
    """One part of a message."""
    return bytes([2 | more]) + len(data).to_bytes(8, "big") + data


@contextmanager
def connected(address: str, kind: bytes) -> Iterator[socket.socket]:
    """A connection past its handshake."""
    with socket.create_connection(target(address), WAIT_S) as one:
        one.sendall(GREETING + ready(kind))
        while len(one.recv(1 << 16, socket.MSG_PEEK)) < len(GREETING):
            pass
        yield one


def pour(connection: socket.socket, data: bytes, count: int) -> int:
    """Send parts of a message that never ends; returns how many left before it was cut."""
    piece = part(data, more=True)
    connection.setblocking(False)
    for number in range(count):
        left = memoryview(piece)
        while left:
            readable, writable, _ = select.select([connection], [connection], [], WAIT_S)
            assert readable or writable, "neither read nor cut"
            try:
                if readable and not connection.recv(1 << 16):
                    return number
                if writable:
                    left = left[connection.send(left) :]
            except BlockingIOError:
                pass
            except OSError:
                return number
    return count
