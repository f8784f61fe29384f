"""Logs for the tests of the Spark source, written as a peer writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame, encode_headers
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.writer import LogWriter

STREAM = "shop/orders.**"
EPOCH = 1_700_000_000_000_000
TIME = 1_700_000_000_000_000_000  # ns


class E(NamedTuple):
    """An event to be written."""

    data: Any
    topic: str = "orders.eu"
    key: str | None = None
    headers: Mapping[str, Any] | None = None
    time_ns: int = TIME
    raw: bool = False

    @property
    def payload(self) -> bytes:
        return self.data if self.raw else msgspec.msgpack.encode(self.data)


class Log:
    """A log that is written in the test's own process."""

    def __init__(
        self, data_dir: Path | str, stream: str = STREAM, *, codec: str = "msgpack", **settings: Any
    ) -> None:
        self.stream = stream
        chosen = LogSettings(**{"fsync": "never", "tail_bytes": 0, **settings})
        self.writer = LogWriter(str(data_dir), stream, codec=codec, settings=chosen)
        self.writer.open()
        self._wire_id = stream_wire_id("default", stream)

    def begin(self, epoch: int = EPOCH, first: int = 0) -> int:
        return self.writer.begin(epoch, first)

    def write(self, events: Iterable[E], *, frame_events: int = 4096) -> None:
        """Append events in frames of so many."""
        waiting = list(events)
        for at in range(0, len(waiting), frame_events):
            self.write_frame(waiting[at : at + frame_events])

    def write_frame(self, events: Sequence[E]) -> None:
        first = self.writer.next
        frame = encode_frame(
            self._wire_id,
            self.writer.epoch,
            first,
            [event.topic for event in events],
            [event.payload for event in events],
            [event.time_ns for event in events],
            raw=bytes(event.raw for event in events),
            keys={i: event.key for i, event in enumerate(events) if event.key is not None},
            headers={i: encode_headers(e.headers) for i, e in enumerate(events) if e.headers},
        )
        self.writer.append(frame, first, first + len(events))

    def lose(self, count: int, reason: str) -> None:
        first = self.writer.next
        self.writer.append_loss(first, first + count, reason)

    def close(self) -> None:
        self.writer.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def numbered(first: int, stop: int, **fields: Any) -> list[E]:
    """Events whose data says their number."""
    return [E({"n": n, "price": n / 4, "name": f"name {n}"}, **fields) for n in range(first, stop)]


def write_log(
    data_dir: Path | str, count: int, *, stream: str = STREAM, frame_events: int = 500
) -> None:
    """A closed log with so many numbered events of one epoch."""
    with Log(data_dir, stream) as log:
        log.begin()
        log.write(numbered(0, count), frame_events=frame_events)
