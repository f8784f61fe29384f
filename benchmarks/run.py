"""Measure meshmsg beside others.  The options are in `command`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # From the root, as `benchmarks.x`: in this folder a bare `import profile` would find ours.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.space import enter

    enter(sys.argv)
    from benchmarks.command import main

    sys.exit(main())
