"""Offsets as Spark keeps them: `{"stream/epoch": next}`, and what lies between two of them.

Pure: dictionaries in, dictionaries and ranges out.  Two rules make an offset mean the same rows
whenever it is read again:

- An epoch that an offset does not name starts at its beginning, if no later epoch of its stream is
  named.  If one is, it was read to its end (or the query began behind it), and is left out.
- Positions never go back.
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
_KEY = re.compile(r"(?P<stream>.+/.+)/(?P<epoch>[0-9]{1,19})", re.DOTALL)


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


class Range(NamedTuple):
    """Events `first` to `stop` of one epoch; 0 as `first` is its beginning, wherever that is."""

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


def in_order(positions: Mapping[str, int]) -> Positions:
    """The same, sorted: Spark compares offsets as text."""
    return dict(sorted(positions.items()))


def check_offset(offset: Any) -> Positions:
    """An offset from a checkpoint, if it is one of ours; raises `OtherCheckpoint`."""
    good = isinstance(offset, dict) and all(
        parse_key(key) is not None and type(value) is int and value >= 0
        for key, value in offset.items()
    )
    if not good:
        shown = json.dumps(offset)[:200]
        raise OtherCheckpoint(f"it holds {shown}, which is not a position in meshmsg streams")
    return dict(offset)


def by_stream(positions: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The same by stream and epoch."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for key, value in positions.items():
        parsed = parse_key(key)
        if parsed is not None:
            found[parsed[0]][parsed[1]] = value
    return found


def earliest(survey: Survey) -> Positions:
    """Before the oldest event of each stream."""
    return in_order(
        {
            key_of(state.stream, epoch.epoch): epoch.first
            for state in survey.streams.values()
            for epoch in state.epochs
            if epoch.stop > epoch.first
        }
    )


def newest(survey: Survey) -> Positions:
    """Behind the newest event of each stream."""
    found = {}
    for state in survey.streams.values():
        if state.epochs:
            last = state.epochs[-1]
            found[key_of(state.stream, last.epoch)] = last.stop
    return in_order(found)


def available(start: Mapping[str, int], survey: Survey) -> Positions:
    """Where a reader that stands at `start` can go: all that is there now."""
    target = dict(start)
    named = by_stream(start)
    for state in survey.streams.values():
        known = named.get(state.stream, {})
        newest_named = max(known, default=0)
        for epoch in state.epochs:
            if epoch.epoch in known:
                key = key_of(state.stream, epoch.epoch)
                target[key] = max(target[key], epoch.stop)
            elif epoch.epoch > newest_named and (known or epoch.stop > epoch.first):
                # One that has expired as a whole is named too: what was missed is to be seen.
                target[key_of(state.stream, epoch.epoch)] = epoch.stop
    return in_order(target)


def backlog(start: Mapping[str, int], end: Mapping[str, int], survey: Survey) -> list[Range]:
    """The ranges between two offsets that have events, by stream and epoch."""
    ranges = []
    for stream, epochs in sorted(by_stream(end).items()):
        state = survey.streams.get(stream)
        origins = {e.epoch: e.origin for e in state.epochs} if state is not None else {}
        for epoch, stop in sorted(epochs.items()):
            # Whoever has read some of it misses what a log that was begun anew does not have.
            first = start.get(key_of(stream, epoch), 0) or origins.get(epoch, 0)
            if stop > first:
                ranges.append(Range(stream, epoch, first, stop))
    return ranges


def limited(
    start: Mapping[str, int], end: Mapping[str, int], survey: Survey, events_max: int
) -> Positions:
    """As far towards `end` as so many events go; each stream gets its share, old epochs first."""
    waiting: dict[str, list[Range]] = defaultdict(list)
    for found in backlog(start, end, survey):
        waiting[found.stream].append(found)
    counts = {stream: sum(r.events for r in ranges) for stream, ranges in waiting.items()}
    if sum(counts.values()) <= events_max:
        return in_order(end)
    shares = _shares(counts, events_max)
    # An epoch is named when something of it is taken: never before all older ones are.
    reached = dict(start)
    for stream, ranges in waiting.items():
        left = shares[stream]
        for epoch_range in ranges:
            taken = min(left, epoch_range.events)
            if taken:
                reached[key_of(stream, epoch_range.epoch)] = epoch_range.first + taken
            left -= taken
    return in_order(reached)


def _shares(counts: Mapping[str, int], events_max: int) -> dict[str, int]:
    """What each stream may have of the limit: by its backlog, at least one while it lasts."""
    total, left = sum(counts.values()), events_max
    shares = {}
    for stream, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        share = min(count, left, max(1, events_max * count // total))
        shares[stream] = share
        left -= share
    largest = max(counts, key=lambda stream: counts[stream])
    shares[largest] = min(counts[largest], shares[largest] + left)
    return shares


def pruned(start: Mapping[str, int], end: Mapping[str, int], survey: Survey) -> Positions:
    """Without epochs that ended, were read before this batch, and lie far back."""
    kept = dict(end)
    for stream, epochs in by_stream(end).items():
        state = survey.streams.get(stream)
        if state is None or len(epochs) <= EPOCHS_KEPT:
            continue
        ended = {e.epoch: e.stop for e in state.epochs if e.ended}
        for epoch in sorted(epochs)[:-EPOCHS_KEPT]:
            key = key_of(stream, epoch)
            if epoch in ended and start.get(key, -1) >= ended[epoch]:
                del kept[key]
    return in_order(kept)


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
    for key, value in found.items():
        by_number = type(value) is int and value >= 0 and parse_key(key) is not None
        if not by_number and value not in ("earliest", "latest"):
            raise ConfigError(field_name, f"{key!r}: {value!r} in {problem}")
    return found
