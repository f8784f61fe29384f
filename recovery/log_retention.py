"""Which segments of a log may go: by age, by bytes, and never what a cursor holds.

Pure: the segments with their sizes and times go in, those to remove come out.  Whole segments go,
the oldest first, and none behind one that stays, so that a log never has a hole.  The last segment
always stays: it has the name of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshmsg._errors import ConfigError
from meshmsg._values import parse_size, parse_time
from meshmsg.recovery.log_format import SegmentName


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a log is kept; without either, all of it.

    >>> Retention.parse("7d,10GB")
    Retention(age_s=604800.0, bytes_max=10000000000)
    """

    age_s: float | None = None
    """A segment goes when its newest event is older."""
    bytes_max: int | None = None
    """Oldest segments go while all segments together have more bytes."""

    @classmethod
    def parse(cls, text: str | None) -> Retention:
        """From `"7d"`, `"10GB"` or both with a comma; raises `ConfigError`."""
        age_s = bytes_max = None
        for part in [] if text is None else str(text).split(","):
            word = part.strip()
            if word[-1:].lower() == "b":
                bytes_max = parse_size("retention", word)
                continue
            try:
                if not word[-1:].isalpha():
                    raise ConfigError("retention", "a unit is missing")
                age_s = parse_time("retention", word)
            except ConfigError:
                problem = f"{text!r} is not an age or a size: write '7d', '10GB' or '7d,10GB'"
                raise ConfigError("retention", problem) from None
        return cls(age_s, bytes_max)


def expired(
    segments: Sequence[tuple[SegmentName, int]],
    retention: Retention,
    *,
    held: tuple[int, int] | None,
    now_ns: int,
    latest_ns: Callable[[SegmentName], int],
) -> list[SegmentName]:
    """The segments to remove, oldest first.

    `segments` are those that count, in order, with their bytes; `latest_ns` is asked for the time
    of the newest event of one, only as far as it matters.
    """
    total = sum(size for _, size in segments)
    gone = []
    for (name, size), (following, _) in pairwise(segments):
        if held is not None and held < (following.epoch, following.first):
            break
        over = retention.bytes_max is not None and total > retention.bytes_max
        if not over and not _is_old(name, retention, now_ns, latest_ns):
            break
        gone.append(name)
        total -= size
    return gone


def _is_old(
    name: SegmentName,
    retention: Retention,
    now_ns: int,
    latest_ns: Callable[[SegmentName], int],
) -> bool:
    return retention.age_s is not None and latest_ns(name) < now_ns - int(retention.age_s * 1e9)
