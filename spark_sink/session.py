"""A Spark session that knows the mesh, with the settings that make small batches cheap."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshmsg.spark_sink.java import ensure_java
from meshmsg.spark_sink.sockets import socket_folder
from meshmsg.spark_sink.source.source import MeshDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Without a native Hadoop library the default forks about 17 processes a batch: 100 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What the sink daemon runs with, and `session` unless told otherwise."""

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""A Spark that is all on this machine listens to nobody else."""


def _local_settings() -> dict[str, str]:
    settings = dict(LOCAL_SETTINGS)
    folder = socket_folder()
    if folder is not None:
        # Over TCP a task waits 40 ms for its first bytes: small writes, and an answer put off.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = folder
    return settings


def register(spark: SparkSession) -> SparkSession:
    """Make `format("meshmsg")` known to a session; not needed where meshmsg is installed."""
    spark.dataSource.register(MeshDataSource)
    return spark


def session(
    app_name: str = "meshmsg",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """A session with `format("meshmsg")`, with a Java found; raises `JavaMissing`.

    `master` is a Spark master (default: `local[*]`), `remote` a Spark Connect server instead.

    >>> spark = session(master="local[2]")                                     # doctest: +SKIP
    >>> spark.read.format("meshmsg").load("./data").show()                     # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        ensure_java()
        # Else tasks run whatever `python3` is on the path, without meshmsg.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        chosen = str(master or (config or {}).get("spark.master", "local[*]"))
        builder = builder.master(chosen)
        settings = dict(SETTINGS)
        if chosen.startswith("local"):
            settings |= _local_settings()
        for key, value in settings.items():
            builder = builder.config(key, value)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())
