"""The streams `dead.<group>`: what a group could not handle, with its history."""

from __future__ import annotations

import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from meshmsg._groups.seat import Seat
from meshmsg._model.config import DEAD_PREFIX, Stream
from meshmsg._model.errors import ClosedError, LogError
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.frame import HEADERS_BYTES_MAX, encode_headers
from meshmsg.recovery.groups.policy import DeadLetter

log = logging.getLogger("meshmsg.peer")

#: A dead letter that could not be kept is tried again after this long.
RETRY_S = 1.0
_WORD = re.compile(r"[A-Za-z0-9._-]{1,16}")

#: Publishes one event of a topic: its payload, whether it was given as bytes, its key, its headers.
Publish = Callable[[Outlet, str, bytes, bool, str | None, bytes], None]


class _Kind(NamedTuple):
    """Dead letters that one stream can take."""

    group: str
    codec: str
    safety: str


def _safety(config: Stream) -> str:
    """How safe what a group gives up has to be, in a word."""
    if config.durability == "none":
        return "memory"
    return "unsynced" if config.fsync == "never" else "log"


def _word(codec: str) -> str:
    """Return a codec's name, or a number for one that does not go into a stream's name."""
    return codec if _WORD.fullmatch(codec) else f"{zlib.crc32(codec.encode()):08x}"


class DeadLetters:
    """The dead letters of a peer; called with the publishing side's lock held."""

    def __init__(
        self,
        peer: str,
        streams: Mapping[str, Outlet],
        counters: Counter[str],
        declare: Callable[[Stream], Outlet],
        publish: Publish,
    ) -> None:
        self._peer = peer
        self._streams = streams
        self._counters = counters
        self._declare = declare
        self._publish = publish
        self._outlets: dict[_Kind, Outlet] = {}

    def is_of(self, outlet: Outlet, group: str) -> bool:
        """Whether a stream has a group's own dead letters."""
        return any(kind.group == group and o is outlet for kind, o in self._outlets.items())

    def outlet_for(self, name: str, origin: Outlet) -> Outlet:
        """The stream `dead.<group>`; one more where payloads are encoded or kept in another way."""
        codec, config = origin.codec, origin.config
        kind = _Kind(name, codec.name, _safety(config))
        found = self._outlets.get(kind)
        if found is None:
            others = [other for other in self._outlets if other.group == name]
            label = f"{DEAD_PREFIX}{name}"
            if any(other.codec != kind.codec for other in others):
                label += f"+{_word(codec.name)}"
            if any(other.safety != kind.safety for other in others):
                label += f"+{kind.safety}"
            stream = f"{self._peer}/{label}"
            found = self._streams.get(stream)
            if found is None:
                found = self._declare(
                    Stream(
                        f"{DEAD_PREFIX}{name}",
                        name=label,
                        overflow="drop_oldest",
                        # What a group gave up is settled, and must not be less safe than it was.
                        durability=config.durability,
                        fsync="never" if config.fsync == "never" else "batch",
                        retention=config.retention,
                        codec=codec,
                        event_bytes_max=config.event_bytes_max,
                    )
                )
            self._outlets[kind] = found
        return found

    def bury_all(self, seat: Seat, now: float) -> None:
        """Publish what a group has given up; what cannot be kept now is tried again.

        Until it is, the event does not count as settled on disk: it would be nowhere.
        """
        group = seat.group
        if now < seat.bury_at:
            return
        letters, group.dead_letters = group.dead_letters, []
        for at, letter in enumerate(letters):
            try:
                self._bury(seat, letter)
            except (ClosedError, LogError) as error:
                if seat.kept:
                    group.owe(letters[at:])
                    seat.bury_at = now + RETRY_S
                self._counters["dead_unpublished"] += 1 if seat.kept else len(letters) - at
                if isinstance(error, LogError):  # else the peer is on its way down
                    log.error("a dead letter of group %s was not kept: %s", group.name, error)
                return
            group.changes += 1  # it counts as settled from now on

    def _bury(self, seat: Seat, letter: DeadLetter) -> None:
        frame, index, trouble = letter.frame, letter.index, letter.trouble
        name, stream = seat.group.name, seat.outlet.stream
        history = {
            "dead.stream": stream,
            "dead.epoch": frame.epoch,
            "dead.seq": letter.seq,
            "dead.topic": frame.topic_at(index),
            "dead.attempts": trouble.attempt,
            "dead.members": trouble.members,
            "dead.reason": trouble.reason,
            "dead.error": trouble.error,
        }
        headers = encode_headers({**frame.headers_at(index), **history})
        if len(headers) > HEADERS_BYTES_MAX:  # its own stay where it came from
            headers = encode_headers(history)
        self._publish(
            self.outlet_for(name, seat.outlet),
            f"{DEAD_PREFIX}{name}",
            frame.payload_at(index),
            frame.is_raw(index),
            frame.key_at(index),
            headers,
        )
        log.warning(
            "group %s gave up %s@%d:%d after %d attempts: %s",
            name,
            stream,
            frame.epoch,
            letter.seq,
            trouble.attempt,
            trouble.error or trouble.reason,
        )
