"""Control messages of every kind, made from their types: for tests of the protocol."""

from __future__ import annotations

import random
import re
from typing import Any, get_args

import msgspec

from meshmsg._control import Message

KINDS: tuple[type[Message], ...] = get_args(Message)


def sample(kind: msgspec.inspect.Type, rng: random.Random) -> Any:
    """A value of a field's type, often at the end of what it allows."""
    match kind:
        case msgspec.inspect.StrType():
            longest = kind.max_length or 20
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
            return sample(rng.choice(kind.types), rng)
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.LiteralType():
            return rng.choice(kind.values)
        case msgspec.inspect.BoolType():
            return rng.random() < 0.5
        case msgspec.inspect.ListType():
            longest = min(kind.max_length or 3, 300)
            return [sample(kind.item_type, rng) for _ in range(rng.choice([0, 1, longest]))]
        case msgspec.inspect.TupleType():
            return tuple(sample(item, rng) for item in kind.item_types)
        case msgspec.inspect.DictType():
            return {sample(kind.key_type, rng): sample(kind.value_type, rng) for _ in range(2)}
        case msgspec.inspect.StructType():
            return kind.cls(**{field.name: sample(field.type, rng) for field in kind.fields})
        case msgspec.inspect.AnyType():
            return rng.choice([None, 1, {"rows": [1, None, "x", {"a": b"b"}]}])
    raise NotImplementedError(kind)


def sample_of(kind: type[Message], seed: int) -> Message:
    message: Message = sample(msgspec.inspect.type_info(kind), random.Random(seed))
    return message
