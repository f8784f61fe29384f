"""Work as a member of a group has it: the streams it comes from, and batches to be settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from meshmsg import _platform
from meshmsg._model.batch import Batch
from meshmsg._model.codecs import Codec
from meshmsg._model.message_fields import ACK_RANGES_MAX
from meshmsg._wire.control import Refusal, Settlement, Start, StreamInfo
from meshmsg._wire.frame import Frame
from meshmsg._wire.subframe import Work
from meshmsg.recovery.groups.claims import WorkClaims

AckRange = tuple[int, int, int]
#: Refusals in one settlement: each has a text of up to `ERROR_CHARS_MAX`.
NACKS_MAX = 2
ERROR_CHARS_MAX = 2000
#: A range is never longer in a message, nor is a refusal beside its text, nor a character.
RANGE_BYTES_MAX = 24
REFUSAL_BYTES_MAX = 64
CHAR_BYTES_MAX = 4
#: What a message may have, so that any further settlement fits, in bytes and in pieces.
SETTLED_BYTES_MAX = 8 * 1024


class Settler(Protocol):
    """Who hears what became of work: the member."""

    unsaid_max: int

    @property
    def group(self) -> str:
        """The group that it is a member of."""

    def on_unsaid(self, count: int) -> None:
        """There is something to say."""

    def ack_ranges(self, source: WorkSource, ranges: Iterable[AckRange], count: int) -> None:
        """These events are done."""

    def ack_batch(self, batch: WorkBatch) -> None:
        """All of a batch is done."""

    def nack(self, batch: WorkBatch, index: int, delay_s: float, error: str) -> None:
        """One event is to come again."""


class WorkSource:
    """One stream that the member gets work from."""

    __slots__ = (
        "ack_ranges",
        "acked",
        "acks",
        "books",
        "claims",
        "codec",
        "delivered",
        "epoch",
        "generation",
        "in_ranges",
        "info",
        "joined",
        "link",
        "nacks",
        "received",
        "redelivered",
        "returned",
        "seen_at",
        "start",
        "wire_id",
    )

    def __init__(self, info: StreamInfo, wire_id: int, link: Any, codec: Codec) -> None:
        self.info = info
        self.wire_id = wire_id
        self.link = link
        self.codec = codec
        self.epoch = info.epoch
        self.generation: int | None = None  #: of the group there, once a publisher has taken us
        self.joined = False
        self.seen_at = _platform.monotonic()  #: when its publisher was last seen to be there
        self.start: Start | None = None  #: what was asked for, until a publisher has taken us
        self.books = self  #: which has the figures
        self.delivered = self.redelivered = self.acked = 0
        self.received = 0  #: events, since its publisher has taken us
        #: Not yet said: single events of attempt 1, ranges, refusals, returns.
        self.acks: list[int] = []
        self.ack_ranges: list[AckRange] = []
        self.in_ranges = 0  #: events in them
        self.nacks: list[Refusal] = []
        self.returned: list[AckRange] = []
        #: Of a durable stream: what its next start has to be told.
        self.claims = WorkClaims() if info.durable else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is held, or to be said, or may have to be said again."""
        return not (self.claims or self.acks or self.ack_ranges or self.nacks or self.returned)

    def renewed(self, epoch: int) -> WorkSource:
        """The same stream from another start of its publisher, with nothing to be said."""
        new = WorkSource(self.info, self.wire_id, self.link, self.codec)
        new.epoch, new.generation = epoch, self.generation
        new.delivered, new.redelivered, new.acked = self.delivered, self.redelivered, self.acked
        return new

    def older(self, epoch: int) -> WorkSource:
        """Of the same publisher, work that an earlier start of it has left."""
        old = WorkSource(self.info, self.wire_id, self.link, self.codec)
        old.epoch, old.joined, old.books = epoch, True, self
        old.generation = self.generation
        return old


