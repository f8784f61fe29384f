"""Streams that a subscription lets go of, because their publishers are gone; and their coming back.

A stream is forgotten when its publisher has not been connected for a while, nothing of it has come
either (recorders may serve it), and it is at rest: all that was heard of is handed over, nothing is
missing, nothing waits.  What only the log of a publisher has stays missing until that is back, so
such a stream stays.  `Places` has what is kept of the others: the books of the epoch that the
subscription was in, which say where to go on and let the ledger go on too.

Driven by the `Intake`, with its lock held, but for what says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

from meshmsg._receive.incoming_stream import Books, Source, Sweep, heard_next
from meshmsg._wire.control import Tail
from meshmsg.recovery.stream.places import Places

if TYPE_CHECKING:
    from meshmsg._receive.subscription_io import Intake


class Left(NamedTuple):
    """Where a subscription was in a stream."""

    books: tuple[Books, ...]
    """Of the epochs that matter, the newest last."""
    said: int
    """The latest epoch that its publisher had spoken of."""


class Forgetting:
    """What an intake does with streams of those who are gone."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.places: Places[Left] = Places(intake.counters)
        self._uncommitted: set[str] = set()  # forgotten since the last commit

    def on_sweep(self, notice: Sweep, now: float) -> None:
        """Forget what nobody has published for so long, if it is at rest."""
        intake = self._intake
        ready = (source for source, _, _ in intake._ready)
        busy = {source.info.name for source in (*ready, *intake._backlog)} | intake.tuner.feeds
        if intake._current_books is not None and length_hint(intake.iterator):
            busy.add(intake._current_books.stream)
        for name, source in list(intake._by_name.items()):
            if source.has_publisher:
                source.seen_at = now
            quiet_s = now - max(source.seen_at, source.data_at)
            if quiet_s >= notice.gone_s and name not in busy and _is_at_rest(source):
                self._forget(source, now)

    def _forget(self, source: Source, now: float) -> None:
        intake, name = self._intake, source.info.name
        intake.tuner.tune_out(source, now)
        with intake._books_lock:
            del intake._by_name[name], intake._by_wire[source.wire_id]
            books = list(source.old_books)
            if source.receiver is not None:
                source.books.stop = source.receiver.next
                books.append(source.books)
            self.places.keep(name, Left(_last(books, source.said), source.said) if books else None)
            if books and intake.bookmarks is not None:
                self._uncommitted.add(name)
            intake.born.discard(name)
        intake._client.unsubscribe(source.wire_id.to_bytes(8, "little"))
        intake.refusals.pop(name, None)
        intake._settled = False

    def restore(self, source: Source) -> None:
        """A stream is there again, or for the first time; with the books' lock held."""
        left = self.places.take(source.info.name)
        self._uncommitted.discard(source.info.name)
        if left is not None:
            source.old_books.extend(left.books)
            source.said = left.said

    # --- any thread, with the books' lock held ---

    def left(self, stream: str) -> Left:
        """Where we were in a stream before the epoch that is being received, if there is one."""
        source = self._intake._by_name.get(stream)
        if source is not None:
            return Left(tuple(source.old_books), source.said)
        return self.places.get(stream) or Left((), 0)

    def uncommitted(self) -> Iterator[tuple[Books, ...]]:
        """The books of streams that were forgotten since the last commit."""
        for name in list(self._uncommitted):
            left = self.places.get(name)
            if left is None:
                self._uncommitted.discard(name)
            else:
                yield left.books

    def committed(self, streams: Iterable[str]) -> None:
        """The places in these are kept on disk."""
        self._uncommitted.difference_update(streams)

    def moved(self, tails: Iterable[Tail]) -> set[str]:
        """Return the streams that go on, by what a recorder says of those that are forgotten."""
        lefts = [(tail, self.places.get(tail.stream)) for tail in (tails if self.places else ())]
        return {
            tail.stream
            for tail, left in lefts
            if left is not None
            and (tail.epoch, tail.next) > (left.books[-1].epoch, left.books[-1].stop)
        }


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
