"""Bridges between meshmsg streams and MoldUDP64 sessions, one for each direction.

Positions and sequence numbers say the same: event `seq` of an epoch is message `seq + 1` of the
session that is named after the epoch.  So a bridge that is restarted goes on under the same
numbers, and what meshmsg has declared lost is a gap that no re-request server can fill: lost there,
too, by the same numbers.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from meshmsg import StartFrom
from meshmsg._bridge.plaintext import check_plain
from meshmsg._model.errors import ConfigError
from meshmsg._model.event import Loss
from meshmsg._peer.peer import Peer
from meshmsg.moldudp.receiver import MoldLoss, MoldMessages, MoldTiming
from meshmsg.moldudp.sockets import MoldListener, MoldSender

__all__ = [
    "MeshToMold",
    "MoldListener",
    "MoldLoss",
    "MoldMessages",
    "MoldSender",
    "MoldTiming",
    "MoldToMesh",
    "epoch_of",
    "session_of",
]

log = logging.getLogger("meshmsg.moldudp")

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SESSION_LETTERS = 10
#: How often the bridge looks whether it shall stop.
LOOK_S = 0.2


def session_of(epoch: int) -> str:
    """The session that an epoch is sent as: its number, to the base of 36."""
    letters = []
    left = epoch
    for _ in range(SESSION_LETTERS):
        left, digit = divmod(left, 36)
        letters.append(_DIGITS[digit])
    if left:
        raise ConfigError("epoch", f"{epoch} has no room in a session's name")
    return "".join(reversed(letters))


def epoch_of(session: str) -> int:
    """The epoch that a session is named after; raises `ConfigError` if it is after none."""
    if len(session) != SESSION_LETTERS or not set(session) <= set(_DIGITS):
        raise ConfigError("session", f"{session!r} is not named after an epoch")
    return int(session, 36)


class MeshToMold:
    """Sends one stream as MoldUDP64: a session for each epoch, messages are the payloads."""

    def __init__(
        self,
        peer: Peer,
        pattern: str,
        lines: Sequence[str],
        *,
        start: StartFrom = "earliest",
        session: str | None = None,
        **sending: Any,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.sender: MoldSender | None = None
        self._peer = peer
        self._pattern = pattern
        self._lines = lines
        self._start = start
        self._session = session
        self._sending = sending
        checked = MoldSender(lines, session=session or "CHECKED", **sending)  # raises what is wrong
        check_plain(peer, "moldudp", checked.host)
        self._stream: str | None = None
        self._epoch = 0
        self._next = 0
        self._linger_s = 0.0
        self._on_open: Callable[[MoldSender], None] = lambda sender: None

    def run(
        self,
        go_on: Callable[[], bool],
        on_open: Callable[[MoldSender], None] | None = None,
        linger_s: float = 0.0,
    ) -> None:
        """Forward while `go_on()`, then end the session and answer requests for `linger_s` more.

        `on_open` is called with the sender of each session.  Raises `ConfigError` where the topics
        are those of two streams, or of a part of one.
        """
        self._on_open = on_open or self._on_open
        self._linger_s = linger_s
        with (
            ExitStack() as stack,
            self._peer.subscribe(self._pattern, start=self._start, on_loss=self._lose) as events,
        ):
            while go_on():
                for batch in events.batches(timeout=LOOK_S):
                    if self.sender is None or batch.epoch != self._epoch:
                        self._open(stack, batch.epoch)
                        self._next = batch.first
                    assert self.sender is not None
                    self._check(batch.stream, batch.first, whole=batch.keep is None)
                    self._next = batch.stop
                    self.sender.send(batch.payloads, batch.first + 1)
                    self.counters["messages"] += len(batch)
                    if not go_on():
                        break
            self._finish()

    def _finish(self) -> None:
        """The session is over; who missed its end may still ask."""
        if self.sender is not None:
            self.sender.finish()
            time.sleep(self._linger_s)
            self.sender.close()

    def _check(self, stream: str, first: int, *, whole: bool) -> None:
        """Numbers that were filtered would look like a loss to those who receive."""
        if self._stream is None:
            self._stream = stream
        if stream != self._stream:
            problem = f"a session is one whole stream, and these are {self._stream} and {stream}"
            raise ConfigError("pattern", problem)
        if first != self._next or not whole:
            problem = f"a session is one whole stream: take all topics of {stream}"
            raise ConfigError("pattern", problem)

    def _open(self, stack: ExitStack, epoch: int) -> None:
        """Another epoch is another session; the one before is over."""
        self._finish()
        name = self._session if self._session and not self._epoch else session_of(epoch)
        self._epoch = epoch
        self.sender = stack.enter_context(MoldSender(self._lines, session=name, **self._sending))
        self._on_open(self.sender)

    def _lose(self, loss: Loss) -> None:
        """The numbers stay unused, so that receivers find the same gap."""
        self.counters["lost"] += loss.count
        if loss.epoch == self._epoch:
            self._next = max(self._next, loss.stop)
        log.warning("not sent as MoldUDP64: %s", loss)


class MoldToMesh:
    """Publishes a MoldUDP64 session: messages are payloads, keys are their numbers.

    What the session has lost for good is an event on `<topic>.lost`, in its place.
    """

    def __init__(self, peer: Peer, topic: str, listener: MoldListener) -> None:
        self.counters: Counter[str] = Counter()
        self._peer = peer
        self._topic = topic
        self._listener = listener
        check_plain(peer, "moldudp", listener.host)

    def run(self, go_on: Callable[[], bool]) -> None:
        """Forward while `go_on()`, or until the session has ended and all of it was published."""
        while go_on() and not self._listener.complete:
            for item in self._listener.get(timeout=LOOK_S):
                if isinstance(item, MoldMessages):
                    self._publish(item)
                else:
                    self._lose(item)

    def _publish(self, item: MoldMessages) -> None:
        keys = [str(number) for number in range(item.first, item.first + len(item.messages))]
        headers = {"mold.session": item.session}
        self._peer.publish_many(self._topic, item.messages, keys=keys, headers=headers)
        self.counters["messages"] += len(item.messages)

    def _lose(self, loss: MoldLoss) -> None:
        log.warning("messages %d to %d were lost", loss.first, loss.stop - 1)
        self._peer.publish(f"{self._topic}.lost", loss._asdict())
        self.counters["lost"] += loss.size
