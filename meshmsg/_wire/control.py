"""Control messages: what peers say to each other beside the data.

A message is an envelope (`MMC` and the protocol version, four bytes) and a msgpack map whose `t`
names the kind.  The envelope, `hello` and `refused` are frozen for all versions, so that peers of
different versions can tell each other why they part.  docs/wire-format.md is the specification.

The side that dials asks (`hello`, `subscribe`, `commit`, `nack`, `status`, `join`, `settle`,
`ping`, `ask`); the side that was dialled publishes and answers.  Both say who they
are and whom they know (`here`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from meshmsg._model.errors import ProtocolError
from meshmsg._model.message_fields import (
    ACK_RANGES_MAX,
    CONTACTS_MAX,
    ENTRIES_MAX,
    GROUPS_MAX,
    HELLO_STREAMS_MAX,
    PART_FRAMES_MAX,
    PIECES_MAX,
    ROLES_MAX,
    U64,
    AckRanges,
    Addresses,
    AddressPairs,
    Attempt,
    Duration,
    EpochRanges,
    ErrorText,
    Id,
    Name,
    Patterns,
    PeerName,
    Prefetch,
    Ranges,
    Reasons,
    Short,
    StreamNames,
    Text,
    Version,
    as_text,
    check_range,
    check_ranges,
)
from meshmsg._wire.multicast_info import MulticastInfo, SealInfo, SealKeys

T = TypeVar("T")

PROTOCOL_VERSION = 2
ENVELOPE = b"MMC"
#: A control message without its frame is never larger.
CONTROL_BYTES_MAX = 8 * 1024 * 1024
#: A kind of message that `LARGE_BYTES_MAX` does not name is never larger: see `message_fields`.
SMALL_BYTES_MAX = 64 * 1024
#: What somebody asked for may be larger.  It is read by a thread that waits for it.
LARGE_BYTES_MAX = {
    "answer": CONTROL_BYTES_MAX,
    "part": 2 * 1024 * 1024,
}
#: Keys of a message, those of newer releases too.  One that stands in it many times is paid for
#: each time.
KEYS_MAX = 64
#: Numbers in what is answered are at most this.
NUMBER_MAX = (1 << 63) - 1


def stream_wire_id(mesh: str, stream: str) -> int:
    """The 64-bit number that stands for a stream on the wire."""
    digest = hashlib.blake2b(f"{mesh}\n{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def subscription_token(sub: int) -> bytes:
    """What a subscription subscribes to beside its streams: by it the XPUB socket sees it."""
    return b"MMS1" + sub.to_bytes(8, "little")


class _Message(msgspec.Struct, frozen=True, tag_field="t"):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """The first message on a link: who dials, and where it can be dialled back."""

    peer: PeerName
    instance: Id
    mesh: Name
    dialled: Name = ""
    listen: Addresses = []
    streams: Annotated[list[Name], msgspec.Meta(max_length=HELLO_STREAMS_MAX)] = []
    version: Version = PROTOCOL_VERSION
    software: Name = ""
    nonce: Short = b""  # prove your key with this


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as its publisher announces it."""

    name: Name
    topics: Name
    epoch: U64
    overflow: Name
    codec: Name
    window_bytes: U64
    multicast: MulticastInfo | None = None
    durable: bool = False


