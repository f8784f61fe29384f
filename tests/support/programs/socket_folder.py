"""A program that has a folder for Spark's sockets until its input ends.

    python tests/support/programs/socket_folder.py PARENT ended|killed

Prints where it is.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile

from meshmsg.spark_sink import sockets


def main() -> None:
    parent, end = sys.argv[1:]
    tempfile.tempdir = parent
    print(sockets.socket_folder(), flush=True)
    sys.stdin.read()
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
