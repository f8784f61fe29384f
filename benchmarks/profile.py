"""Where the time of a publisher and of a subscriber goes.

    python benchmarks/profile.py                      event by event, 64 B, 1 -> 1
    python benchmarks/profile.py --way sync-batches   in batches
    python benchmarks/profile.py --way raw            raw pyzmq, for comparison

Each process is looked at a thousand times a second, which disturbs it little; a profiler that
counts calls would make exactly the calls expensive that there are most of.  A line stands for what
it calls in C: Python notices that it is time to look once such a call has returned.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # From the root: cProfile and others import the standard module that is called like this one.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.sampling import main

    sys.exit(main())
