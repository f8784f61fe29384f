"""Measure meshmsg beside raw pyzmq.  The options and what they do are in `command`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # From the root, as `benchmarks.x`: in this folder a bare `import profile` would find ours.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.command import main

    sys.exit(main())