StreamInfos = Annotated[list[StreamInfo], msgspec.Meta(max_length=ENTRIES_MAX)]


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to hello, sent again when the streams change; of many streams, in pages."""

    peer: PeerName
    instance: Id
    mesh: Name
    streams: StreamInfos
    fanout: AddressPairs
    recorded: StreamInfos = []  # of other peers, kept and served here
    version: Version = PROTOCOL_VERSION
    software: Name = ""
    key: Short = b""  # the public key of whom says this, where peers have keys of their own
    proof: Short = b""
    page: U64 = 0  # of a welcome, from 0 on
    more: bool = False  # another page follows


class Refused(_Message, frozen=True, tag="refused"):
    """No: and why, in words for a person."""

    reason: Text
    version: Version = PROTOCOL_VERSION


class Taken(_Message, frozen=True, tag="taken"):
    """I take the streams of your name from another peer, which is here, and none from you."""

    addresses: Addresses


Action = Literal[
    "group pause",
    "group resume",
    "group reset",
    "group redrive",
    "cursor ls",
    "cursor reset",
    "cursor drop",
    "evict",
    "drain",
]
ACTIONS: tuple[str, ...] = get_args(Action)
StartKind = Literal["live", "earliest", "last", "time", "resume", "origin"]


class Start(msgspec.Struct, frozen=True):
    """Where a subscription wants to start in one stream."""

    stream: Name
    kind: StartKind
    value: U64 = 0
    epoch: U64 = 0


Starts = Annotated[list[Start], msgspec.Meta(max_length=ENTRIES_MAX)]


class Subscribe(_Message, frozen=True, tag="subscribe"):
    """Take me as a subscriber of these streams; saying it again is harmless."""

    sub: Id
    patterns: Patterns
    starts: Starts
    name: Name = ""
    hold: bool = False  # keep in the logs of durable streams what I have not committed


class Place(msgspec.Struct, frozen=True):
    """An event of one stream."""

    stream: Name
    epoch: U64
    seq: U64


class Commit(_Message, frozen=True, tag="commit"):
    """Everything before these places is done: a log need not keep it for me any more."""

    sub: Id
    places: Annotated[list[Place], msgspec.Meta(max_length=ENTRIES_MAX)]


class Subscribed(_Message, frozen=True, tag="subscribed"):
    """You are; events from `start` on are yours."""

    sub: Id
    stream: Name
    epoch: U64
    origin: U64
    first: U64
    next: U64
    start: U64
    packet: U64 = 0  # of a multicast stream: what is sent from here on comes by multicast
    over: bool = False  # the epoch ended at `next`, and what is missing of it can be asked for
    recorded: bool = False  # said by a peer that has recorded the stream
    seal: SealInfo | None = None  # of a sealed multicast stream

    def __post_init__(self) -> None:
        check_range(self.first, self.next)


class Unsubscribed(_Message, frozen=True, tag="unsubscribed"):
    """You are not a subscriber of these streams (any more); with `refused`, do not ask again."""

    sub: Id
    streams: Annotated[list[Name], msgspec.Meta(max_length=ENTRIES_MAX)]
    reason: Text
    refused: bool = False


class Rekey(_Message, frozen=True, tag="rekey"):
    """The packets of a multicast stream will be sealed with other keys."""

    sub: Id
    stream: Name
    keys: SealKeys


class Nack(_Message, frozen=True, tag="nack"):
    """These events did not arrive: send them again."""

    sub: Id
    stream: Name
    epoch: U64
    ranges: Ranges
    number: U64

    def __post_init__(self) -> None:
        check_ranges(self.ranges)


class Repair(_Message, frozen=True, tag="repair"):
    """A frame that was asked for stands in the message's second part."""

    sub: Id
    stream: Name
    answers: U64  # in the last message of an answer, the number of its request; else 0


class Gone(_Message, frozen=True, tag="gone"):
    """These events cannot be sent again, and why."""

    sub: Id
    stream: Name
    epoch: U64
    ranges: Ranges
    reason: Name
    answers: U64

    def __post_init__(self) -> None:
        check_ranges(self.ranges)


class Evicted(_Message, frozen=True, tag="evicted"):
    """The stream does not wait for this subscription any more."""

    sub: Id
    stream: Name
    reason: Text


class Figures(msgspec.Struct, frozen=True):
    """One subscription's books on one stream and epoch."""

    stream: Name
    epoch: U64
    start: U64
    received: U64
    consumed: U64
    delivered: U64
    filtered: U64
    lost: Reasons


class Status(_Message, frozen=True, tag="status"):
    """How far a subscription is: the publisher's flow control and ledger live on it."""

    sub: Id
    figures: Annotated[list[Figures], msgspec.Meta(max_length=ENTRIES_MAX)]
    answers: U64 = 0
    closed: bool = False


class StatusPlease(_Message, frozen=True, tag="status?"):
    """Send your status now, with this number in `answers`."""

    sub: Id
    number: U64


class Tail(msgspec.Struct, frozen=True):
    """What a stream has, beside the data path."""

    stream: Name
    epoch: U64
    first: U64
    next: U64

    def __post_init__(self) -> None:
        check_range(self.first, self.next)


Tails = Annotated[list[Tail], msgspec.Meta(max_length=ENTRIES_MAX)]


