"""Measure meshmsg over multicast beside others.  The options are in `mcast.command`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # From the root, as `benchmarks.x`: in this folder a bare `import profile` would find ours.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.mcast.space import enter

    enter(sys.argv)
    from benchmarks.mcast.command import main

    sys.exit(main())
