"""Every field of every control message has a bound; the page says the same one."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import msgpack
import msgspec
import pytest
from msgspec import inspect as types

from meshmsg._groups import work_batch
from meshmsg._model import message_fields as fields
from meshmsg._model.errors import ProtocolError
from meshmsg._wire import control
from meshmsg._wire.multicast_info import MulticastInfo, SealInfo
from tests.docs.test_docs import page, section
from tests.support.samples import KINDS

PARTS = (
    control.StreamInfo,
    MulticastInfo,
    SealInfo,
    control.Start,
    control.Place,
    control.Figures,
    control.Tail,
    control.Refusal,
    control.Claimed,
    control.Settlement,
    control.Contact,
    control.LogInfo,
)


TAGS = [str(kind.__struct_config__.tag) for kind in KINDS]


def enclosed(body: object) -> bytes:
    return b"MMC\x02" + msgpack.packb(body)


def unbounded(kind: types.Type, where: str) -> list[str]:
    """Where in a type as much may stand as one likes."""
    match kind:
        case types.Metadata():
            extra = kind.extra or {}
            return [] if "le" in extra else unbounded(kind.type, where)
        case types.IntType():
            return [] if kind.ge is not None and kind.le is not None else [where]
        case types.FloatType():
            lowest = kind.ge if kind.gt is None else kind.gt
            return [] if lowest is not None and kind.le is not None else [where]
        case types.StrType() | types.BytesType():
            return [] if kind.max_length is not None else [where]
        case types.ListType():
            below = unbounded(kind.item_type, f"{where}[]")
            return below if kind.max_length is not None else [where, *below]
        case types.DictType():
            below = unbounded(kind.key_type, f"{where}{{}}")
            below += unbounded(kind.value_type, f"{where}{{}}")
            return below if kind.max_length is not None else [where, *below]
        case types.TupleType():
            return [bad for item in kind.item_types for bad in unbounded(item, f"{where}()")]
        case types.UnionType():
            return [bad for item in kind.types for bad in unbounded(item, where)]
        case types.StructType():
            name = kind.cls.__name__
            return [bad for f in kind.fields for bad in unbounded(f.type, f"{name}.{f.name}")]
        case types.LiteralType() | types.BoolType() | types.NoneType():
            return []
    return [where]  # Any, Raw, and whatever else does not say how much it is


def test_every_field_of_every_message_has_a_bound() -> None:
    found = [bad for kind in KINDS for bad in unbounded(types.type_info(kind), kind.__name__)]
    assert not found


def test_fields_without_a_bound_are_found() -> None:
    class Loose(msgspec.Struct):
        a: int
        b: list[fields.Name]
        c: tuple[fields.Name, str]
        d: dict[fields.Name, fields.U64]
        e: Any
        f: fields.Ranges | None
        g: bytes
        h: float

    found = unbounded(types.type_info(Loose), "")
    names = ("a", "b", "c()", "d", "e", "g", "h")
    assert found == [f"Loose.{name}" for name in names]


# What a message may cost ------------------------------------------------------------------------


def refused_within(data: bytes, peak_bytes: int, match: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=match):
            control.decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


def test_names_beyond_the_bound_are_not_even_read() -> None:
    """8 million empty names took 2 s; a bad one behind the bound is not reached."""
    welcome = {"t": "welcome", "peer": "p", "instance": 1, "mesh": "m", "fanout": []}
    refused_within(enclosed(welcome | {"streams": [""] * 65}), 64 * 1024, "of length <= 64")
    hello = {"t": "hello", "peer": "p", "instance": 1, "mesh": "m"}
    refused_within(enclosed(hello | {"listen": [""] * 17}), 64 * 1024, "of length <= 16")
    refused_within(enclosed(hello | {"listen": [""] * 8_000_000}), 64 * 1024, "'hello' of 8000")


@pytest.mark.parametrize("kind", [k for k in TAGS if k not in control.LARGE_BYTES_MAX])
def test_what_nobody_asked_for_is_not_large(kind: str) -> None:
    body = {"t": kind, "more": b"x" * control.SMALL_BYTES_MAX}
    refused_within(enclosed(body), 64 * 1024, "of 65")


@pytest.mark.parametrize("kind", control.LARGE_BYTES_MAX)
def test_what_was_asked_for_has_a_bound(kind: str) -> None:
    body = {"t": kind, "number": 1, "more": b"x" * control.LARGE_BYTES_MAX[kind]}
    refused_within(enclosed(body), 64 * 1024, f"{kind!r} of |not a control message")


def test_large_kinds_are_kinds() -> None:
    assert set(control.LARGE_BYTES_MAX) <= set(TAGS)
    assert max(control.LARGE_BYTES_MAX.values()) == control.CONTROL_BYTES_MAX


@pytest.mark.parametrize("head", [b"\xde\x00\x41", b"\xdf\x00\x00\x00\x41"])
def test_a_key_is_not_taken_many_times(head: bytes) -> None:
    patterns = msgpack.packb("patterns") + msgpack.packb([""] * 1024)
    body = msgpack.packb("t") + msgpack.packb("subscribe") + patterns * 64
    refused_within(b"MMC\x02" + head + body, 64 * 1024, "65 keys")


def test_an_answer_is_not_decoded_before_somebody_takes_it() -> None:
    """8 million maps would be 565 MiB."""
    maps = b"\xdd" + (8_000_000).to_bytes(4, "big") + b"\x80" * 8_000_000
    data = enclosed({"t": "answer", "number": 1, "body": maps})
    tracemalloc.start()
    try:
        answer = control.decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(maps)
    finally:
        tracemalloc.stop()
    assert isinstance(answer, control.Answer)


def test_an_answer_that_is_no_msgpack_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="answer: "):
        control.decode_answer(control.Answer(1, b"\xa3\xff\xff\xff"))


# What is said of figures ------------------------------------------------------------------------


def test_a_figure_that_cannot_be_said_does_not_disable_the_others() -> None:
    body = {"lost": 28 * 10**18, "below": -(1 << 70), "sent": 5, "on": True, "path": "a\udc80"}
    answer = control.encode_answer(7, {"rows": [body], "pair": (1, 1 << 64)})
    read = control.decode_message(control.encode_message(answer))
    assert isinstance(read, control.Answer)
    most = (1 << 63) - 1
    said = {"lost": most, "below": -most, "sent": 5, "on": True, "path": "a?"}
    assert control.decode_answer(read) == {"rows": [said], "pair": [1, most]}


# Ranges and texts -------------------------------------------------------------------------------

NAMED = {"stream": "s", "epoch": 1}
LOG = {"stream": "s", "topics": "a", "codec": "json", "floor": [0, 0]}
JOIN = {
    "t": "join",
    "sub": 1,
    "group": "g",
    "patterns": ["a"],
    "starts": [],
    "prefetch": 1,
    "ack_timeout_s": 1.0,
    "max_attempts": 1,
    "order": "none",
}


@pytest.mark.parametrize(
    "body",
    [
        {"t": "nack", "sub": 1, **NAMED, "ranges": [[0, 1], [6, 5]], "number": 1},
        {"t": "gone", "sub": 1, **NAMED, "ranges": [[6, 5]], "reason": "gone", "answers": 1},
        {"t": "pong", "number": 1, "instance": 1, "tails": [{**NAMED, "first": 6, "next": 5}]},
        {"t": "bye", "instance": 1, "tails": [{**NAMED, "first": 6, "next": 5}]},
        {"t": "subscribed", "sub": 1, **NAMED, "origin": 0, "first": 6, "next": 5, "start": 0},
        {"t": "settle", "sub": 1, "settlements": [{**NAMED, "acks": [[6, 5, 1]]}]},
        {"t": "settle", "sub": 1, "settlements": [{**NAMED, "returned": [[6, 5, 1]]}]},
        JOIN | {"claims": [{**NAMED, "acks": [[6, 5, 1]]}]},
        JOIN | {"claims": [{**NAMED, "held": [[6, 5, 1]]}]},
        {"t": "logs", "number": 1, "logs": [LOG | {"epochs": [[1, 6, 5]]}]},
        {"t": "logs", "number": 1, "logs": [LOG | {"epochs": [], "known": [[1, 6, 5]]}]},
        {"t": "read", "number": 1, "mesh": "m", **NAMED, "first": 6, "stop": 5, "credit": 1},
        {"t": "part", "number": 1, "first": 6, "stop": 5},
        {"t": "part", "number": 1, "first": 0, "stop": 9, "gone": [[6, 5, "gone"]]},
    ],
    ids=lambda body: body["t"],
)
def test_a_range_that_runs_backward_is_refused_where_it_is_decoded(body: object) -> None:
    with pytest.raises(ProtocolError, match=r"range \[6, 5\) runs backward"):
        control.decode_message(enclosed(body))


@pytest.mark.parametrize(
    "body",
    [
        {"t": "refused", "reason": "no\n2026-01-01 CRITICAL all is lost"},
        {"t": "evicted", "sub": 1, "stream": "s", "reason": "\x1b[2J"},
        {"t": "unjoined", "sub": 1, "reason": "\u2028"},
        {"t": "part", "number": 1, "first": 0, "stop": 0, "error": "a\rb"},
    ],
    ids=lambda body: body["t"],
)
def test_a_reason_cannot_begin_a_line(body: object) -> None:
    with pytest.raises(ProtocolError, match="matching regex"):
        control.decode_message(enclosed(body))


def test_what_we_say_ourselves_is_of_one_line() -> None:
    reason = fields.as_text("a\n b\x1b[2J\udc80" + "x" * 5000)
    assert reason.startswith("a  b [2J x")
    message = control.Refused(reason)
    assert control.decode_message(control.encode_message(message)) == message


# The page ---------------------------------------------------------------------------------------

WORDS = {
    fields.U64: "int",
    fields.Id: "id",
    fields.Name: "name",
    fields.PeerName: "peer",
    fields.Text: "text",
    fields.ErrorText: "lines",
    fields.Short: "bytes",
    fields.AckRange: "[first, stop, attempt]",
}
KNOWN = [(types.type_info(kind), word) for kind, word in WORDS.items()]
WORD_OF_PART = {kind: re.sub("([a-z])([A-Z])", r"\1 \2", kind.__name__).lower() for kind in PARTS}


def power(number: float) -> str:
    if number == (1 << 31) - 1:
        return "2^31 - 1"
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


def described(kind: types.Type) -> str:
    """A type in the words of the page."""
    for known, word in KNOWN:
        if kind == known:
            return word
    match kind:
        case types.IntType():
            return f"int, {power(kind.ge or 0)} to {power(kind.le or 0)}"
        case types.FloatType():
            lowest = f"above {power(kind.gt)}" if kind.gt is not None else power(kind.ge or 0)
            return f"float, {lowest} to {power(kind.le or 0)}"
        case types.BytesType():
            return f"bytes, {kind.max_length:,}"
        case types.BoolType():
            return "bool"
        case types.LiteralType():
            return "name"
        case types.ListType():
            return f"[{in_row(kind.item_type)}], at most {kind.max_length:,}"
        case types.DictType():
            pair = f"{described(kind.key_type)}: {described(kind.value_type)}"
            return f"{{{pair}}}, at most {kind.max_length:,}"
        case types.TupleType():
            return f"[{', '.join(map(in_row, kind.item_types))}]"
        case types.UnionType():
            return " or ".join(described(item) for item in kind.types)
        case types.NoneType():
            return "nil"
        case types.StructType():
            return WORD_OF_PART[kind.cls]
    raise NotImplementedError(kind)


def in_row(kind: types.Type) -> str:
    """The same where there are several: without the bounds of numbers, which the text tells."""
    if isinstance(kind, types.IntType | types.BytesType):
        return "int" if isinstance(kind, types.IntType) else "bytes"
    return described(kind)


def documented() -> dict[tuple[str, ...], list[str]]:
    """Of each table of fields in the page, the fields and what is said of their types."""
    text = section(page("wire-format.md"), "## Control messages")
    found = {}
    for table in re.findall(r"^\| field \| type \|.*\n(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()[2:]]
        names = tuple(name for row in rows for name in re.findall(r"`([^`]+)`", row[1]))
        kinds = [row[2].partition(", default")[0] for row in rows for _ in row[1].split(",")]
        found[names] = kinds
    return found


@pytest.mark.parametrize("kind", [*KINDS, *PARTS], ids=lambda kind: kind.__name__)
def test_bounds_in_the_page_are_those_of_the_types(kind: Any) -> None:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    if info.fields:
        names = tuple(field.name for field in info.fields)
        assert documented()[names] == [described(field.type) for field in info.fields]


def test_bytes_in_the_page_are_those_of_the_code() -> None:
    text = section(page("wire-format.md"), "## Limits")
    rows = dict(re.findall(r"^\| `([a-z]+)` \| ([\d,]+) bytes \|$", text, re.MULTILINE))
    assert rows == {kind: f"{size:,}" for kind, size in control.LARGE_BYTES_MAX.items()}
    other = f"| any other | {control.SMALL_BYTES_MAX:,} bytes |"
    assert other in text
    assert f"| keys of a message | {control.KEYS_MAX} |" in text


@pytest.mark.parametrize(
    ("kind", "part", "field", "piece"),
    [
        ("settle", "settlements", "acks", [1, 2, 1]),
        ("settle", "settlements", "nacks", {"seq": 1, "attempt": 1}),
        ("settle", "settlements", "returned", [1, 2, 1]),
        ("join", "claims", "acks", [1, 2, 1]),
        ("join", "claims", "nacks", {"seq": 1, "attempt": 1}),
        ("join", "claims", "held", [1, 2, 1]),
    ],
)
def test_a_member_speaks_of_so_many_pieces_in_one_message(
    kind: str, part: str, field: str, piece: object
) -> None:
    """Publishers wait while such a message is read."""
    body: dict[str, Any] = {"t": kind, "sub": 1, "group": "g", "patterns": [], "starts": []}
    body |= {"prefetch": 1, "ack_timeout_s": 1.0, "max_attempts": 1, "order": "none"}
    full = {"stream": "p/a", "epoch": 1, field: [piece] * fields.ACK_RANGES_MAX}
    count = fields.PIECES_MAX // fields.ACK_RANGES_MAX
    control.decode_message(enclosed(body | {part: [full] * count}))
    with pytest.raises(ProtocolError, match="ranges and refusals"):
        control.decode_message(enclosed(body | {part: [*[full] * count, full | {field: [piece]}]}))


def test_whatever_a_member_says_fits_a_message() -> None:
    """It adds settlements as long as there is room for any further one."""
    pieces = work_batch.SETTLED_BYTES_MAX // work_batch.RANGE_BYTES_MAX
    assert pieces + fields.ACK_RANGES_MAX + work_batch.NACKS_MAX <= fields.PIECES_MAX
    last = control.Settlement(
        "é" * fields.NAME_CHARS_MAX,
        1,
        [((1 << 63) - 1, (1 << 63) - 1, 1)] * fields.ACK_RANGES_MAX,
        [control.Refusal(1, 1, error="é" * work_batch.ERROR_CHARS_MAX)] * work_batch.NACKS_MAX,
    )
    size = work_batch.SETTLED_BYTES_MAX + work_batch.bytes_at_most(last)
    assert size <= control.SMALL_BYTES_MAX


def test_large_message_has_to_begin_with_its_kind_and_an_answer_to_be_asked_for() -> None:
    head = control.encode_message(control.Unknown())[:4]
    body = b"x" * 100_000
    good = head + msgspec.msgpack.encode({"t": "answer", "number": 1, "body": body})
    assert isinstance(control.decode_message(good, ("answer",)), control.Answer)
    for large in ((), ("part",)):
        with pytest.raises(ProtocolError, match="'answer' of 100"):
            control.decode_message(good, large)
    hidden = head + msgspec.msgpack.encode({"number": 1, "body": body, "t": "answer"})
    with pytest.raises(ProtocolError, match="does not begin with its kind"):
        control.decode_message(hidden)


# Pages -------------------------------------------------------------------------------------------


def pages_of(names: list[str]) -> list[control.Unsubscribed]:
    def make(some: list[str], page: control.Page) -> control.Unsubscribed:
        return control.Unsubscribed(page.number, some, "last" if page.is_last else "")

    read = [control.decode_message(data) for data in control.encode_pages(make, names)]
    return [page for page in read if isinstance(page, control.Unsubscribed)]


@pytest.mark.parametrize(
    "names", [["a"], ["a"] * 64, ["a"] * 65, ["x" * 1024] * 64, ["é" * 1000, "b"] * 500]
)
def test_what_is_too_long_for_a_message_is_said_in_several(names: list[str]) -> None:
    pages = pages_of(names)
    assert [name for page in pages for name in page.streams] == names
    assert [page.sub for page in pages] == list(range(len(pages)))
    assert [page.reason for page in pages] == [""] * (len(pages) - 1) + ["last"]


def test_what_has_no_entries_is_said_once() -> None:
    assert pages_of([]) == [control.Unsubscribed(0, [], "last")]
