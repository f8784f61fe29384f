"""Which segments of a log may go: by age, by bytes, and never what a cursor holds.

Pure: the segments with their sizes and times go in, those to remove come out.  Whole segments go,
the oldest first, and none behind one that stays, so that a log never has a hole.  The last segment
always stays: it has the name of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from meshmsg._model.log_policy import Retention
from meshmsg.recovery.log.format import SegmentName


def expired(
    segments: Sequence[tuple[SegmentName, int]],
    retention: Retention,
    *,
    now_ns: int,
    latest_ns: Callable[[SegmentName], int],
) -> list[SegmentName]:
    """The segments that may go, oldest first, whoever holds them.

    `segments` are those that count, in order, with their bytes; `latest_ns` is asked for the time
    of the newest event of one, only as far as it matters.
    """
    total = sum(size for _, size in segments)
    gone = []
    for name, size in segments[:-1]:
        over = retention.bytes_max is not None and total > retention.bytes_max
        if not over and not _is_old(name, retention, now_ns, latest_ns):
            break
        gone.append(name)
        total -= size
    return gone


def not_held(
    free: Sequence[SegmentName], segments: Sequence[SegmentName], held: tuple[int, int] | None
) -> list[SegmentName]:
    """Of those that may go, the ones before the place that is held."""
    gone = []
    for name, following in pairwise(segments[: len(free) + 1]):
        if held is not None and held < (following.epoch, following.first):
            break
        gone.append(name)
    return gone


def _is_old(
    name: SegmentName,
    retention: Retention,
    now_ns: int,
    latest_ns: Callable[[SegmentName], int],
) -> bool:
    return retention.age_s is not None and latest_ns(name) < now_ns - int(retention.age_s * 1e9)
