"""How Spark reads the mesh: the only room that imports pyspark.

Belongs here: the Spark data source, which plans by position and reads the durable logs in parallel,
and the sink daemon that runs such a query.

Does not belong here: anything a peer without Spark needs. No other part of `meshmsg` imports this
package, so that a plain install works without the `spark` extra.
"""

from __future__ import annotations

from meshmsg import ConfigError

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _Newest  # noqa: F401
except ImportError as error:
    raise ConfigError(
        "meshmsg.spark_sink", f"needs PySpark 4.3 or later ({error}): pip install 'meshmsg[spark]'"
    ) from error

from meshmsg.spark_sink.errors import JavaMissing, LossInRange, OtherCheckpoint, ShortRead
from meshmsg.spark_sink.java import ensure_java
from meshmsg.spark_sink.session import SETTINGS, register, session
from meshmsg.spark_sink.source.source import MeshDataSource

__all__ = [
    "JavaMissing",
    "LossInRange",
    "MeshDataSource",
    "OtherCheckpoint",
    "SETTINGS",
    "ShortRead",
    "ensure_java",
    "register",
    "session",
]
