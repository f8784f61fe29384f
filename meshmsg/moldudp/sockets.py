"""Sockets of MoldUDP64: a sender with its re-request server, and a listener that asks.

The sender has a thread of its own, for heartbeats and requests; `send` is safe from any thread.
The listener has none: it reads while its caller waits.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from meshmsg._model.errors import BindError, ClosedError, ConfigError, ProtocolError
from meshmsg._model.multicast_config import split_group
from meshmsg.moldudp.packets import (
    END_OF_SESSION,
    HEARTBEAT,
    PACKET_BYTES,
    check_session,
    decode_packet,
    decode_request,
    encode_head,
    encode_packets,
)
from meshmsg.moldudp.receiver import MoldLoss, MoldMessages, MoldReceiver, MoldTiming, Wanted
from meshmsg.moldudp.store import MoldStore
from meshmsg.transports.inherited import owned
from meshmsg.transports.udp.interfaces import find_interface
from meshmsg.transports.udp.multicast import Group, SendingLine, open_group
from meshmsg.transports.wakeup import Wakeup

log = logging.getLogger("meshmsg.transports")

HEARTBEAT_S = 1.0
#: The end of a session is said this often, in case it is lost.
ENDS = 5
ENDS_PAUSE_S = 0.02
RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
DATAGRAM_BYTES_MAX = 65_535
#: Datagrams that are read from one socket before the others have their turn.
READS_MAX = 256
#: The pause after a turn that failed.
AFTER_FAILURE_S = 0.1


def _groups(field: str, lines: Sequence[str], interface: str) -> list[Group]:
    if not 1 <= len(lines) <= 2:
        raise ConfigError(field, f"{lines!r} is not one line or two: ['239.255.7.7:30001']")
    found = find_interface("interface", interface)
    return [Group(*split_group(field, line), found) for line in lines]


def _host(groups: list[Group]) -> str:
    found = groups[0].interface
    return "localhost" if found.is_loopback else found.address or found.name


def split_address(field: str, address: str) -> tuple[str, int]:
    """Host and port; raises `ConfigError`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(field, f"{address!r} is not of the form 127.0.0.1:30009")
    return host, int(port)


