"""Codecs: msgpack as others write and read it, typed payloads, JSON, and codecs of one's own."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg import Peer
from meshmsg._model.codecs import (
    CODEC_NAMES,
    Codec,
    JsonCodec,
    MsgpackCodec,
    Undecodable,
    UnknownCodec,
    check_type,
    codec_for,
    decode_payloads,
    encode_payload,
)
from meshmsg._model.errors import ConfigError, PayloadError


class Quote(msgspec.Struct):
    """A payload with a type."""

    symbol: str
    price: float


class Reversed:
    """A codec of one's own."""

    name = "reversed"

    def encode(self, data: Any) -> bytes:
        return str(data).encode()[::-1]

    def decode(self, payload: bytes) -> Any:
        return payload[::-1].decode()


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_the_msgpack_package_reads_what_we_write(value: Any) -> None:
    assert msgpack.unpackb(MsgpackCodec().encode(value)) == value


@given(VALUES)
def test_we_read_what_the_msgpack_package_writes(value: Any) -> None:
    assert MsgpackCodec().decode(msgpack.packb(value)) == value


def test_msgpack_timestamps_agree_with_the_msgpack_package() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    assert msgpack.unpackb(MsgpackCodec().encode(moment), timestamp=3) == moment
    assert MsgpackCodec().decode(msgpack.packb(moment, datetime=True)) == moment


@given(st.lists(VALUES, max_size=8))
def test_many_payloads_decode_in_one_call(values: list[Any]) -> None:
    codec = MsgpackCodec()
    blob = b"".join(map(codec.encode, values))
    assert codec.decode_many(blob, len(values)) == values


@pytest.mark.parametrize("blob", [b"\x01", b"\x01\x02\x03", b"\x01\xc1", b""])
def test_many_payloads_that_are_not_as_many_as_said_are_refused(blob: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        MsgpackCodec().decode_many(blob, 2)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_typed_codec_gives_that_type_and_refuses_others(name: str) -> None:
    codec = codec_for(name, type=Quote)
    quote = Quote("AAPL", 1.5)
    assert codec.decode(codec.encode(quote)) == quote
    good, bad, missing = decode_payloads(
        codec,
        [codec.encode(quote), codec.encode({"symbol": "X", "price": "?"}), codec.encode({})],
    )
    assert good == quote
    assert bad == Undecodable(f"codec '{name}': Expected `float`, got `str` - at `$.price`")
    assert isinstance(missing, Undecodable)
    assert "symbol" in missing.reason


def test_typed_msgpack_decodes_many_in_one_call() -> None:
    codec = MsgpackCodec(Quote)
    quotes = [Quote("A", 1.0), Quote("B", 2.0)]
    assert codec.decode_many(b"".join(map(codec.encode, quotes)), 2) == quotes


def test_json_is_text_that_others_read() -> None:
    codec = JsonCodec()
    assert codec.encode({"id": 7, "ok": True}) == b'{"id":7,"ok":true}'
    assert codec.decode(b'{"id": 7}') == {"id": 7}


@pytest.mark.parametrize("codec", [MsgpackCodec(), JsonCodec()])
def test_undecodable_payloads_stay_alone(codec: Codec) -> None:
    payloads = [codec.encode(1), b"\xc1", codec.encode([2]), b"", codec.encode("three") + b"\xc1"]
    first, bad, third, empty, trailing = decode_payloads(codec, payloads)
    assert (first, third) == (1, [2])
    for value in (bad, empty, trailing):
        assert isinstance(value, Undecodable)
        assert value.reason.startswith(f"codec '{codec.name}': ")


def test_deep_nesting_is_undecodable_and_no_crash() -> None:
    (value,) = decode_payloads(MsgpackCodec(), [b"\x91" * 1_000_000])
    assert isinstance(value, Undecodable)


def test_a_codec_of_ones_own_is_used_as_it_is() -> None:
    codec = Reversed()
    assert isinstance(codec, Codec)
    assert codec_for(codec) is codec
    assert encode_payload(codec, "abc") == b"cba"
    assert decode_payloads(codec, [b"cba", b"\xff"])[0] == "abc"


def test_whatever_a_codec_raises_becomes_a_payload_error_with_its_cause() -> None:
    class Broken(Reversed):
        def encode(self, data: Any) -> bytes:
            raise ZeroDivisionError("oops")

        def decode(self, payload: bytes) -> Any:
            raise KeyError("oops")

    with pytest.raises(PayloadError, match="codec 'reversed' cannot encode a int: oops") as caught:
        encode_payload(Broken(), 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert decode_payloads(Broken(), [b""]) == [Undecodable("codec 'reversed': 'oops'")]


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_what_cannot_be_encoded_is_named(name: str) -> None:
    with pytest.raises(PayloadError, match=f"codec '{name}' cannot encode a object"):
        encode_payload(codec_for(name), object())


@pytest.mark.parametrize("made", ["text", bytearray(b"x"), None])
def test_a_codec_that_makes_no_bytes_is_found_at_once(made: object) -> None:
    class Wrong(Reversed):
        def encode(self, data: Any) -> bytes:
            return made  # type: ignore[return-value]

    with pytest.raises(PayloadError, match=f"'reversed' made a {type(made).__name__}, not bytes"):
        encode_payload(Wrong(), 1)


def test_names_lead_to_the_built_in_codecs() -> None:
    assert CODEC_NAMES == ("msgpack", "json")
    assert [type(codec_for(name)) for name in CODEC_NAMES] == [MsgpackCodec, JsonCodec]
    assert [codec_for(name).name for name in CODEC_NAMES] == list(CODEC_NAMES)


def test_unknown_codec_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="codec: 'pickle' is not one of msgpack, json"):
        codec_for("pickle")


class Nameless(Reversed):
    """A codec whose name cannot be announced."""

    name = ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (5, "must be a codec name or an object with name, encode and decode"),
        (None, "must be a codec name or an object with name, encode and decode"),
        (object(), "must be a codec name or an object with name, encode and decode"),
        (Reversed, r"Reversed is a class: write Reversed\(\)"),
        (MsgpackCodec, r"MsgpackCodec is a class: write MsgpackCodec\(\)"),
        (Nameless(), "its name must be a text of 1 to 128 characters"),
    ],
)
def test_what_is_no_codec_is_refused_with_what_would_be_right(given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"stream.codec: {why}"):
        codec_for(given, field="stream.codec")


