"""The streams `dead.<group>`: what a group could not handle, with its history."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meshmsg._config import DEAD_PREFIX, Stream
from meshmsg._errors import ClosedError, LogError
from meshmsg._frame import encode_headers
from meshmsg._group_books import Seat
from meshmsg.recovery.group_policy import DeadLetter

if TYPE_CHECKING:
    from meshmsg._publisher import Outlet, PublisherSide

log = logging.getLogger("meshmsg.peer")


class DeadLetters:
    """The dead letters of a peer; called with the publishing side's lock held."""

    def __init__(self, side: PublisherSide) -> None:
        self._side = side
        self._outlets: dict[tuple[str, str], Outlet] = {}

    def is_of(self, outlet: Outlet, group: str) -> bool:
        """Whether a stream has a group's own dead letters."""
        return outlet is self._outlets.get((group, outlet.codec.name))

    def outlet_for(self, name: str, origin: Outlet) -> Outlet:
        """The stream `dead.<group>`; one more where payloads are encoded in another way."""
        codec = origin.codec
        found = self._outlets.get((name, codec.name))
        if found is None:
            others = any(group == name for group, _ in self._outlets)
            label = f"{DEAD_PREFIX}{name}" + (f"+{codec.name}" if others else "")
            stream = f"{self._side._config.name}/{label}"
            found = self._side._outlets.get(stream)
            if found is None:
                config = origin.config
                found = self._side._declare(
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
                self._side.announce()
            self._outlets[name, codec.name] = found
        return found

    def bury(self, seat: Seat, letter: DeadLetter) -> None:
        """Publish an event that failed too often."""
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
        try:
            self._side.publish_sealed(
                self.outlet_for(name, seat.outlet),
                f"{DEAD_PREFIX}{name}",
                frame.payload_at(index),
                raw=frame.is_raw(index),
                key=frame.key_at(index),
                headers=encode_headers({**frame.headers_at(index), **history}),
            )
        except ClosedError:  # the peer is on its way down, with all its streams
            self._side.counters["dead_unpublished"] += 1
        except LogError as error:
            self._side.counters["dead_unpublished"] += 1
            log.error("a dead letter of group %s was not kept: %s", name, error)
        log.warning(
            "group %s gave up %s@%d:%d after %d attempts: %s",
            name,
            stream,
            frame.epoch,
            letter.seq,
            trouble.attempt,
            trouble.error or trouble.reason,
        )
