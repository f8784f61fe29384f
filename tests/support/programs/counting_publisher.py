"""A program that publishes jobs with their number on a durable stream, until it is killed.

    python tests/support/programs/counting_publisher.py DATA_DIR ADDRESS FIRST STOP

Waits for a subscriber before the very first job.  Prints each number when `publish` has returned.
"""

from __future__ import annotations

import signal
import sys

from meshmsg import Peer, Stream


def main() -> None:
    data_dir, address, first, stop = sys.argv[1:]
    stream = Stream("jobs.**", durability="log", overflow="spill", segment_bytes="64KiB")
    with Peer("shop", bind=address, streams=[stream], data_dir=data_dir) as peer:
        if first == "0":  # the group starts live
            peer.wait_for_subscribers("jobs.a", timeout=60)
        for n in range(int(first), int(stop)):
            peer.publish("jobs.a", n, key=f"k{n % 7}" if n % 3 else None)
            print(n, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
