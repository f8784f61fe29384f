"""A program that dies of a signal in the middle of an entry of the tail.

    python tests/support/programs/torn_tail.py FILE AT

Maps FILE, which has two pages, so that nobody may write to the second, and adds an event at offset
AT whose payload lies in both.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys

from meshmsg._wire.tail_frame import TailFrame


def main() -> None:
    path, at = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as area:
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        assert (
            ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 1)
            == 0
        )
        frame = TailFrame(0)
        frame.use(memoryview(area), at, 1)
        frame.add("topic", bytes(range(1, 256)) * 8, 1)


if __name__ == "__main__":
    main()
