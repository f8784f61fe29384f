"""Lets Spark find format `meshmsg` by itself: it imports every `pyspark_*` that is installed."""

from __future__ import annotations

try:
    from meshmsg.spark_sink.source.source import MeshDataSource as DefaultSource
except ImportError:  # an older pyspark looks here too: it must not fail for every other format
    pass
else:
    __all__ = ["DefaultSource"]
