"""Reading the logs of a peer from a plain program: which there are, and ranges of their events.

The peer is a publisher with durable streams, or a recorder.  No thread, no subscription: a reader
asks for a range by its positions and gets every event of it once and in order as whole frames, or
`Loss`es that say which are not there and why.  It never gets less without an error.

    with ReplayClient("tcp://127.0.0.1:7000") as client:
        for log in client.logs("orders.**"):
            for epoch in log.epochs:
                for item in client.batches(log, *epoch):
                    ...  # a Batch or a Loss
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from meshmsg._access.allow_list import Grant, covered
from meshmsg._access.keyring import NONCE_BYTES, Keyring, logs_transcript
from meshmsg._model.batch import Batch
from meshmsg._model.codecs import received_codec
from meshmsg._model.discovery_config import DEFAULT_MESH, named_mesh
from meshmsg._model.errors import ClosedError, ConfigError, ProtocolError, ReplayError
from meshmsg._model.event import LOSS_REASONS, Loss
from meshmsg._model.security_config import Security
from meshmsg._model.topics import TopicFilter
from meshmsg._model.units import addresses
from meshmsg._wire import control as c
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.receiver import Run
from meshmsg.transports.zmq.replay_socket import Disconnected, ReplaySocket

_Answer = TypeVar("_Answer", c.Logs, c.Part)

#: What may be on its way to us; credit for a part is given again when it has been taken.
CREDIT_BYTES = 8 * 1024 * 1024
#: Logs, and epochs of them, that one peer can tell of.
ROWS_MAX = 400_000
#: How often it is asked which logs there are, where pages of the answer are lost.
ASKS_MAX = 3


class LogEpoch(NamedTuple):
    """What can be read of one epoch: events `first` to `stop`."""

    epoch: int
    first: int
    stop: int


class RemoteLog(NamedTuple):
    """A log of a peer."""

    stream: str
    topics: str
    codec: str
    floor: tuple[int, int]
    """All before this epoch and number has expired."""
    epochs: tuple[LogEpoch, ...]
    """Oldest first; those without an event are left out."""
    open: bool
    """The newest epoch may go on."""
    recorded: bool
    """Kept by a recorder, not by the publisher."""
    known: tuple[LogEpoch, ...] = ()
    """As `epochs`, with what has expired and what is empty so far."""

    @property
    def latest(self) -> tuple[int, int] | None:
        """Epoch and number behind the newest event."""
        return (self.epochs[-1].epoch, self.epochs[-1].stop) if self.epochs else None


class ReplayClient:
    """Reads the logs of one peer; for one thread at a time.

    Every method raises `ReplayError` if the peer does not answer within `timeout` seconds, goes
    away or refuses.  After that, make a new one.
    """

    def __init__(
        self,
        address: str,
        *,
        mesh: str = DEFAULT_MESH,
        timeout: float = 10.0,
        credit_bytes: int = CREDIT_BYTES,
        security: Security | None = None,
    ) -> None:
        (self.address,) = addresses("address", address)
        self._mesh = named_mesh(mesh, os.environ)
        self._timeout = timeout
        if credit_bytes < 1:
            raise ConfigError("credit_bytes", f"{credit_bytes!r} is not a number of bytes")
        self._credit_bytes = credit_bytes
        if security is None:
            security = Security.from_env(os.environ)
        self._keyring = None if security is None else Keyring(security)
        #: What the peer may publish, once it has proved its key; where peers have their own.
        self._grant: Grant | None = None
        self._served: set[str] = set()
        curve = None if self._keyring is None else self._keyring.curve
        self._socket: ReplaySocket | None = ReplaySocket(self.address, curve)
        self._number = 0

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; safe to call again."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def logs(self, *patterns: str) -> list[RemoteLog]:
        """The logs of streams that can carry these topics (all, without one), by name."""
        wanted = TopicFilter(patterns or ("**",))
        answer = self._ask_for_logs([pattern.text for pattern in wanted.patterns])
        found = sorted(_remote(infos) for infos in answer.values())
        if self._grant is None:
            return found
        may = covered(self._grant.publish, (log.topics for log in found))
        return [log for log in found if log.topics in may]

    def _ask_for_logs(self, patterns: list[str]) -> dict[str, list[c.LogInfo]]:
        """Ask which logs there are, again if a page of the answer is lost."""
        for _ in range(ASKS_MAX):
            found = self._ask_once(patterns)
            if found is not None:
                return found
        raise ReplayError(self.address, "parts of what it says of its logs are missing")

    def _ask_once(self, patterns: list[str]) -> dict[str, list[c.LogInfo]] | None:
        """Ask which logs there are; the answer has any number of pages.  `None` if one is lost."""
        keyring = self._keyring
        nonce = secrets.token_bytes(NONCE_BYTES) if keyring and keyring.apart else b""
        self._number += 1
        self._send(c.LogsPlease(self._number, self._mesh, patterns, nonce))
        found: dict[str, list[c.LogInfo]] = {}
        left, more, page = ROWS_MAX, True, 0
        while more:
            answer, _ = self._receive(c.Logs)
            if answer.error:
                raise ReplayError(self.address, answer.error)
            if answer.page != page:
                return None
            if nonce and not page:
                self._check_proof(answer, nonce)
            page += 1
            for info in answer.logs:
                found.setdefault(info.stream, []).append(info)
            more = answer.more
            left -= 1 + sum(1 + len(info.epochs) + len(info.known) for info in answer.logs)
            if left < 0:
                raise ReplayError(self.address, f"its logs have more than {ROWS_MAX:,} epochs")
        return found

    def _check_proof(self, answer: c.Logs, nonce: bytes) -> None:
        """Raise `ReplayError` unless the peer has proved its key, and may have its name."""
        keyring = self._keyring
        assert keyring is not None
        if not keyring.is_proved(answer.key, nonce, logs_transcript(answer), answer.proof):
            raise ReplayError(self.address, "the peer did not prove its key")
        user = answer.key.hex().encode()
        self._grant = keyring.grant(user)
        if not keyring.may_be_named(user, answer.peer):
            problem = f"our allow-list does not name {answer.peer!r} with its public key"
            raise ReplayError(self.address, f"{problem} {answer.key.hex()}")

    def read(self, stream: str, epoch: int, first: int, stop: int) -> Iterator[Run | Loss]:
        """Events `first` to `stop` of an epoch: runs of whole frames, and losses, in order.

        Together they are exactly the range.  A read that is not gone through to its end is given
        up when the next question is asked.
        """
        if not 0 <= first <= stop:
            raise ConfigError("first", f"{first}, {stop} is not a range: 0 <= first <= stop")
        if first == stop:
            return
        if self._keyring is not None and self._keyring.apart:
            if stream not in self._served:
                self._served = {log.stream for log in self.logs()}
            if stream not in self._served:
                raise ReplayError(self.address, f"no log of stream {stream!r} that it may serve")
        self._number += 1
        number, wire_id = self._number, c.stream_wire_id(self._mesh, stream)
        ask = c.Read(number, self._mesh, stream, epoch, first, stop, self._credit_bytes)
        self._send(ask)
        at, done = first, False
        try:
            while not done:
                part, blob = self._receive(c.Part)
                done = part.done
                if part.error:
                    raise ReplayError(self.address, f"{stream}@{epoch}:{at}: {part.error}")
                for item in self._items(part, blob, wire_id, stream, epoch, at, stop):
                    at = item.stop if isinstance(item, Loss) else item.frame.first + item.hi
                    yield item
                if at != part.stop:
                    raise ReplayError(self.address, f"{stream}@{epoch}:{at}: a part did not come")
                if len(blob) and not done:
                    self._send(c.Credit(number, len(blob)))
            if at != stop:
                raise ReplayError(self.address, f"{stream}@{epoch}:{at}: {stop} was asked for")
        finally:
            if not done and self._socket is not None:
                self._send(c.Credit(number, 0))

    def batches(self, log: RemoteLog, epoch: int, first: int, stop: int) -> Iterator[Batch | Loss]:
        """As `read`, with the batches that a subscription has: topics, keys, data, positions."""
        codec = received_codec(log.codec, None, Any)
        for item in self.read(log.stream, epoch, first, stop):
            if isinstance(item, Loss):
                yield item
            else:
                yield Batch(item.frame, log.stream, codec, item.lo, item.hi)

    def _items(
        self,
        part: c.Part,
        blob: memoryview | bytes,
        wire_id: int,
        stream: str,
        epoch: int,
        at: int,
        stop: int,
    ) -> Iterator[Run | Loss]:
        """What one part holds, in order."""
        gone = iter(part.gone)
        hole = next(gone, None)
        begin = 0
        if sum(length for length, _ in part.frames) != len(blob) or part.first != at:
            raise ReplayError(self.address, f"{stream}@{epoch}:{at}: a part did not come")
        for length, end in part.frames:
            while hole is not None and hole[0] == at:
                yield _loss(stream, epoch, hole)
                at, hole = hole[1], next(gone, None)
            if not at < end:
                raise ReplayError(self.address, f"{stream}@{epoch}:{at}: a frame up to {end} came")
            last = min(end, stop)
            frame = _frame(bytes(blob[begin : begin + length]), wire_id, epoch, at, end)
            if frame is None:  # so it stands in the log: on the way nothing is damaged
                yield Loss(stream, epoch, at, last, "corrupt")
            else:
                yield Run(frame, at - frame.first, last - frame.first)
            begin += length
            at = last
        while hole is not None and hole[0] == at:
            yield _loss(stream, epoch, hole)
            at, hole = hole[1], next(gone, None)

    def _send(self, message: c.LogsPlease | c.Read | c.Credit) -> None:
        if self._socket is None:
            raise ClosedError("the client is closed")
        data = c.encode_message(message)
        if len(data) > c.SMALL_BYTES_MAX:
            problem = f"of {len(data):,} bytes: a question has at most {c.SMALL_BYTES_MAX:,}"
            raise ConfigError("patterns", problem)
        if not self._socket.send(data):
            raise ReplayError(self.address, "too much waits to be sent")

    def _receive(self, kind: type[_Answer]) -> tuple[_Answer, memoryview | bytes]:
        """The next answer to the newest question; those to others are passed over."""
        deadline = time.monotonic() + self._timeout
        while True:
            if self._socket is None:
                raise ClosedError("the client is closed")
            try:
                parts = self._socket.recv(max(0.0, deadline - time.monotonic()))
            except Disconnected as why:
                raise ReplayError(self.address, str(why) or "the peer went away") from None
            if parts is None:
                problem = f"no answer in {self._timeout:g} s: is it running, is it the address?"
                raise ReplayError(self.address, problem)
            try:
                message = c.decode_message(bytes(parts[0]), ("part",))
            except ProtocolError as error:
                raise ReplayError(self.address, str(error)) from None
            if isinstance(message, c.Refused):
                raise ReplayError(self.address, message.reason)
            if isinstance(message, c.Unknown):
                raise ReplayError(self.address, "the peer does not serve logs")
            if isinstance(message, kind) and message.number == self._number:
                return message, parts[1] if len(parts) > 1 else b""


def _frame(data: bytes, wire_id: int, epoch: int, at: int, stop: int) -> Frame | None:
    """A frame that has event `at` and ends at `stop`; `None` if it is damaged."""
    try:
        frame = Frame(data)
    except ProtocolError:
        return None
    good = (frame.stream, frame.epoch, frame.stop) == (wire_id, epoch, stop)
    return frame if good and frame.first <= at else None


def _loss(stream: str, epoch: int, hole: tuple[int, int, str]) -> Loss:
    first, stop, reason = hole
    return Loss(stream, epoch, first, stop, reason if reason in LOSS_REASONS else "gone")


def _remote(infos: list[c.LogInfo]) -> RemoteLog:
    epochs = tuple(LogEpoch(*row) for info in infos for row in info.epochs)
    known = tuple(LogEpoch(*row) for info in infos for row in info.known)
    info = infos[-1]
    return RemoteLog(
        info.stream, info.topics, info.codec, info.floor, epochs, info.open, info.recorded, known
    )
