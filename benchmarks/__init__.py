"""Measurements of meshmsg beside raw pyzmq: `make bench`, or `python benchmarks/run.py --help`."""