class Refusal(msgspec.Struct, frozen=True):
    """One event that a member could not handle."""

    seq: U64
    attempt: U64
    delay_s: Duration = 0.0
    error: ErrorText = ""


Refusals = Annotated[list[Refusal], msgspec.Meta(max_length=ACK_RANGES_MAX)]


class Claimed(msgspec.Struct, frozen=True):
    """Events of a durable stream and epoch that a member had before it joined."""

    stream: Name
    epoch: U64
    acks: AckRanges = []  # done, and nobody has said that it is kept
    nacks: Refusals = []
    held: AckRanges = []  # in hand
    generation: U64 = 0  # of the group on this stream, as `joined` told it

    @property
    def pieces(self) -> int:
        """How many ranges and refusals it takes to say it."""
        return len(self.acks) + len(self.nacks) + len(self.held)

    def __post_init__(self) -> None:
        check_ranges(self.acks)
        check_ranges(self.held)


def _check_pieces(counts: list[int]) -> None:
    """Raise `ValueError` for a message that speaks of events in too many pieces."""
    if sum(counts) > PIECES_MAX:
        raise ValueError(f"{sum(counts)} ranges and refusals")


class Join(_Message, frozen=True, tag="join"):
    """Take me as a member of a work group on these streams; saying it again is harmless."""

    sub: Id
    group: Name
    patterns: Patterns
    starts: Starts
    prefetch: Prefetch
    ack_timeout_s: Duration
    max_attempts: Attempt
    order: Literal["none", "key"]
    name: Name = ""
    ticket: Id = 0  # work is to begin with this number; another one than before: begin anew
    claims: Annotated[list[Claimed], msgspec.Meta(max_length=ENTRIES_MAX)] = []
    number: U64 = 0  # of the last message that the claims make up for
    more: bool = False  # claims only: the rest of them, and what is asked for, follow

    def __post_init__(self) -> None:
        _check_pieces([claim.pieces for claim in self.claims])


class Joined(_Message, frozen=True, tag="joined"):
    """You are a member on these streams; fetch the work at one of these addresses."""

    sub: Id
    streams: Tails
    work: AddressPairs
    # Of the group on streams where it was reset: what the member had in an earlier one is not its.
    generations: Annotated[dict[Name, U64], msgspec.Meta(max_length=ENTRIES_MAX)] = {}


class Unjoined(_Message, frozen=True, tag="unjoined"):
    """You are not a member (any more); with `refused`, do not ask again."""

    sub: Id
    reason: Text
    refused: bool = False


class Settlement(msgspec.Struct, frozen=True):
    """What a member says of the events of one stream and epoch."""

    stream: Name
    epoch: U64
    acks: AckRanges = []
    nacks: Refusals = []
    returned: AckRanges = []

    @property
    def pieces(self) -> int:
        """How many ranges and refusals it takes to say it."""
        return len(self.acks) + len(self.nacks) + len(self.returned)

    def __post_init__(self) -> None:
        check_ranges(self.acks)
        check_ranges(self.returned)


class Settle(_Message, frozen=True, tag="settle"):
    """What became of work; without any, a sign of life.  With `closed`, the member leaves."""

    sub: Id
    settlements: Annotated[list[Settlement], msgspec.Meta(max_length=ENTRIES_MAX)]
    closed: bool = False
    # of streams that it leaves
    received: Annotated[dict[Name, U64], msgspec.Meta(max_length=ENTRIES_MAX)] = {}
    number: U64 = 0  # rises; comes back in `kept`

    def __post_init__(self) -> None:
        _check_pieces([settlement.pieces for settlement in self.settlements])


class Kept(_Message, frozen=True, tag="kept"):
    """What you said of a stream, up to that message, counts; of a durable one, it is on disk."""

    sub: Id
    stream: Name
    number: U64


class Ping(_Message, frozen=True, tag="ping"):
    """Are you there?"""

    number: U64


class Pong(_Message, frozen=True, tag="pong"):
    """I am; and this is what my streams have, and those that I record."""

    number: U64
    instance: Id
    tails: Tails
    recorded: Tails = []


class Unknown(_Message, frozen=True, tag="unknown"):
    """I do not know you (any more): say hello."""


class Ask(_Message, frozen=True, tag="ask"):
    """Tell me your `ledger`, `stats` or `clock`, or what you know of an event: `trace`."""

    number: U64
    what: Name
    event: Place | None = None