def test_codec_that_is_not_known_here_says_what_to_do() -> None:
    codec = UnknownCodec("cbor")
    assert codec_for(codec) is codec
    with pytest.raises(PayloadError, match="codec 'cbor' is not known here"):
        encode_payload(codec, 1)
    (value,) = decode_payloads(codec, [b"\x01"])
    assert isinstance(value, Undecodable)
    assert "the stream uses codec 'cbor': give subscribe(codec=...)" in value.reason


@pytest.mark.parametrize(
    "data",
    [
        math.nan,
        [1.0, math.inf],
        {"a": {"b": (None, -math.inf)}},
        Quote("a", math.nan),
    ],
)
def test_json_does_not_take_numbers_that_it_cannot_say(data: Any) -> None:
    with pytest.raises(PayloadError, match="JSON has no NaN"):
        JsonCodec().encode(data)
    assert MsgpackCodec().encode(data)


def test_json_takes_what_only_looks_like_it() -> None:
    for data in (None, ["null", None], {"null": 1.5}, Quote("null", 0.0)):
        assert json.loads(JsonCodec().encode(data)) == msgspec.to_builtins(data)


class Tree(msgspec.Struct):
    children: list[Tree] = []
    quotes: dict[int, Quote | None] = {}


class Model:
    """What pydantic's models are to msgspec: a class that it does not know."""


class Holder(msgspec.Struct):
    models: list[Model]


@pytest.mark.parametrize("kind", [int, str | None, list[int], dict[int, Quote], Quote, Tree])
def test_types_that_payloads_are_decoded_into(kind: Any) -> None:
    check_type(kind)


@pytest.mark.parametrize("kind", [Model, list[Model], dict[str, Model | None], Holder])
def test_types_that_nobody_taught_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"type: Model is not a type that msgspec knows.*codec="):
        check_type(kind)


def test_subscribe_refuses_a_type_that_it_cannot_give() -> None:
    with Peer("p") as peer:
        for kind in (Model, 7):
            with pytest.raises(ConfigError, match="type"):
                peer.subscribe("a", type=kind)
