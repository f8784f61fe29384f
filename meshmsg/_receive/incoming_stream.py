"""What a subscription knows of each stream: its source, its books, and the notices that come in.

Belongs here: plain state.  What is done with it is decided in `subscription_io` and `epochs`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshmsg import _platform
from meshmsg._model.batch import Batch
from meshmsg._model.codecs import Codec
from meshmsg._model.event import Position
from meshmsg._model.multicast_config import Feed
from meshmsg._model.topics import Pattern
from meshmsg._receive.delivery_samples import DeliverySamples
from meshmsg._receive.multicast_receiver import PacketSource
from meshmsg._wire.control import (
    Evicted,
    Figures,
    Gone,
    Rekey,
    Start,
    StartKind,
    StreamInfo,
    Subscribed,
)
from meshmsg._wire.frame import Frame
from meshmsg._wire.packet import PacketBeat
from meshmsg.recovery.stream.ledger import LedgerRow, row_from_positions
from meshmsg.recovery.stream.receiver import StreamReceiver
from meshmsg.recovery.stream.repair_ladder import Ladder
from meshmsg.recovery.stream.topic_cache import Verdicts

OLD_BOOKS_MAX = 100
#: As many as a log keeps epochs.
ADMISSIONS_MAX = 10_001


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a subscription starts in a stream that it has not seen yet."""

    kind: StartKind = "live"
    value: int = 0
    position: Position | None = None
    committed: Mapping[str, Position] | None = None
    """Where a named subscription goes on; in other streams it starts by `kind`."""

    def for_stream(self, stream: str, *, born: bool = False) -> Start:
        """As it is asked for.

        A stream that was `born` while we were connected has nothing yet that we could have missed.
        """
        kept = None if self.committed is None else self.committed.get(stream)
        if kept is not None:
            return Start(stream, "resume", kept.seq, kept.epoch)
        if born:
            return Start(stream, "origin")
        if self.position is None:
            return Start(stream, self.kind, self.value)
        if self.position.stream == stream:
            return Start(stream, "resume", self.position.seq, self.position.epoch)
        return Start(stream, "live")

    def reaches_back(self, stream: str) -> bool:
        """Whether it may want what was before it came."""
        if self.position is not None:
            return self.position.stream == stream
        return self.kind != "live"

    def for_beat(self, stream: str) -> Callable[[PacketBeat], tuple[int, int]] | None:
        """Where to start, in packets and events, by a heartbeat; `None`: with what comes next."""
        if self.position is not None and self.position.stream == stream:
            wanted = self.position.seq
            return lambda beat: (beat.first, max(beat.first_event, min(wanted, beat.next_event)))
        if self.kind == "earliest":
            return lambda beat: (beat.first, beat.first_event)
        if self.kind == "last":
            count = self.value
            return lambda beat: (beat.first, max(beat.first_event, beat.next_event - count))
        return None


# --- what the I/O thread puts into the inbox ---


@dataclass(frozen=True, slots=True)
class Attach:
    """Streams of a publisher: connect, and expect to be admitted."""

    link: Any
    address: str
    streams: list[StreamInfo]
    more: bool = False  #: peers that may have recorded them have yet to answer
    key: bytes = b""  #: what the data socket there must have


@dataclass(frozen=True, slots=True)
class Lend:
    """A peer has recorded streams; of those in `asked` it was asked what it has."""

    link: Any
    streams: list[StreamInfo]
    asked: frozenset[str]
    more: bool = False  #: peers that may have more of them have yet to answer


@dataclass(frozen=True, slots=True)
class Complete:
    """Every peer that the user named has answered."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a peer answered, and which peer it was."""

    link: Any
    stream: str
    message: Subscribed | Gone


@dataclass(frozen=True, slots=True)
class Join:
    """Multicast streams to receive without a connection to their publishers."""

    feeds: tuple[Feed, ...]


@dataclass(frozen=True, slots=True)
class Detach:
    """The publisher's data address is no longer in use."""

    address: str
    at_once: bool = False  #: whatever it sent and is not yet read


@dataclass(frozen=True, slots=True)
class Sweep:
    """Streams whose publishers have been gone for so long may be forgotten."""

    gone_s: float


@dataclass(frozen=True, slots=True)
class RepairFrame:
    """A frame that was asked for, and who sent it."""

    link: Any
    stream: str
    data: bytes
    answers: int


@dataclass(frozen=True, slots=True)
class TailHint:
    """What a stream has, heard beside the data path; `final` when the publisher leaves."""

    stream: str
    epoch: int
    next: int
    final: bool = False
    lender: Any = None  #: the link to a peer that has recorded the stream, if it said so


Heard = RepairFrame | TailHint | Said | Evicted | Rekey  # of one stream
Notice = Attach | Lend | Complete | Join | Detach | Sweep | Heard


