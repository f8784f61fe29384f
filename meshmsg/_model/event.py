"""What is said of events: where one stands (`Position`), and which are lost (`Loss`).

The classes are `msgspec.Struct`s because those are made in C; a frozen dataclass of the same shape
costs ten times as much.
"""

from __future__ import annotations

import re

import msgspec

from meshmsg._model.errors import ConfigError, MeshError

_NUMBER = re.compile(r"[0-9]{1,19}")
#: Of epochs and of events: what is greater is neither sent nor kept.
NUMBER_MAX = (1 << 63) - 1

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
        if max(int(epoch), int(seq)) > NUMBER_MAX:
            raise ConfigError("position", f"{text!r}: no stream gets beyond {NUMBER_MAX:,}")
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


class EventsLost(MeshError):
    """Events were declared lost; the subscription stays usable and goes on after them."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(str(loss))
        self.loss = loss
