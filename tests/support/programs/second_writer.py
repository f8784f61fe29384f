"""A program that opens a log for writing that another process writes, and tells what it is told.

python tests/support/programs/second_writer.py DATA_DIR STREAM
"""

from __future__ import annotations

import sys

from meshmsg._model.errors import LogLocked
from meshmsg.recovery.log.writer import LogWriter


def main() -> None:
    try:
        LogWriter(*sys.argv[1:]).open()
    except LogLocked as error:
        print(error.pid, error)


if __name__ == "__main__":
    main()
