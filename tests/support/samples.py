"""Control messages of every kind, made from their types: for tests of the protocol."""

from __future__ import annotations

import random
import re
from typing import Any, get_args

import msgspec

from meshmsg._wire.control import Message

KINDS: tuple[type[Message], ...] = get_args(Message)


def sample(kind: msgspec.inspect.Type, rng: random.Random, most: int = 4096) -> Any:
    """A value of a field's type, often at the end of what it allows; in lists, of `most` there."""
    match kind:
        case msgspec.inspect.StrType():
            longest = min(kind.max_length or 20, most)
            texts = ["", "p/a.**", "é", "x" * longest]
            return rng.choice([text for text in texts if re.search(kind.pattern or "", text)])
        case msgspec.inspect.BytesType():
            return rng.randbytes(max(rng.choice([0, 16, 32]), kind.min_length or 0))
        case msgspec.inspect.IntType():
            lowest, highest = kind.ge or 0, kind.le or (1 << 64) - 1
            return rng.choice([lowest, highest, rng.randint(lowest, highest)])
        case msgspec.inspect.FloatType():
            lowest = kind.ge if kind.gt is None else kind.gt + 0.001
            highest = kind.le or 1e9
            return rng.choice([float(lowest or 0), float(highest), rng.random() * highest or 1.0])
        case msgspec.inspect.UnionType():
            return sample(rng.choice(kind.types), rng, most)
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.LiteralType():
            return rng.choice(kind.values)
        case msgspec.inspect.BoolType():
            return rng.random() < 0.5
        case msgspec.inspect.ListType():
            longest = min(kind.max_length or 3, most, 100)  # all of it has to fit a message
            count = rng.choice([0, 1, longest])
            return [sample(kind.item_type, rng, most=5) for _ in range(count)]
        case msgspec.inspect.Metadata():
            return sample(kind.type, rng, most)
        case msgspec.inspect.TupleType():
            return tuple(sample(item, rng, most) for item in kind.item_types)
        case msgspec.inspect.DictType():
            return {
                sample(kind.key_type, rng, most): sample(kind.value_type, rng, most)
                for _ in range(2)
            }
        case msgspec.inspect.StructType():
            fields = {field.name: sample(field.type, rng, most) for field in kind.fields}
            for first, stop in (("first", "next"), ("first", "stop")):
                if first in fields and stop in fields:
                    fields[first], fields[stop] = sorted((fields[first], fields[stop]))
            return kind.cls(**{name: in_order(name, value) for name, value in fields.items()})
    raise NotImplementedError(kind)


def in_order(name: str, value: Any) -> Any:
    """The value of a field; where it is a list of ranges, none of them runs backward."""
    if name in ("ranges", "acks", "held", "returned", "gone"):
        return [(*sorted(one[:2]), *one[2:]) for one in value]
    if name in ("epochs", "known") and value and isinstance(value[0], tuple):
        return [(one[0], *sorted(one[1:])) for one in value]
    return value


def sample_of(kind: type[Message], seed: int) -> Message:
    message: Message = sample(msgspec.inspect.type_info(kind), random.Random(seed))
    return message
