"""The streams of one subscription: those that it has, when to look after them, and those forgotten.

A stream is forgotten when its publisher has not been connected for a while, nothing of it has come
either (recorders may serve it), and it is at rest: all that was heard of is handed over, nothing is
missing, nothing waits.  What only the log of a publisher has stays missing until that is back, so
such a stream stays.  `Places` has what is kept of the others: the books of the epoch that the
subscription was in, which say where to go on and let the ledger go on too.

Changed by whoever drives the subscription.  Other threads look with `lock` held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshmsg import _platform
from meshmsg._receive.incoming_stream import Books, Source, StartAt, heard_next
from meshmsg._wire.control import Tail
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.places import Places


class Left(NamedTuple):
    """Where a subscription was in a stream."""

    books: tuple[Books, ...]
    """Of the epochs that matter, the newest last."""
    said: int
    """The latest epoch that its publisher had spoken of."""


class IncomingStreams:
    """All that one subscription receives, or has received, by name."""

    def __init__(self, start: StartAt, counters: Counter[str]) -> None:
        self.start = start  #: where the subscription starts in streams that are new to it
        self.counters = counters
        self.lock = _platform.new_lock()  #: of the books, and of which streams there are
        self.by_name: dict[str, Source] = {}
        self.by_wire: dict[int, Source] = {}
        self.born: set[str] = set()  #: streams that are new, until they are entered
        self.timer_due = NEVER  #: when to look after them, at the latest
        self.settled = False  #: every stream that we know has admitted us
        self.leavers = False  #: a publisher has said good-bye
        self._places: Places[Left] = Places(counters)
        self._uncommitted: set[str] = set()  # forgotten since the last commit

    def wake_at(self, source: Source, due: float) -> None:
        """Look after a stream then, at the latest."""
        source.due = min(source.due, due)
        self.timer_due = min(self.timer_due, due)

    def received(self) -> list[Source]:
        """The streams that are being received."""
        return [s for s in list(self.by_name.values()) if s.receiver is not None]

    # --- coming and going ---

    def add(self, source: Source) -> None:
        """A stream is there again, or for the first time."""
        name = source.info.name
        with self.lock:
            left = self._places.take(name)
            self._uncommitted.discard(name)
            if left is not None:
                source.old_books.extend(left.books)
                source.said = left.said
            self.by_name[name] = source
            self.by_wire[source.wire_id] = source
        self.settled = False

    def at_rest(self, gone_s: float, now: float) -> list[Source]:
        """Return the streams that nobody has published for so long, and of which nothing waits."""
        found = []
        for source in self.by_name.values():
            if source.has_publisher:
                source.seen_at = now
            quiet_s = now - max(source.seen_at, source.data_at)
            if quiet_s >= gone_s and _is_at_rest(source):
                found.append(source)
        return found

    def forget(self, source: Source, *, is_named: bool) -> None:
        """Let go of a stream; a subscription that `is_named` has yet to commit its place in it."""
        name = source.info.name
        with self.lock:
            del self.by_name[name], self.by_wire[source.wire_id]
            books = list(source.old_books)
            if source.receiver is not None:
                source.books.stop = source.receiver.next
                books.append(source.books)
            self._places.keep(name, Left(_last(books, source.said), source.said) if books else None)
            if books and is_named:
                self._uncommitted.add(name)
            self.born.discard(name)
        self.settled = False

    def has_forgotten(self, stream: str) -> bool:
        """Return True if the subscription was in a stream before, which is forgotten."""
        return stream in self._places

    def reaches_back(self, stream: str) -> bool:
        """Return True if what was before counts, before us or before the stream was forgotten."""
        with self.lock:
            return bool(self.left(stream).books) or self.start.reaches_back(stream)

    def moved(self, tails: Iterable[Tail]) -> set[str]:
        """Return the streams that go on, by what a recorder says of those that are forgotten."""
        with self.lock:
            lefts = [(tail, self._places.get(tail.stream)) for tail in tails if self._places]
        return {
            tail.stream
            for tail, left in lefts
            if left is not None
            and (tail.epoch, tail.next) > (left.books[-1].epoch, left.books[-1].stop)
        }

    # --- with the lock held ---

    def is_claimed(self, source: Source) -> bool:
        """Return True if its publisher, and not a recorder, is to say where this epoch begins.

        Nothing of it has come, and where we are to begin lies in the past.  Where it does not, the
        recorder's end of it was the present.
        """
        fresh = source.led is not None and source.books.consumed == source.books.start
        return fresh and (bool(source.old_books) or self.start.reaches_back(source.info.name))

    def left(self, stream: str) -> Left:
        """Where we were in a stream before the epoch that is being received, if there is one."""
        source = self.by_name.get(stream)
        if source is not None:
            return Left(tuple(source.old_books), source.said)
        return self._places.get(stream) or Left((), 0)

    def uncommitted(self) -> Iterator[tuple[Books, ...]]:
        """The books of streams that were forgotten since the last commit."""
        for name in list(self._uncommitted):
            left = self._places.get(name)
            if left is None:
                self._uncommitted.discard(name)
            else:
                yield left.books

    def committed(self, streams: Iterable[str]) -> None:
        """The places in these are kept on disk."""
        self._uncommitted.difference_update(streams)


def _is_at_rest(source: Source) -> bool:
    """Whether nothing of a stream waits or is missing, if nothing of it is ready."""
    receiver = source.receiver
    if receiver is None:
        return True
    if source.admissions or receiver.missing or receiver.pending:
        return False
    return source.books.consumed >= max(receiver.next, heard_next(source))


def _last(books: list[Books], said: int) -> tuple[Books, ...]:
    """The books of the newest epoch, the newest of the publisher's own, and the newest read of."""
    own = [one for one in books if one.epoch <= said]
    read = [one for one in books if one.consumed > one.start]
    wanted = [some[-1] for some in (books, own, read) if some]
    return tuple(one for one in books if one in wanted)
