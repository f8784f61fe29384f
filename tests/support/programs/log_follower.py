"""A program that follows a log while it is written.

    python tests/support/programs/log_follower.py FOLDER STOP

Prints `ready` when it begins, and how far it came when that is STOP.
"""

from __future__ import annotations

import sys
import time

from meshmsg._model.event import Loss
from meshmsg.recovery.log.reader import LogReader


def main() -> None:
    folder, stop = sys.argv[1], int(sys.argv[2])
    wanted = 0
    with LogReader(folder) as reader:
        reader.seek_earliest()
        print("ready", flush=True)
        while wanted < stop:
            for item in reader.runs():
                assert not isinstance(item, Loss), item
                assert item.frame.first + item.lo == wanted, (item, wanted)
                wanted = item.frame.stop
            time.sleep(0.001)
    print("all", wanted)


if __name__ == "__main__":
    main()
