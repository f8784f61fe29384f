"""Takes events out of the mesh into the book of webhooks.

The subscription has a named cursor, which is moved when the events are on the disk: killed at any
moment, the next start goes on there, and what the book has already is not taken twice.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

from meshmsg._model.batch import Event
from meshmsg._model.errors import ClosedError, MeshError, PayloadError
from meshmsg._model.event import Loss
from meshmsg._peer.peer import Peer
from meshmsg.webhooks.store import Book, wall
from meshmsg.webhooks.types import Endpoint, Stored, pack

log = logging.getLogger("meshmsg.webhooks")

#: The cursor in the mesh of all that is taken into the book.
CURSOR = "webhooks"
TAKE_MAX = 500
LOOK_S = 0.2
COMMIT_EVERY_S = 1.0
AFTER_FAILURE_S = 1.0


class Taker:
    """Runs in a thread of its own."""

    def __init__(
        self,
        peer: Peer,
        book: Book,
        stopping: threading.Event,
        look: Callable[[set[str]], None],
        counters: Counter[str],
        *,
        hold: bool,
    ) -> None:
        self._peer = peer
        self._book = book
        self._stopping = stopping
        self._look = look
        self.counters = counters
        self._hold = hold

    def run(self) -> None:
        """Until it is told to stop."""
        book = self._book
        try:
            while not self._stopping.is_set():
                try:
                    self._take_some(book)
                except ClosedError:
                    if not self._stopping.is_set():
                        log.warning("the peer was closed before its webhooks: no more are taken")
                    return
                except (MeshError, sqlite3.Error) as error:
                    # No space, say.  The mesh keeps what is not in the book, and gives it again.
                    log.error("events cannot be taken for webhooks: %s", error)
                    self.counters["take_errors"] += 1
                    self._stopping.wait(AFTER_FAILURE_S)
                except Exception:  # a defect: it must not end the deliveries
                    log.exception("events cannot be taken for webhooks")
                    self.counters["io_errors"] += 1
                    self._stopping.wait(AFTER_FAILURE_S)
        finally:
            book.close()

    def _take_some(self, book: Book) -> None:
        """Subscribe to what the endpoints want, until they want something else."""
        version, endpoints = book.version(), book.endpoints()
        topics = _topics(endpoints)
        if not topics:
            self._stopping.wait(LOOK_S)
            return
        losses: list[Loss] = []
        committed = time.monotonic()
        with self._peer.subscribe(
            *topics, start="committed", name=CURSOR, on_loss=losses.append, hold=self._hold
        ) as events:
            while not self._stopping.is_set():
                found = events.get_many(max=TAKE_MAX, timeout=LOOK_S)
                if book.version() != version:
                    version, endpoints = book.version(), book.endpoints()
                # A loss is told before the events behind it, and ends what get_many gathers.
                items: list[Stored | Loss] = [*losses, *map(_stored, found)]
                self.counters["lost"] += sum(loss.count for loss in losses)
                losses.clear()
                if items:
                    changed, again = book.take(items, endpoints, now=wall(), version=version)
                    self.counters["taken"] += len(found) - again
                    self.counters["again"] += again
                    self._look(changed)
                if time.monotonic() - committed >= COMMIT_EVERY_S:
                    events.commit()
                    committed = time.monotonic()
                if _topics(endpoints) != topics:
                    break
            events.commit()


def _stored(event: Event) -> Stored:
    try:
        data = event.data
    except PayloadError:
        data = event.payload
    position = event.position
    content = pack(event.key, event.headers, data, event.payload)
    where = position.stream, position.epoch, position.seq
    return Stored(*where, event.topic, event.time_ns, content)


def _topics(endpoints: list[Endpoint]) -> tuple[str, ...]:
    return tuple(sorted({x for one in endpoints if one.state == "active" for x in one.topics}))
