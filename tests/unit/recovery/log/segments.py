"""Segments that are written by hand, for the tests of this folder."""

from __future__ import annotations

from random import Random

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.active_segment import ActiveSegment
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.format import FRAME_RECORD, SegmentHead

DATA = "/data"
WIRE_ID, EPOCH = 5, 7


def memory() -> FaultyFiles:
    return FaultyFiles(Random(1))


def head(first: int = 0, term: int = 0) -> SegmentHead:
    return SegmentHead(WIRE_ID, EPOCH, first, b"saltsalt", 1, term)


def begun(files: FaultyFiles, first: int = 0, *, allocate_bytes: int = 0) -> ActiveSegment:
    """A segment with its name."""
    active = ActiveSegment.create(files, DATA, head(first), allocate_bytes)
    active.sync()
    active.publish()
    return active


def put(active: ActiveSegment, *payloads: bytes, time_ns: int = 1) -> int:
    """A frame behind all others; returns its offset."""
    first = active.next
    content = encode_frame(WIRE_ID, EPOCH, first, "a.b", list(payloads), time_ns)
    return active.put(FRAME_RECORD, content, first, first + len(payloads), time_ns)
