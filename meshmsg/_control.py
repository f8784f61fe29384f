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
from typing import Annotated, Any, Literal

import msgspec

from meshmsg._errors import ProtocolError
from meshmsg._mcast_words import MulticastInfo, SealInfo, SealKeys
from meshmsg._values import NAME_BYTES_MAX, PATTERNS_MAX

PROTOCOL_VERSION = 1
ENVELOPE = b"MMC"
#: A control message without its frame is never larger.
CONTROL_BYTES_MAX = 8 * 1024 * 1024
#: Ranges in one repair request.
NACK_RANGES_MAX = 256
#: Ranges in one acknowledgement.
ACK_RANGES_MAX = 65_536
#: Streams and epochs that a member claims events of, and pieces of them all together.
CLAIMS_MAX = 4096
CLAIM_RANGES_MAX = 262_144
#: Events that a member may ask for ahead of its acknowledgements.
PREFETCH_MAX = 1_000_000
ATTEMPTS_MAX = 1_000_000
DURATION_MAX_S = 1e9
#: Peers that one message tells of, and addresses of each.
CONTACTS_MAX = 256
CONTACT_ADDRESSES_MAX = 16

U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=0)]
# Names are logged and shown to people: nothing in them may move a cursor or begin a line.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
Name = Annotated[str, msgspec.Meta(max_length=1024, pattern=rf"\A[^{_CONTROLS}]*\Z")]
#: As a peer may call itself; what comes after a slash is a stream or a subscription of it.
PeerName = Annotated[
    str, msgspec.Meta(max_length=NAME_BYTES_MAX, pattern=rf"\A[^\s/@{_CONTROLS}]+\Z")
]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=DURATION_MAX_S)]
Short = Annotated[bytes, msgspec.Meta(max_length=64)]
Range = tuple[U64, U64]
Ranges = Annotated[list[Range], msgspec.Meta(max_length=NACK_RANGES_MAX)]
Patterns = Annotated[list[Name], msgspec.Meta(max_length=PATTERNS_MAX)]


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
    listen: list[Name] = []
    streams: list[Name] = []
    version: int = PROTOCOL_VERSION
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


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to hello, sent again when the streams change."""

    peer: PeerName
    instance: Id
    mesh: Name
    streams: list[StreamInfo]
    fanout: list[tuple[Name, Name]]
    recorded: list[StreamInfo] = []  # of other peers, kept and served here
    version: int = PROTOCOL_VERSION
    software: Name = ""
    key: Short = b""  # the public key of whom says this, where peers have keys of their own
    proof: Short = b""


class Refused(_Message, frozen=True, tag="refused"):
    """No: and why, in words for a person."""

    reason: Text
    version: int = PROTOCOL_VERSION


class Taken(_Message, frozen=True, tag="taken"):
    """I take the streams of your name from another peer, which is here, and none from you."""

    addresses: Annotated[list[Name], msgspec.Meta(max_length=CONTACT_ADDRESSES_MAX)]


StartKind = Literal["live", "earliest", "last", "time", "resume", "origin"]


class Start(msgspec.Struct, frozen=True):
    """Where a subscription wants to start in one stream."""

    stream: Name
    kind: StartKind
    value: U64 = 0
    epoch: U64 = 0


class Subscribe(_Message, frozen=True, tag="subscribe"):
    """Take me as a subscriber of these streams; saying it again is harmless."""

    sub: Id
    patterns: Patterns
    starts: list[Start]
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
    places: list[Place]


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
    lost: dict[Name, U64]


class Status(_Message, frozen=True, tag="status"):
    """How far a subscription is: the publisher's flow control and ledger live on it."""

    sub: Id
    figures: list[Figures]
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


AckRange = tuple[U64, U64, Annotated[int, msgspec.Meta(ge=1, le=ATTEMPTS_MAX)]]
AckRanges = Annotated[list[AckRange], msgspec.Meta(max_length=ACK_RANGES_MAX)]


class Refusal(msgspec.Struct, frozen=True):
    """One event that a member could not handle."""

    seq: U64
    attempt: U64
    delay_s: Duration = 0.0
    error: Text = ""


class Claimed(msgspec.Struct, frozen=True):
    """Events of a durable stream and epoch that a member had before it joined."""

    stream: Name
    epoch: U64
    acks: AckRanges = []  # done, and nobody has said that it is kept
    nacks: Annotated[list[Refusal], msgspec.Meta(max_length=ACK_RANGES_MAX)] = []
    held: AckRanges = []  # in hand


class Join(_Message, frozen=True, tag="join"):
    """Take me as a member of a work group on these streams; saying it again is harmless."""

    sub: Id
    group: Name
    patterns: Patterns
    starts: list[Start]
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=PREFETCH_MAX)]
    ack_timeout_s: Duration
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=ATTEMPTS_MAX)]
    order: Literal["none", "key"]
    name: Name = ""
    ticket: Id = 0  # work is to begin with this number; another one than before: begin anew
    claims: list[Claimed] = []
    number: U64 = 0  # of the last message that the claims make up for


