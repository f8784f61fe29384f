"""One Spark for all tests of this folder: its start costs more than most of them.

They run in one worker of xdist: see `tests/conftest.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def connect_port() -> int:
    """Where the Spark of the tests listens for Spark Connect."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def the_only_one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fails if another worker has a Spark already, and was not to have one."""
    if request.config.getoption("loadgroup", default=False):
        (tmp_path_factory.getbasetemp().parent / "spark").touch(exist_ok=False)


@pytest.fixture(scope="session")
def spark(connect_port: int, the_only_one: None) -> Iterator[Any]:
    """A local Spark of two cores, which takes Spark Connect as well."""
    from meshmsg.spark_sink import session

    made = session(
        "meshmsg tests",
        master="local[2]",
        config={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": connect_port,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": 1,
            # How soon a query that has nothing to do says how it stands; ten seconds otherwise.
            "spark.sql.streaming.noDataProgressEventInterval": 200,
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": "/nonexistent",
        },
    )
    yield made
    made.stop()
