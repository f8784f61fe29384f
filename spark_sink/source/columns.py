"""Frames as Arrow record batches: whole columns, gathered until a batch is worth its way to Spark.

Belongs here: the columns that every event has, and which events of a frame are wanted.  Does not
belong here: what a payload means (`payloads`).  There is no loop over events, except in frames of a
few events, where a loop costs less than columns do.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshmsg import Loss
from meshmsg._model.topics import TopicFilter
from meshmsg._wire.frame import RAW, Frame, VarColumn
from meshmsg.recovery.stream.receiver import Run

#: A batch is handed to Spark when it has so many events, or so many bytes.
BATCH_EVENTS = 65_536
BATCH_BYTES = 16 * 1024 * 1024
#: Below, a run is taken apart event by event.
RUN_EVENTS_MIN = 24

HEADERS_TYPE = pa.map_(pa.string(), pa.string())
TIME_TYPE = pa.timestamp("us", tz="UTC")
LOSS_TYPE = pa.struct([("first", pa.int64()), ("stop", pa.int64()), ("reason", pa.string())])

#: Each with the type that Spark calls it by.
EVENT_COLUMNS = {
    "stream": "STRING",
    "epoch": "BIGINT",
    "seq": "BIGINT",
    "topic": "STRING",
    "key": "STRING",
    "headers": "MAP<STRING, STRING>",
    "time": "TIMESTAMP",
}
LOSS_COLUMNS = {
    "stream": "STRING",
    "epoch": "BIGINT",
    "first": "BIGINT",
    "stop": "BIGINT",
    "events": "BIGINT",
    "reason": "STRING",
}


class Part(NamedTuple):
    """Events of one frame, or of several small ones: what all share is not yet a column."""

    events: int
    epoch: int
    seqs: pa.Array
    topics: pa.Array | str
    keys: pa.Array | None
    headers: pa.Array | None
    times: pa.Array
    payloads: pa.Array
    raw: bytes | bool
    """Whether payloads were given as bytes: of all, or one byte an event."""


class Gathered(NamedTuple):
    """Columns of events of one stream, in the order of the schema, and their payloads."""

    columns: list[pa.Array]
    payloads: pa.Array
    raw: list[bytes | bool]
    counts: list[int]

    @property
    def events(self) -> int:
        """How many events."""
        return len(self.payloads)


def gather(
    items: Iterable[Run | Loss], stream: str, topics: TopicFilter
) -> Iterator[Gathered | Loss]:
    """Columns of the events that are wanted, in pieces of a good size; losses in between."""
    parts: list[Part] = []
    few = _Few()
    size = events = 0
    for item in items:
        if isinstance(item, Loss):
            if _settle(parts, few):
                yield _joined(parts, stream)
            parts, size, events = [], 0, 0
            yield item
            continue
        if item.hi - item.lo < RUN_EVENTS_MIN:
            few.add(item, topics)
        else:
            _settle(parts, few)
            part = _part(item, topics)
            if part is not None:
                parts.append(part)
        size += len(item.frame.data)
        events += item.hi - item.lo
        if events >= BATCH_EVENTS or size >= BATCH_BYTES:
            if _settle(parts, few):
                yield _joined(parts, stream)
            parts, size, events = [], 0, 0
    if _settle(parts, few):
        yield _joined(parts, stream)


def _settle(parts: list[Part], few: _Few) -> bool:
    """Put what is in `few` behind the parts; returns whether there are any."""
    part = few.take()
    if part is not None:
        parts.append(part)
    return bool(parts)


def _joined(parts: list[Part], stream: str) -> Gathered:
    counts = [part.events for part in parts]
    total = sum(counts)
    columns = [
        same_text(stream, total),
        same_number(parts[0].epoch, total),  # a range lies in one epoch
        _concat([part.seqs for part in parts]),
        _joined_topics(parts, total),
        _joined_sparse([part.keys for part in parts], counts, pa.string()),
        _joined_sparse([part.headers for part in parts], counts, HEADERS_TYPE),
        _concat([part.times for part in parts]),
    ]
    payloads = _concat([part.payloads for part in parts])
    return Gathered(columns, payloads, [part.raw for part in parts], counts)


def _concat(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _joined_topics(parts: list[Part], total: int) -> pa.Array:
    found = {part.topics if isinstance(part.topics, str) else None for part in parts}
    if len(found) == 1:
        (topic,) = found
        if topic is not None:
            return same_text(topic, total)
    return _concat(
        [
            same_text(part.topics, part.events) if isinstance(part.topics, str) else part.topics
            for part in parts
        ]
    )


def _joined_sparse(arrays: list[pa.Array | None], counts: list[int], type: pa.DataType) -> pa.Array:
    if all(array is None for array in arrays):
        return pa.nulls(sum(counts), type)
    return _concat(
        [
            pa.nulls(count, type) if array is None else array
            for array, count in zip(arrays, counts, strict=True)
        ]
    )


# --- columns of one value: made by repeating bytes, which costs a tenth of what pyarrow takes ----


_texts: dict[str, pa.Array] = {}
#: Bytes of a text that is kept for the next time, and how many are.
_TEXT_KEPT_BYTES = 64
_TEXTS_KEPT = 64


def same_text(text: str, count: int) -> pa.Array:
    """A column with one text in every row."""
    known = _texts.get(text)
    if known is not None and len(known) >= count:
        return known.slice(0, count)
    data = text.encode()
    size = len(data)
    if not size * count:
        return pa.array([text] * count, pa.string())
    offsets = pa.py_buffer(array("i", range(0, size * count + 1, size)))
    made = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(data * count)])
    if size <= _TEXT_KEPT_BYTES:
        if len(_texts) >= _TEXTS_KEPT:
            _texts.clear()
        _texts[text] = made
    return made


def same_number(value: int, count: int, type: pa.DataType | None = None) -> pa.Array:
    """A column with one number in every row."""
    data = pa.py_buffer(array("q", (value,)) * count)
    return pa.Array.from_buffers(type or pa.int64(), count, [None, data])


# --- a frame of many events ----------------------------------------------------------------------


def _part(run: Run, topics: TopicFilter) -> Part | None:
    frame, lo, hi = run
    wanted = [topics.matches(topic) for topic in frame.topics]
    if not any(wanted):
        return None
    count = hi - lo
    part = Part(
        count,
        frame.epoch,
        numbers(frame.first + lo, frame.first + hi),
        _topics(frame, lo, count),
        None if frame.key_column is None else _keys(frame).slice(lo, count),
        None if frame.header_column is None else _headers(frame, lo, hi),
        _times(frame, lo, count),
        _binary(pa.binary(), frame.count, b"", frame.payloads).slice(lo, count),
        frame.encodings[lo:hi] or bool(frame.flags & RAW),
    )
    if frame.topic_ids is None or all(wanted):
        return part
    return _filtered(part, pa.array(wanted).take(pa.array(frame.topic_ids[lo:hi], pa.int32())))


def _filtered(part: Part, keep: pa.Array) -> Part | None:
    count = keep.true_count
    if not count:
        return None
    raw = part.raw
    if isinstance(raw, bytes):
        raw = bytes(flag for flag, kept in zip(raw, keep.to_pylist(), strict=True) if kept)
    return Part(
        count,
        part.epoch,
        part.seqs.filter(keep),
        part.topics if isinstance(part.topics, str) else part.topics.filter(keep),
        None if part.keys is None else part.keys.filter(keep),
        None if part.headers is None else part.headers.filter(keep),
        part.times.filter(keep),
        part.payloads.filter(keep),
        raw,
    )


def numbers(first: int, stop: int) -> pa.Array:
    """The numbers from `first` to `stop`, as a column."""
    if hasattr(pa, "arange"):
        return pa.arange(first, stop)
    return pa.Array.from_buffers(
        pa.int64(), stop - first, [None, pa.py_buffer(array("q", range(first, stop)))]
    )


def _topics(frame: Frame, lo: int, count: int) -> pa.Array | str:
    if frame.topic_ids is None:
        return frame.topics[0]
    ids = pa.array(frame.topic_ids[lo : lo + count], pa.int32())
    return pa.array(frame.topics, pa.string()).take(ids)


def _binary(type: pa.DataType, count: int, bits: bytes, values: VarColumn) -> pa.Array:
    offsets, blob = values.views()
    validity = pa.py_buffer(bits) if bits else None
    return pa.Array.from_buffers(type, count, [validity, pa.py_buffer(offsets), pa.py_buffer(blob)])


def _keys(frame: Frame) -> pa.Array:
    assert frame.key_column is not None
    keys = _binary(pa.string(), frame.count, *frame.key_column)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:  # a key that is not UTF-8: as `event.key` reads it
        return pa.array([frame.key_at(i) for i in range(frame.count)], pa.string())
    return keys


def _headers(frame: Frame, lo: int, hi: int) -> pa.Array:
    return pa.array([header_row(frame.headers_at(i)) for i in range(lo, hi)], HEADERS_TYPE)


def header_row(headers: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Headers as texts: a text is itself, anything else is JSON."""
    if not headers:
        return None
    return [
        (name, value if isinstance(value, str) else json.dumps(value, default=repr))
        for name, value in headers.items()
    ]


