"""Small frames of a log, read as one larger frame.

A log that was written event by event has a frame for each event, and each frame costs on its way
what a thousand events cost in one.  So who reads a log joins frames that follow each other: the
numbers, topics, times, keys, headers, encodings and payloads are those of the frames that were
written.  The walk ends before the first record that is odd in any way: damage, another kind of
record, a frame that is large already.  That one is read by itself, and judged there.

Pure: bytes in, bytes out.  The compiled function and the Python beside it give the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from meshmsg._model.errors import ProtocolError
from meshmsg._native import COMPILED
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.frame_columns import topic_tables
from meshmsg._wire.frame_layout import HEADER
from meshmsg.recovery.log.format import (
    FRAME_RECORD,
    RECORD_HEAD_BYTES,
    RecordHead,
    SegmentHead,
    frame_is_good,
    read_record_head,
)

if COMPILED:
    from meshmsg import _speed

#: A larger frame is worth its own way.
SMALL_BYTES_MAX = 16 * 1024
#: What is joined at once: bytes of records, events, and topics.
JOIN_BYTES_MAX = 256 * 1024
JOIN_EVENTS_MAX = 8192
JOIN_TOPICS_MAX = 512


class Joined(NamedTuple):
    """A frame made of several, the latest time of their records, and the bytes these take."""

    frame: bytes
    first: int
    stop: int
    time_ns: int
    size: int


def join_records(
    data: bytes, at: int, offset: int, *, segment: SegmentHead, salt: int, first: int, limit: int
) -> Joined | None:
    """Join the frames of the records from `data[at]` on, which stands at `offset` in its segment.

    The first of them holds the event `first`; each of them begins before `limit`.  `None` where
    fewer than two can be joined.
    """
    if not COMPILED:
        return join_records_in_python(
            data, at, offset, segment=segment, salt=salt, first=first, limit=limit
        )
    found = _speed.join_records(
        data, at, offset, salt, segment.wire_id, segment.epoch, first, limit
    )
    return None if found is None else Joined(*found)


def topics_are_good(frame: bytes) -> bool:
    """Return whether the topics of a joined frame are well formed: that is not looked at before."""
    count, size = HEADER.unpack_from(frame)[9:11]
    try:
        topic_tables.read(frame[HEADER.size : HEADER.size + size], count)
    except ProtocolError:
        return False
    return True


def join_records_in_python(
    data: bytes, at: int, offset: int, *, segment: SegmentHead, salt: int, first: int, limit: int
) -> Joined | None:
    """As `join_records`, in plain words."""
    frames: list[Frame] = []
    topics: set[str] = set()
    latest, size, stop = 0, 0, first
    while (head := read_record_head(salt, offset + size, data, at + size)) is not None:
        joins = head.first == stop if frames else head.first <= first < head.stop
        if not joins or head.first >= limit or size + head.size > JOIN_BYTES_MAX:
            break
        frame = _small_frame(data, at + size, segment, head)
        if frame is None or head.stop - (frames or [frame])[0].first > JOIN_EVENTS_MAX:
            break
        topics.update(_topics_of(frame))
        if max(len(topics), len(frame.topics)) > JOIN_TOPICS_MAX:
            break
        latest = max(latest, head.time_ns) if frames else head.time_ns
        frames.append(frame)
        size, stop = size + head.size, head.stop
    if len(frames) < 2:
        return None
    return Joined(_joined(frames), frames[0].first, stop, latest, size)


def _small_frame(data: bytes, at: int, segment: SegmentHead, head: RecordHead) -> Frame | None:
    if head.kind != FRAME_RECORD or head.length > SMALL_BYTES_MAX:
        return None
    content = data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + head.length]
    if not frame_is_good(content, segment.wire_id, segment.epoch, head):
        return None
    try:
        return Frame(content)
    except ProtocolError:
        return None


def _topics_of(frame: Frame) -> list[str]:
    return [frame.topic_at(index) for index in range(frame.count)]


def _headers_of(frame: Frame) -> list[bytes | None]:
    if frame.header_column is None:
        return [None] * frame.count
    bits, items = frame.header_column
    present = [bits[index >> 3] >> (index & 7) & 1 for index in range(frame.count)]
    return [items.at(index) if bit else None for index, bit in enumerate(present)]


def _joined(frames: list[Frame]) -> bytes:
    """One frame with the events of all."""
    events = [(frame, index) for frame in frames for index in range(frame.count)]
    raw = bytes(frame.is_raw(index) for frame, index in events)
    keys = [frame.key_at(index) for frame, index in events]
    headers = [item for frame in frames for item in _headers_of(frame)]
    return encode_frame(
        frames[0].stream,
        frames[0].epoch,
        frames[0].first,
        [frame.topic_at(index) for frame, index in events],
        [frame.payload_at(index) for frame, index in events],
        [frame.time_at(index) for frame, index in events],
        raw=raw if 0 < sum(raw) < len(raw) else bool(raw[0]),
        keys={n: key for n, key in enumerate(keys) if key is not None},
        headers={n: item for n, item in enumerate(headers) if item is not None},
    )
