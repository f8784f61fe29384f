"""Who may connect: ZeroMQ asks (RFC 27, ZAP) for each connection that shows a key.

Sockets only: who may is decided elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import zmq

from meshmsg.transports.zmq.context import Context, new_socket
from meshmsg.transports.zmq.curve import KEY_BYTES

ADDRESS = "inproc://zeromq.zap.01"
VERSION = b"1.0"


class ZapRequest(NamedTuple):
    """Somebody is at the door."""

    envelope: bytes
    number: bytes
    domain: bytes
    """Which socket it is at: see `curve`."""
    host: str
    key: bytes
    """Its public key, which it has proved to be its own."""


class ZapServer:
    """Hears of everyone who wants in to the bound sockets of one context."""

    def __init__(self, context: Context) -> None:
        self._socket = new_socket(context.zmq, zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # No limit: an unanswered request would hold up a connection for ever.
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(ADDRESS)
        self.pollable = self._socket

    def recv(self) -> ZapRequest | None:
        """The next one, or `None` when there is none now; what is not CURVE is refused at once."""
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(parts) < 8:
                continue
            envelope, _, _, number, domain, host, _, mechanism, *shown = parts
            request = ZapRequest(
                envelope,
                number,
                domain,
                host.decode("ascii", "replace"),
                shown[0] if shown else b"",
            )
            if mechanism == b"CURVE" and len(request.key) == KEY_BYTES:
                return request
            self.refuse(request)

    def accept(self, request: ZapRequest, user: bytes) -> None:
        """Let it in; its messages carry the user's id."""
        self._answer(request, b"200", b"OK", user)

    def refuse(self, request: ZapRequest) -> None:
        """Tell it that it may not."""
        self._answer(request, b"400", b"refused", b"")

    def put_off(self, request: ZapRequest) -> None:
        """Not now: ZeroMQ tries again, where it would give up a connection that was refused."""
        self._answer(request, b"300", b"not now", b"")

    def _answer(self, request: ZapRequest, code: bytes, text: bytes, user: bytes) -> None:
        answer = [request.envelope, b"", VERSION, request.number, code, text, user, b""]
        self._socket.send_multipart(answer, zmq.NOBLOCK)

    def close(self) -> None:
        """Close; nobody gets in any more."""
        self._socket.close(linger=0)
