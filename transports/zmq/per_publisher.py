"""A socket for each publisher, where it matters who said what.

One ZeroMQ socket with many connections does not tell on which of them a message came, so that one
publisher could speak in the name of another.  Here a message counts only if it is of a stream that
belongs to whom it came from; others are dropped and counted.

No lock: whoever calls holds the one that guards the sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import zmq

from meshmsg._model.errors import ProtocolError
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq.context import Context, milliseconds
from meshmsg.transports.zmq.fanout import FanoutClient, fanout_limits, sub_socket
from meshmsg.transports.zmq.receive_socket import SOON_S
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST, Dialled, Limits
from meshmsg.transports.zmq.work_queue import WORK_LIMITS, WorkInlet, pull_socket

PREFIX_BYTES = 8
#: Foreign messages passed over in one call.
FOREIGN_MAX = 64


class _Line:
    """The connection to one publisher."""

    def __init__(self, address: str, socket: zmq.Socket[bytes], limits: Limits) -> None:
        self.address = address
        self.socket = socket
        self.recv = socket.recv
        self.streams: set[bytes] = set()
        self.got_bytes = self.emptied = 0
        self.dialled = Dialled(socket, limits)

    def close(self) -> None:
        """Close at once."""
        self.dialled.close()
        self.socket.close(linger=0)


class _Apart:
    """What `ZmqInlet` does, with one socket for each address."""

    def __init__(
        self, context: Context, make: Callable[[], zmq.Socket[bytes]], limits: Limits
    ) -> None:
        self._context = context
        self._make = make
        self._limits = limits
        self._lines: dict[str, _Line] = {}
        self._order: list[_Line] = []
        self._poller = zmq.Poller()
        self.wakeup = Wakeup()
        self._poller.register(self.wakeup.fd, zmq.POLLIN)
        self.fds: tuple[int, ...] = ()
        self.foreign = 0
        self.came_from = ""

    def connect(self, address: str, key: bytes = b"", streams: Iterable[bytes] = ()) -> None:
        """Connect to a publisher; later calls for the same address add streams of it."""
        line = self._lines.get(address)
        if line is not None:
            self._add(line, streams)
            return
        line = _Line(address, self._make(), self._limits)
        line.socket.setsockopt(zmq.RCVTIMEO, milliseconds(SOON_S))
        if "[" in address:
            line.socket.setsockopt(zmq.IPV6, 1)
        self._add(line, streams)
        self._greet(line)
        try:
            self._context.connect(line.socket, address, key)
        except zmq.ZMQError as error:
            line.close()
            raise ProtocolError(f"{address!r}: {error}") from None
        self._lines[address] = line
        self._poller.register(line.socket, zmq.POLLIN)
        self._changed()

    def _add(self, line: _Line, streams: Iterable[bytes]) -> None:
        line.streams.update(streams)

    def _greet(self, line: _Line) -> None:
        pass

    def _is_own(self, line: _Line, data: bytes) -> bool:
        """Whether a message is of whom it came from."""
        self.came_from = line.address
        if data[:PREFIX_BYTES] in line.streams:
            return True
        self.foreign += 1
        return False

    def _changed(self) -> None:
        self._order = list(self._lines.values())
        self.fds = tuple(int(line.socket.getsockopt(zmq.FD)) for line in self._order)

    def disconnect(self, address: str) -> None:
        """Leave a publisher; what it sent and is not yet read is lost."""
        line = self._lines.pop(address, None)
        if line is not None:
            self._poller.unregister(line.socket)
            line.close()
            self._changed()

    def recv(self) -> bytes | None:
        """The next message, or `None` when there is none now."""
        for at, line in enumerate(self._order):
            for _ in range(FOREIGN_MAX):
                try:
                    data = line.recv(zmq.NOBLOCK)
                except zmq.Again:
                    line.emptied += 1
                    break
                line.got_bytes += len(data) + MESSAGE_COST
                if self._is_own(line, data):
                    if len(self._order) > 1:  # the next time the others come first
                        self._order = self._order[at + 1 :] + self._order[: at + 1]
                    return data
        return None

    def recv_soon(self) -> bytes | None:
        """The next message, if it comes within `SOON_S`; deaf to wake-up calls meanwhile."""
        if len(self._order) != 1:
            data = self.recv()
            if data is None:
                self.wait(SOON_S)
                data = self.recv()
            return data
        line = self._order[0]
        try:
            data = line.recv()
        except zmq.Again:
            line.emptied += 1
            return None
        line.got_bytes += len(data) + MESSAGE_COST
        return data if self._is_own(line, data) else None

    def look(self) -> int:
        """Cut connections that are too far ahead of what was read; return how many were."""
        lines = list(self._lines.values())
        return sum(line.dialled.look(line.got_bytes, line.emptied) for line in lines)

    def wait(self, timeout_s: float) -> None:
        """Until there is a message, a wake-up call, or the time is up."""
        ready = self._poller.poll(milliseconds(timeout_s))
        if any(owner == self.wakeup.fd for owner, _ in ready):
            self.wakeup.clear()

    def close(self) -> None:
        """Close at once."""
        for line in self._lines.values():
            line.close()
        self.wakeup.close()


class ApartFanoutClient(_Apart, FanoutClient):
    """The SUB sockets of one subscription."""

    def __init__(self, context: Context, queue_frames: int) -> None:
        _Apart.__init__(
            self, context, lambda: sub_socket(context, queue_frames), fanout_limits(queue_frames)
        )
        self._tokens: list[bytes] = []

    def subscribe(self, prefix: bytes) -> None:
        """Take messages that start with the prefix; a stream's only from who has it."""
        if len(prefix) != PREFIX_BYTES:
            self._tokens.append(prefix)
            for line in self._lines.values():
                line.socket.setsockopt(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Take a stream no more, from anybody."""
        for line in self._lines.values():
            if prefix in line.streams:
                line.streams.discard(prefix)
                line.socket.setsockopt(zmq.UNSUBSCRIBE, prefix)

    def _add(self, line: _Line, streams: Iterable[bytes]) -> None:
        for stream in streams:
            if stream not in line.streams:
                line.streams.add(stream)
                line.socket.setsockopt(zmq.SUBSCRIBE, stream)

    def _greet(self, line: _Line) -> None:
        for token in self._tokens:
            line.socket.setsockopt(zmq.SUBSCRIBE, token)


class ApartWorkInlet(_Apart, WorkInlet):
    """The PULL sockets of one member, which sees itself whose work it is."""

    def __init__(self, context: Context, credit: int) -> None:
        _Apart.__init__(self, context, lambda: pull_socket(context, credit), WORK_LIMITS)

    def _is_own(self, line: _Line, data: bytes) -> bool:
        self.came_from = line.address
        return True
