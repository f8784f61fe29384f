"""Control messages of every kind that there is: valid ones, at the edges of what is valid, and not.

Built from the declared types, so that a kind or a field that is added later takes part.  The same
seed gives the same messages for the same scene.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from msgspec import inspect

from meshmsg._wire import control as c

HEAD = c.ENVELOPE + bytes([c.PROTOCOL_VERSION])
NUMBERS = (
    0, 1, 2, 3, 7, 63, 64, 255, 256, 1000, 65_535, 65_536, 1 << 20, 1 << 31, (1 << 31) - 1,
    1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1,
)  # fmt: skip
OUTSIDE = (-1, -(1 << 63), 1 << 63, (1 << 64) - 1)
WRONG: tuple[Any, ...] = (None, True, "", "x", b"\0", 1.5, float("nan"), [], {}, [[]], {"t": 1}, -1)
FLOATS = (0.0, 1e-9, 0.001, 0.5, 1.0, 30.0, 86_400.0, 1e9)
TEXTS = ("", "x", "a.b", "**", "*", "a.**.b.**", "ä", "x" * 128, "x" * 1024, "\U0001f980", "../..")
#: Entries of a list, most of the time and now and then.
FEW, MANY = 3, 300


def raw(fields: dict[str, Any]) -> bytes:
    """A message of fields that the declared types may forbid."""
    return HEAD + msgspec.msgpack.encode(fields)


@dataclass
class Scene:
    """What an attacker knows, and its messages speak of."""

    streams: dict[str, int] = field(default_factory=dict)  #: names and epochs
    subs: list[int] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    group: str = "crew"
    topics: tuple[str, ...] = ("vol.**", "log.**", "mc.**", "work.**", "jobs.**", "vol.x", "**")
    peer: str = "mallory"
    multicast: tuple[str, ...] = ("239.255.77.1:29001", "239.255.77.2:29001", "nonsense", "")


class Maker:
    """Makes messages, most of them of the `kinds` that the attacker's side may say."""

    def __init__(self, rng: random.Random, scene: Scene, kinds: tuple[str, ...] = ()) -> None:
        self._rng = rng
        self.scene = scene
        self._types: dict[str, Any] = {}
        for cls in get_args(c.Message):
            info = inspect.type_info(cls)
            assert isinstance(info, inspect.StructType)
            self._types[str(info.tag)] = info
        self._kinds = tuple(kind for kind in kinds if kind in self._types) or tuple(self._types)
        self._before: list[bytes] = []
        self._hints: dict[str, Callable[[], Any]] = {
            "stream": self._stream,
            "name": self._stream,
            "epoch": self._epoch,
            "sub": lambda: self._of(self.scene.subs),
            "instance": lambda: self._of(self.scene.instances),
            "mesh": lambda: "default",
            "version": lambda: c.PROTOCOL_VERSION,
            "topics": lambda: self._rng.choice(self.scene.topics),
            "peer": lambda: self.scene.peer,
            "what": lambda: self._rng.choice(("stats", "ledger", "clock", "x")),
            "codec": lambda: "msgpack",
            "overflow": lambda: "buffer",
            "reason": lambda: self._rng.choice(("gone", "deadline", "retention", "x")),
        }

    # --- what is sent ---

    def next(self) -> bytes:
        """The next message of a long conversation: most are changed, some said before."""
        draw = self._rng.random()
        if draw < 0.05 and self._before:
            return self._rng.choice(self._before)
        fields = self.fields()
        if draw < 0.45:
            data = raw(fields)
        elif draw < 0.85:
            for _ in range(self._rng.choice((1, 1, 1, 2, 5))):
                self._change(fields)
            data = self._encoded(fields)
        else:
            data = self._spoilt(raw(fields))
        if len(self._before) < 256:
            self._before.append(data)
        else:
            self._before[self._rng.randrange(256)] = data
        return data

    def fields(self, kind: str = "") -> dict[str, Any]:
        """A valid message as plain data."""
        if not kind:
            some = self._kinds if self._rng.random() < 0.9 else tuple(self._types)
            kind = self._rng.choice(some)
        made = self._make(self._types[kind], kind)
        assert isinstance(made, dict)
        return made

    def _encoded(self, fields: dict[str, Any]) -> bytes:
        try:
            return raw(fields)
        except (OverflowError, msgspec.EncodeError, RecursionError):
            return raw({"t": fields.get("t")})

    def _spoilt(self, data: bytes) -> bytes:
        """Cut, changed or grown somewhere in its bytes."""
        rng, spoilt = self._rng, bytearray(data)
        kind = rng.randrange(5)
        at = rng.randrange(len(spoilt))
        if kind == 0:
            del spoilt[at:]
        elif kind == 1:
            for _ in range(rng.randrange(1, 6)):
                spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        elif kind == 2:
            spoilt[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 3:
            spoilt += spoilt[4:]
        elif rng.random() < 0.02:
            spoilt[3] = rng.randrange(256)
        else:
            spoilt = bytearray(HEAD + rng.randbytes(rng.randrange(80)))
        return bytes(spoilt)

    # --- changes ---

    def _change(self, fields: dict[str, Any]) -> None:
        """Change one value, anywhere in a message."""
        rng = self._rng
        places = list(_places(fields))
        holder, key = rng.choice(places)
        value = holder[key]
        kind = rng.randrange(8)
        if kind == 0:
            holder[key] = self._wrong()
        elif kind == 1 and isinstance(holder, dict) and key != "t":
            del holder[key]
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(("extra", "t", "sub", "\0"))] = self._wrong()
        elif isinstance(value, bool) or value is None:
            holder[key] = not value
        elif isinstance(value, int):
            near = (value + 1, max(0, value - 1), value * 2, -value)
            holder[key] = rng.choice((*NUMBERS, *OUTSIDE, *near))
            if not -(1 << 63) <= holder[key] < 1 << 64:
                holder[key] = (1 << 64) - 1
        elif isinstance(value, float):
            holder[key] = rng.choice((-1.0, 1e300, float("inf"), float("nan"), *FLOATS))
        elif isinstance(value, str):
            holder[key] = rng.choice((*TEXTS, "a\nb\x1b[2J", "x" * 5000, value + "x", value[:-1]))
        elif isinstance(value, bytes):
            holder[key] = rng.choice((b"", rng.randbytes(32), rng.randbytes(300)))
        elif isinstance(value, list) and value:
            self._change_list(value)

    def _wrong(self) -> Any:
        return copy.deepcopy(self._rng.choice(WRONG))  # what it is put into may be changed again

    def _change_list(self, value: list[Any]) -> None:
        kind = self._rng.randrange(4)
        if kind == 0:
            value.reverse()
        elif kind == 1:
            value *= self._rng.choice((2, 10, MANY))
        elif kind == 2:
            value.append(self._wrong())
        else:
            value.sort(key=repr)

    # --- valid values ---

    def _of(self, known: list[int]) -> int:
        if known and self._rng.random() < 0.9:
            return self._rng.choice(known)
        return self._rng.choice(NUMBERS)

    def _stream(self) -> str:
        names = list(self.scene.streams)
        if names and self._rng.random() < 0.85:
            return self._rng.choice(names)
        return self._rng.choice(TEXTS)

    def _epoch(self) -> int:
        epochs = list(self.scene.streams.values())
        if epochs and self._rng.random() < 0.8:
            return max(0, self._rng.choice(epochs) + self._rng.choice((0, 0, 0, 1, -1, 10**6)))
        return self._rng.choice(NUMBERS)

    def _make(self, info: Any, name: str) -> Any:
        rng = self._rng
        if isinstance(info, inspect.StructType):
            return self._struct(info)
        if name in self._hints and isinstance(info, inspect.StrType | inspect.IntType):
            return _within(info, self._hints[name]())
        if isinstance(info, inspect.IntType):
            return _within(info, rng.choice(NUMBERS))
        if isinstance(info, inspect.FloatType):
            return min(max(rng.choice(FLOATS), info.ge or 0.0), info.le or 1e9)
        if isinstance(info, inspect.StrType):
            return self._text(name, info.max_length)
        if isinstance(info, inspect.BytesType):
            return rng.randbytes(rng.choice((info.min_length or 0, info.max_length or 16)))
        if isinstance(info, inspect.ListType):
            return self._list(info, name)
        if isinstance(info, inspect.TupleType):
            return [self._make(item, "") for item in info.item_types]
        if isinstance(info, inspect.DictType):
            return {
                self._make(info.key_type, "stream"): self._make(info.value_type, "")
                for _ in range(rng.randrange(FEW))
            }
        if isinstance(info, inspect.LiteralType):
            return rng.choice(info.values)
        if isinstance(info, inspect.BoolType):
            return rng.random() < 0.5
        if isinstance(info, inspect.UnionType):
            return self._make(rng.choice(info.types), name)
        if isinstance(info, inspect.AnyType | inspect.RawType):
            return self._wrong()
        return None

    def _struct(self, info: inspect.StructType) -> Any:
        made: dict[str, Any] = {} if info.tag is None else {str(info.tag_field): info.tag}
        for one in info.fields:
            if one.required or self._rng.random() < 0.6:
                made[one.encode_name] = self._make(one.type, one.name)
        return list(made.values()) if info.array_like else made

    def _list(self, info: inspect.ListType, name: str) -> list[Any]:
        most = MANY if self._rng.random() < 0.02 else FEW
        if info.max_length is not None:
            most = min(most, info.max_length)
        item = {"listen": "address", "addresses": "address", "patterns": "topics"}.get(name, name)
        item = {"streams": "stream", "recorded": "stream", "groups": "group"}.get(item, item)
        return [self._make(info.item_type, item) for _ in range(self._rng.randrange(most + 1))]

    def _text(self, name: str, most: int | None) -> str:
        rng = self._rng
        if name in ("address", "dialled") and self.scene.addresses:
            text = rng.choice(self.scene.addresses)
        elif name == "group":
            text = rng.choice((self.scene.group, "other", *self.scene.multicast))
        else:
            text = rng.choice(TEXTS)
        return text[:most]


def _within(info: Any, value: Any) -> Any:
    """A value moved inside of what its type allows."""
    if isinstance(info, inspect.StrType):
        return str(value)[: info.max_length]
    if not isinstance(value, int):
        return 1
    low = info.ge if info.ge is not None else (info.gt + 1 if info.gt is not None else 0)
    high = info.le if info.le is not None else (1 << 63) - 1
    return int(min(max(value, low), high))


def _places(value: Any) -> Any:
    """Every place in plain data that holds a value."""
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for at in range(min(len(value), 10)):
            yield value, at
            yield from _places(value[at])
