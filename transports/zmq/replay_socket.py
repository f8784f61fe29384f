"""A connection to a peer for reading its logs: one DEALER socket with a context of its own.

For plain programs that are no peers.  Sockets only: what is asked is decided elsewhere.
"""

from __future__ import annotations

import time

import zmq

from meshmsg.transports.zmq.context import (
    MESSAGE_BYTES_MAX,
    ONE_HAS_NO_KEY,
    Context,
    Monitor,
    milliseconds,
)
from meshmsg.transports.zmq.control import ANSWERS_BYTES_MAX, split_parts
from meshmsg.transports.zmq.curve import Curve
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, DialledMeter, limits_of

#: Answers that wait here unread; what is ahead of us is bounded by credit, in bytes.
QUEUE_MESSAGES = 4096
#: How long a peer may take to let us in or not, where there are several mesh keys to try.
DOOR_S = 2.0
#: How often is looked how far the peer is ahead of us, while nothing comes.
LOOK_S = 0.1


class Disconnected(Exception):
    """The connection that was there is gone."""


class ReplaySocket:
    """Asks one peer.  Not for several threads."""

    def __init__(self, address: str, curve: Curve | None = None) -> None:
        self._context = Context(curve)
        self._socket = self._context.socket(
            zmq.DEALER,
            send_queue=QUEUE_MESSAGES,
            recv_queue=QUEUE_MESSAGES,
            ipv6="[" in address,
        )
        self._monitor = Monitor(self._socket)
        self._meter = DialledMeter(limits_of(MESSAGE_BYTES_MAX, ANSWERS_BYTES_MAX))
        self._got = self._emptied = 0
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor.pollable, zmq.POLLIN)
        self._secured = curve is not None
        doors = [b""] if curve is None else list(curve.doors)
        self._context.connect(self._socket, address, doors.pop(0))
        while doors and not self._is_let_in():  # the mesh key is being changed
            self._socket.disconnect(address)
            self._context.connect(self._socket, address, doors.pop(0))

    def _locked_out(self) -> bool:
        failure = self._monitor.failure
        return bool(failure) and (self._secured or failure == ONE_HAS_NO_KEY)

    def _is_let_in(self) -> bool:
        """Wait for the handshake; nobody being there at all is found out later."""
        deadline = time.monotonic() + DOOR_S
        self._monitor.failure = ""
        while (left := deadline - time.monotonic()) > 0:
            self._monitor.pollable.poll(milliseconds(left))
            if any(list(self._monitor.read())):
                return True
            if self._monitor.failure:
                return False
        return True

    def send(self, data: bytes) -> bool:
        """`False` if too much waits to be sent."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def recv(self, timeout_s: float) -> list[memoryview] | None:
        """The parts of the next message, `None` when the time is up; raises `Disconnected`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK, copy=False).buffer
                self._got += len(data) + MESSAGE_COST
                return split_parts(data)
            except zmq.Again:
                self._emptied += 1
            left = deadline - time.monotonic()
            ready = dict(self._poller.poll(milliseconds(min(left, LOOK_S))))
            # One that sends a message which never ends is cut.
            self._meter.look(self._monitor.open_fds(), self._got, self._emptied)
            if not ready:
                if left > LOOK_S:
                    continue
                return None
            # First what came before the end of the connection.
            if self._socket not in ready:
                there = all(list(self._monitor.read()))
                if self._locked_out():
                    raise Disconnected(self._monitor.failure)
                if not there:
                    raise Disconnected

    def close(self) -> None:
        """Close."""
        self._monitor.close()
        self._socket.close(linger=100)
        self._context.close()
