"""A program that closes a socket to which a crowd has come.

    python tests/support/programs/crowd_at_the_door.py

Prints `closed` in the end: what it looks for would stop everything in its process.
"""

from __future__ import annotations

import contextlib
import socket

import zmq

from meshmsg.transports.zmq.connection_monitor import Door
from meshmsg.transports.zmq.unread_limit import limits_of


def main() -> None:
    context = zmq.Context()
    bound = context.socket(zmq.ROUTER)
    port = bound.bind_to_random_port("tcp://127.0.0.1")
    door = Door(bound, limits_of(1000, 1000))
    for _ in range(1500):  # nobody reads what the door has to say of them
        with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
            line.sendall(b"GET / HTTP/1.0\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(bytes(64))
        # It comes after them, and is hung up on.
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            line.recv(4096)
    door.close()
    bound.close(linger=0)
    context.term()
    print("closed")


if __name__ == "__main__":
    main()
