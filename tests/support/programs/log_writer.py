"""A program that writes a log until it is killed.

    python tests/support/programs/log_writer.py DATA_DIR FSYNC SEED

Prints the epoch, and then how far it has written what it may call written.
"""

from __future__ import annotations

import random
import sys
import time

from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.writer import LogWriter

STREAM = "victim/numbers.**"


def main() -> None:
    data_dir, fsync, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = random.Random(seed)
    wire_id = stream_wire_id("default", STREAM)
    allocated = rng.choice([0, 30_000])
    settings = LogSettings(fsync=fsync, segment_bytes=100_000, allocate_bytes=allocated)
    writer = LogWriter(data_dir, STREAM, settings=settings)
    writer.open()
    epoch = writer.begin(1_000_000 - seed)  # a clock that goes back
    print("epoch", epoch, flush=True)
    while True:
        first = writer.next
        count = rng.choice([1, 1, 5, 200])
        payloads = [b"%d:%d" % (epoch, n) for n in range(first, first + count)]
        frame = encode_frame(wire_id, epoch, first, "numbers.n", payloads, time.time_ns())
        writer.append(frame, first, first + count)
        if fsync != "batch" or rng.random() < 0.1:
            writer.flush()
        print(writer.next, flush=True)


if __name__ == "__main__":
    main()