def _times(frame: Frame, lo: int, count: int) -> pa.Array:
    if not frame.times_bytes:
        return same_number(frame.time // 1000, count, TIME_TYPE)
    nanos = pa.Array.from_buffers(pa.int64(), frame.count, [None, pa.py_buffer(frame.times_bytes)])
    return pc.divide(nanos.slice(lo, count), 1000).cast(TIME_TYPE)


# --- frames of few events ------------------------------------------------------------------------


class _Few:
    """Events of small frames, as lists until they are worth columns."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._epoch = 0
        self._seqs: list[int] = []
        self._topics: list[str] = []
        self._keys: list[str | None] = []
        self._headers: list[Any] = []
        self._times: list[int] = []
        self._payloads: list[bytes] = []
        self._raw: list[bool] = []

    def add(self, run: Run, topics: TopicFilter) -> None:
        """Take the wanted ones of a run."""
        frame, lo, hi = run
        first = frame.first
        self._epoch = frame.epoch
        for i in range(lo, hi):
            topic = frame.topic_at(i)
            if topics.matches(topic):
                self._seqs.append(first + i)
                self._topics.append(topic)
                self._keys.append(frame.key_at(i))
                self._headers.append(header_row(frame.headers_at(i)))
                self._times.append(frame.time_at(i) // 1000)
                self._payloads.append(frame.payloads.at(i))
                self._raw.append(frame.is_raw(i))

    def take(self) -> Part | None:
        """All so far, as columns."""
        if not self._seqs:
            return None
        raw = bytes(self._raw) if len(set(self._raw)) > 1 else self._raw[0]
        part = Part(
            len(self._seqs),
            self._epoch,
            pa.array(self._seqs, pa.int64()),
            pa.array(self._topics, pa.string()),
            pa.array(self._keys, pa.string()),
            pa.array(self._headers, HEADERS_TYPE),
            pa.array(self._times, TIME_TYPE),
            pa.array(self._payloads, pa.binary()),
            raw,
        )
        self._clear()
        return part


# --- losses --------------------------------------------------------------------------------------


def loss_row(loss: Loss, schema: pa.Schema) -> pa.RecordBatch:
    """A loss as a row of the table of losses."""
    row = (loss.stream, loss.epoch, loss.first, loss.stop, loss.count, loss.reason)
    return pa.RecordBatch.from_arrays(
        [pa.array([value], f.type) for value, f in zip(row, schema, strict=True)], schema=schema
    )


def loss_among_events(loss: Loss, schema: pa.Schema) -> pa.RecordBatch:
    """A loss as a row between events: where it begins, and nothing but `loss`."""
    given = {
        "stream": loss.stream,
        "epoch": loss.epoch,
        "seq": loss.first,
        "loss": {"first": loss.first, "stop": loss.stop, "reason": loss.reason},
    }
    return pa.RecordBatch.from_arrays(
        [pa.array([given.get(f.name)], f.type) for f in schema], schema=schema
    )