class Books:
    """What became of the events of one epoch of a stream, counted as it happens."""

    __slots__ = ("consumed", "delivered", "epoch", "filtered", "lost", "start", "stop", "stream")

    def __init__(self, stream: str, epoch: int, start: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.start = start
        self.stop = start  #: one past what was handed on, once they are closed
        self.consumed = start
        self.delivered = 0
        self.filtered = 0
        self.lost: Counter[str] = Counter()


class Source:
    """One stream as this subscription receives it."""

    __slots__ = (
        "admissions",
        "asked",
        "asked_until",
        "books",
        "codec",
        "data_at",
        "due",
        "ends",
        "heard_next",
        "info",
        "keeps",
        "ladder",
        "led",
        "lenders",
        "link",
        "old_books",
        "only",
        "overs",
        "packets",
        "receiver",
        "report_bytes",
        "said",
        "samples",
        "seen_at",
        "stash",
        "stash_bytes",
        "unreported_bytes",
        "wire_id",
    )

    def __init__(self, info: StreamInfo, wire_id: int, link: Any, codec: Codec) -> None:
        """As `link` describes it; its publisher is yet to be attached."""
        self.wire_id = wire_id
        self.codec = codec
        self.link: Any = None  #: to its publisher; `None` before that was there
        self.said = 0  #: the latest epoch that its publisher has spoken of
        self.seen_at = _platform.monotonic()  #: when its publisher was last seen to be there
        self._describe(info, link)
        self.receiver: StreamReceiver | None = None
        self.packets: PacketSource | None = None  #: of a multicast stream
        #: Epochs to be entered, one after the other, when all that came before is read.
        self.admissions: deque[Subscribed] = deque(maxlen=ADMISSIONS_MAX)
        self.data_at = 0.0  #: when data of the current epoch came last
        self.due = 0.0  #: when to look whether something of it is missing for too long
        self.ends: dict[int, int] = {}  #: where epochs ended, as their publisher said
        self.overs: dict[int, int] = {}  #: where epochs ended, by the publisher's log
        self.stash: list[Frame] = []
        self.stash_bytes = 0
        self.heard_next = 0
        self.books = Books(info.name, 0, 0)
        self.old_books: deque[Books] = deque(maxlen=OLD_BOOKS_MAX)
        self.unreported_bytes = 0
        self.samples: DeliverySamples | None = None  #: of what was handed over
        self.ladder = Ladder()  #: who claims and who has refused what
        #: What a recorder said of this epoch, while its publisher has not.
        self.led: Subscribed | None = None
        self.lenders: list[Any] = []  #: links to peers that have recorded the stream
        self.asked: dict[Any, float] = {}  #: who has yet to say what it has, since when
        self.asked_until = 0.0

    def attach(self, info: StreamInfo, link: Any) -> None:
        """Its publisher is there."""
        self.link = link
        self.said = max(self.said, info.epoch)
        if link in self.lenders:  # another peer had this address
            self.lenders.remove(link)
        self._describe(info, link)

    @property
    def has_publisher(self) -> bool:
        """Whether its publisher can be asked."""
        return self.link is not None and self.link.state == "up"

    @property
    def was_entered(self) -> bool:
        """Whether an epoch of it was ever received."""
        return self.receiver is not None or bool(self.old_books)

    @property
    def is_lent(self) -> bool:
        """Whether only recorders vouch for the epoch that is being received."""
        receiver = self.receiver
        return receiver is not None and self.link is not None and self.said < receiver.epoch

    def left(self, *, led: bool) -> Books | None:
        """Where we were, if no epoch is being received; one that is `led` in is anybody's."""
        if self.receiver is not None:
            return None
        past = (books for books in reversed(self.old_books) if led or books.epoch <= self.said)
        return next(past, None)

    def _describe(self, info: StreamInfo, link: Any) -> None:
        self.info = info
        self.report_bytes = -(-info.window_bytes // 4)  #: taken, before its publisher hears of it
        #: What its publisher may say in it, where peers are told apart.
        self.only = Pattern(info.topics) if getattr(link, "user", b"") else None
        self.keeps = Verdicts()  #: what the subscription takes of it


def heard_next(source: Source) -> int:
    """One past the last event that we know of, if only by some of its packets."""
    below = None if source.packets is None else source.packets.receiver
    receiver = source.receiver
    if below is not None and receiver is not None and below.epoch == receiver.epoch:
        first, stop = below.begun
        if first == receiver.high:  # not any other: nothing has proved it yet
            return max(source.heard_next, stop)
    return source.heard_next


def figures_of(books: Books, received: int, batch: Batch | None, left: int) -> Figures:
    """The books as they are told; the consumer has yet to take the last `left` of `batch`."""
    delivered, filtered, consumed = books.delivered, books.filtered, books.consumed
    if left and batch is not None:
        # The consumer is inside a batch: what it has yet to take is in flight.
        index = batch.indices[len(batch) - left]
        consumed = batch.frame.first + index
        delivered -= left
        filtered -= batch.hi - index - left
    return Figures(
        stream=books.stream,
        epoch=books.epoch,
        start=books.start,
        received=max(received, consumed),
        consumed=consumed,
        delivered=delivered,
        filtered=filtered,
        lost=dict(books.lost),
    )


def row_of(figures: Figures, label: str, stop: int, state: str) -> LedgerRow:
    """The books as a row of the ledger."""
    return row_from_positions(
        figures.stream,
        figures.epoch,
        label,
        start=figures.start,
        stop=stop,
        consumed=figures.consumed,
        delivered=figures.delivered,
        filtered=figures.filtered,
        lost=figures.lost,
        state=state,
    )
