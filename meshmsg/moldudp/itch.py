"""ITCH 5.0 messages as typed tuples: bytes in, messages out, and back.  No sockets here.

Nasdaq's TotalView-ITCH 5.0 describes every order of a market: added, executed, cancelled, deleted,
replaced.  All numbers are big-endian, prices have four decimals (`10_000` is one dollar), times are
nanoseconds since midnight in six bytes, text is padded with spaces on its right.

The messages a book is made of have types of their own; the others of the specification come as
`OtherMessage`, their bodies untouched.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, NamedTuple

from meshmsg._model.errors import PayloadError, ProtocolError

TIME_MAX_NS = 2**48 - 1
#: Type, stock locate, tracking number, time in two parts.
HEAD = "cHHHI"
HEAD_BYTES = 11


class SystemEvent(NamedTuple):
    """`S`: `O` messages begin, `S` system, `Q` market hours, `M`, `E`, and `C` messages end."""

    locate: int
    tracking: int
    time_ns: int
    event: str


class StockDirectory(NamedTuple):
    """`R`: which stock a locate code stands for, at the start of a day."""

    locate: int
    tracking: int
    time_ns: int
    stock: str
    category: str = "Q"
    financial_status: str = "N"
    round_lot: int = 100
    round_lots_only: str = "N"
    classification: str = "C"
    subtype: str = "Z"
    authenticity: str = "T"  # `P` is production, `T` a test
    short_sale: str = "N"
    ipo: str = "N"
    luld_tier: str = "1"
    etp: str = "N"
    etp_leverage: int = 0
    inverse: str = "N"


class TradingAction(NamedTuple):
    """`H`: `T` a stock trades, `H` it is halted, `P` paused, `Q` quotes only."""

    locate: int
    tracking: int
    time_ns: int
    stock: str
    state: str
    reserved: str = ""
    reason: str = ""


class AddOrder(NamedTuple):
    """`A`: a new order rests in the book."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    side: str  # `B` or `S`
    shares: int
    stock: str
    price: int


class AddAttributed(NamedTuple):
    """`F`: the same, of a market participant that is named."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    side: str
    shares: int
    stock: str
    price: int
    attribution: str


class Executed(NamedTuple):
    """`E`: shares of an order were executed at its price."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    shares: int
    match: int


class ExecutedAtPrice(NamedTuple):
    """`C`: shares of an order were executed at another price."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    shares: int
    match: int
    printable: str
    price: int


class Cancelled(NamedTuple):
    """`X`: a part of an order was cancelled."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    shares: int


class Deleted(NamedTuple):
    """`D`: what was left of an order was cancelled."""

    locate: int
    tracking: int
    time_ns: int
    ref: int


