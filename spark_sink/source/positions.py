"""Offsets as Spark keeps them, `{"stream/epoch": next}`: their keys, and the words around them.

Belongs here: names and types.  Does not belong here: what an offset means, and how far the next
one goes (`planning`).

Beside `stream/epoch` a stream may have other keys, where several peers keep it:

- `stream/done`: epochs up to this one are over, unless they are named.
- `stream/begun`: epochs up to this one were there when the query first saw the stream.
- `stream/epoch/owed from 0`: events from there up to the value are still to come.
- `stream/epoch/found at`: of those, the ones before the value were gone when the query began.

One more key, `topics/...`, says what the query reads of the streams (`checkpoint_topics`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshmsg import ConfigError
from meshmsg.spark_sink.errors import OtherCheckpoint

Positions = dict[str, int]

#: Epochs that ended and are read stay in an offset until so many later ones are named.
EPOCHS_KEPT = 8
#: How the key of an offset begins that says the query's topics (`checkpoint_topics`).
TOPICS = "topics/"
_KEY = re.compile(r"(?P<stream>.+/.+)/(?P<epoch>[0-9]{1,19})", re.DOTALL)
_MARK = re.compile(r"(?P<stream>.+/.+)/(?P<mark>done|begun)", re.DOTALL)
_FOUND = re.compile(r"(?P<stream>.+/.+)/(?P<epoch>[0-9]{1,19})/found at", re.DOTALL)
_OWED = re.compile(
    r"(?P<stream>.+/.+)/(?P<epoch>[0-9]{1,19})/owed from (?P<first>[0-9]{1,19})", re.DOTALL
)


class Epoch(NamedTuple):
    """Events `first` to `stop` of an epoch are there; those from `origin` on once were."""

    epoch: int
    origin: int
    first: int
    stop: int
    ended: bool = False


@dataclass(slots=True)
class StreamState:
    """One stream as a log or a peer has it now."""

    stream: str
    epochs: list[Epoch]
    codec: str = "msgpack"


@dataclass(slots=True)
class Survey:
    """All streams that can be seen now, and what could not be looked at, in words."""

    streams: dict[str, StreamState] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    spread: bool = False
    """Several places may keep a stream, and one may have what the others have not."""

    @property
    def partial(self) -> bool:
        """Whether somebody who cannot be asked now may have more of the same streams."""
        return self.spread and bool(self.problems)


class Range(NamedTuple):
    """Events `first` to `stop` of one epoch.

    Where one place keeps the stream, 0 as `first` is its beginning, wherever that is.
    """

    stream: str
    epoch: int
    first: int
    stop: int

    @property
    def events(self) -> int:
        """How many numbers it has."""
        return self.stop - self.first


def key_of(stream: str, epoch: int) -> str:
    """The name of an epoch in an offset.

    >>> key_of("pricing/orders.**", 1700000000000000)
    'pricing/orders.**/1700000000000000'
    """
    return f"{stream}/{epoch}"


def parse_key(key: str) -> tuple[str, int] | None:
    """Stream and epoch; `None` if it is no key of ours."""
    found = _KEY.fullmatch(key)
    return (found["stream"], int(found["epoch"])) if found else None


def done_key(stream: str) -> str:
    """Where an offset says which epochs are over."""
    return f"{stream}/done"


def begun_key(stream: str) -> str:
    """Where an offset says which epochs were there when it began."""
    return f"{stream}/begun"


def owed_key(stream: str, epoch: int, first: int) -> str:
    """Where an offset says what is still to come of an epoch, from `first` on.

    >>> owed_key("pricing/orders.**", 1700000000000000, 0)
    'pricing/orders.**/1700000000000000/owed from 0'
    """
    return f"{stream}/{epoch}/owed from {first}"


def parse_mark(key: str) -> tuple[str, str] | None:
    """Stream, and `done` or `begun`; `None` if it is another key."""
    found = _MARK.fullmatch(key)
    return (found["stream"], found["mark"]) if found else None


def parse_owed(key: str) -> tuple[str, int, int] | None:
    """Stream, epoch and the first that is still to come; `None` if it is another key."""
    found = _OWED.fullmatch(key)
    return (found["stream"], int(found["epoch"]), int(found["first"])) if found else None


def stream_of(key: str) -> str | None:
    """The stream of a key of whatever kind; `None` if it is none of ours."""
    found = parse_key(key) or parse_mark(key) or parse_owed(key) or parse_found(key)
    return found[0] if found else None


def found_key(stream: str, epoch: int) -> str:
    """Where an offset says how far an epoch was gone when the query began."""
    return f"{stream}/{epoch}/found at"


def parse_found(key: str) -> tuple[str, int] | None:
    """Stream and epoch; `None` if it is another key."""
    found = _FOUND.fullmatch(key)
    return (found["stream"], int(found["epoch"])) if found else None


def in_order(positions: Mapping[str, int]) -> Positions:
    """The same, sorted: Spark compares offsets as text."""
    return dict(sorted(positions.items()))


def check_offset(offset: Any) -> Positions:
    """The positions of an offset from a checkpoint of ours; raises `OtherCheckpoint`."""
    good = isinstance(offset, dict) and all(
        (stream_of(key) is not None or key.startswith(TOPICS)) and type(value) is int and value >= 0
        for key, value in offset.items()
    )
    if not good:
        shown = json.dumps(offset)[:200]
        raise OtherCheckpoint(f"it holds {shown}, which is not a position in meshmsg streams")
    return {key: value for key, value in offset.items() if stream_of(key) is not None}


def by_stream(positions: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The same by stream and epoch."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for key, value in positions.items():
        parsed = parse_key(key)
        if parsed is not None:
            found[parsed[0]][parsed[1]] = value
    return found


def newest(survey: Survey) -> Positions:
    """Behind the newest event of each stream."""
    found = {}
    for state in survey.streams.values():
        if state.epochs:
            last = state.epochs[-1]
            found[key_of(state.stream, last.epoch)] = last.stop
    return in_order(found)


def split(ranges: Iterable[Range], shares: int) -> list[list[Range]]:
    """The same ranges in about equal shares, each of them in order."""
    ranges = list(ranges)
    total = sum(r.events for r in ranges)
    parts: list[list[Range]] = []
    done = 0
    for number in range(shares):
        part: list[Range] = []
        wanted = total * (number + 1) // shares - done
        while wanted > 0 and ranges:
            head = ranges[0]
            taken = min(wanted, head.events)
            part.append(head._replace(stop=head.first + taken))
            ranges[0] = head._replace(first=head.first + taken)
            if not ranges[0].events:
                ranges.pop(0)
            wanted -= taken
            done += taken
        if part:
            parts.append(part)
    return parts


def parse_positions(text: str, field_name: str) -> dict[str, int | str]:
    """`{"stream/epoch": next, "stream": "earliest"}` from JSON; raises `ConfigError`."""
    problem = (
        f"{text!r} is not a JSON object of positions: write "
        f'{{"peer/stream/epoch": number}} or {{"peer/stream": "earliest"}}'
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError(field_name, problem) from None
    if not isinstance(found, dict):
        raise ConfigError(field_name, problem)
    found = {key: value for key, value in found.items() if not key.startswith(TOPICS)}
    for key, value in found.items():
        by_number = type(value) is int and value >= 0 and stream_of(key) is not None
        if not by_number and value not in ("earliest", "latest"):
            raise ConfigError(field_name, f"{key!r}: {value!r} in {problem}")
    return found
