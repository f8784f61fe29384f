"""What a log can give to somebody who misses events: the second rung of the repair ladder.

Like `RetransmitBuffer.find`, from disk: frames for ranges, and what is gone, by reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from meshmsg._model.event import Loss
from meshmsg.recovery.log.reader import Entry
from meshmsg.recovery.stream.ranges import RangeSet
from meshmsg.recovery.stream.retransmit_buffer import ANSWER_FRAMES_MAX

Range = tuple[int, int]


class Steps(Protocol):
    """What reads a log step by step."""

    def seek(self, epoch: int, seq: int) -> None:
        """Stand before this event."""

    def step(self, stop: int) -> Entry | Loss | None:
        """The next frame or loss; `None` if there is nothing more yet.

        Frames that begin at `stop` or later are not joined to it.
        """


def find_frames(
    reader: Steps,
    epoch: int,
    ranges: Iterable[Range],
    *,
    bytes_max: int,
    frames_max: int = ANSWER_FRAMES_MAX,
) -> tuple[list[bytes], dict[str, list[Range]], bool]:
    """Frames for ranges of an epoch, each once; what is gone, by reason; whether that is all.

    What the log does not have yet is neither.  At least one frame is given if there is one.
    """
    frames: list[bytes] = []
    gone: dict[str, RangeSet] = {}
    size = sent_stop = 0
    # From the network: one that runs backward is empty.
    for first, stop in RangeSet(r for r in ranges if r[0] < r[1]):
        at = max(first, sent_stop)
        if at >= stop:
            continue
        reader.seek(epoch, at)
        while at < stop:
            item = reader.step(stop)
            if item is None or item.epoch != epoch:
                break  # the rest is yet to come, or never was
            at = item.stop
            if isinstance(item, Loss):
                gone.setdefault(item.reason, RangeSet()).add(item.first, min(item.stop, stop))
                continue
            full = size + len(item.data) > bytes_max or len(frames) >= frames_max
            if frames and full:
                return frames, _lists(gone), False
            frames.append(item.data)
            size += len(item.data)
            sent_stop = item.stop
    return frames, _lists(gone), True


def _lists(gone: dict[str, RangeSet]) -> dict[str, list[Range]]:
    return {reason: list(ranges) for reason, ranges in gone.items()}
