"""Packets of one frame that follow each other in a datagram: handled together, as one run.

A run is kept as the datagram that it is a part of, so that it costs the same however many packets
it has.
"""

from __future__ import annotations

from typing import Any

from meshmsg._native import COMPILED
from meshmsg._wire.packet import DATA_HEAD, REPAIR

if COMPILED:
    from meshmsg import _speed

#: Where the payload of a data packet starts.
PAYLOAD_AT = DATA_HEAD.size
_unpack_head = DATA_HEAD.unpack_from


#: Packets that follow each other, of one frame: how many; the datagram, where in it they begin, and
#: the size of each (the last may be shorter); the place of the first in its frame, and what all
#: packets of that frame say of it: first event, bytes, packets, events.  Plain, as it is made for
#: each datagram.
Run = tuple[int, bytes, int, int, int, tuple[Any, ...]]


def run_size(run: Run) -> int:
    """Bytes of all its packets, as if the last one was no shorter."""
    return run[0] * run[3]


def run_packet(run: Run, place: int) -> bytes:
    """One of its packets."""
    _, data, at, size, *_ = run
    return data[at + place * size : at + (place + 1) * size]


def run_length(data: bytes, at: int, packet_bytes: int) -> int:
    """How many packets from `at` on, where there is a data packet, follow each other in one frame.

    Every head is looked at.  Whether they are the sender's only the frame's checksum can tell.
    """
    head = _unpack_head(data, at)
    place, number, packets = head[3], head[6], head[9]
    count = 1
    for start in range(at + packet_bytes, len(data) - PAYLOAD_AT, packet_bytes):
        other = _unpack_head(data, start)
        if (
            place + count >= packets
            or other[0] != head[0]
            or not 0 < other[1] <= REPAIR
            or other[3] != place + count
            or other[4:6] != head[4:6]
            or other[6] != number + count
            or other[7:] != head[7:]
        ):
            break
        count += 1
    return count


def join_runs(runs: list[Run]) -> bytes:
    """The payloads of all their packets, one behind the other."""
    parts: list[memoryview] = []
    for count, data, at, size, *_ in runs:
        view = memoryview(data)
        parts += [view[a + PAYLOAD_AT : a + size] for a in range(at, at + count * size, size)]
    return b"".join(parts)


run_length_in_python = run_length
join_runs_in_python = join_runs
if COMPILED:
    run_length = _speed.run_length  # type: ignore[assignment]
    join_runs = _speed.join_runs  # type: ignore[assignment]
