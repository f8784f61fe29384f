"""A program that fills tails as the Python code beside the compiled core does.

    MESHMSG_PURE=1 python tests/support/programs/pure_tail.py

Each line of its input has rows, the size of the area, the first number, the start, the salt, the
stream and the epoch, as Python writes them; each line of its output what the tail said, the area,
and the frame.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from meshmsg._native import COMPILED
from meshmsg._wire.tail_frame import TailFrame

Row = tuple[str, bytes, int, bool, str | None, bytes | None]
"""Topic, payload, time, whether it is raw, key and packed headers of an event."""


def fill(
    frame: Any, rows: list[Row], size: int, start: int, salt: int, stream: int, epoch: int
) -> tuple[list[Any], bytes, bytes | None]:
    """What a tail says of each event, the area, and the frame of those that it took."""
    area = bytearray(size)
    frame.use(memoryview(area), start, salt)
    said = []
    for topic, payload, time_ns, raw, key, headers in rows:
        added = frame.add(topic, payload, time_ns, raw=raw, key=key, headers=headers)
        said.append((added, frame.at, frame.count, frame.next))
    data = frame.seal(stream, epoch) if frame.is_open() else None
    frame.release()
    return said, bytes(area), data


def main() -> None:
    assert not COMPILED
    for line in sys.stdin:
        rows, size, first, *more = ast.literal_eval(line)
        print(repr(fill(TailFrame(first), rows, size, *more)), flush=True)


if __name__ == "__main__":
    main()