class Answer(_Message, frozen=True, tag="answer"):
    """What was asked for, still encoded: it is decoded by who waits for it, if anybody does."""

    number: U64
    body: Annotated[bytes, msgspec.Meta(max_length=CONTROL_BYTES_MAX)]


class Operate(_Message, frozen=True, tag="operate"):
    """Do this for an operator, and answer with what was done; or say what would be."""

    number: U64
    action: Action
    name: Name = ""  # of a group, a cursor, a member, a subscription or a peer
    stream: Name = ""  # only there
    start: Start | None = None  # where a reset leads
    most: U64 = 0  # dead letters to send again; 0 for all
    within_s: Duration = 0.0  # how long a drain may take
    dry_run: bool = False


class Contact(msgspec.Struct, frozen=True):
    """A peer that the sender is connected to."""

    peer: PeerName
    instance: Id
    addresses: Addresses


class Here(_Message, frozen=True, tag="here"):
    """What I am and do, and whom else I know; said by both sides, after the greeting and later."""

    peer: PeerName
    instance: Id
    serial: U64
    addresses: Addresses = []
    streams: StreamNames = []
    groups: Annotated[list[Name], msgspec.Meta(max_length=GROUPS_MAX)] = []
    roles: Annotated[list[Name], msgspec.Meta(max_length=ROLES_MAX)] = []
    software: Name = ""
    known: Annotated[list[Contact], msgspec.Meta(max_length=CONTACTS_MAX)] = []


class Bye(_Message, frozen=True, tag="bye"):
    """I leave; my streams end here."""

    instance: Id
    tails: Tails


class LogsPlease(_Message, frozen=True, tag="logs?"):
    """Which logs do you have of streams that carry these topics?"""

    number: U64
    mesh: Name
    patterns: Patterns
    nonce: Short = b""  # prove your key with this


class LogInfo(msgspec.Struct, frozen=True):
    """A log that can be read: what it holds of each epoch; of many epochs, in pieces."""

    stream: Name
    topics: Name
    codec: Name
    floor: tuple[U64, U64]  # all before this epoch and number has expired
    epochs: EpochRanges
    open: bool = False  # the newest epoch may go on
    recorded: bool = False  # by a peer that is not its publisher
    known: EpochRanges = []  # as epochs, with what has expired

    def __post_init__(self) -> None:
        check_ranges(row[1:] for row in self.epochs)
        check_ranges(row[1:] for row in self.known)


class Logs(_Message, frozen=True, tag="logs"):
    """The logs that were asked for, in one message or several, or why not."""

    number: U64
    peer: Name = ""
    logs: Annotated[list[LogInfo], msgspec.Meta(max_length=ENTRIES_MAX)] = []
    error: Text = ""
    key: Short = b""  # the public key of whom says this, where it was asked to prove it
    proof: Short = b""
    more: bool = False  # further ones follow
    page: U64 = 0  # which one it is


class Read(_Message, frozen=True, tag="read"):
    """Send these events from the log: parts, as much ahead of us as `credit` says."""

    number: U64
    mesh: Name
    stream: Name
    epoch: U64
    first: U64
    stop: U64
    credit: U64

    def __post_init__(self) -> None:
        check_range(self.first, self.stop)


class Credit(_Message, frozen=True, tag="credit"):
    """So many bytes more of a read; 0: no more of it."""

    number: U64
    bytes: U64


class Part(_Message, frozen=True, tag="part"):
    """The next of a read: frames, joined in the message's second part, and what is gone."""

    number: U64
    first: U64
    stop: U64
    # bytes of each, and one past its last event
    frames: Annotated[list[tuple[U64, U64]], msgspec.Meta(max_length=PART_FRAMES_MAX)] = []
    gone: Annotated[list[tuple[U64, U64, Name]], msgspec.Meta(max_length=PART_FRAMES_MAX)] = []
    done: bool = False
    error: Text = ""

    def __post_init__(self) -> None:
        check_range(self.first, self.stop)
        check_ranges(self.gone)


Message = (
    Hello
    | Welcome
    | Refused
    | Taken
    | Subscribe
    | Commit
    | Subscribed
    | Unsubscribed
    | Rekey
    | Nack
    | Repair
    | Gone
    | Evicted
    | Status
    | StatusPlease
    | Join
    | Joined
    | Unjoined
    | Settle
    | Kept
    | Ping
    | Pong
    | Unknown
    | Ask
    | Answer
    | Operate
    | Here
    | Bye
    | LogsPlease
    | Logs
    | Read
    | Credit
    | Part
)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode
_HEAD = ENVELOPE + bytes([PROTOCOL_VERSION])


