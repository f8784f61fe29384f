"""A program that stands for `meshmsg sink --json`: it says what it is told, and ends as it is told.

    python tests/support/programs/sink_stub.py MODE COMMAND...

COMMAND is what `SinkProcess` would have run; it is said on standard error.  MODE is `serve` (until
SIGTERM, then status 0), `deaf` (SIGTERM does nothing), or a number: the status to end with at once.
"""

from __future__ import annotations

import json
import signal
import sys


def main() -> None:
    mode, *command = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for
    print(*command[3:], file=sys.stderr, flush=True)
    if mode not in ("serve", "deaf"):
        sys.exit(int(mode))
    print(json.dumps({"ready": False, "outputs": []}))
    print(json.dumps({"ready": True, "outputs": [{"output": "lake", "rows": 3}]}), flush=True)
    signal.sigwait({signal.SIGTERM})
    while mode == "deaf":
        signal.sigwait({signal.SIGTERM})
    print(json.dumps({"ready": False, "outputs": [{"output": "lake", "rows": 4}]}), flush=True)


if __name__ == "__main__":
    main()