class Replaced(NamedTuple):
    """`U`: an order was replaced by a new one, behind all others of its price."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    new_ref: int
    shares: int
    price: int


class Trade(NamedTuple):
    """`P`: a trade against an order that nobody could see; the book does not change."""

    locate: int
    tracking: int
    time_ns: int
    ref: int
    side: str
    shares: int
    stock: str
    price: int
    match: int


class CrossTrade(NamedTuple):
    """`Q`: the trade of an auction."""

    locate: int
    tracking: int
    time_ns: int
    shares: int
    stock: str
    price: int
    match: int
    cross: str


class BrokenTrade(NamedTuple):
    """`B`: a trade is void."""

    locate: int
    tracking: int
    time_ns: int
    match: int


class OtherMessage(NamedTuple):
    """Any other message of the specification; `body` follows the time."""

    locate: int
    tracking: int
    time_ns: int
    letter: str
    body: bytes


Message = (
    SystemEvent
    | StockDirectory
    | TradingAction
    | AddOrder
    | AddAttributed
    | Executed
    | ExecutedAtPrice
    | Cancelled
    | Deleted
    | Replaced
    | Trade
    | CrossTrade
    | BrokenTrade
    | OtherMessage
)

#: Letter: the type, and how its body is packed.  `s` is text.
_BODIES: dict[str, tuple[type[Any], str]] = {
    "S": (SystemEvent, "1s"),
    "R": (StockDirectory, "8s 1s 1s I 1s 1s 2s 1s 1s 1s 1s 1s I 1s"),
    "H": (TradingAction, "8s 1s 1s 4s"),
    "A": (AddOrder, "Q 1s I 8s I"),
    "F": (AddAttributed, "Q 1s I 8s I 4s"),
    "E": (Executed, "Q I Q"),
    "C": (ExecutedAtPrice, "Q I Q 1s I"),
    "X": (Cancelled, "Q I"),
    "D": (Deleted, "Q"),
    "U": (Replaced, "Q Q I I"),
    "P": (Trade, "Q 1s I 8s I Q"),
    "Q": (CrossTrade, "Q 8s I Q 1s"),
    "B": (BrokenTrade, "Q"),
}
#: Letter: bytes in all, of the messages that are passed on as they are.
OTHER_BYTES = {"Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35, "h": 21, "I": 50}
OTHER_BYTES |= {"N": 20, "O": 48}


class _Form:
    """How one type of message is read and written."""

    __slots__ = ("kind", "letter", "packing", "texts", "widths")

    def __init__(self, letter: str, kind: type[Any], body: str) -> None:
        self.letter = letter.encode()
        self.kind = kind
        self.packing = Struct(f">{HEAD}{body.replace(' ', '')}")
        parts = body.split()
        #: Where text is in the unpacked body, and in the message.
        self.texts = [n for n, part in enumerate(parts) if part.endswith("s")]
        self.widths = [int(parts[n][:-1]) for n in self.texts]


_BY_LETTER = {ord(letter): _Form(letter, *how) for letter, how in _BODIES.items()}
_BY_KIND = {form.kind: form for form in _BY_LETTER.values()}
_OTHER = Struct(f">{HEAD}")
#: Letter: bytes of the whole message, of all types.
MESSAGE_BYTES = {chr(n): form.packing.size for n, form in _BY_LETTER.items()} | OTHER_BYTES


def encode_message(message: Message) -> bytes:
    """The bytes of a message; raises `PayloadError` for a value that has no room in it."""
    form = _BY_KIND.get(type(message))
    try:
        time_ns = message.time_ns
        if form is None:
            return _encode_other(message)  # type: ignore[arg-type]
        body = list(message[3:])
        for n, width in zip(form.texts, form.widths, strict=True):
            body[n] = _padded(body[n], width)
        return form.packing.pack(
            form.letter, message.locate, message.tracking, time_ns >> 32, time_ns & _LOW, *body
        )
    except (error, AttributeError, TypeError, UnicodeEncodeError) as problem:
        raise PayloadError(f"{message!r} is not an ITCH message: {problem}") from None


_LOW = 0xFFFFFFFF


def _padded(value: object, width: int) -> bytes:
    text = str(value).encode("ascii")
    if len(text) > width:
        raise error(f"{value!r} is longer than {width}")
    return text.ljust(width)


def _encode_other(message: OtherMessage) -> bytes:
    size = OTHER_BYTES.get(message.letter)
    if size is None or size != HEAD_BYTES + len(message.body):
        raise error("its letter or the length of its body is not of ITCH 5.0")
    time_ns = message.time_ns
    head = (message.letter.encode(), message.locate, message.tracking)
    return _OTHER.pack(*head, time_ns >> 32, time_ns & _LOW) + message.body


def decode_message(data: bytes) -> Message:
    """The message in these bytes; raises `ProtocolError` if they are none of ITCH 5.0."""
    form = _BY_LETTER.get(data[0]) if data else None
    if form is None:
        return _decode_other(data)
    try:
        _, locate, tracking, high, low, *body = form.packing.unpack(data)
        for n in form.texts:
            body[n] = body[n].decode("ascii").rstrip(" ")
    except (error, UnicodeDecodeError) as problem:
        raise ProtocolError(f"a bad ITCH message {data[:1]!r}: {problem}") from None
    message: Message = form.kind(locate, tracking, high << 32 | low, *body)
    return message


def _decode_other(data: bytes) -> OtherMessage:
    letter = chr(data[0]) if data else ""
    if OTHER_BYTES.get(letter) != len(data):
        raise ProtocolError(f"no ITCH 5.0 message begins with {letter!r} and has {len(data)} bytes")
    _, locate, tracking, high, low = _OTHER.unpack_from(data)
    return OtherMessage(locate, tracking, high << 32 | low, letter, data[HEAD_BYTES:])
