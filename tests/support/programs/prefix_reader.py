"""A program that reads a log while another process writes it, and checks each event.

    python tests/support/programs/prefix_reader.py FOLDER SEED

Reads from the start on again and again, and follows the log beside that; event `n` has to say so.
Prints a line for each look.  When its input says how many events there are, prints `good` and how
many it followed; or what was wrong.
"""

from __future__ import annotations

import random
import select
import sys

from meshmsg._model.event import Loss
from meshmsg.recovery.log.reader import LogReader


class Wrong(Exception):
    """An event that is not the next one, or not whole."""


def read_on(reader: LogReader) -> None:
    """All that is there from the reader's place on."""
    wanted = reader.next
    for item in reader.runs():
        if isinstance(item, Loss):
            raise Wrong(f"{item} at {wanted}")
        if item.frame.first + item.lo != wanted:
            raise Wrong(f"{item.frame.first + item.lo} instead of {wanted}")
        for payload in item.frame.payloads.split(item.lo, item.hi):
            if payload != b"%d " % wanted * (wanted % 23 + 1):
                raise Wrong(f"{payload!r} instead of event {wanted}")
            wanted += 1
    if reader.next != wanted:
        raise Wrong(f"stands at {reader.next}, not at {wanted}")


def main() -> None:
    folder, rng = sys.argv[1], random.Random(sys.argv[2])
    newest = 0
    with LogReader(folder) as follower:
        follower.seek(7, 0)
        while not select.select([sys.stdin], [], [], 0)[0]:
            read_on(follower)
            with LogReader(folder) as reader:
                reader.seek(7, rng.choice([0, max(0, follower.next - rng.randrange(3000))]))
                read_on(reader)
                if reader.next < newest:
                    raise Wrong(f"{reader.next} events where there were {newest}")
                reader.seek_latest()
                newest = max(newest, reader.next)
            print("looked", flush=True)
        stop = int(sys.stdin.readline())
        read_on(follower)
        if follower.next != stop:
            raise Wrong(f"{follower.next} of {stop} events")
    print("good", follower.next)


if __name__ == "__main__":
    try:
        main()
    except Wrong as error:
        print("wrong:", error)