class MoldSender:
    """A session on one or two multicast lines, with a re-request server.

    >>> with MoldSender(["239.255.7.7:30001"], session="DAY1") as sender:      # doctest: +SKIP
    ...     sender.send([b"hello"])
    """

    def __init__(
        self,
        lines: Sequence[str],
        *,
        session: str,
        serve: str = "127.0.0.1:0",
        interface: str = "127.0.0.1",
        ttl: int | None = None,
        first: int = 1,
        store: MoldStore | None = None,
        packet_bytes: int = PACKET_BYTES,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.session = check_session(session)
        self.counters: Counter[str] = Counter()
        #: A test or a demo may lose packets here, of the lines only: true means dropped.
        self.fault: Callable[[bytes], bool] | None = None
        self._groups = _groups("lines", lines, interface)
        self._serve = split_address("serve", serve)
        self._ttl = ttl
        self._store = store or MoldStore(first)
        self._packet_bytes = packet_bytes
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._sent_at = 0.0
        self._finished = False
        self._thread: threading.Thread | None = None

    @property
    def host(self) -> str:
        """The address of this machine that its lines are at."""
        return _host(self._groups)

    def __enter__(self) -> Self:
        self._lines: list[SendingLine] = []
        try:
            self._server = owned(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for group in self._groups:
                self._lines.append(SendingLine(group, self._ttl))
            self._server.bind(self._serve)
        except OSError as error:
            self._close_sockets()
            if isinstance(error, BindError):
                raise
            raise BindError(":".join(map(str, self._serve)), str(error.strerror)) from None
        self._server.setblocking(False)
        self._stop = Wakeup()
        self._poll = select.poll()
        for fd in (self._server.fileno(), self._stop.fd):
            self._poll.register(fd, select.POLLIN)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moldudp64", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the re-request server listens."""
        return "{}:{}".format(*self._server.getsockname()[:2])

    @property
    def next(self) -> int:
        """The number that the next message gets."""
        return self._store.next

    def send(self, messages: Sequence[bytes], number: int | None = None) -> int:
        """Send messages; returns the number of the first one.

        With `number` they begin there, and numbers before it that were not used stay unknown.
        Raises `ConfigError` for one that is too large, or a number that was used.
        """
        self._check_open()
        with self._lock:
            if number is not None:
                if number < self._store.next:
                    raise ConfigError("number", f"{number} was used: next is {self._store.next}")
                self._store.skip_to(number)
            packets = list(
                encode_packets(self.session, self._store.next, messages, self._packet_bytes)
            )
            first = self._store.add(list(messages))
            for packet in packets:
                self._send(packet)
            self._sent_at = time.monotonic()
        self.counters["messages"] += len(messages)
        return first

    def _send(self, packet: bytes) -> None:
        self.counters["packets"] += 1
        for line in self._lines:
            if self.fault is not None and self.fault(packet):
                self.counters["injected_drops"] += 1
            else:
                line.send(packet, len(packet))

    def _check_open(self) -> None:
        if self._thread is None or self._closed.is_set():
            raise ClosedError("the sender is not open")

    # --- the thread ---

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._turn()
            except Exception:  # a defect: it must not end the feed's heartbeats and repairs
                log.exception("the MoldUDP64 sender %s", self.session)
                self.counters["io_errors"] += 1
                self._closed.wait(AFTER_FAILURE_S)

    def _turn(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._sent_at >= self._heartbeat_s:
                self._sent_at = now
                self.counters["heartbeats"] += 1
                count = END_OF_SESSION if self._finished else HEARTBEAT
                self._send(encode_head(self.session, self._store.next, count))
            wait = max(0.001, self._sent_at + self._heartbeat_s - now)
        ready = dict(self._poll.poll(wait * 1000))
        if self._server.fileno() in ready:
            self._serve_requests()

    def _serve_requests(self) -> None:
        for _ in range(READS_MAX):
            try:
                data, source = self._server.recvfrom(DATAGRAM_BYTES_MAX)
            except OSError:  # nothing there, or an answer of ours was refused (ICMP)
                return
            try:
                request = decode_request(data)
            except ProtocolError as problem:
                self.counters["bad_requests"] += 1
                log.debug("a bad request from %s: %s", source, problem)
                continue
            if request.session not in ("", self.session):
                self.counters["other_sessions"] += 1
                continue
            self._answer(request.first, request.stop - request.first, source)

    def _answer(self, first: int, count: int, source: Any) -> None:
        with self._lock:
            number, messages = self._store.answer(first, count, time.monotonic())
        for packet in encode_packets(self.session, number, messages, self._packet_bytes):
            try:
                self._server.sendto(packet, source)
            except OSError:  # it will be asked for again
                self.counters["send_errors"] += 1

    def stats(self) -> dict[str, int]:
        """Counters of the lines and of the re-request server."""
        return {**self.counters, **{f"server_{k}": v for k, v in self._store.counters.items()}}

    def finish(self) -> None:
        """Say that the session has ended; requests are answered until `close`."""
        self._check_open()
        self._finished = True
        for n in range(ENDS):
            with self._lock:
                self._send(encode_head(self.session, self._store.next, END_OF_SESSION))
            time.sleep(ENDS_PAUSE_S if n < ENDS - 1 else 0)

    def close(self) -> None:
        """End the session and stop answering."""
        if self._thread is None or self._closed.is_set():
            return
        if not self._finished:
            self.finish()
        self._closed.set()
        self._stop.set()
        self._thread.join()
        self._stop.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._server.close()
        for line in self._lines:
            line.close()


class MoldListener:
    """A session received from one or two lines; what is missing is asked of the server.

    >>> with MoldListener(["239.255.7.7:30001"], server="127.0.0.1:30009") as feed: # doctest: +SKIP
    ...     for item in feed.get(timeout=1):
    ...         print(item)
    """

    def __init__(
        self,
        lines: Sequence[str],
        *,
        server: str | None = None,
        session: str | None = None,
        first: int | None = 1,
        interface: str = "127.0.0.1",
        timing: MoldTiming | None = None,
    ) -> None:
        self._groups = _groups("lines", lines, interface)
        self._server = None if server is None else split_address("server", server)
        if session is not None:
            check_session(session)
        self.core = MoldReceiver(session, first, timing)
        self.counters: Counter[str] = Counter()
        #: A test or a demo may lose packets here, of the lines only: true means dropped.
        self.fault: Callable[[bytes], bool] | None = None
        self._sockets: list[socket.socket] = []

    @property
    def host(self) -> str:
        """The address of this machine that its lines are at."""
        return _host(self._groups)

    def __enter__(self) -> Self:
        try:
            for group in self._groups:
                self._sockets.append(open_group(group, group.port, join=True))
            self._asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._sockets.append(self._asking)
            if self._server is not None:  # answers are known by their source
                self._server = (socket.gethostbyname(self._server[0]), self._server[1])
        except BaseException as error:
            self.close()
            if isinstance(error, socket.gaierror):
                raise ConfigError("server", f"{self._server}: {error.strerror}") from None
            raise
        self._poll = select.poll()
        for sock in self._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.setblocking(False)
            self._poll.register(sock, select.POLLIN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the groups."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    @property
    def complete(self) -> bool:
        """The session has ended and all of it was handed over."""
        return self.core.complete

    def get(self, timeout: float | None = None) -> list[MoldMessages | MoldLoss]:
        """What is ready, in order, as soon as something is; empty when the time is up."""
        if not self._sockets:
            raise ClosedError("the listener is not open")
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            for wanted in self.core.on_deadline(now):
                self._ask(wanted)
            found = list(self.core.events())
            if found or self.core.complete or (until is not None and now >= until):
                return found
            self._wait(now, until)

    def _wait(self, now: float, until: float | None) -> None:
        times = [at for at in (until, self.core.deadline()) if at is not None]
        wait = max(0.0, min(times) - now) if times else None
        ready = dict(self._poll.poll(None if wait is None else math.ceil(wait * 1000)))
        for sock in self._sockets:
            if sock.fileno() in ready:
                self._read(sock)

    def _read(self, sock: socket.socket) -> None:
        for _ in range(READS_MAX):
            try:
                data, source = sock.recvfrom(DATAGRAM_BYTES_MAX)
            except OSError:  # nothing there, or the server is not there (ICMP)
                return
            asked = sock is self._asking
            if asked and source != self._server:
                self.counters["strangers"] += 1
                continue
            if not asked and self.fault is not None and self.fault(data):
                self.counters["injected_drops"] += 1
                continue
            self._take(data, asked=asked)

    def _take(self, data: bytes, *, asked: bool) -> None:
        try:
            packet = decode_packet(data)
        except ProtocolError as problem:
            self.counters["bad_packets"] += 1
            log.debug("a bad MoldUDP64 packet: %s", problem)
            return
        self.counters["answers" if asked else "packets"] += 1
        before = self.core.missing
        self.core.on_packet(*packet, now=time.monotonic(), asked=asked)
        if asked:
            self.counters["repaired"] += max(0, before - self.core.missing)

    def _ask(self, wanted: Wanted) -> None:
        if self._server is None:
            return
        try:
            self._asking.sendto(
                encode_head(wanted.session, wanted.first, wanted.stop - wanted.first), self._server
            )
        except OSError as error:  # asked again soon
            self.counters["send_errors"] += 1
            log.debug("asking %s failed: %s", self._server, error)

    def stats(self) -> dict[str, int]:
        """Counters of the lines and of the core."""
        return {**self.counters, **self.core.counters, "missing": self.core.missing}