class WorkBatch(Batch):
    """Events for a member of a group; they are to be acknowledged."""

    __slots__ = ("_acks", "_attempts", "_base", "attempt", "member", "source")

    def __init__(self, frame: Frame, work: Work, source: WorkSource, member: Settler) -> None:
        super().__init__(frame, source.info.name, source.codec, work.lo, work.hi, work.chosen)
        self.source = source
        self.member = member
        self.attempt = work.attempt  #: of all its events, 0 if they differ
        #: By place, where they differ.
        self._attempts = (
            None if work.attempts is None else dict(zip(self.indices, work.attempts, strict=True))
        )
        self._acks = source.acks
        self._base = frame.first

    def ack_at(self, index: int) -> None:
        """The event at a place of the frame is done.  Paid once an event, by any thread."""
        if self.attempt == 1:
            acks = self._acks
            acks.append(self._base + index)
            count = len(acks)
            if count == 1 or count >= self.member.unsaid_max:
                self.member.on_unsaid(count)
        else:
            seq = self._base + index
            self.member.ack_ranges(self.source, [(seq, seq + 1, self.attempt_at(index))], 1)

    @property
    def group(self) -> str | None:
        """The work group that it came to."""
        return self.member.group

    def attempt_at(self, index: int) -> int:
        """The attempt of the event at a place of the frame."""
        if self._attempts is None:
            return self.attempt
        return self._attempts[index]

    @property
    def came_again(self) -> int:
        """How many of its events are not here for the first time."""
        if self._attempts is None:
            return 0 if self.attempt == 1 else len(self)
        return sum(attempt > 1 for attempt in self._attempts.values())

    def settle(self, index: int, error: BaseException | None) -> None:
        """The end of `with event:`: done, or back."""
        if error is None:
            self.ack_at(index)
        else:
            self.member.nack(self, index, 0.0, _text(error))

    def ranges(self) -> Iterator[AckRange]:
        """All its events as numbers in a row with their attempt."""
        first = self.frame.first
        if self.keep is None and self._attempts is None:
            yield first + self.lo, first + self.hi, self.attempt
            return
        yield from ranges_of([(first + i, self.attempt_at(i)) for i in self.indices])


def bytes_at_most(settlement: Settlement) -> int:
    """Return how long a settlement is in a message, at most."""
    chars = len(settlement.stream) + sum(len(nack.error) for nack in settlement.nacks)
    refusals = len(settlement.nacks)
    ranges = settlement.pieces - refusals
    counted = ranges * RANGE_BYTES_MAX + refusals * REFUSAL_BYTES_MAX + chars * CHAR_BYTES_MAX
    return 100 + counted


def settlement_of(source: WorkSource) -> Settlement | None:
    """What there is to say of a stream; taken from it."""
    count = len(source.acks)
    acks, ranges = source.acks[:count], source.ack_ranges
    del source.acks[:count]  # the list stays: other threads may be adding to it
    if not (acks or ranges or source.nacks or source.returned):
        return None
    source.books.acked += count + source.in_ranges
    source.in_ranges = 0
    if acks:
        acks.sort()
        ranges = _join(acks) + ranges
    room = max(0, ACK_RANGES_MAX - len(ranges))
    said = Settlement(
        source.info.name,
        source.epoch,
        ranges[:ACK_RANGES_MAX],
        source.nacks[:NACKS_MAX],
        source.returned[:room],
    )
    source.ack_ranges = ranges[ACK_RANGES_MAX:]
    source.nacks = source.nacks[NACKS_MAX:]
    source.returned = source.returned[room:]
    return said


def _join(seqs: list[int]) -> list[AckRange]:
    """Sorted numbers of attempt 1 as ranges."""
    if seqs[-1] - seqs[0] + 1 == len(seqs):
        return [(seqs[0], seqs[-1] + 1, 1)]
    return ranges_of([(seq, 1) for seq in seqs])


def ranges_of(pairs: list[tuple[int, int]]) -> list[AckRange]:
    """Rising numbers with their attempts as ranges of one attempt each."""
    found: list[AckRange] = []
    first, attempt = pairs[0]
    stop = first + 1
    for seq, its in pairs[1:]:
        if seq != stop or its != attempt:
            found.append((first, stop, attempt))
            first, attempt = seq, its
        stop = seq + 1
    found.append((first, stop, attempt))
    return found


def _text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # an error that cannot say what it is must not take the place of this one
        return name
