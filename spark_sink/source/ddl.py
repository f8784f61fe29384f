"""Columns as DDL, `id BIGINT, tags ARRAY<STRING>`, read without Spark.

Spark's own parser is Java, and a Java takes half a minute to start and to find that a type is
misspelled.  This one takes what Spark 4.3 takes (`StructType.fromDDL`; a test compares the two),
but for types that no payload can have.

    columns = column ("," column)*
    column  = name type ["NOT" "NULL"] ["COMMENT" text]
    field   = name [":"] type ["NOT" "NULL"] ["COMMENT" text]        within a struct
    type    = "ARRAY" "<" type ">" | "MAP" "<" type "," type ">" | "STRUCT" "<" [fields] ">"
            | word ["(" number ("," number)* ")"] ["COLLATE" name]
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import NoReturn

from pyspark.sql import types as t

from meshmsg import ConfigError

DEPTH_MAX = 50
_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_TOKEN = re.compile(
    _SPACE
    + r"""(?:(?P<quoted>`(?:[^`]|``)*`)
        |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
        |(?P<word>[A-Za-z0-9_]+)
        |(?P<mark>.)
        |$)""",
    re.VERBOSE | re.DOTALL,
)
_NESTED = re.compile(_SPACE + r"struct" + _SPACE + r"<", re.IGNORECASE | re.DOTALL)
_ZONES = {
    ("without", "time", "zone"): t.TimestampNTZType(),
    ("with", "local", "time", "zone"): t.TimestampType(),
}
_PLAIN: dict[str, t.DataType] = {
    "bigint": t.LongType(),
    "binary": t.BinaryType(),
    "boolean": t.BooleanType(),
    "byte": t.ByteType(),
    "date": t.DateType(),
    "double": t.DoubleType(),
    "float": t.FloatType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "long": t.LongType(),
    "real": t.FloatType(),
    "short": t.ShortType(),
    "smallint": t.ShortType(),
    "string": t.StringType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "tinyint": t.ByteType(),
    "variant": t.VariantType(),
}
#: Types that take numbers: how many at least and at most, and what is made of them.
_SIZED: dict[str, tuple[int, int, Callable[..., t.DataType]]] = {
    "char": (1, 1, t.CharType),
    "character": (1, 1, t.CharType),
    "dec": (0, 2, t.DecimalType),
    "decimal": (0, 2, t.DecimalType),
    "numeric": (0, 2, t.DecimalType),
    "varchar": (1, 1, t.VarcharType),
}
TYPES = tuple(sorted([*_PLAIN, *_SIZED, "array", "map", "struct"]))
_PRECISION_MAX = 38


def is_nested(text: str) -> bool:
    """Return True for one struct, `STRUCT<id: BIGINT>`, instead of columns."""
    return _NESTED.match(text) is not None


def parse_columns(where: str, text: str) -> t.StructType:
    """Return the columns that a DDL declares; raises `ConfigError` about `where`."""
    return _Parser(where, text).columns()


class _Parser:
    def __init__(self, where: str, text: str) -> None:
        self._where = where
        self._text = text
        #: What kind each is of, as it is written, and where.
        self._tokens = [
            (kind, found[kind], found.start(kind))
            for found in _TOKEN.finditer(text)
            if (kind := found.lastgroup)
        ]
        self._at = 0
        self._depth = 0

    def columns(self) -> t.StructType:
        fields = self._fields(nested=False)
        if self._at < len(self._tokens):
            self._fail("a comma or the end")
        return t.StructType(fields)

    # --- the grammar ---

    def _fields(self, *, nested: bool) -> list[t.StructField]:
        found = [self._field(nested)]
        while self._take(","):
            found.append(self._field(nested))
        return found

    def _field(self, nested: bool) -> t.StructField:
        name = self._name()
        if nested:
            self._take(":")
        kind = self._type(name)
        nullable = not self._take("not")
        if not nullable:
            self._want("null")
        if self._take("comment"):
            self._next("text", wanted="a text between quotation marks")
            while self._tokens[self._at : self._at + 1] and self._tokens[self._at][0] == "text":
                self._at += 1  # several make one
        return t.StructField(name, kind, nullable)

    def _name(self) -> str:
        wanted = "the name of a column"
        token = self._next("quoted", "word", wanted=wanted)
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if token.isdigit():
            self._fail(f"{wanted} (numbers between backticks)", back=1)
        return token

    def _type(self, of: str) -> t.DataType:
        self._depth += 1
        word = self._next("word", wanted=f"the type of {of!r}")
        if self._depth > DEPTH_MAX:
            self._fail(f"at most {DEPTH_MAX} types within each other", back=1)
        if word.lower() in ("array", "map", "struct"):
            found = self._made_of_others(word.lower(), of)
        else:
            found = self._simple(word, of)
        self._depth -= 1
        return found

    def _made_of_others(self, word: str, of: str) -> t.DataType:
        self._want("<")
        found: t.DataType
        if word == "struct":
            fields = [] if self._peek() == (">",) else self._fields(nested=True)
            found = t.StructType(fields)
        elif word == "array":
            found = t.ArrayType(self._type(f"{of}[]"))
        else:
            key = self._type(f"{of}.key")
            self._want(",")
            found = t.MapType(key, self._type(f"{of}.value"))
        self._want(">")
        return found

    def _simple(self, declared: str, of: str) -> t.DataType:
        word, where = declared.lower(), f"{of} {declared}"
        if word in _SIZED:
            return self._sized(word, where)
        if word not in _PLAIN:
            near = difflib.get_close_matches(word, TYPES, 1)
            hint = f"did you mean {near[0].upper()}?" if near else f"there are {', '.join(TYPES)}"
            raise ConfigError(self._where, f"{where!r}: {declared} is not a type; {hint}")
        if word == "string" and self._take("collate"):
            self._name()
        for words, zoned in _ZONES.items() if word == "timestamp" else ():
            if self._peek(len(words)) == words:
                self._at += len(words)
                return zoned
        return _PLAIN[word]

    def _sized(self, word: str, where: str) -> t.DataType:
        least, most, make = _SIZED[word]
        numbers: list[int] = []
        while self._take("," if numbers else "("):
            number = self._next("word", wanted="a whole number")
            if not re.fullmatch(r"[0-9]{1,9}", number):
                self._fail("a whole number", back=1)
            numbers.append(int(number))
        if numbers:
            self._want(")")
        if not least <= len(numbers) <= most:
            right = f"{word.upper()}({'10,2' if most == 2 else '10'})"
            raise ConfigError(self._where, f"{where!r}: write {right}")
        if most == 2 and numbers and not (max(numbers) == numbers[0] <= _PRECISION_MAX):
            problem = f"at most {_PRECISION_MAX} digits, and as many of them behind the point"
            raise ConfigError(self._where, f"{where!r}: {word.upper()} has {problem}")
        return make(*numbers)

    # --- tokens ---

    def _peek(self, count: int = 1) -> tuple[str, ...]:
        """Return the next tokens in small letters, without taking them."""
        return tuple(token.lower() for _, token, _ in self._tokens[self._at : self._at + count])

    def _take(self, wanted: str) -> bool:
        if self._peek() != (wanted,):
            return False
        self._at += 1
        return True

    def _want(self, wanted: str) -> None:
        if not self._take(wanted):
            self._fail(repr(wanted) if not wanted.isalpha() else wanted.upper())

    def _next(self, *kinds: str, wanted: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] not in kinds:
            self._fail(wanted)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _fail(self, wanted: str, back: int = 0) -> NoReturn:
        rest = self._tokens[self._at - back :]
        there = repr(rest[0][1]) if rest else "its end"
        before = self._text[: rest[0][2] if rest else None].strip()
        behind = f" behind {before[-40:]!r}" if before else ""
        raise ConfigError(self._where, f"there is {there}{behind}, and {wanted} is wanted")
