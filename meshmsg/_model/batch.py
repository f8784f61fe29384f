"""A `Batch`: the events of one frame that a subscription takes, as columns; and one `Event` of it.

Columns are made when they are asked for, each in one or a few C calls.  An event is a view of one
row: making it costs three references, and what nobody looks at (key, headers, time) is never
decoded.  It is a `msgspec.Struct` because those are made in C; a frozen dataclass of the same shape
costs ten times as much per event.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from meshmsg._model.codecs import Codec, MsgpackCodec, Undecodable, decode_payloads
from meshmsg._model.errors import ConfigError, PayloadError
from meshmsg._model.event import Position
from meshmsg._native import COMPILED
from meshmsg._wire.frame import RAW, Frame, VarColumn

if TYPE_CHECKING:
    import pyarrow as pa
if COMPILED:
    from meshmsg import _speed


class Around(Protocol):
    """What goes round each `with event:`: a span, where a peer of this process has traces."""

    def enter(self, event: Event) -> None:
        """The block begins."""

    def leave(self, error: BaseException | None) -> None:
        """The innermost block of this thread or task ends."""


_around: Around | None = None


def go_round(around: Around) -> None:
    """From now on, have this go round each `with event:` of the process."""
    global _around
    _around = around


class Event(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One event: `topic`, `data`, `key`, `headers`, `time`, `position`, and the raw `payload`."""

    _data: Any
    _batch: Batch
    _index: int

    @property
    def data(self) -> Any:
        """The decoded payload; raises `PayloadError` if it does not decode."""
        data = self._data
        if data.__class__ is Undecodable:
            raise PayloadError(f"{self.position}: {data.reason}")
        return data

    @property
    def payload(self) -> bytes:
        """The payload as it was on the wire."""
        return self._batch.frame.payload_at(self._index)

    @property
    def topic(self) -> str:
        """The topic it was published under."""
        return self._batch.frame.topic_at(self._index)

    @property
    def key(self) -> str | None:
        """The key given by the publisher, or `None`."""
        return self._batch.frame.key_at(self._index)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given by the publisher; empty when there were none."""
        return self._batch.frame.headers_at(self._index)

    @property
    def time_ns(self) -> int:
        """When it was published, in nanoseconds since 1970 by the publisher's clock."""
        return self._batch.frame.time_at(self._index)

    @property
    def time(self) -> float:
        """When it was published, in seconds since 1970 by the publisher's clock."""
        return self.time_ns / 1e9

    @property
    def attempt(self) -> int:
        """How often it was delivered to its group, this time included; 1 outside of groups."""
        return self._batch.attempt_at(self._index)

    def __enter__(self) -> Event:
        """Of a work group: acknowledged at the end of the block, given back on an exception.

        Where there are traces, the block is a consumer span.
        """
        if _around is not None:
            _around.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _around is None:
            self._batch.settle(self._index, error)
            return
        try:
            self._batch.settle(self._index, error)
        finally:
            _around.leave(error)

    @property
    def seq(self) -> int:
        """The number of the event in its stream and epoch."""
        return self._batch.frame.first + self._index

    @property
    def position(self) -> Position:
        """The identity of the event."""
        batch = self._batch
        return Position(batch.stream, batch.frame.epoch, batch.frame.first + self._index)

    def __repr__(self) -> str:
        data = "<undecodable>" if self._data.__class__ is Undecodable else repr(self._data)
        shown = data if len(data) <= 80 else data[:77] + "..."
        key = f", key={self.key!r}" if self.key is not None else ""
        return f"<Event {self.topic}{key} {shown} at {self.position}>"


def place_of(event: Event) -> tuple[Batch, int]:
    """Return the batch of an event, and its place in the frame."""
    return event._batch, event._index


