"""A program that stands for Spark's driver of a sink: it says what it is told to say.

    python tests/support/programs/sink_driver.py SCRIPT

SCRIPT is a file of JSON: `key`, the name of the epoch that it commits; `lives`, for each start a
list of steps, the last one for all further starts as well; `config`, a file for what the daemon
tells it; and `runs`, a file that grows by a byte with each start.  A step is the name of a method
of `Driver` and its arguments.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Driver:
    """What a driver can do."""

    def __init__(self, key: str) -> None:
        self._key = key

    def say(self, kind: str, fields: dict[str, Any]) -> None:
        print(json.dumps({"kind": kind, "output": "lake", **fields}), flush=True)

    def commit(self, to: int, fields: dict[str, Any]) -> None:
        counts = {"events": to, "rows": to, "lost": 0, "quarantined": 0, "bytes": 1}
        times = {"write_ms": 5.0, "stage_ms": 4.0, "newest_time": time.time()}
        self.say("commit", {"positions": {self._key: to}, **counts, **times, **fields})

    def print(self, text: str) -> None:
        print(text, flush=True)

    def exit(self, status: int) -> None:
        sys.exit(status)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def note_pid(self, path: str) -> None:
        Path(path).write_text(str(os.getpid()))

    def end_daemon(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)

    def wait_for_stop(self) -> None:
        assert sys.stdin.readline() == "stop\n"

    def hang(self) -> None:
        while True:
            signal.pause()


def main() -> None:
    script = json.loads(Path(sys.argv[1]).read_text())
    Path(script["config"]).write_text(sys.stdin.readline())
    with open(script["runs"], "a") as file:
        file.write("x")
    run = os.path.getsize(script["runs"])
    driver = Driver(script["key"])
    for step, *arguments in script["lives"][min(run, len(script["lives"])) - 1]:
        getattr(driver, step)(*arguments)


if __name__ == "__main__":
    main()