def encode_message(message: Message) -> bytes:
    """Envelope and body."""
    return _HEAD + _encode(message)


class Page(NamedTuple):
    """One of several messages that say something together."""

    number: int
    is_last: bool


def encode_pages(
    make: Callable[[list[T], Page], Message], entries: Sequence[T], most: int = ENTRIES_MAX
) -> list[bytes]:
    """Encode what is to be said of any number of entries, in as many messages as that takes.

    `make` makes one of them, of some of the entries; without any, there is one message.
    """
    pages: list[bytes] = []
    left = [list(entries[at : at + most]) for at in range(0, len(entries), most)]
    left = left[::-1] or [[]]
    while left:
        some = left.pop()
        data = encode_message(make(some, Page(len(pages), not left)))
        if len(data) > SMALL_BYTES_MAX and len(some) > 1:  # of long names
            half = len(some) // 2
            left += [some[half:], some[:half]]
        else:
            pages.append(data)
    return pages


def message_version(data: bytes | memoryview) -> int:
    """The protocol version of a control message; raises `ProtocolError` if it is not one."""
    if len(data) < 5 or len(data) > CONTROL_BYTES_MAX or data[:3] != ENVELOPE:
        raise ProtocolError("not a control message")
    return data[3]


def decode_message(data: bytes | memoryview, large: Container[str] = LARGE_BYTES_MAX) -> Message:
    """Read a message of this version; raises `ProtocolError`.

    Of the kinds that may be large, only those in `large` are read.
    """
    version = message_version(data)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, this side speaks {PROTOCOL_VERSION}")
    if _key_count(data) > KEYS_MAX:
        raise ProtocolError(f"control message: of {_key_count(data)} keys")
    if len(data) > SMALL_BYTES_MAX:
        kind = _first_kind(data)
        if len(data) > (LARGE_BYTES_MAX.get(kind, 0) if kind in large else 0):
            raise ProtocolError(f"control message: {kind!r} of {len(data)} bytes")
    try:
        message: Message = _decode(memoryview(data)[4:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"control message: {error}") from None
    return message


def _first_kind(data: bytes | memoryview) -> str:
    """Return the kind that a large message begins with: to look for it would cost too much."""
    at = 7 if data[4] == 0xDE else 5
    if data[at : at + 2] != b"\xa1t" or not 0xA0 <= data[at + 2] <= 0xBF:
        raise ProtocolError("control message: a large one that does not begin with its kind")
    return bytes(data[at + 3 : at + 3 + data[at + 2] - 0xA0]).decode("ascii", "replace")


def _key_count(data: bytes | memoryview) -> int:
    """How many keys the map of a message claims to have."""
    first = data[4]
    if first == 0xDE:
        return int.from_bytes(data[5:7], "big")
    if first == 0xDF:
        return int.from_bytes(data[5:9], "big")
    return first & 0x0F  # anything but a short map is refused by the decoder


def encode_answer(number: int, body: Any) -> Answer:
    """An answer.  A number or a text that cannot be said is clamped, and not in the way of all."""
    try:
        encoded = _encode(body)
    except (OverflowError, UnicodeEncodeError):
        encoded = _encode(_sayable(body))
    return Answer(number, encoded)


def decode_answer(answer: Answer) -> Any:
    """What an answer says; raises `ProtocolError`."""
    try:
        return msgspec.msgpack.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"answer: {error}") from None


def _sayable(value: Any) -> Any:
    """Figures with numbers that fit 63 bits, and text without half characters."""
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in value]
    if isinstance(value, int):
        return max(-NUMBER_MAX, min(value, NUMBER_MAX))
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def encode_refusal(reason: str, version: int) -> bytes:
    """A refusal in the envelope of the other side's version, so that it can read it."""
    return ENVELOPE + bytes([version]) + _encode(Refused(as_text(reason)))


def version_mismatch(theirs: int) -> str:
    """The text that both sides see."""
    return (
        f"protocol version {theirs} meets version {PROTOCOL_VERSION}: "
        f"install the same meshmsg release on both sides"
    )