class Batch:
    """Consecutive events of one stream: `payloads`, `data`, `topics`, `keys`, `times`, `seqs`.

    >>> for batch in events.batches():                                        # doctest: +SKIP
    ...     total += sum(map(len, batch.payloads))
    """

    __slots__ = ("_data", "_payloads", "codec", "frame", "hi", "keep", "lo", "stream")

    def __init__(
        self,
        frame: Frame,
        stream: str,
        codec: Codec,
        lo: int = 0,
        hi: int | None = None,
        keep: list[int] | None = None,
    ) -> None:
        self.frame = frame
        self.stream = stream  #: the stream's name, as in a position
        self.codec = codec
        self.lo = lo
        self.hi = frame.count if hi is None else hi
        self.keep = keep  #: indices of the events taken, `None` for all from lo to hi
        self._data: list[Any] | None = None
        self._payloads: list[bytes] | None = None

    def __len__(self) -> int:
        return self.hi - self.lo if self.keep is None else len(self.keep)

    def __iter__(self) -> Iterator[Event]:
        return map(Event, self.data, repeat(self), self.indices)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from {self.stream}@{self.epoch}:{self.first}>"

    def events(self) -> list[Event]:
        """The events as a list."""
        if COMPILED and self.keep is None:
            frame = self.frame
            if frame.flags & RAW and not frame.encodings:
                return _speed.raw_events(Event, self, frame.payloads, self.lo, self.hi)
            return _speed.make_events(Event, self, self.data, self.lo)
        plain = self.frame.flags & RAW and not self.frame.encodings
        if plain and self.hi - self.lo == 1:  # idle: one event, as it came
            return [Event(self.frame.payloads.at(self.lo), self, self.lo)]
        return list(map(Event, self.data, repeat(self), self.indices))

    def attempt_at(self, index: int) -> int:
        """The attempt of the event at a place of the frame: 1 outside of work groups."""
        return 1

    def ack_at(self, index: int) -> None:
        """Only a work group can be told that an event is done."""
        raise ConfigError("ack", "only what came to a group (group=...) can be acknowledged")

    def settle(self, index: int, error: BaseException | None) -> None:
        """The end of `with event:`, of which only a work group has to be told."""

    @property
    def group(self) -> str | None:
        """The work group that it came to, if any."""
        return None

    @property
    def attempts(self) -> list[int]:
        """The attempt of each event: 1 outside of work groups."""
        return list(map(self.attempt_at, self.indices))

    @property
    def epoch(self) -> int:
        """The epoch of all its events."""
        return self.frame.epoch

    @property
    def first(self) -> int:
        """The sequence number of the first event looked at (taken or filtered)."""
        return self.frame.first + self.lo

    @property
    def stop(self) -> int:
        """One past the last event looked at: where the next batch of the stream starts."""
        return self.frame.first + self.hi

    @property
    def indices(self) -> Sequence[int]:
        """Places of the events in their frame."""
        return range(self.lo, self.hi) if self.keep is None else self.keep

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, as on the wire."""
        if self._payloads is None:
            payloads = self.frame.payloads.split(self.lo, self.hi)
            if self.keep is not None:
                lo = self.lo
                payloads = [payloads[i - lo] for i in self.keep]
            self._payloads = payloads
        return self._payloads

    @property
    def data(self) -> list[Any]:
        """The decoded payloads; `Undecodable` stands where one did not decode."""
        if self._data is None:
            self._data = self._decode()
        return self._data

    def _decode(self) -> list[Any]:
        frame, codec = self.frame, self.codec
        if frame.encodings:
            return self._decode_mixed()
        if frame.flags & RAW:
            return self.payloads
        lo, hi = self.lo, self.hi
        if (
            self.keep is None
            and hi - lo > 1
            and isinstance(codec, MsgpackCodec)
            and frame.payloads.is_value_each(lo, hi)
        ):
            try:
                return codec.decode_many(frame.payloads.slice_blob(lo, hi), hi - lo)
            except Exception:  # one of them is not of the type, or text that is not UTF-8
                pass
        return decode_payloads(codec, self.payloads)

    def _decode_mixed(self) -> list[Any]:
        encodings = self.frame.encodings
        payloads = self.payloads
        encoded = [n for n, i in enumerate(self.indices) if not encodings[i]]
        data: list[Any] = list(payloads)
        values = decode_payloads(self.codec, [payloads[n] for n in encoded])
        for n, value in zip(encoded, values, strict=True):
            data[n] = value
        return data

    @property
    def topics(self) -> list[str]:
        """The topic of each event."""
        names, ids = self.frame.topics, self.frame.topic_ids
        if ids is None:
            return [names[0]] * len(self)
        chosen = ids[self.lo : self.hi] if self.keep is None else map(ids.__getitem__, self.keep)
        return list(map(names.__getitem__, chosen))

    @property
    def keys(self) -> list[str | None]:
        """The key of each event."""
        if self.frame.key_column is None:
            return [None] * len(self)
        return list(map(self.frame.key_at, self.indices))

    @property
    def headers(self) -> list[Mapping[str, Any]]:
        """The headers of each event."""
        if self.keep is None:
            return self.frame.headers_between(self.lo, self.hi)
        return list(map(self.frame.headers_at, self.keep))

    @property
    def times_ns(self) -> list[int]:
        """The time of each event in ns since 1970."""
        if not self.frame.times_bytes:
            return [self.frame.time] * len(self)
        return list(map(self.frame.time_at, self.indices))

    @property
    def seqs(self) -> Sequence[int]:
        """The sequence number of each event."""
        first = self.frame.first
        if self.keep is None:
            return range(first + self.lo, first + self.hi)
        return [first + i for i in self.keep]

    @property
    def position(self) -> Position:
        """The position of the first event looked at."""
        return Position(self.stream, self.epoch, self.first)

    def to_arrow(self) -> pa.Table:
        """An Arrow table over the same memory.

        Columns: stream, epoch, seq, topic, key, headers, time, payload.
        `headers` are msgpack maps.  Needs pyarrow: `pip install 'meshmsg[arrow]'`.
        """
        table = _frame_table(self.frame, self.stream)
        if self.keep is not None:
            import pyarrow as pa

            # The type is said, because an empty list has none.
            return table.take(pa.array(self.keep, pa.int64()))
        return table.slice(self.lo, self.hi - self.lo)


if COMPILED:
    _speed.set_up_batches(Batch, Event)
    # Read once an event: the same as the property, without the call of a Python function.
    _slow_data: Any = Event.__dict__["data"].fget
    Event.data = _speed.data_of(Event, Undecodable, _slow_data)  # type: ignore[method-assign]


def run_out(events: Iterator[Event]) -> int:
    """Take what is left of a batch's events away from all who go through them; returns how many."""
    return len(list(events))


