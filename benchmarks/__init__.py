"""Measurements of meshmsg beside raw pyzmq: `make bench`, or `python benchmarks/run.py --help`."""

import os

# What is measured is not to meet what else runs on the machine.
os.environ.setdefault("MESHMSG_DISCOVERY", "none")
