"""Payload codecs: what turns `event.data` into bytes and back.

`bytes` are never passed through a codec.  The default is msgpack through msgspec, which writes
standard msgpack two to four times faster than the `msgpack` package and takes dataclasses,
datetimes and `msgspec.Struct`s as well.  A codec of one's own needs `name`, `encode`, `decode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import isclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import msgspec.inspect

from meshmsg._model.errors import ConfigError, PayloadError


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """Stands in a batch's data where a payload did not decode: reading it there raises."""

    reason: str


@runtime_checkable
class Codec(Protocol):
    """What a stream needs of a codec; the name travels with the stream's announcement."""

    @property
    def name(self) -> str:
        """A short name that both sides know the codec by."""

    def encode(self, data: Any, /) -> bytes:
        """The payload of one event."""

    def decode(self, payload: bytes, /) -> Any:
        """What `encode` was given."""


class MsgpackCodec:
    """Standard msgpack; with `type`, payloads are decoded and checked into that type.

    >>> MsgpackCodec().decode(MsgpackCodec().encode({"id": 7}))
    {'id': 7}
    """

    name = "msgpack"

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(type).decode
        self._decode_list: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[type]).decode

    def decode_many(self, blob: bytes, count: int) -> list[Any]:
        """Decode `count` payloads that stand one behind the other, in one call.

        Each must be one value: the borders between them are not looked at.
        """
        # Behind an array header, concatenated msgpack values are one msgpack array.
        return self._decode_list(b"\xdd" + count.to_bytes(4, "big") + blob)


class JsonCodec:
    """JSON text, for consumers that are not Python."""

    name = "json"

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        self._encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(type).decode

    def encode(self, data: Any) -> bytes:
        """Encode one value; raises `PayloadError` for NaN and infinity, which JSON cannot say."""
        payload = self._encode(data)
        if b"null" in payload and not _is_finite(msgspec.to_builtins(data)):
            problem = (
                "JSON has no NaN and no infinity: publish None, a text, or use codec='msgpack'"
            )
            raise PayloadError(problem)
        return payload


def _is_finite(value: Any) -> bool:
    """Return False if a number of plain data is NaN or infinite: msgspec writes null for it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def check_type(type: Any) -> None:
    """Raise `ConfigError` for a type into which payloads cannot be decoded, in whole or in part."""
    try:
        unknown = _unknown(msgspec.inspect.type_info(type), set())
    except (TypeError, NameError) as error:
        raise ConfigError(
            "type", f"{type!r} is not one that payloads are decoded into: {error}"
        ) from None
    if unknown is not None:
        name = getattr(unknown, "__name__", repr(unknown))
        problem = f"{name} is not a type that msgspec knows: take a msgspec.Struct or a dataclass"
        hint = f", or give codec= an object whose decode makes a {name} (of a pydantic model, too)"
        raise ConfigError("type", problem + hint)


def _unknown(found: Any, seen: set[int]) -> Any:
    """The first type within another that msgspec would have to be taught."""
    if isinstance(found, msgspec.inspect.CustomType):
        return found.cls
    if id(found) in seen:  # a type may hold itself
        return None
    seen.add(id(found))
    if isinstance(found, list | tuple):
        parts = list(found)
    elif isinstance(found, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(found, name) for name in found.__struct_fields__ if name != "default"]
    else:
        return None
    return next((one for part in parts if (one := _unknown(part, seen)) is not None), None)


_BUILT_IN: dict[str, Callable[[Any], Codec]] = {"msgpack": MsgpackCodec, "json": JsonCodec}
CODEC_NAMES = tuple(_BUILT_IN)
NAME_CHARS_MAX = 128


def codec_for(given: str | Codec, *, type: Any = Any, field: str = "codec") -> Codec:
    """The codec for a name or an object; raises `ConfigError` for anything else."""
    if isinstance(given, str):
        maker = _BUILT_IN.get(given)
        if maker is None:
            raise ConfigError(field, f"{given!r} is not one of {', '.join(CODEC_NAMES)}")
        return maker(type)
    if isclass(given):
        raise ConfigError(field, f"{given.__name__} is a class: write {given.__name__}()")
    if not isinstance(given, Codec):
        raise ConfigError(field, "must be a codec name or an object with name, encode and decode")
    if not isinstance(given.name, str) or not 0 < len(given.name) <= NAME_CHARS_MAX:
        raise ConfigError(field, f"its name must be a text of 1 to {NAME_CHARS_MAX} characters")
    return given


class UnknownCodec:
    """Stands for a codec that the publisher named and this side does not have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, data: Any, /) -> bytes:
        """Never possible."""
        raise PayloadError(f"codec {self.name!r} is not known here")

    def decode(self, payload: bytes, /) -> Any:
        """Never possible: says what to do."""
        raise PayloadError(
            f"the stream uses codec {self.name!r}: give subscribe(codec=...) an object that has it"
        )


def received_codec(name: str, own: Codec | None, type: Any) -> Codec:
    """The codec of a stream that a publisher offers: the user's own, or the one it named."""
    if own is not None:
        return own
    try:
        return codec_for(name, type=type)
    except ConfigError:
        return UnknownCodec(name)


def encode_payload(codec: Codec, data: Any) -> bytes:
    """Encode one value; raises `PayloadError` that names the codec and the value's type."""
    try:
        payload = codec.encode(data)
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(
            f"codec {codec.name!r} cannot encode a {type(data).__name__}: {error}"
        ) from error
    if not isinstance(payload, bytes):  # later, it would spoil the frame that it is in
        raise PayloadError(f"codec {codec.name!r} made a {type(payload).__name__}, not bytes")
    return payload if payload.__class__ is bytes else bytes(payload)


def decode_payloads(codec: Codec, payloads: Sequence[bytes]) -> list[Any]:
    """Decode each payload; one that fails becomes an `Undecodable`, the others stay readable."""
    decode = codec.decode
    try:
        return list(map(decode, payloads))
    except Exception:  # one of them is bad: find it, keep the others
        pass
    values: list[Any] = []
    for payload in payloads:
        try:
            values.append(decode(payload))
        except Exception as error:  # a codec of the user's may raise anything
            values.append(Undecodable(f"codec {codec.name!r}: {error}"))
    return values
