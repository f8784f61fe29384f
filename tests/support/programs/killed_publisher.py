"""A program that publishes on a durable stream until it is killed.

    python tests/support/programs/killed_publisher.py DATA_DIR ADDRESS SETTINGS

SETTINGS is a JSON object: `seed`, `fsync`, `groups`, `threads`, the `times` that each of them
publishes, and how `many` events some of the times.  When `publish` has returned, prints the epoch,
the first and the stop of the events' numbers, and their payload: what is printed was acknowledged.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from typing import Any

from meshmsg import Peer, Position, Stream

PRINTING = threading.Lock()


def work(peer: Peer, settings: dict[str, Any], thread: int) -> None:
    seed = settings["seed"]
    rng = random.Random(seed * 10 + thread)
    for n in range(settings["times"]):
        count = rng.choice([1, 1, 1, settings["many"]])
        data = b"%d %d %d" % (seed, thread, n)
        if count == 1:
            last: Position | None = peer.publish("a.b", data, key=rng.choice([None, "k", "l", "m"]))
        else:
            last = peer.publish_many("a.b", [data] * count)
        assert last is not None
        with PRINTING:
            print(last.epoch, last.seq + 1 - count, last.seq + 1, data.decode(), flush=True)


def main() -> None:
    data_dir, address, text = sys.argv[1:]
    settings: dict[str, Any] = json.loads(text)
    stream = Stream(
        "a.**",
        durability="log",
        fsync=settings["fsync"],
        segment_bytes="64KiB",
        groups=settings["groups"],
    )
    with Peer("victim", bind=address, streams=[stream], data_dir=data_dir) as peer:
        for thread in range(1, settings["threads"]):
            threading.Thread(target=work, args=(peer, settings, thread), daemon=True).start()
        work(peer, settings, 0)
        signal.pause()


if __name__ == "__main__":
    main()