def _frame_table(frame: Frame, stream: str) -> pa.Table:
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigError("to_arrow", "needs pyarrow: pip install 'meshmsg[arrow]'") from None
    count = frame.count
    seqs = pa.py_buffer(array("q", range(frame.first, frame.stop)))
    zero = pa.scalar(0, pa.int32())
    if frame.topic_ids is None:
        ids = pa.repeat(zero, count)
    else:
        ids = pa.Array.from_buffers(pa.uint16(), count, [None, pa.py_buffer(frame.topic_ids)])
        ids = ids.cast(pa.int32())
    time_type = pa.timestamp("ns", tz="UTC")
    if frame.times_bytes:
        buffers = [None, pa.py_buffer(frame.times_bytes)]
        times = pa.Array.from_buffers(time_type, count, buffers)
    else:
        times = pa.repeat(pa.scalar(frame.time, time_type), count)
    return pa.table(
        {
            "stream": pa.DictionaryArray.from_arrays(pa.repeat(zero, count), pa.array([stream])),
            "epoch": pa.repeat(pa.scalar(frame.epoch, pa.int64()), count),
            "seq": pa.Array.from_buffers(pa.int64(), count, [None, seqs]),
            "topic": pa.DictionaryArray.from_arrays(ids, pa.array(frame.topics)),
            "key": _arrow_keys(frame),
            "headers": _arrow_column(pa.binary(), count, frame.header_column),
            "time": times,
            "payload": _arrow_column(pa.binary(), count, (b"", frame.payloads)),
        }
    )


def _arrow_column(
    type: pa.DataType, count: int, column: tuple[bytes, VarColumn] | None
) -> pa.Array:
    import pyarrow as pa

    if column is None:
        return pa.nulls(count, type)
    bits, values = column
    buffers = [bits or None, *values.views()]
    return pa.Array.from_buffers(
        type, count, [None if b is None else pa.py_buffer(b) for b in buffers]
    )


def _arrow_keys(frame: Frame) -> pa.Array:
    import pyarrow as pa

    keys = _arrow_column(pa.string(), frame.count, frame.key_column)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:  # a key that is not UTF-8: read it as `event.key` does
        return pa.array([frame.key_at(i) for i in range(frame.count)], pa.string())
    return keys
