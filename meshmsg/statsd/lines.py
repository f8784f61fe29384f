"""StatsD lines, `name:value|type|@rate|#tags`: cut many at once, and say what one means.

Cutting costs the same for good and bad lines and looks at none of the parts: lines that share a
name and everything behind the value are one *run*, and what that means, or that it means nothing,
is found once for all values of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Values by name and by what follows the value.
Runs = dict[tuple[bytes, bytes], list[bytes]]

#: A metric's type on the wire, and what it is called in events.
KINDS = {
    b"c": "counter",
    b"m": "counter",
    b"C": "cumulative",
    b"g": "gauge",
    b"ms": "timer",
    b"h": "histogram",
    b"d": "histogram",
    b"s": "set",
}
NAME_BYTES_MAX = 200
TAGS_BYTES_MAX = 4_096
#: Of a set's value.
VALUE_BYTES_MAX = 1_024
#: Of any other value and of a rate: no measurement has more digits.
NUMBER_BYTES_MAX = 64
#: Larger values are no measurements, and a few of them would add up to infinity.
NUMBER_MAX = 1e100
RATE_MIN = 1e-9
# Each byte can stand in one place of it only, so that matching never goes back.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DIGITS = b"0123456789+-.eE"
# DogStatsD: container, time, where it comes from, and how closely that is to be told.
_NOT_KEPT = (b"c:", b"T", b"e:", b"card:")
# What a level of a topic may not have; Graphite's own servers put the same in their place.
_NOT_IN_TOPICS = re.compile(r"[\s*\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the lines of a run measure."""

    name: str
    kind: str
    rate: float
    tags: tuple[tuple[str, str], ...]

    @property
    def series(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What is added up together: everything but the sample rate."""
        return (self.name, self.kind, self.tags)


def cut(packets: Iterable[bytes], runs: Runs) -> int:
    """Add the lines of packets to runs; returns how many lines there were.

    >>> runs: Runs = {}
    >>> cut([b"a:1|c", b"a:2|c\\nb:3|ms|@0.1"], runs)
    3
    >>> runs
    {(b'a', b'c'): [b'1', b'2'], (b'b', b'ms|@0.1'): [b'3']}
    """
    lines = b"\n".join(packets).split(b"\n")
    for line in lines:
        if not line:
            continue
        head, _, rest = line.partition(b"|")
        name, _, value = head.partition(b":")
        try:
            runs[name, rest].append(value)
        except KeyError:
            runs[name, rest] = [value]
    return len(lines) - lines.count(b"")


def understand(name: bytes, rest: bytes) -> Meaning | None:
    """What the lines of a run measure, or `None` where they are no metrics."""
    kind, *fields = rest.rstrip(b"\r").split(b"|")
    if kind not in KINDS or not name or len(name) > NAME_BYTES_MAX:
        return None
    rate, tags = 1.0, b""
    for field in fields:
        if field[:1] == b"@":
            if not _is_number(field[1:]):
                return None
            rate = float(field[1:])
        elif field[:1] == b"#":
            tags = field[1:]
        elif not field.startswith(_NOT_KEPT):
            return None
    if not RATE_MIN <= rate <= 1 or len(tags) > TAGS_BYTES_MAX:
        return None
    try:
        return Meaning(name.decode(), KINDS[kind], rate, _tags(tags.decode()))
    except UnicodeDecodeError:
        return None


def _tags(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (tag.partition(":") for tag in text.split(",") if tag)
    return tuple(sorted({(name, value) for name, _, value in pairs}))


def _is_number(text: bytes) -> bool:
    return len(text) <= NUMBER_BYTES_MAX and _NUMBER.fullmatch(text) is not None


def numbers(values: list[bytes]) -> tuple[list[float], int]:
    """The values as numbers, and how many were none; `1:2:3` are three (DogStatsD)."""
    bounded = max(map(len, values), default=0) <= NUMBER_BYTES_MAX
    if bounded and not b"".join(values).translate(None, _DIGITS):
        try:
            found = list(map(float, values))
        except ValueError:  # not all of them: those that are none are found one by one
            pass
        else:
            if min(found, default=0.0) >= -NUMBER_MAX and max(found, default=0.0) <= NUMBER_MAX:
                return found, 0
    found, bad = [], 0
    for value in values:
        parts = value.split(b":")
        if all(_is_number(part) and abs(float(part)) <= NUMBER_MAX for part in parts):
            found += map(float, parts)
        else:
            bad += 1
    return found, bad


def topic_of(prefix: str, name: str) -> str | None:
    """The topic of a metric: its name with `_` for what topics cannot have; `None` if too long.

    >>> topic_of("statsd.raw", "api..page views*")
    'statsd.raw.api.page_views_'
    """
    levels = [_NOT_IN_TOPICS.sub("_", level) for level in name.split(".") if level]
    topic = ".".join([prefix, *levels])
    return topic if levels and len(topic.encode()) <= 255 else None
