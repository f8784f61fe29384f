"""A feed handler: books rebuilt from the feed, hashed at every checkpoint, kept on disk.

The number of messages applied is the handler's place in the feed: message `n` of the day is event
`n - 1` of the stream, and MoldUDP64's number `n`.  A snapshot holds books and place together, so a
handler that was killed goes on from its last one and skips what that already has in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from market.book import BookError, Books
from meshmsg.moldudp.itch import (
    AddAttributed,
    AddOrder,
    Cancelled,
    Deleted,
    Executed,
    ExecutedAtPrice,
    Message,
    Replaced,
    SystemEvent,
    decode_message,
)

__all__ = ["BookError", "Handler", "Snapshot"]


class Snapshot(msgspec.Struct):
    """Books and the place in the feed that they belong to."""

    applied: int
    rows: list[tuple[int, str, int, int, int]]
    hashes: dict[int, str]
    skipped: int = 0


class Handler:
    """Books, and how many messages are in them."""

    def __init__(self, check_every: int = 0) -> None:
        self.books = Books()
        self.applied = 0
        self.skipped = 0  #: messages that came and were in the books already
        self.closed = False  #: the last message of the day was applied
        self.hashes: dict[int, str] = {}
        self._check_every = check_every

    def on_messages(self, first: int, payloads: Iterable[bytes]) -> None:
        """Apply messages, of which the first is event `first`.

        Raises `BookError` where some are missing, `ProtocolError` where one is no message.
        """
        if first > self.applied:
            raise BookError(f"messages {self.applied} to {first - 1} are missing")
        for number, payload in enumerate(payloads, first):
            if number < self.applied:
                self.skipped += 1
                continue
            self._apply(decode_message(payload))
            self.applied += 1
            if self._check_every and self.applied % self._check_every == 0:
                self.hashes[self.applied] = self.books.hash()

    def _apply(self, message: Message) -> None:
        books = self.books
        match message:
            case AddOrder() | AddAttributed():
                books.add(message.locate, message.side, message.price, message.ref, message.shares)
            case Executed() | ExecutedAtPrice() | Cancelled():
                books.reduce(message.ref, message.shares)
            case Deleted():
                books.remove(message.ref)
            case Replaced():
                locate, side, _ = books.remove(message.ref)
                books.add(locate, side, message.price, message.new_ref, message.shares)
            case SystemEvent(event="C"):
                self.closed = True

    # --- on disk ---

    def save(self, path: Path) -> None:
        """Keep books and place; what is at `path` is always one whole snapshot."""
        made = Snapshot(self.applied, list(self.books.rows()), self.hashes, self.skipped)
        beside = path.with_suffix(".new")
        with open(beside, "wb") as file:
            file.write(msgspec.msgpack.encode(made))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def load(self, path: Path) -> bool:
        """Go on from a snapshot; false if there is none."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        kept = msgspec.msgpack.decode(data, type=Snapshot)
        self.books = Books.from_rows(kept.rows)
        self.applied, self.hashes, self.skipped = kept.applied, kept.hashes, kept.skipped
        return True


def wrong_hashes(ours: dict[int, str], theirs: dict[int, str]) -> list[int]:
    """Places where two sides made a checkpoint and the books were not the same."""
    return sorted(place for place in ours.keys() & theirs.keys() if ours[place] != theirs[place])