class Joined(_Message, frozen=True, tag="joined"):
    """You are a member on these streams; fetch the work at one of these addresses."""

    sub: Id
    streams: list[Tail]
    work: list[tuple[Name, Name]]
    keeps: bool = False  # what is done, on disk, and says so


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
    nacks: Annotated[list[Refusal], msgspec.Meta(max_length=ACK_RANGES_MAX)] = []
    returned: AckRanges = []


class Settle(_Message, frozen=True, tag="settle"):
    """What became of work; without any, a sign of life.  With `closed`, the member leaves."""

    sub: Id
    settlements: list[Settlement]
    closed: bool = False
    received: dict[Name, U64] = {}
    number: U64 = 0  # rises; comes back in `kept`


class Kept(_Message, frozen=True, tag="kept"):
    """What you said of this durable stream, up to the message of that number, is on disk."""

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
    tails: list[Tail]
    recorded: list[Tail] = []


class Unknown(_Message, frozen=True, tag="unknown"):
    """I do not know you (any more): say hello."""


class Ask(_Message, frozen=True, tag="ask"):
    """Tell me your `ledger`, `stats` or `clock`."""

    number: U64
    what: Name


class Answer(_Message, frozen=True, tag="answer"):
    """What was asked for."""

    number: U64
    body: Any


class Contact(msgspec.Struct, frozen=True):
    """A peer that the sender is connected to."""

    peer: PeerName
    instance: Id
    addresses: Annotated[list[Name], msgspec.Meta(max_length=CONTACT_ADDRESSES_MAX)]


class Here(_Message, frozen=True, tag="here"):
    """What I am and do, and whom else I know; said by both sides, after the greeting and later."""

    peer: PeerName
    instance: Id
    serial: U64
    addresses: Annotated[list[Name], msgspec.Meta(max_length=CONTACT_ADDRESSES_MAX)] = []
    streams: list[Name] = []
    groups: list[Name] = []
    roles: list[Name] = []
    software: Name = ""
    known: Annotated[list[Contact], msgspec.Meta(max_length=CONTACTS_MAX)] = []


class Bye(_Message, frozen=True, tag="bye"):
    """I leave; my streams end here."""

    instance: Id
    tails: list[Tail]


class LogsPlease(_Message, frozen=True, tag="logs?"):
    """Which logs do you have of streams that carry these topics?"""

    number: U64
    mesh: Name
    patterns: Patterns
    nonce: Short = b""  # prove your key with this


class LogInfo(msgspec.Struct, frozen=True):
    """A log that can be read: what it holds of each epoch."""

    stream: Name
    topics: Name
    codec: Name
    floor: tuple[U64, U64]  # all before this epoch and number has expired
    epochs: list[tuple[U64, U64, U64]]  # epoch, first, stop
    open: bool = False  # the newest epoch may go on
    recorded: bool = False  # by a peer that is not its publisher
    known: list[tuple[U64, U64, U64]] = []  # as epochs, with what has expired


class Logs(_Message, frozen=True, tag="logs"):
    """The logs that were asked for, or why not."""

    number: U64
    peer: Name = ""
    logs: list[LogInfo] = []
    error: Text = ""
    key: Short = b""  # the public key of whom says this, where it was asked to prove it
    proof: Short = b""


class Read(_Message, frozen=True, tag="read"):
    """Send these events from the log: parts, as much ahead of us as `credit` says."""

    number: U64
    mesh: Name
    stream: Name
    epoch: U64
    first: U64
    stop: U64
    credit: U64


class Credit(_Message, frozen=True, tag="credit"):
    """So many bytes more of a read; 0: no more of it."""

    number: U64
    bytes: U64


class Part(_Message, frozen=True, tag="part"):
    """The next of a read: frames, joined in the message's second part, and what is gone."""

    number: U64
    first: U64
    stop: U64
    frames: list[tuple[U64, U64]] = []  # bytes of each, and one past its last event
    gone: list[tuple[U64, U64, Name]] = []
    done: bool = False
    error: Text = ""


Message = (
    Hello
    | Welcome
    | Refused
    | Taken
    | Subscribe
    | Commit
    | Subscribed
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


def message_version(data: bytes) -> int:
    """The protocol version of a control message; raises `ProtocolError` if it is not one."""
    if len(data) < 5 or len(data) > CONTROL_BYTES_MAX or data[:3] != ENVELOPE:
        raise ProtocolError("not a control message")
    return data[3]


def decode_message(data: bytes) -> Message:
    """Read a message of this version; raises `ProtocolError`."""
    version = message_version(data)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, this side speaks {PROTOCOL_VERSION}")
    try:
        message: Message = _decode(memoryview(data)[4:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"control message: {error}") from None
    return message


def encode_refusal(reason: str, version: int) -> bytes:
    """A refusal in the envelope of the other side's version, so that it can read it."""
    return ENVELOPE + bytes([version]) + _encode(Refused(reason))


def version_mismatch(theirs: int) -> str:
    """The text that both sides see."""
    return (
        f"protocol version {theirs} meets version {PROTOCOL_VERSION}: "
        f"install the same meshmsg release on both sides"
    )
