"""Parts of frames, and the message that carries them to a member of a work group.

A part is a frame of its own: consecutive numbers from the first event that is wanted to the last.
Events in between that are for somebody else are left blank (no payload, four bytes each), so that
positions need no second column: every event still has the number that its place says.

docs/wire-format.md is the specification of the work message.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

import msgspec

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import RAW, Frame, encode_frame

WORK_MAGIC = b"MMW1"
#: member, magic, attempt (0: one for each event), lo, hi, chosen
WORK_HEADER = Struct("<Q4sIIII")
#: Blank events in a row that are cheaper than a frame of their own.
BLANKS_MAX = 32
#: A frame of which at least this share is wanted goes as it is.
WHOLE_SHARE = 0.5
FLAGS_AT = 48
ATTEMPT_MAX = 1_000_000
SWAP = sys.byteorder != "little"


class Work(msgspec.Struct, frozen=True, gc=False):
    """Events of one frame for one member: places `lo` to `hi`, or those in `chosen`."""

    data: bytes
    lo: int
    hi: int
    chosen: list[int] | None
    attempt: int
    attempts: list[int] | None = None

    @property
    def count(self) -> int:
        """How many events."""
        return self.hi - self.lo if self.chosen is None else len(self.chosen)


def flags_of(data: bytes) -> int:
    """The flags of a frame of our own, without reading the rest."""
    return data[FLAGS_AT] | data[FLAGS_AT + 1] << 8


def cut(frame: Frame, lo: int, hi: int, chosen: Sequence[int] | None = None) -> bytes:
    """Events `lo` to `hi` of a frame as a frame; all but the `chosen` are blank."""
    count = hi - lo
    if chosen is None and not frame.flags & ~RAW and len(frame.topics) == 1:
        return encode_frame(
            frame.stream,
            frame.epoch,
            frame.first + lo,
            frame.topics[0],
            frame.payloads.split(lo, hi),
            frame.time,
            raw=bool(frame.flags & RAW),
        )
    if chosen is None:
        payloads = frame.payloads.split(lo, hi)
        wanted: Sequence[int] = range(lo, hi)
    else:
        payloads = [b""] * count
        wanted = chosen
        for index in chosen:
            payloads[index - lo] = frame.payloads.at(index)
    keys = {}
    if frame.key_column is not None:
        for index in wanted:
            key = frame.key_at(index)
            if key is not None:
                keys[index - lo] = key
    headers = {}
    if frame.header_column is not None:
        bits, column = frame.header_column
        for index in wanted:
            if bits[index >> 3] >> (index & 7) & 1:
                headers[index - lo] = column.at(index)
    ids = frame.topic_ids
    topics: str | list[str] = frame.topics[0]
    if ids is not None:
        topics = list(map(frame.topics.__getitem__, ids[lo:hi]))
    times: int | list[int] = frame.time
    if frame.times_bytes:
        stamps = array("q")
        stamps.frombytes(frame.times_bytes[8 * lo : 8 * hi])
        times = _native(stamps).tolist()
    raw: bool | bytes = bool(frame.flags & RAW)
    if frame.encodings:
        raw = frame.encodings[lo:hi]
    return encode_frame(
        frame.stream,
        frame.epoch,
        frame.first + lo,
        topics,
        payloads,
        times,
        raw=raw,
        keys=keys,
        headers=headers,
    )


def encode_work(member: int, work: Work) -> bytes:
    """The message for a member: header, places and attempts where there are any, the frame."""
    chosen = work.chosen or []
    head = WORK_HEADER.pack(
        member,
        WORK_MAGIC,
        0 if work.attempts else work.attempt,
        work.lo,
        work.hi,
        0 if work.chosen is None else len(chosen),
    )
    if work.chosen is None and work.attempts is None:
        return head + work.data
    column = array("I", [*chosen, *(work.attempts or [])])
    return b"".join((head, _little(column), work.data))


def decode_work(member: int, data: bytes) -> tuple[Frame, Work]:
    """Read one; raises `ProtocolError`."""
    if len(data) < WORK_HEADER.size:
        raise ProtocolError(f"a work message of {len(data)} bytes")
    to, magic, attempt, lo, hi, count = WORK_HEADER.unpack_from(data)
    if magic != WORK_MAGIC or to != member:
        raise ProtocolError("not a work message for this member")
    at = WORK_HEADER.size
    chosen: list[int] | None = None
    attempts: list[int] | None = None
    if count:
        chosen, at = _read(data, at, count)
    if not attempt:
        attempts, at = _read(data, at, count or max(0, hi - lo))
    frame = Frame(data[at:])
    if not lo < hi <= frame.count or attempt > ATTEMPT_MAX:
        raise ProtocolError("a work message out of range")
    if chosen is not None and not _grows(chosen, lo, hi):
        raise ProtocolError("places of a work message out of range")
    if attempts is not None and not all(0 < n <= ATTEMPT_MAX for n in attempts):
        raise ProtocolError("attempts out of range")
    return frame, Work(frame.data, lo, hi, chosen, attempt, attempts)


def _grows(chosen: list[int], lo: int, hi: int) -> bool:
    inside = lo <= chosen[0] and chosen[-1] < hi
    return inside and all(a < b for a, b in pairwise(chosen))


def _read(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    stop = at + 4 * count
    if stop > len(data):
        raise ProtocolError("a work message that ends too soon")
    column = array("I")
    column.frombytes(data[at:stop])
    return _native(column).tolist(), stop


def _little(column: array[int]) -> bytes:
    return _native(column).tobytes()


def _native(column: array[int]) -> array[int]:
    if SWAP:
        column.byteswap()
    return column


def parts_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Cut rising numbers where the gap is too wide for blanks; places of the list, half-open."""
    parts = []
    start = 0
    for at in range(1, len(seqs)):
        if seqs[at] - seqs[at - 1] > BLANKS_MAX:
            parts.append((start, at))
            start = at
    parts.append((start, len(seqs)))
    return parts
