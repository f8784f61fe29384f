"""A small HTTP server for figures: one thread, one request a connection, bounds on everything.

A few connections may stay and follow: each is sent what all are sent, of which it holds one piece
at most, and a slow one is cut off.

A caller costs at most one of `CONNECTIONS_MAX` places, `HEAD_BYTES_MAX` of memory and `REQUEST_S`
of patience.  Where all places are taken, whoever has been asking for longest without saying what
goes: a flood of silent connections displaces itself, and a scrape, whose request comes with its
connection, is served.  Connections are accepted at `ACCEPTS_A_SECOND` at most, the others wait in
the kernel's queue: so what a flood takes of the processor is bounded too, and with it what it
takes of the interpreter's lock from those who publish.

Why none of those that exist: `http.server` has a thread for each connection and no bounds, and
aiohttp is a dependency of ten packages for an answer of one kind.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable

from meshmsg._model.errors import BindError
from meshmsg.monitor.http_messages import (
    HEAD_BYTES_MAX,
    Answer,
    BadRequest,
    Request,
    read_head,
    write_head,
)
from meshmsg.transports.inherited import owned
from meshmsg.transports.wakeup import Wakeup

log = logging.getLogger("meshmsg.monitor")

CONNECTIONS_MAX = 64
ACCEPTS_A_SECOND = 1_000.0
#: Accepted at once after a quiet time.
ACCEPTS_BURST = 32.0
#: For the whole head of a request, from the connection on.
REQUEST_S = 5.0
#: For taking the answer.
ANSWER_S = 10.0
#: For the caller to hang up after it: until then an answer may be on its way.
GOODBYE_S = 1.0
#: The pause where the system has no file descriptor left.
NO_FILES_S = 0.2
BACKLOG = 1_024
READ_BYTES = 4_096
#: Connections that are sent more and more.
WATCHERS_MAX = 8
#: What was sent to all and waits for the server's thread.
TO_ALL_MAX = 4
NEVER = float("inf")


class _Caller:
    """One connection: what came of its request, what is left of its answer."""

    __slots__ = ("asked", "deadline", "follows", "left", "sock")

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.asked = b""
        self.follows = False  #: it is sent what all such are sent
        self.left: list[memoryview] | None = None  #: `None` while the request is being read


class HttpServer:
    """Listens at one address; what is answered is for `answer` to say, which must not raise."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[Request], Answer],
        counters: Counter[str],
    ) -> None:
        self._place = (host, port)
        self._answer = answer
        self.counters = counters
        self._callers: dict[int, _Caller] = {}  # by descriptor, the oldest first
        self._to_all: deque[bytes] = deque(maxlen=TO_ALL_MAX)
        self._allowed, self._allowed_at = ACCEPTS_BURST, time.monotonic()
        self._paused_until: float | None = None
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup.fd, selectors.EVENT_READ)
        self._listener: socket.socket | None = None

    def open(self) -> tuple[str, int]:
        """Listen; returns host and port.  Raises `BindError`."""
        host, port = self._place
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=1)[0]
            listener = socket.socket(found[0], socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
                listener.listen(BACKLOG)
                listener.setblocking(False)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise BindError(f"{host}:{port}", error.strerror or str(error)) from None
        self._listener = owned(listener)
        self._selector.register(listener, selectors.EVENT_READ)
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    def wake(self) -> None:
        """Have a turn that waits come round, from any thread."""
        self._wakeup.set()

    def send_all(self, data: bytes) -> None:
        """Send something to all that follow, from any thread.

        One that has not taken what came before does without; one that takes nothing for `ANSWER_S`
        is cut off.
        """
        self._to_all.append(data)
        self.wake()

    def watchers(self) -> int:
        """How many follow."""
        return sum(caller.follows for caller in list(self._callers.values()))

    def turn(self) -> None:
        """Wait for something to happen, and do it."""
        now = time.monotonic()
        for key, _ in self._selector.select(self._due() - now):
            caller = self._callers.get(key.fd)
            if key.fd == self._wakeup.fd:
                self._wakeup.clear()
            elif caller is not None:
                self._serve(caller)
            elif key.fileobj is self._listener:
                self._accept()
        now = time.monotonic()
        while self._to_all:
            self._send_all(self._to_all.popleft(), now)
        for caller in list(self._callers.values()):
            if caller.deadline <= now:
                counter = "slow_watchers" if caller.follows else "timeouts"
                self._drop(caller, "" if self._is_served(caller) else counter)
        if self._paused_until is not None and now >= self._paused_until:
            assert self._listener is not None
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Hang up everywhere; the thread that takes turns is at its end."""
        for caller in list(self._callers.values()):
            self._drop(caller, "")
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        self._wakeup.close()

    def _due(self) -> float:
        dues = [caller.deadline for caller in self._callers.values()]
        if self._paused_until is not None:
            dues.append(self._paused_until)
        return min([*dues, time.monotonic() + 60.0])

    def _send_all(self, data: bytes, now: float) -> None:
        for caller in list(self._callers.values()):
            if not caller.follows:
                continue
            if caller.left:
                self.counters["snapshots_skipped"] += 1
                continue
            caller.left, caller.deadline = [memoryview(data)], now + ANSWER_S
            self._serve(caller)

    # --- connections ---

    def _accept(self) -> None:
        assert self._listener is not None
        now = time.monotonic()
        grown = self._allowed + (now - self._allowed_at) * ACCEPTS_A_SECOND
        self._allowed, self._allowed_at = min(ACCEPTS_BURST, grown), now
        while self._allowed >= 1.0:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self.counters["accepts_failed"] += 1
                log.debug("no connection could be accepted: %s", error)
                return self._pause(now + NO_FILES_S)
            self._allowed -= 1.0
            self.counters["connections"] += 1
            self._take(sock, now)
        self.counters["accepts_delayed"] += 1
        self._pause(now + (1.0 - self._allowed) / ACCEPTS_A_SECOND)

    def _pause(self, until: float) -> None:
        assert self._listener is not None
        self._selector.unregister(self._listener)
        self._paused_until = until

    def _take(self, sock: socket.socket, now: float) -> None:
        if len(self._callers) >= CONNECTIONS_MAX:
            reading = (c for c in self._callers.values() if c.left is None)
            oldest = next(reading, None) or next(iter(self._callers.values()))
            self._drop(oldest, "connections_full")
        sock.setblocking(False)
        caller = _Caller(owned(sock), now + REQUEST_S)
        self._callers[sock.fileno()] = caller
        self._selector.register(sock, selectors.EVENT_READ)
        self._serve(caller)  # mostly the request is here already

    def _drop(self, caller: _Caller, counter: str) -> None:
        if counter:
            self.counters[counter] += 1
        del self._callers[caller.sock.fileno()]
        self._selector.unregister(caller.sock)
        caller.sock.close()

    @staticmethod
    def _is_served(caller: _Caller) -> bool:
        return caller.left is not None and not caller.left

    # --- one request ---

    def _serve(self, caller: _Caller) -> None:
        """Go on with a connection as far as it goes without waiting."""
        try:
            if self._is_served(caller):
                if not caller.sock.recv(READ_BYTES):
                    self._drop(caller, "")
            elif caller.left is None:
                self._read(caller)
            else:
                self._write(caller)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller, "" if self._is_served(caller) else "hung_up")

    def _read(self, caller: _Caller) -> None:
        data = caller.sock.recv(READ_BYTES)
        if not data:
            return self._drop(caller, "hung_up" if caller.asked else "")
        caller.asked = (caller.asked + data)[:HEAD_BYTES_MAX]
        head_only = False
        try:
            request = read_head(caller.asked)
            if request is None:
                return None
            head_only = request.method == "HEAD"
            self.counters["requests"] += 1
            answer = self._admit(self._answer(request), head_only)
            caller.follows = answer.follows
        except BadRequest as error:
            self.counters["bad_requests"] += 1
            answer = Answer(error.status, f"{error}\n".encode())
        caller.asked = b""
        # The body is one for all who ask: many slow readers do not hold many copies.
        parts = [write_head(answer)] if head_only else [write_head(answer), answer.body]
        caller.left = [memoryview(part) for part in parts if part]
        caller.deadline = time.monotonic() + ANSWER_S
        self._write(caller)

    def _admit(self, answer: Answer, head_only: bool) -> Answer:
        """The same, unless it would be followed by more and there is no place."""
        if not answer.follows:
            return answer
        if self.watchers() >= WATCHERS_MAX:
            self.counters["watchers_full"] += 1
            text = f"{WATCHERS_MAX} watch already: close a page somewhere\n"
            return Answer(503, text.encode())
        return answer._replace(follows=not head_only)

    def _write(self, caller: _Caller) -> None:
        left = caller.left
        assert left is not None
        with contextlib.suppress(BlockingIOError):
            while left:
                sent = caller.sock.send(left[0])
                if sent == len(left[0]):
                    left.pop(0)
                else:
                    left[0] = left[0][sent:]
        if left:
            self._selector.modify(caller.sock, selectors.EVENT_WRITE)
            return
        if caller.follows:
            self._selector.modify(caller.sock, selectors.EVENT_READ)
            caller.deadline = NEVER
            return
        with contextlib.suppress(OSError):
            caller.sock.shutdown(socket.SHUT_WR)
        self._selector.modify(caller.sock, selectors.EVENT_READ)
        caller.deadline = time.monotonic() + GOODBYE_S
