"""The nouns a consumer sees: `Position`, `Loss`, `Event`.  Their columns live in `batch`.

An `Event` is a view of one row of a batch: making it costs three references, and what nobody
looks at (key, headers, time) is never decoded.  The classes are `msgspec.Struct`s because those
are made in C; a frozen dataclass of the same shape costs ten times as much per event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from meshmsg._model.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from meshmsg._model.batch import Batch

_NUMBER = re.compile(r"[0-9]{1,19}")

#: Why events were declared lost.
LOSS_REASONS = ("overflow", "evicted", "gone", "deadline", "expired", "away", "corrupt")


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """The identity of an event everywhere: `(stream, epoch, seq)`.

    >>> Position("pricing/orders.**", 1700000000000, 41)
    Position(stream='pricing/orders.**', epoch=1700000000000, seq=41)
    >>> str(Position("pricing/orders.**", 1700000000000, 41))
    'pricing/orders.**@1700000000000:41'
    """

    stream: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.stream}@{self.epoch}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read back what `str(position)` wrote; raises `ConfigError` on anything else."""
        stream, at, rest = text.rpartition("@")
        epoch, colon, seq = rest.partition(":")
        if not (at and colon and stream and _NUMBER.fullmatch(epoch) and _NUMBER.fullmatch(seq)):
            raise ConfigError("position", f"{text!r} is not of the form stream@epoch:seq")
        return cls(stream, int(epoch), int(seq))


class Loss(msgspec.Struct, frozen=True, order=True, gc=False):
    """Events `first` to `stop` (half-open) of a stream were not delivered, and why.

    Reasons: `overflow` (this subscriber was too slow and the publisher's buffer went past it),
    `evicted` (it blocked the stream for longer than it may), `gone` (the publisher stopped or was
    restarted, and its memory went with it), `deadline` (no answer to repair requests in time),
    `expired` (asked for events older than what is kept), `away` (this subscriber was stopped or cut
    off for longer than events were kept for it), `corrupt` (a log's disk gave back something else
    than was written).
    """

    stream: str
    epoch: int
    first: int
    stop: int
    reason: str

    @property
    def count(self) -> int:
        """How many events are lost."""
        return self.stop - self.first

    def __str__(self) -> str:
        return (
            f"{self.count} events lost in {self.stream} (epoch {self.epoch}, "
            f"{self.first} to {self.stop - 1}): {self.reason}"
        )


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """Stands in a batch's data where a payload did not decode: reading it there raises."""

    reason: str


class Event(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One event: `topic`, `data`, `key`, `headers`, `time`, `position`, and the raw `payload`."""

    _data: Any
    _batch: Batch
    _index: int

    @property
    def data(self) -> Any:
        """The decoded payload; raises `PayloadError` if it does not decode."""
        data = self._data
        if data.__class__ is Undecodable:
            raise PayloadError(f"{self.position}: {data.reason}")
        return data

    @property
    def payload(self) -> bytes:
        """The payload as it was on the wire."""
        return self._batch.frame.payload_at(self._index)

    @property
    def topic(self) -> str:
        """The topic it was published under."""
        return self._batch.frame.topic_at(self._index)

    @property
    def key(self) -> str | None:
        """The key given by the publisher, or `None`."""
        return self._batch.frame.key_at(self._index)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given by the publisher; empty when there were none."""
        return self._batch.frame.headers_at(self._index)

    @property
    def time_ns(self) -> int:
        """When it was published, in nanoseconds since 1970 by the publisher's clock."""
        return self._batch.frame.time_at(self._index)

    @property
    def time(self) -> float:
        """When it was published, in seconds since 1970 by the publisher's clock."""
        return self.time_ns / 1e9

    @property
    def attempt(self) -> int:
        """How often it was delivered to its group, this time included; 1 outside of groups."""
        return self._batch.attempt_at(self._index)

    def __enter__(self) -> Event:
        """Of a work group: acknowledged at the end of the block, given back on an exception."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._batch.settle(self._index, error)

    @property
    def seq(self) -> int:
        """The number of the event in its stream and epoch."""
        return self._batch.frame.first + self._index

    @property
    def position(self) -> Position:
        """The identity of the event."""
        batch = self._batch
        return Position(batch.stream, batch.frame.epoch, batch.frame.first + self._index)

    def __repr__(self) -> str:
        data = "<undecodable>" if self._data.__class__ is Undecodable else repr(self._data)
        shown = data if len(data) <= 80 else data[:77] + "..."
        key = f", key={self.key!r}" if self.key is not None else ""
        return f"<Event {self.topic}{key} {shown} at {self.position}>"
